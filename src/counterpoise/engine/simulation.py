"""A federation simulated on one machine, round by round."""

from __future__ import annotations

import contextlib
import copy
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from counterpoise.adversary import Adversary
from counterpoise.engine.admission import Limits
from counterpoise.engine.backend import Backend, Job, put
from counterpoise.engine.batched import Batched
from counterpoise.engine.batches import client_keys, seen
from counterpoise.engine.client import Loss, Named, Program, Sent, Shared, by_autograd, by_functions
from counterpoise.engine.distributed import Distributed, Group
from counterpoise.engine.evaluation import Evaluation, Evaluator, Metric, accuracy, cross_entropy
from counterpoise.engine.inspection import inspect_model
from counterpoise.engine.messages import byte_count, pack_broadcast, pack_reply
from counterpoise.engine.perclient import PerClient
from counterpoise.engine.server import Outcome, Server
from counterpoise.engine.settings import Engine
from counterpoise.engine.store import Store, row_bytes
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.availability import DROPPED, Availability, Sampler, availability
from counterpoise.federation.federation import Federation
from counterpoise.federation.samples import Samples
from counterpoise.flat import Layout
from counterpoise.local import Local
from counterpoise.method import Cohort, Method
from counterpoise.randomness import check_seed, integer, purpose, sample

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

__all__ = ["Adversaries", "RoundRecord", "Simulation", "each_adversary"]

Meddler = Callable[[int, Cohort], Cohort]
"""``(round, replies) -> replies``, a function of the user's own between the clients and the server."""
Adversaries = Adversary | Meddler | Sequence[Adversary | Meddler]

