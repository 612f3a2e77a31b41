"""A machine that trains clients: model, method's client half, backend and evaluator, whoever the clients are.

The simulator is one for a whole federation; a node of a deployment is one for its own data.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from counterpoise.engine.acceleration.replay import pure
from counterpoise.engine.backends.batched import Batched, refused
from counterpoise.engine.backends.distributed import Distributed, Group
from counterpoise.engine.backends.interface import Backend, Job
from counterpoise.engine.backends.perclient import PerClient
from counterpoise.engine.backends.settings import Engine, chunk
from counterpoise.engine.backends.stacking import stacks, unbatched
from counterpoise.engine.clients.batches import client_keys, seen
from counterpoise.engine.clients.inspection import inspect_model
from counterpoise.engine.clients.program import Named, Program, Sent, Shared, by_autograd, by_functions
from counterpoise.engine.devices import put
from counterpoise.engine.rounds.admission import finite
from counterpoise.engine.rounds.evaluation import Evaluation, Evaluator
from counterpoise.engine.rounds.records import RESERVED
from counterpoise.engine.rounds.store import Store
from counterpoise.engine.scores import Loss, Metric, accuracy, cross_entropy
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.assignment import Elsewhere
from counterpoise.federation.federation import Federation
from counterpoise.federation.samples import Samples
from counterpoise.flat import Layout
from counterpoise.local import Local
from counterpoise.memory import bytes_in_words, machine_memory
from counterpoise.method import Cohort, Method
from counterpoise.randomness import check_seed, integer, purpose

__all__ = ["Trainer"]

log = logging.getLogger(__name__)


_PLACE_BYTES = 40
"""What each place of a batch takes while batches are drawn: its number twice, its row, its share, its masks."""
_RECORDED = 2**22
"""Parameters up to which steps are recorded unasked: those of larger models are long, take seconds to record and hardly gain."""


class Trainer:
    """All that local training and evaluation need; `cohort` is how many clients it trains at once."""

    def __init__(
        self,
        method: Method,
        federation: Federation,
        model: nn.Module,
        *,
        cohort: int,
        local: Local,
        loss: Loss | None = None,
        metrics: Mapping[str, Metric] | None = None,
        seed: int = 0,
        engine: Engine | None = None,
        evaluation: Evaluation | None = None,
    ) -> None:
        check_seed(seed)
        self.seed, self.cohort_size = seed, cohort
        self.layout = Layout.of(model)
        if loss is None and federation.classes is None:
            raise CounterpoiseError(
                "These targets are not class numbers; give simulate a loss that returns one value per sample."
            )
        loss = loss or cross_entropy
        if metrics is None:
            metrics = {"accuracy": accuracy} if federation.classes else {}
        for name in metrics:
            if name in RESERVED or (evaluation and evaluation.train_every and name.startswith("train_")):
                raise CounterpoiseError(f"A metric cannot be called {name!r}: the run's record uses that name itself.")
        scores = {"loss": loss, **metrics}
        self.traits = inspect_model(model, federation, scores)
        self.layout = self.layout.ending(self.traits.output)
        self.program = Program(method, local, loss, by_autograd)
        sizes, steps = _work(federation, local)
        batch = max(1, min(local.batch, int(sizes.max())))
        numbers = max(self.layout.size, batch * prod(federation.shape))
        asked = engine or Engine()
        device = torch.device(asked.place)
        group = Group.join(device)
        share = cohort if group is None else -(-max(cohort, 1) // group.size)
        dtype = asked.torch_dtype
        module = copy.deepcopy(model).to(device=device, dtype=dtype)
        together = False
        if asked.backend == "batched" or (asked.backend == "auto" and (asked.bf16 or device.type != "cpu")):
            asked = _as_one_batch(asked, unbatched(self.program, module, federation, self.traits.keyed))
        elif asked.backend == "auto":
            most = max(1, min(asked.chunk or chunk("cpu", share, numbers), share))
            typical = _typical(steps, share)
            together = stacks(self.program, module, federation, self.traits.keyed, typical, most, batch)
        records = self.layout.size <= _RECORDED and pure(module, self.program.code)
        self.engine = asked.resolve(cohort, numbers, together, records)
        if self.traits.unkeyed:
            log.warning(
                "The model draws random numbers that cannot be keyed by client: the run repeats only for this backend and chunk."
            )
            self.engine = replace(self.engine, record=False)
            if self.engine.backend == "per-client":
                self.engine = replace(self.engine, threads=1)
        self.federation = federation.to(device)
        batched = self.engine.backend == "batched"
        if batched:
            self.program = replace(self.program, differentiate=by_functions)
        most, threads = min(self.engine.chunk or 1, max(share, 1)), self.engine.threads or 1
        _check_plan(local, int(steps.max()), batch, most if batched else min(threads, max(share, 1)))
        self.backend: Backend = (
            Batched(
                self.program,
                module,
                self.layout,
                self.traits.keyed,
                most,
                dtype,
                fused=self.engine.compile,
                lowered=self.engine.convolutions == "triton",
                half=self.engine.bf16,
                replays=bool(self.engine.record),
            )
            if batched
            else PerClient(
                self.program, module, self.layout, self.traits.keyed, threads, dtype, replays=bool(self.engine.record)
            )
        )
        if group is not None:
            self.backend = Distributed(self.backend, self.program, group)
        self.module = module
        self.start = self.layout.flatten([p.detach() for p in module.parameters() if p.requires_grad]).clone()
        self.client_state = {
            p.name: Store(p.client_state(self.start), self.memory) for p in method.parts if p.client_state is not None
        }
        evaluation = evaluation or Evaluation()
        self.evaluator = Evaluator(
            evaluation,
            self.backend,
            self.federation,
            scores,
            dtype,
            trained=0.0 if evaluation.settled else cohort * local.passes * _mean(seen(sizes, steps, local.batch)),
            models=1 + sum(part.personal is not None for part in method.parts),
            seed=seed,
        )

    @property
    def memory(self) -> float:
        """Bytes that the rows kept of clients may take in memory."""
        return self.engine.store_gib * 2**30

    def job(
        self, shared: Shared, samples: Samples, clients: Tensor, sizes: Tensor, rows: Tensor, round: int, state: Named
    ) -> Job:
        """The training of some clients in a round, each on so many of its rows."""
        steps = self.program.local.steps_of(clients.clamp(min=0), sizes)
        return Job(shared, samples, rows, sizes, steps, clients, client_keys(self.seed, round, clients), state)

    def replies(self, ids: Sequence[int], job: Job, sent: Sent) -> Cohort:
        """Honest replies: each client claims the count it trained on."""
        counts = torch.stack((job.sizes, job.steps * self.program.local.passes)).double()
        examples, steps = put(counts, job.device).unbind()
        return Cohort(tuple(ids), sent.update, examples, steps, sent.reports)

    def keep(self, part: str, ids: Sequence[int], sent: Sent, accepted: Sequence[bool]) -> None:
        """What a part keeps on clients for their next round: of those accepted, unless it is not finite."""
        rows = sent.state[part]
        good = torch.stack([finite(values) for values in rows.values()]).all(0).tolist()
        if not all(told := [fine and taken for fine, taken in zip(good, accepted, strict=True)]):
            kept = put(torch.tensor(told), self.start.device)
            rows = {key: values[kept] for key, values in rows.items()}
        self.client_state[part].scatter([client for client, stays in zip(ids, told, strict=True) if stays], rows)

    def personal(self, model: Tensor) -> dict[str, dict[int, float]]:
        """Metrics of each client's own model, where a part makes one and the client has been seen."""
        each: dict[str, dict[int, float]] = {}
        for part in self.program.method.parts:
            store, own = self.client_state.get(part.name), part.personal
            if own is not None and store is not None:
                each |= self.evaluator.evaluate_personal(store, partial(_own_models, own, model, store))
        return each

    @contextlib.contextmanager
    def setting(self, round: int) -> Iterator[None]:
        """Torch's own switches, as the resolved setting says, for the time of a round."""
        before = torch.get_num_threads()
        with contextlib.ExitStack() as stack:
            torch.set_num_threads(self.engine.threads or before)
            stack.callback(torch.set_num_threads, before)
            stack.callback(setattr, torch.backends.mkldnn, "enabled", torch.backends.mkldnn.enabled)
            torch.backends.mkldnn.enabled = bool(self.engine.onednn)  # type: ignore[assignment]
            if self.program.second_order:  # the only attention kernel that can be differentiated twice
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            if torch.device(self.engine.device).type == "cuda":
                stack.enter_context(torch.cuda.device(self.engine.device))
                tf32 = self.engine.tf32
                stack.enter_context(
                    torch.backends.cudnn.flags(True, benchmark=False, deterministic=True, allow_tf32=tf32)
                )
                stack.callback(setattr, torch.backends.cuda.matmul, "allow_tf32", torch.backends.cuda.matmul.allow_tf32)
                torch.backends.cuda.matmul.allow_tf32 = tf32
            if self.traits.unkeyed:
                stack.enter_context(torch.random.fork_rng())
                torch.manual_seed(integer(self.seed, purpose("unkeyed"), round))
            yield


