"""A federation simulated on one machine, round by round."""

from __future__ import annotations

import contextlib
import copy
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from counterpoise.adversary import ADVERSARIES, Adversary
from counterpoise.engine.backends.batched import Batched
from counterpoise.engine.backends.interface import Job
from counterpoise.engine.backends.settings import Engine
from counterpoise.engine.clients.messages import byte_count, pack_accepted, pack_broadcast, pack_reply
from counterpoise.engine.clients.program import Sent, Shared
from counterpoise.engine.devices import put
from counterpoise.engine.rounds.admission import Limits
from counterpoise.engine.rounds.evaluation import Evaluation
from counterpoise.engine.rounds.server import Outcome, Server
from counterpoise.engine.rounds.store import row_bytes
from counterpoise.engine.rounds.trainer import Trainer
from counterpoise.engine.rounds.world import SimulatedWorld
from counterpoise.engine.scores import Loss, Metric
from counterpoise.errors import CounterpoiseError, Interrupted, brief
from counterpoise.federation.availability import DROPPED, SILENT, Availability, Sampler, availability
from counterpoise.federation.federation import Federation
from counterpoise.local import Local
from counterpoise.method import Cohort, Method
from counterpoise.randomness import check_seed

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

__all__ = ["Adversaries", "Heard", "Opened", "RoundRecord", "Simulation", "each_adversary"]

Meddler = Callable[[int, Cohort], Cohort]
"""``(round, replies) -> replies``, a function of the user's own between the clients and the server."""
Adversaries = Adversary | Meddler | str | Sequence[Adversary | Meddler | str]

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
    """From the call to the record. On a GPU it includes the launch of the next round's training, not what runs between calls."""
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


class Opened(NamedTuple):
    """A round that has begun: who is asked, and what everybody is sent."""

    round: int
    asked: list[int]
    dropped: list[int]
    """Those of them that an availability lets drop out."""
    shared: Shared
    begun: float


class Heard(NamedTuple):
    """What came back from the clients asked, in the simulator or over a network."""

    cohort: Cohort
    absent: dict[int, str]
    """Who could not be heard, and why."""
    losses: Mapping[int, float]
    """Each client's mean loss in training."""
    bytes_up: int
    bytes_down: int
    liars: frozenset[int] = frozenset()
    present: Sequence[int] = ()
    sent: Sent | None = None
    """In the simulator: the clients that trained, and all they ended the round with."""


class _Ready(NamedTuple):
    """A round before its model is known: who is asked, who is there, and their work."""

    round: int
    ids: list[int]
    dropped: list[int]
    present: list[int]
    absent: dict[int, str]
    asked: int
    job: Job | None
    planned: Any


class _SetOff(NamedTuple):
    """A round whose clients train already."""

    opened: Opened
    sent: Sent