RESERVED = (
    "round",
    "loss",
    "train_loss",
    "seconds",
    "bytes_up",
    "bytes_down",
    "bytes_server",
    "bytes_clients",
    "memory",
    "skipped",
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundRecord:
    """What one round showed."""

    round: int
    cohort: tuple[int, ...]
    outcome: Outcome
    metrics: Mapping[str, float]
    """Of the server's new model: ``train_loss``, and where evaluated ``loss``, ``accuracy``, ..."""
    clients: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Where evaluated, metrics of each client on its held-out part."""
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    memory: int = 0
    """The most bytes held so far: of the GPU where there is one, else of the process; 0 where it cannot be told."""
    liars: tuple[int, ...] = ()
    """Who of the cohort an adversary played in this round: the truth beside the verdicts."""
    bytes_server: int = 0
    """What the method keeps on the server beside the model: its state, and its records of the clients seen."""
    bytes_clients: int = 0
    """What it keeps on the clients seen, all together."""


class _Ready(NamedTuple):
    """A round before its model is known: who is asked, who is there, and their work."""

    round: int
    ids: tuple[int, ...]
    present: list[int]
    absent: dict[int, str]
    asked: int
    job: Job | None
    planned: Any


class _World:
    """`counterpoise.method.World` of one round in the simulator."""

    def __init__(self, simulation: Simulation, round: int, shared: Shared | None) -> None:
        self._simulation, self._shared = simulation, shared
        self.round = round
        self.key = integer(simulation.seed, purpose("server"), round)
        self.population = simulation.federation.clients
        self.cohort = simulation.cohort_size
        self.local = simulation.program.local
        self.layout = simulation.layout

    def _probe(self) -> Samples:
        probe = self._simulation.federation.probe
        if probe is None:
            raise CounterpoiseError(
                "This method needs a probe set on the server; load the federation with probe=1 (samples per class), "
                "in a configuration data.probe = 1."
            )
        return probe

    @property
    def probe_targets(self) -> Tensor:
        return self._probe().targets

    def probe(self, models: Tensor) -> Tensor:
        samples = self._probe()
        rows = torch.arange(len(samples), device=samples.inputs.device)
        return self._simulation.backend.outputs(models, samples.take(rows, models.dtype)[0])

    def offers(self, call: str) -> bool:
        return callable(getattr(self._simulation.module, call, None))

    @property
    def proxy_size(self) -> int:
        proxy = self._simulation.federation.proxy
        return 0 if proxy is None else len(proxy)

    def rehearse(self, sizes: Sequence[int]) -> Cohort:
        simulation, proxy = self._simulation, self._simulation.federation.proxy
        if proxy is None:
            raise CounterpoiseError(
                "This method needs a proxy set on the server; load the federation with proxy=1000 (samples), "
                "in a configuration data.proxy = 1000."
            )
        if max(sizes) > len(proxy):
            raise CounterpoiseError(
                f"The server's proxy set has {len(proxy)} samples, and {max(sizes)} are needed. Load more with proxy=."
            )
        assert self._shared is not None
        imagined = -1 - torch.arange(len(sizes))
        rows = torch.stack(
            [
                sample(len(proxy), max(sizes), simulation.seed, purpose("rehearse"), self.round, i)
                for i in range(len(sizes))
            ]
        )
        state = {
            name: {k: v.expand(len(sizes), *v.shape) for k, v in store.initial.items()}
            for name, store in simulation.client_state.items()
        }
        job = simulation.job(self._shared, proxy, imagined, torch.tensor(list(sizes)), rows, self.round, state)
        return simulation.cohort(imagined.tolist(), job, simulation.backend.train(job))


class Simulation:
    """The state of a run and the step to its next round.

    `advance` changes nothing until the server has taken the whole round in, so that a run which is
    stopped or fails in training can be written down as of its last good round. One that fails while the
    round is written is no longer whole (`Server.whole`): what was written down before is its last good state.
    """

    def __init__(
        self,
        method: Method,
        federation: Federation,
        model: nn.Module,
        *,
        cohort: int | float | Availability | Sampler | None = None,
        local: Local | None = None,
        loss: Loss | None = None,
        metrics: Mapping[str, Metric] | None = None,
        seed: int = 0,
        engine: Engine | None = None,
        evaluation: Evaluation | None = None,
        limits: Limits | None = None,
        adversary: Adversaries | None = None,
    ) -> None:
        local = local or Local()
        check_seed(seed)
        if isinstance(local.steps, Sequence) and len(local.steps) != federation.clients:
            raise CounterpoiseError(
                f"local: steps gives {len(local.steps)} numbers for {federation.clients} clients; give one for each."
            )
        self.seed = seed
        self.adversaries: list[tuple[Adversary | Meddler, Tensor]] = []
        for one in each_adversary(adversary):
            who = one.who(seed, federation.clients) if isinstance(one, Adversary) else torch.empty(0)
            self.adversaries.append((one, who))
            if isinstance(one, Adversary) and one.data is not None:
                federation = one.data(federation, who)
        self.availability = availability(cohort)
        size = self.availability.size(federation.train)
        self.cohort_size = size
        self.layout = Layout.of(model)
        if loss is None and federation.classes is None:
            raise CounterpoiseError(
                "These targets are not class numbers; give simulate a loss that returns one value per sample."
            )
        loss = loss or cross_entropy
        if metrics is None:
            metrics = {"accuracy": accuracy} if federation.classes else {}
        for name in metrics:
            if name in RESERVED:
                raise CounterpoiseError(f"A metric cannot be called {name!r}: the run's record uses that name itself.")
        scores = {"loss": loss, **metrics}
        self.traits = inspect_model(model, federation, scores)
        self.engine = (engine or Engine()).resolve(size, self.layout.size)
        if self.traits.unkeyed:
            log.warning(
                "The model draws random numbers that cannot be keyed by client: the run repeats only for this backend and chunk."
            )
            if self.engine.backend == "per-client":
                self.engine = replace(self.engine, threads=1)
        device, dtype = torch.device(self.engine.device), self.engine.torch_dtype
        group = Group.join(device)
        self.federation = federation.to(device)
        module = copy.deepcopy(model).to(device=device, dtype=dtype)
        batched = self.engine.backend == "batched"
        self.program = Program(method, local, loss, by_functions if batched else by_autograd)
        chunk, threads = self.engine.chunk or 1, self.engine.threads or 1
        self.backend: Backend = (
            Batched(
                self.program,
                module,
                self.layout,
                self.traits.keyed,
                chunk,
                dtype,
                fused=self.engine.compile,
                lowered=self.engine.convolutions == "triton",
                half=self.engine.bf16,
            )
            if batched
            else PerClient(self.program, module, self.layout, self.traits.keyed, threads, dtype)
        )
        if group is not None:
            self.backend = Distributed(self.backend, self.program, group)
        self.module = module
        start = self.layout.flatten([p.detach() for p in module.parameters() if p.requires_grad]).clone()
        memory = self.engine.store_gib * 2**30
        self.server = Server(method, start, limits or Limits(), memory)
        self.client_state = {
            p.name: Store(p.client_state(start), memory) for p in method.parts if p.client_state is not None
        }
        self.round = 0
        self._nothing = Shared(start.new_empty(0), {}, start.new_empty(()))
        self._ready: _Ready | None = None
        self.evaluator = Evaluator(
            evaluation or Evaluation(),
            self.backend,
            self.federation,
            scores,
            dtype,
            trained=size * _samples_trained(federation, local),
            models=1 + sum(part.personal is not None for part in method.parts),
            seed=seed,
        )
        for part in method.parts:
            if part.check is not None:
                part.check(_World(self, 0, None))

    # ------------------------------------------------------------ one round

    def advance(self, last: bool = False) -> RoundRecord:
        """Run the next round; `last` makes sure that it is evaluated."""
        begun = time.perf_counter()
        round = self.round + 1
        with self._setting(), self._seeded(round):
            ready = self._ready if self._ready and self._ready.round == round else self._prepare(round)
            shared = Shared(self.server.model, self.server.broadcast(), self._lr(round))
            ids, present, absent = ready.ids, ready.present, dict(ready.absent)
            world = _World(self, round, shared)
            sent: Sent | None = None
            up = 0
            if ready.job is not None:
                state = {name: store.gather(present) for name, store in self.client_state.items()}
                job = ready.job._replace(shared=shared, state=state)
                sent = self.backend.train(job, ready.planned)
                self._look_ahead(round + 1)
                cohort = self.cohort(present, job, sent)
                up = byte_count(pack_reply(sent, cohort.examples, cohort.steps))
            else:
                cohort = self._nobody()
            liars: set[int] = set()
            for adversary, who in self.adversaries:
                cohort, strange = _expected(self._meddled(adversary, who, round, cohort, liars), present)
                absent |= strange
            missing = {*present} - {*cohort.ids} - {*absent}
            absent |= dict.fromkeys(sorted(missing), "it did not reply")
            outcome = self.server.receive(cohort, world, absent)
            self.server.whole = False
            self._keep(present, sent)
            self.round, self.server.whole = round, True
            metrics, each = self.evaluator.evaluate(self.server.model, round, last)
            each |= self._personal(round, last)
        heard = [place for place, client in enumerate(present) if client not in outcome.excluded]
        if sent is not None and heard:
            metrics = {"train_loss": float(sent.loss[heard].double().mean())} | metrics
        for client, reason in outcome.excluded.items():
            log.info("round %d: client %d is left out: %s", round, client, reason)
        down = byte_count(pack_broadcast(shared)) * ready.asked
        took = time.perf_counter() - begun
        return RoundRecord(
            round,
            ids,
            outcome,
            metrics,
            each,
            took,
            up,
            down,
            self._memory(),
            tuple(sorted(liars)),
            *self._kept(),
        )

    def _prepare(self, round: int) -> _Ready:
        """What a round needs that does not depend on those before it."""
        ids, dropped = self._draw(round)
        clients = torch.tensor(ids, dtype=torch.int64)
        sizes = self.federation.train.sizes(clients)
        absent = {client: "it has no data" for client, n in zip(ids, sizes.tolist(), strict=True) if n == 0}
        asked = len(ids) - len(absent)
        absent |= {client: DROPPED for client in dropped if client not in absent}
        there = torch.tensor([client not in absent for client in ids], dtype=torch.bool)
        clients, sizes = clients[there], sizes[there]
        job = planned = None
        if len(clients):
            rows = self.federation.train.rows(clients)
            job = self.job(self._nothing, self.federation.base, clients, sizes, rows, round, {})
            planned = self.backend.plan(job)
        return _Ready(round, tuple(ids), clients.tolist(), absent, asked, job, planned)

    def _look_ahead(self, round: int) -> None:
        """Prepare the next round while a GPU still trains this one."""
        self._ready = None
        if torch.device(self.engine.device).type == "cuda":
            with contextlib.suppress(CounterpoiseError):  # told when the round comes, if it does
                self._ready = self._prepare(round)

    def _meddled(
        self, adversary: Adversary | Meddler, who: Tensor, round: int, cohort: Cohort, liars: set[int]
    ) -> Cohort:
        if not isinstance(adversary, Adversary):
            return adversary(round, cohort)
        acting = adversary.acting(self.seed, round, cohort.ids, who)
        liars |= {client for client, acts in zip(cohort.ids, acting.tolist(), strict=True) if acts}
        return adversary.replies(self.seed, round, cohort, acting.to(cohort.updates.device))

    def _draw(self, round: int) -> tuple[list[int], list[int]]:
        """The clients asked, and those of them that drop out."""
        asked, dropped = self.availability.call(self.seed, round, self.federation.train)
        ids = sorted(asked)
        if len(set(ids)) < len(ids) or (ids and not 0 <= ids[0] <= ids[-1] < self.federation.clients):
            raise CounterpoiseError(
                f"The cohort drawn for round {round} names a client twice or one that is not there: {ids}."
            )
        return ids, sorted(set(dropped) & set(ids))

    def job(
        self, shared: Shared, samples: Samples, clients: Tensor, sizes: Tensor, rows: Tensor, round: int, state: Named
    ) -> Job:
        steps = self.program.local.steps_of(clients.clamp(min=0), sizes)
        return Job(shared, samples, rows, sizes, steps, clients, client_keys(self.seed, round, clients), state)

    def cohort(self, ids: Sequence[int], job: Job, sent: Sent) -> Cohort:
        """Honest replies: each client claims the count it trained on."""
        counts = torch.stack((job.sizes, job.steps * self.program.local.passes)).double()
        examples, steps = put(counts, job.device).unbind()
        return Cohort(tuple(ids), sent.update, examples, steps, sent.reports)

    def _nobody(self) -> Cohort:
        model = self.server.model
        return Cohort(
            (),
            model.new_empty((0, len(model))),
            model.new_empty(0, dtype=torch.float64),
            model.new_empty(0, dtype=torch.float64),
        )

    def _keep(self, ids: Sequence[int], sent: Sent | None) -> None:
        """What clients keep for their next round, unless it is not finite."""
        for name, store in self.client_state.items() if sent is not None else ():
            rows = sent.state[name]  # type: ignore[union-attr]
            good = torch.stack(
                [v.flatten(1).isfinite().all(1) if v.ndim > 1 else v.isfinite() for v in rows.values()]
            ).all(0)
            places = good.nonzero().squeeze(1)
            store.scatter([ids[i] for i in places.tolist()], {k: v[places] for k, v in rows.items()})

    def _kept(self) -> tuple[int, int]:
        """Bytes of state on the server and on clients."""
        state = sum(row_bytes(named) for named in self.server.state.values())
        return (
            state + sum(store.bytes for store in self.server.records.values()),
            sum(store.bytes for store in self.client_state.values()),
        )

    def _memory(self) -> int:
        if torch.device(self.engine.device).type == "cuda":
            # Not `max_memory_allocated`, which takes as long as a small model's step.
            held: int = torch.cuda.memory_stats_as_nested_dict(self.engine.device)["allocated_bytes"]["all"]["peak"]
            return held
        if resource is None:
            return 0
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def _lr(self, round: int) -> Tensor:
        return put(torch.tensor(self.program.local.lr(round), dtype=self.engine.torch_dtype), self.server.model.device)

    def _personal(self, round: int, last: bool) -> dict[str, dict[int, float]]:
        """Metrics of each client's own model, where a part makes one and the client has been seen."""
        each: dict[str, dict[int, float]] = {}
        for part in self.program.method.parts if self.evaluator.clients_due(round, last) else ():
            store, own = self.client_state.get(part.name), part.personal
            if own is not None and store is not None:
                of = partial(_own_models, own, self.server.model, store)
                each |= self.evaluator.evaluate_personal(store, of)
        return each

    # ------------------------------------------------------------ state

    def trained(self) -> nn.Module:
        """The server's model as a module of its own, in evaluation mode."""
        module = copy.deepcopy(self.module)
        with torch.no_grad():
            trainable = [p for p in module.parameters() if p.requires_grad]
            for parameter, value in zip(trainable, self.layout.unflatten(self.server.model), strict=True):
                parameter.copy_(value)
        return module.eval()

    @contextlib.contextmanager
    def _setting(self) -> Iterator[None]:
        """Torch's own switches, as the resolved setting says, for the time of a round."""
        before = torch.get_num_threads()
        with contextlib.ExitStack() as stack:
            torch.set_num_threads(self.engine.threads or before)
            stack.callback(torch.set_num_threads, before)
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
            yield

    @contextlib.contextmanager
    def _seeded(self, round: int) -> Iterator[None]:
        if not self.traits.unkeyed:
            yield
            return
        with torch.random.fork_rng():
            torch.manual_seed(integer(self.seed, purpose("unkeyed"), round))
            yield


def each_adversary(given: Adversaries | None) -> list[Adversary | Meddler]:
    """One adversary, several or none, as a list."""
    if given is None:
        return []
    return list(given) if isinstance(given, Sequence) else [given]


def _samples_trained(federation: Federation, local: Local) -> float:
    """What a client goes through in a round, in the mean over all clients, repetitions counted."""
    clients = torch.arange(federation.clients)
    sizes = federation.train.sizes(clients)
    return float(seen(sizes, local.steps_of(clients, sizes), local.batch).double().mean()) * local.passes


def _own_models(
    own: Callable[[Tensor, Mapping[str, Tensor]], Tensor], model: Tensor, store: Store, clients: Sequence[int]
) -> Tensor:
    return torch.stack([own(model, store[client]) for client in clients])


def _expected(cohort: Cohort, drawn: Sequence[int]) -> tuple[Cohort, dict[int, str]]:
    """What the server takes of what an adversary made of the replies: one from each client it asked."""
    if not isinstance(cohort, Cohort):
        raise CounterpoiseError(f"An adversary must return a Cohort, not {type(cohort).__name__}.")
    asked = {*drawn}
    strange = {client: "it was not asked" for client in cohort.ids if client not in asked}
    strange |= {client: "it replied more than once" for client, times in Counter(cohort.ids).items() if times > 1}
    good = torch.tensor(
        [client not in strange for client in cohort.ids], dtype=torch.bool, device=cohort.updates.device
    )
    return cohort.keep(good), strange