def _as_one_batch(asked: Engine, reason: str) -> Engine:
    """The setting asked for, given why clients cannot be trained as one batch; an open choice goes to the other backend."""
    if reason and (asked.backend == "batched" or asked.bf16):
        raise refused(reason)
    if reason:
        log.warning(
            "Clients train one by one, not as one batch of them, which is slower on a GPU, because: %s.", reason
        )
        return replace(asked, backend="per-client")
    return asked


def _work(federation: Federation, local: Local) -> tuple[Tensor, Tensor]:
    """How many samples every client trains on, and in how many steps a pass. The server of a deployment trains none."""
    clients = torch.arange(federation.clients)
    sizes = torch.zeros_like(clients)
    if not isinstance(federation.train, Elsewhere):
        sizes = federation.train.sizes(clients)
    return sizes, local.steps_of(clients, sizes)


def _check_plan(local: Local, steps: int, batch: int, clients: int) -> None:
    """Refuse a round whose batches, which are drawn before a client begins, do not fit into memory."""
    needs, has = clients * local.passes * steps * batch * _PLACE_BYTES, machine_memory()
    if has is not None and needs > has:
        raise CounterpoiseError(
            f"local: {local.passes * steps} steps of {batch} samples in a round take {bytes_in_words(needs)} to plan for "
            f"{clients} clients at once, and this machine has {bytes_in_words(has)}. Use fewer epochs or steps."
        )


def _typical(steps: Tensor, cohort: int) -> Tensor:
    """The steps of a cohort that is as unequal as all clients are."""
    return steps.sort().values[(2 * torch.arange(cohort) + 1) * len(steps) // max(1, 2 * cohort)]


def _mean(counts: Tensor) -> float:
    return float(counts.double().mean())


def _own_models(
    own: Callable[[Tensor, Mapping[str, Tensor]], Tensor], model: Tensor, store: Store, clients: Sequence[int]
) -> Tensor:
    models: Tensor = vmap(own, in_dims=(None, 0))(model, store.gather(clients))
    return models