class Simulation(Trainer):
    """The state of a run and the step to its next round.

    A round is `open`, `train` and `close`; where clients are elsewhere, a network runtime takes the place of `train`.
    Nothing changes until the server has taken the whole round in, so that a run which is
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
        for name, given in (("steps", local.steps), ("memory", local.memory)):
            if isinstance(given, Sequence) and len(given) != federation.clients:
                raise CounterpoiseError(
                    f"local: {name} gives {len(given)} numbers for {federation.clients} clients; give one for each."
                )
        self.adversaries: list[tuple[Adversary | Meddler, Tensor]] = []
        for one in each_adversary(adversary):
            who = one.who(seed, federation.clients) if isinstance(one, Adversary) else torch.empty(0)
            self.adversaries.append((one, who))
            if isinstance(one, Adversary) and one.data is not None:
                federation = one.data(federation, who)
        self.availability = availability(cohort)
        super().__init__(
            method,
            federation,
            model,
            cohort=self.availability.size(federation.train),
            local=local,
            loss=loss,
            metrics=metrics,
            seed=seed,
            engine=engine,
            evaluation=evaluation,
        )
        self.server = Server(method, self.start, limits or Limits(), self.memory)
        self.round = 0
        self._nothing = Shared(self.start.new_empty(0), {}, self.start.new_empty(()))
        self._ready: _Ready | None = None
        self._set_off: _SetOff | None = None
        self._lr = (nan, self.start.new_empty(()))
        """The learning rate last sent, and as a tensor on the device."""
        self.overlaps = isinstance(self.backend, Batched) and self.backend.records
        """Whether a round is prepared and begun before the one before it is over, as a GPU trains on its own.

        Then the model and what parts keep must not be changed in place between rounds; a new tensor as the model is noticed."""
        for part in method.parts:
            if part.check is not None:
                part.check(SimulatedWorld(self, 0, None))

    # ------------------------------------------------------------ one round

    def advance(self, last: bool = False) -> RoundRecord:
        """Run the next round; `last` makes sure that it is evaluated."""
        with self.setting(self.round + 1):
            opened = self.open()
            return self.close(opened, self.train(opened), last)

    def open(self) -> Opened:
        """Draw the next round's clients and what they are sent."""
        begun, round = time.perf_counter(), self.round + 1
        ahead, ready = self._set_off, self._ready
        if ahead and ahead.opened.round == round and ahead.opened.shared.start is self.server.model:
            return ahead.opened._replace(begun=begun)
        ids, dropped = (ready.ids, ready.dropped) if ready and ready.round == round else self._draw(round)
        if (lr := self.program.local.lr(round)) != self._lr[0]:
            there = put(torch.tensor(lr, dtype=self.engine.torch_dtype), self.server.model.device)
            self._lr = (lr, there)
        shared = Shared(self.server.model, self.server.broadcast(), self._lr[1])
        return Opened(round, ids, dropped, shared, begun)

    def train(self, opened: Opened) -> Heard:
        """The local training of everybody asked, and what adversaries make of it."""
        round, ids, dropped, shared, _ = opened
        ready = self._ready if self._ready and self._ready.round == round else self._prepare(round, ids, dropped)
        present, absent = ready.present, dict(ready.absent)
        sent: Sent | None = None
        up = 0
        if ready.job is not None:
            ahead, self._set_off = self._set_off, None
            sent = ahead.sent if ahead and ahead.opened.shared is shared else self._trained(ready, ready.job, shared)
            self._look_ahead(round + 1)
            cohort = self.replies(present, ready.job, sent)
            up = byte_count(pack_reply(sent, cohort.examples, cohort.steps))
        else:
            cohort = self._nobody()
        liars: set[int] = set()
        for adversary, who in self.adversaries:
            cohort, strange = _expected(self._meddled(adversary, who, round, cohort, liars), present)
            absent |= strange
        missing = {*present} - {*cohort.ids} - {*absent}
        absent |= dict.fromkeys(sorted(missing), SILENT)
        down = self.bytes_to_each(shared) * ready.asked
        return Heard(cohort, absent, {}, up, down, frozenset(liars), present, sent)

    def close(self, opened: Opened, heard: Heard, last: bool = False) -> RoundRecord:
        """Take the round in: the server's half, what clients keep, evaluation."""
        round, ids, _, shared, begun = opened
        cohort, absent, each_loss, up, down, liars, present, sent = heard
        outcome = self.server.receive(cohort, SimulatedWorld(self, round, shared), absent)
        self.server.whole = False
        if sent is not None:
            for part in self.client_state:
                accepted = [last == round for last in self.server.accepted_rounds(part, present)]
                self.keep(part, present, sent, accepted)
        self.round, self.server.whole = round, True
        metrics, each = self.evaluator.evaluate(self.server.model, round, last)
        if self.evaluator.clients_due(round, last):
            each |= self.personal(self.server.model)
        if sent is not None:
            # Not before the server is done: on a GPU it would wait for the training.
            each_loss = dict(zip(present, sent.loss.tolist(), strict=True))
            del heard, cohort, sent  # memory need not hold the updates of two rounds
            if not last:
                self._go_ahead()
        losses = [loss for client, loss in each_loss.items() if client not in outcome.excluded]
        if losses:
            metrics = {"train_loss": sum(losses) / len(losses)} | metrics
        for client, reason in outcome.excluded.items():
            log.info("round %d: client %d is left out: %s", round, client, reason)
        for client, verdict in outcome.verdicts.items():
            if verdict.action != "accepted":
                log.info(
                    "round %d: the claim of client %d to %g samples is %s: %s",
                    round,
                    client,
                    verdict.claimed,
                    verdict.action,
                    verdict.reason,
                )
        return RoundRecord(
            round,
            tuple(ids),
            outcome,
            metrics,
            each,
            time.perf_counter() - begun,
            up,
            down,
            self._memory(),
            tuple(sorted(liars)),
            *self._kept(),
        )

    def _prepare(self, round: int, ids: list[int], dropped: list[int]) -> _Ready:
        """What a round needs that does not depend on those before it."""
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
        return _Ready(round, ids, dropped, clients.tolist(), absent, asked, job, planned)

    def _trained(self, ready: _Ready, job: Job, shared: Shared) -> Sent:
        state = {name: store.gather(ready.present) for name, store in self.client_state.items()}
        return self.backend.train(job._replace(shared=shared, state=state), ready.planned)

    def _look_ahead(self, round: int) -> None:
        """Prepare the next round while a GPU still trains this one."""
        self._ready = None
        if self.overlaps:
            with contextlib.suppress(Exception):  # told when the round comes, if it does
                self._ready = self._prepare(round, *self._draw(round))

    def _go_ahead(self) -> None:
        """Let a GPU begin the next round's training, if it is prepared, before this round's record is made."""
        ready = self._ready
        if ready and ready.job is not None and not self.traits.unkeyed:
            # This round is taken in, whatever happens to the next, which is tried again when it comes.
            with contextlib.suppress(Exception, Interrupted):
                opened = self.open()
                self._set_off = _SetOff(opened, self._trained(ready, ready.job, opened.shared))

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

    def _nobody(self) -> Cohort:
        model = self.server.model
        return Cohort(
            (),
            model.new_empty((0, len(model))),
            model.new_empty(0, dtype=torch.float64),
            model.new_empty(0, dtype=torch.float64),
        )

    def bytes_to_each(self, shared: Shared) -> int:
        """What a client is sent in a round."""
        return byte_count(pack_broadcast(shared) | pack_accepted(dict.fromkeys(self.client_state, 0)))

    def _kept(self) -> tuple[int, int]:
        """Bytes of state on the server and on clients."""
        state = sum(row_bytes(named) for named in self.server.state.values())
        return (
            state + sum(store.bytes for store in (*self.server.records.values(), *self.server.accepted.values())),
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

    # ------------------------------------------------------------ state

    def recall(self, records: Sequence[RoundRecord]) -> None:
        """Take up what the server knows of the last rounds of a run that is gone on with."""
        self.server.recall(record.outcome for record in records)

    def trained(self) -> nn.Module:
        """The server's model as a module of its own, in evaluation mode."""
        module = copy.deepcopy(self.module)
        with torch.no_grad():
            trainable = [p for p in module.parameters() if p.requires_grad]
            for parameter, value in zip(trainable, self.layout.unflatten(self.server.model), strict=True):
                parameter.copy_(value)
        return module.eval()


def each_adversary(given: Adversaries | None) -> list[Adversary | Meddler]:
    """One adversary, several or none, as a list; those given by name are made."""
    several = isinstance(given, Sequence) and not isinstance(given, str)
    found = [] if given is None else list(given) if several else [given]  # type: ignore[arg-type]
    return [_adversary(one) for one in found]


def _adversary(given: object) -> Adversary | Meddler:
    if isinstance(given, str):
        return ADVERSARIES.make(given)
    if not isinstance(given, Adversary) and not callable(given):
        raise CounterpoiseError(
            f"adversary must be an adversary such as cp.adversary.sign_flip(), its name, a function of round and cohort, or a list of those, not {brief(given)}."
        )
    return given


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
