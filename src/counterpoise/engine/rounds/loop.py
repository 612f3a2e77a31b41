"""Rounds of a federation: open one, close it, commit it. The clients train here or elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, nan
from typing import NamedTuple

import torch
from torch import Tensor, nn

from counterpoise.engine.clients.messages import byte_count, pack_accepted, pack_broadcast, pack_letters
from counterpoise.engine.clients.program import Named, Shared, TrainingResult
from counterpoise.engine.clients.statistics import initial_statistics, write_statistics
from counterpoise.engine.devices import put
from counterpoise.engine.rounds.admission import Limits
from counterpoise.engine.rounds.applied import call_on_server
from counterpoise.engine.rounds.evaluation import Measured
from counterpoise.engine.rounds.records import Outcome, RoundRecord
from counterpoise.engine.rounds.server import Decision, Server
from counterpoise.engine.rounds.setup import Setup
from counterpoise.engine.rounds.store import Store, row_bytes
from counterpoise.engine.rounds.trainer import Trainer
from counterpoise.engine.rounds.world import ServerWorld
from counterpoise.errors import CounterpoiseError, brief
from counterpoise.federation.availability import Availability, availability
from counterpoise.method import Cohort
from counterpoise.models.copies import sharing_copy
from counterpoise.parts.statistics import BATCH_NORM

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

__all__ = ["Closed", "Loop", "Opened", "Replies"]

log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 0.1
"""Look at a GPU's memory no more often than this, because a look takes as long as a step of a small model."""


class Opened(NamedTuple):
    """A round that has begun: who is asked, and what they are sent."""

    round: int
    asked: list[int]
    dropped: list[int]
    """Which of the clients asked will drop out."""
    shared: Shared
    letters: Named
    """What the server sends to each of the clients asked alone, stacked in their order."""
    begun: float


class Replies(NamedTuple):
    """What came back from the clients asked, in the simulator or over a network."""

    cohort: Cohort
    absent: dict[int, str]
    """The clients without exactly one readable reply, each with the reason."""
    losses: Mapping[int, float]
    """Each client's mean loss in training, as nodes report it; in the simulator it is read from `results`."""
    bytes_up: int
    bytes_down: int
    liars: frozenset[int] = frozenset()
    present: Sequence[int] = ()
    results: TrainingResult | None = None
    """In the simulator: what the clients that trained ended the round with."""


class Closed(NamedTuple):
    """A round that the server has decided on; nothing of it is written yet."""

    opened: Opened
    replies: Replies
    decision: Decision
    metrics: Mapping[str, float]
    clients: dict[str, dict[int, float]]
    """The metrics of each client, if they were measured here."""
    last: bool
    seconds: float
    """From the opening of the round to the end of its evaluation."""


