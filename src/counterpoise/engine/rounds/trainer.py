"""What trains and evaluates clients: the model, the method's client half, the backend and the evaluator.

The simulator has one trainer for a whole federation; a node of a deployment has one for its own data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from counterpoise.engine.backends.batching import cropped
from counterpoise.engine.backends.distributed import Group
from counterpoise.engine.backends.interface import Job
from counterpoise.engine.backends.making import Work, choose_setting, count_work, make_backend
from counterpoise.engine.backends.settings import Engine
from counterpoise.engine.clients.batches import client_keys, count_seen
from counterpoise.engine.clients.inspection import inspect_model
from counterpoise.engine.clients.keeping import keeping
from counterpoise.engine.clients.program import Named, Program, Shared, TrainingResult, by_autograd
from counterpoise.engine.clients.returned import check_named, check_vector
from counterpoise.engine.clients.statistics import keeping_statistics, with_statistics
from counterpoise.engine.devices import put
from counterpoise.engine.rounds.admission import finite
from counterpoise.engine.rounds.applied import call_on_server
from counterpoise.engine.rounds.evaluation import WIDEST, Evaluation, Evaluator
from counterpoise.engine.rounds.records import RESERVED
from counterpoise.engine.rounds.setup import Training
from counterpoise.engine.rounds.store import Store
from counterpoise.engine.scores import Loss, Metric, Metrics, accuracy, cross_entropy, is_cross_entropy, named_metrics
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.federation import Federation
from counterpoise.federation.samples import Samples
from counterpoise.flat import Layout
from counterpoise.method import Cohort, Part
from counterpoise.models.batch_norm import norm_of
from counterpoise.models.building import build_model
from counterpoise.models.copies import sharing_copy
from counterpoise.models.digests import frozen_digest
from counterpoise.parts.statistics import BATCH_NORM
from counterpoise.randomness import integer, purpose

__all__ = ["Trainer"]


class Trainer:
    """All that local training and evaluation need.

    `cohort` is how many clients train in a round, and `rounds` how many rounds there are, or 0 if that is not known.
    """

    def __init__(
        self,
        training: Training,
        federation: Federation,
        *,
        cohort: int,
        seed: int = 0,
        evaluation: Evaluation | None = None,
        rounds: int = 0,
    ) -> None:
        local = training.local
        self.seed, self.cohort_size = seed, cohort
        federation = cropped(federation, local)
        model = build_model(training.model, federation, seed)
        self.layout = Layout.of(model)
        evaluation = evaluation or Evaluation()
        scores = _scores(federation, training.loss, training.metrics, evaluation)
        self.asked = asked = training.engine
        # Inspected in the precision of training, because a user's weights may have half precision or mixed ones.
        self.traits = inspect_model(sharing_copy(model, dtype=asked.torch_dtype), federation, scores)
        self.norm, self.layout = norm_of(model), self.layout.ending(self.traits.output)
        device = torch.device(asked.place)
        self.module = sharing_copy(model, device, asked.torch_dtype, buffers=True)
        method = keeping_statistics(keeping(training.method, local.optimizer), self.module)
        program = Program(method, local, scores["loss"], by_autograd)
        self.group = group = Group.join(device)
        self.work = work = count_work(federation, local, self.layout.size, self.traits, cohort, group, rounds)
        self.engine = choose_setting(asked, program, self.module, federation, self.traits, work)
        self._switches = _switches(self.engine, device)
        self.federation = federation.to(device)
        self.program, self.backend = make_backend(
            self.engine, program, self.module, self.layout, self.traits.keyed, work, group
        )
        self.start = self.layout.flatten([p.detach() for p in self.module.parameters() if p.requires_grad]).clone()
        self.client_state = {
            p.name: Store(check_named(p, "client_state", call_on_server(p, "client_state", self.start)), self.memory)
            for p in method.parts
            if p.client_state is not None
        }
        self.evaluator = self._make_evaluator(evaluation, scores, work)

    def _make_evaluator(self, evaluation: Evaluation, scores: dict[str, Metric], work: Work) -> Evaluator:
        local, parts = self.program.local, self.program.method.parts
        mean = float(count_seen(work.sizes, work.steps, local.batch).double().mean())
        return Evaluator(
            evaluation,
            self.backend,
            self.federation,
            scores,
            self.engine.torch_dtype,
            trained=0.0 if evaluation.settled else self.cohort_size * local.passes * mean,
            models=(self.norm != "local") + sum(part.personal is not None for part in parts),
            seed=self.seed,
            whole=self.norm == "batch",
            shared=self.norm != "local",
            most=self.traits.most_samples(WIDEST),
        )

    @cached_property
    def frozen(self) -> str:
        """A digest of the model's frozen weights, which are never sent; empty if there are none."""
        return frozen_digest(self.module)

    @property
    def memory(self) -> float:
        """How many bytes of memory the rows kept for clients may take."""
        return self.engine.store_gib * 2**30

    def make_job(
        self,
        shared: Shared,
        samples: Samples,
        clients: Tensor,
        sizes: Tensor,
        rows: Tensor,
        round: int,
        state: Named,
        letters: Named,
    ) -> Job:
        """The job of some clients in a round: client i trains on the first ``sizes[i]`` of its rows."""
        # The imagined clients of a rehearsal have negative numbers.
        steps = self.program.local.steps_of(clients.clamp(min=0), sizes)
        return Job(shared, samples, rows, sizes, steps, clients, client_keys(self.seed, round, clients), state, letters)

    def make_cohort(self, ids: Sequence[int], job: Job, results: TrainingResult) -> Cohort:
        """Honest replies: each client claims the count it trained on."""
        counts = torch.stack((job.sizes, job.steps * self.program.local.passes)).double()
        examples, steps = put(counts, job.device).unbind()
        return Cohort(tuple(ids), results.update, examples, steps, results.reports)

    def keep(self, part: str, ids: Sequence[int], results: TrainingResult, accepted: Sequence[bool]) -> None:
        """Store what a part keeps on clients for their next round, if the client was accepted and its state is finite."""
        rows = results.state[part]
        good = torch.stack([finite(values) for values in rows.values()]).all(0).tolist()
        if not all(stays := [fine and heard for fine, heard in zip(good, accepted, strict=True)]):
            kept = put(torch.tensor(stays), self.start.device)
            rows = {key: values[kept] for key, values in rows.items()}
        self.client_state[part].scatter([client for client, stay in zip(ids, stays, strict=True) if stay], rows)

    def personal(self, model: Tensor, state: Named) -> dict[str, dict[int, float]]:
        """Metrics of each client's own model, if a part makes one and the client has been seen.

        `model` and `state` are the server's.
        """
        each: dict[str, dict[int, float]] = {}
        for part in self.program.method.parts:
            store = self.client_state.get(part.name)
            if part.personal is not None and store is not None:
                each |= self.evaluator.evaluate_personal(store, partial(self._own_models, part, model, state))
        return each

    def measured(self, models: Tensor, state: Named) -> Tensor:
        """Models as they are evaluated: followed by the running statistics in `state`, the server's or some clients'."""
        return with_statistics(models, state.get(BATCH_NORM, {}))

    def _own_models(self, part: Part, model: Tensor, state: Named, clients: Sequence[int]) -> Tensor:
        """The models ``[M, ...]`` that a part makes for some clients, as they are evaluated."""

        def own(model: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
            assert part.personal is not None
            return check_vector(part, "personal", call_on_server(part, "personal", model, kept), model)

        models = vmap(own, in_dims=(None, 0))(model, self.client_state[part.name].gather(clients))
        if self.norm == "local":
            state = {BATCH_NORM: self.client_state[BATCH_NORM].gather(clients)}
        return self.measured(models, state)

    @contextlib.contextmanager
    def setting(self, round: int) -> Iterator[None]:
        """Set torch's own switches as the resolved setting says, for the time of a round."""
        with contextlib.ExitStack() as stack:
            if (before := torch.get_num_threads()) != (threads := self.engine.threads or before):
                torch.set_num_threads(threads)
                stack.callback(torch.set_num_threads, before)
            for owner, name, wanted in self._switches:
                if (found := getattr(owner, name)) != wanted:
                    setattr(owner, name, wanted)
                    stack.callback(setattr, owner, name, found)
            if self.program.second_order:  # the only attention kernel that can be differentiated twice
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            if self.start.is_cuda:
                stack.enter_context(torch.cuda.device(self.engine.device))
            if self.traits.unkeyed:
                stack.enter_context(torch.random.fork_rng())
                torch.manual_seed(integer(self.seed, purpose("unkeyed"), round))
            yield


def _switches(engine: Engine, device: torch.device) -> list[tuple[Any, str, bool]]:
    """Torch's global switches while a round runs: where each is, its name and its value."""
    switches: list[tuple[Any, str, bool]] = [(torch.backends.mkldnn, "enabled", bool(engine.onednn))]
    if device.type == "cuda":
        cudnn, tf32 = torch.backends.cudnn, bool(engine.tf32)
        switches += [(cudnn, "enabled", True), (cudnn, "benchmark", False), (cudnn, "deterministic", True)]
        switches += [(cudnn, "allow_tf32", tf32), (torch.backends.cuda.matmul, "allow_tf32", tf32)]
    return switches


def _scores(
    federation: Federation, loss: Loss | None, given: Metrics | None, evaluation: Evaluation
) -> dict[str, Metric]:
    """The loss and the metrics that models are measured by; by default those of a classifier."""
    sequences = federation.base.sequences and (loss is None or is_cross_entropy(loss))
    if loss is None and federation.classes is None and not sequences:
        raise CounterpoiseError(
            "These targets are not class numbers; give simulate a loss, such as loss='squared-error', or a function of "
            "outputs and targets that returns one value per sample. If they are classes, give whole numbers: "
            "y.astype('int64')."
        )
    usual = {"accuracy": accuracy} if federation.classes or sequences else {}
    metrics = usual if given is None else named_metrics(given)
    for name in metrics:
        if name in RESERVED or (evaluation.train_every and name.startswith("train_")):
            raise CounterpoiseError(f"A metric cannot be called {name!r}: the run's record uses that name itself.")
    return {"loss": loss or cross_entropy, **metrics}