class Loop:
    """The server and the count of rounds.

    A round is opened, closed and committed. Between `open` and `close` its clients train, here or elsewhere. Nothing
    changes before `commit`. So if a run stops or fails in training, on the server or while the server's model is
    evaluated, its state is that of its last round. While `commit` writes and measures personal models, the state is not
    whole (`Server.whole`); if that fails, the last checkpoint is the last good state.
    """

    def __init__(self, trainer: Trainer, availability: Availability, limits: Limits) -> None:
        self.trainer, self.availability = trainer, availability
        self.server = Server(trainer.program.method, trainer.start, limits, trainer.memory)
        self.evaluator = trainer.evaluator
        self.round = 0
        self._lr: tuple[float | list[float], Tensor] = (nan, trainer.start.new_empty(()))
        """The learning rate sent last, as a number or numbers and as a tensor on the device."""
        self._memory = (-inf, 0)
        """When the GPU's memory was last looked at, and its peak at that time."""
        for part in trainer.program.method.parts:
            if part.check is not None:
                call_on_server(part, "check", ServerWorld(trainer, 0))

    @classmethod
    def of(cls, setup: Setup) -> Loop:
        """The loop of a run at its beginning."""
        calls = availability(setup.cohort)
        size = calls.size(setup.federation.train)
        trainer = Trainer(
            setup.training,
            setup.federation,
            cohort=size,
            seed=setup.seed,
            evaluation=setup.evaluation,
            rounds=setup.rounds,
        )
        return cls(trainer, calls, setup.limits)

    @property
    def client_state(self) -> dict[str, Store]:
        """What parts keep on the clients that are simulated here."""
        return self.trainer.client_state

    def draw(self, round: int) -> tuple[list[int], list[int]]:
        """Draw the clients asked in a round, and those of them that drop out."""
        trainer = self.trainer
        called = self.availability.call(trainer.seed, round, trainer.federation.train)
        if not isinstance(called, tuple) or len(called) != 2:
            raise CounterpoiseError(
                "An availability's call must return a pair: the clients asked, and those of them that drop out. "
                f"It returned {brief(called)}."
            )
        asked, dropped = called
        ids = sorted(asked)
        if len(set(ids)) < len(ids) or (ids and not 0 <= ids[0] <= ids[-1] < trainer.federation.clients):
            raise CounterpoiseError(
                f"The cohort drawn for round {round} names a client twice or one that is not there: {ids}."
            )
        return ids, sorted(set(dropped) & set(ids))

    def open(self, drawn: tuple[list[int], list[int]] | None = None) -> Opened:
        """Draw the next round's clients, unless they are `drawn` already, and prepare what they are sent."""
        begun, round = time.perf_counter(), self.round + 1
        asked, dropped = drawn or self.draw(round)
        if (lr := self.trainer.program.local.rates(round)) != self._lr[0]:
            there = put(torch.tensor(lr, dtype=self.trainer.engine.torch_dtype), self.server.model.device)
            self._lr = (lr, there)
        shared = Shared(self.server.model, self.server.broadcast(), self._lr[1])
        return Opened(round, asked, dropped, shared, self.server.letters(asked), begun)

    def close(self, opened: Opened, replies: Replies, last: bool = False) -> Closed:
        """The server's half of a round and the evaluation of its new model; nothing is written."""
        decision = self.decide(opened, replies)
        measured = self.evaluator.evaluate(self.scored(decision), opened.round, last)
        return self.conclude(opened, replies, decision, measured, last)

    def decide(self, opened: Opened, replies: Replies) -> Decision:
        """The server's half of a round; nothing is written."""
        world = ServerWorld(self.trainer, opened.round, opened.shared, self.server.letters)
        return self.server.decide(replies.cohort, world, replies.absent)

    def scored(self, decision: Decision | None = None) -> Tensor:
        """The model to measure, with its running statistics: a decision's, or by default the server's."""
        now = decision or self.server
        return self.trainer.measured(self.server.scored(now), now.state)

    def conclude(
        self, opened: Opened, replies: Replies, decision: Decision, measured: Measured, last: bool = False
    ) -> Closed:
        """A round whose new model has been measured, ready to be committed."""
        metrics, each = measured
        losses = replies.losses
        if replies.results is not None:
            # Read only after the server's work, because on a GPU this waits for the training.
            losses = dict(zip(replies.present, replies.results.loss.tolist(), strict=True))
        counted = [loss for client, loss in losses.items() if client not in decision.outcome.excluded]
        if counted:
            metrics = {"train_loss": sum(counted) / len(counted)} | metrics
        return Closed(opened, replies, decision, metrics, each, last, time.perf_counter() - opened.begun)

    def commit(self, closed: Closed, measured: Mapping[str, Mapping[int, float]] | None = None) -> RoundRecord:
        """Write the round: the server's state, what clients keep, the count of rounds. Then make its record.

        `measured` are metrics that clients elsewhere measured on their own held-out samples.
        """
        begun = time.perf_counter()
        opened, replies, decision, metrics, each, last, seconds = closed
        self.server.commit(decision)
        if replies.results is not None:
            for part in self.client_state:
                by_part = {*decision.accepted.get(part, ())}
                accepted = [client in by_part for client in replies.present]
                self.trainer.keep(part, replies.present, replies.results, accepted)
        if measured is None and self.evaluator.clients_due(opened.round, last):
            each = each | self._personal()  # made of the new state
        self.round, self.server.whole = opened.round, True
        _log_outcome(opened.round, decision.outcome)
        return RoundRecord(
            opened.round,
            tuple(opened.asked),
            decision.outcome,
            metrics,
            each if measured is None else measured,
            seconds + time.perf_counter() - begun,
            replies.bytes_up,
            replies.bytes_down,
            self._peak_memory(last),
            tuple(sorted(replies.liars)),
            *self._state_bytes(),
        )

    def complete(self, record: RoundRecord) -> RoundRecord:
        """Add to the last committed round's record what only a run's last round measures."""
        begun = time.perf_counter()
        whole, each = self.evaluator.evaluate_late(self.scored(), record.round)
        if self.evaluator.clients_due(record.round, True) and not self.evaluator.clients_due(record.round, False):
            each |= self._personal()
        return replace(
            record,
            metrics={**record.metrics, **whole},
            clients={**record.clients, **each},
            seconds=record.seconds + time.perf_counter() - begun,
        )

    def bytes_to_each(self, opened: Opened) -> int:
        """The bytes that each client is sent in a round."""
        to_all = byte_count(pack_broadcast(opened.shared) | pack_accepted(dict.fromkeys(self.client_state, 0)))
        return to_all + byte_count(pack_letters(opened.letters)) // max(len(opened.asked), 1)

    def recall(self, records: Sequence[RoundRecord]) -> None:
        """Restore what the server knew about the last rounds of a resumed run."""
        self.server.recall(record.outcome for record in records)

    def trained(self, decision: Decision | None = None) -> nn.Module:
        """The model that is measured, of the server or a decision, as a module in evaluation mode.

        It shares only its frozen weights.
        """
        now = decision or self.server
        module = sharing_copy(self.trainer.module)
        with torch.no_grad():
            trainable = [p for p in module.parameters() if p.requires_grad]
            for parameter, value in zip(trainable, self.trainer.layout.unflatten(self.server.scored(now)), strict=True):
                parameter.copy_(value)
            write_statistics(module, now.state.get(BATCH_NORM, {}))
        return module.eval()

    def begin_with(self, given: Mapping[str, Tensor]) -> None:
        """Replace the initial model: its parameters by name, and the running statistics that the server keeps."""
        module = sharing_copy(self.trainer.module)
        own, frozen = module.state_dict(), {name for name, p in module.named_parameters() if not p.requires_grad}
        for name in self.trainer.layout.names:
            if name not in given:
                raise CounterpoiseError(f"initial_arrays lacks the parameter {name!r}.")
        for name in own.keys() & given.keys():
            if own[name].shape != given[name].shape:
                raise CounterpoiseError("initial_arrays holds parameters of other shapes than the model's.")
            if name in frozen and not torch.equal(own[name], given[name].to(own[name])):
                raise CounterpoiseError(
                    f"initial_arrays has another {name!r} than the model, where it is frozen. Load it into the model on "
                    "the server and on all nodes."
                )
            if name not in frozen:
                own[name].copy_(given[name])
        trainable = [p.detach() for p in module.parameters() if p.requires_grad]
        self.server.model = self.trainer.layout.flatten(trainable)
        if BATCH_NORM in self.server.state:
            self.server.state[BATCH_NORM] = initial_statistics(module)

    def _personal(self) -> dict[str, dict[int, float]]:
        """The metrics of clients' own models, made of the model that is measured: nodes are sent it to make theirs."""
        return self.trainer.personal(self.server.scored(self.server), self.server.state)

    def _state_bytes(self) -> tuple[int, int]:
        """Bytes of state on the server and on clients."""
        state = sum(row_bytes(named) for named in self.server.state.values())
        return (
            state + sum(store.bytes for store in (*self.server.records.values(), *self.server.accepted.values())),
            sum(store.bytes for store in self.client_state.values()),
        )

    def _peak_memory(self, last: bool) -> int:
        device = self.trainer.engine.device
        if torch.device(device).type == "cuda":
            looked, held = self._memory
            if last or time.perf_counter() - looked > _SECONDS_BETWEEN_LOOKS:
                # `max_memory_allocated` would take as long as a step of a small model.
                held = torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"]
                self._memory = (time.perf_counter(), held)
            return held
        if resource is None:
            return 0
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _log_outcome(round: int, outcome: Outcome) -> None:
    """Log which clients are left out, and whose claims are not accepted."""
    for client, reason in outcome.excluded.items():
        log.info("round %d: client %d is left out: %s", round, client, reason)
    for client, verdict in outcome.verdicts.items():
        if verdict.action != "accepted" and outcome.excluded.get(client) != verdict.reason:
            log.info("round %d: %s", round, verdict.told(client))
