"""A federation simulated on one machine: the loop of rounds, with every client trained here."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import torch
from torch import nn

from counterpoise.engine.backends.interface import Job
from counterpoise.engine.backends.refusals import CLIENT_NAMES, explained
from counterpoise.engine.clients.messages import byte_count, pack_reply
from counterpoise.engine.clients.program import Shared, TrainingResult
from counterpoise.engine.devices import put
from counterpoise.engine.rounds.adversaries import meddle, recruit
from counterpoise.engine.rounds.loop import Loop, Opened, Replies
from counterpoise.engine.rounds.records import MOST_ROUNDS, RoundRecord
from counterpoise.engine.rounds.setup import Settings, Setup
from counterpoise.engine.rounds.store import Store
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.absence import DROPPED, SILENT
from counterpoise.federation.federation import Federation
from counterpoise.local import Local
from counterpoise.measures import check_metric
from counterpoise.method import Cohort, Method
from counterpoise.models.building import Model
from counterpoise.trees import select

__all__ = ["Batch", "Prepared", "Simulation"]

log = logging.getLogger(__name__)


class Batch(NamedTuple):
    """A batch of runs whose clients train together, and how."""

    runs: int
    clients: int
    """How many clients all runs together train in a round."""
    backend: str
    chunk: int | None
    compile: bool


class Prepared(NamedTuple):
    """The part of a round that does not depend on earlier rounds: who is asked, who is there, and their work."""

    round: int
    asked: list[int]
    dropped: list[int]
    present: list[int]
    absent: dict[int, str]
    job: Job | None
    """Without the model, the clients' state and their letters."""
    planned: Any


class Simulation:
    """A loop of rounds and the simulated clients that train in it."""

    def __init__(self, method: Method, federation: Federation, model: Model, **settings: Unpack[Settings]) -> None:
        self._begin(Setup.of(method, federation, model, MOST_ROUNDS, **settings))

    @classmethod
    def of(cls, setup: Setup) -> Simulation:
        """The simulation of a run at its beginning."""
        made = cls.__new__(cls)
        made._begin(setup)
        return made

    def _begin(self, setup: Setup) -> None:
        _check_lists(setup.training.local, setup.federation.clients)
        self.adversaries, federation = recruit(setup.adversary, setup.seed, setup.federation)
        self.loop = Loop.of(replace(setup, federation=federation))
        self.trainer = trainer = self.loop.trainer
        if setup.stop is not None:
            check_metric(setup.stop.metric, trainer.evaluator.names, "to stop by")
        self.server, self.backend, self.engine = self.loop.server, trainer.backend, trainer.engine
        self.client_state: dict[str, Store] = trainer.client_state
        self._nothing = Shared(trainer.start.new_empty(0), {}, trainer.start.new_empty(()))
        self._prepared: Prepared | None = None
        self.overlaps = trainer.backend.asynchronous
        """Whether the next round is prepared while the device still trains this one."""
        self.batch: Batch | None = None
        """The batch of runs that its clients train in; None if it trains alone."""

    @property
    def round(self) -> int:
        """How many rounds are over."""
        return self.loop.round

    @round.setter
    def round(self, round: int) -> None:
        self.loop.round = round

    def advance(self, last: bool = False) -> RoundRecord:
        """Run the next round; `last` makes sure that it is evaluated."""
        with self.trainer.setting(self.round + 1):
            opened = self.open()
            return self.loop.commit(self.loop.close(opened, self.train(opened), last))

    def complete(self, record: RoundRecord) -> RoundRecord:
        """Add what only a run's last round measures, if a stopping rule made this round the last one afterwards."""
        with self.trainer.setting(record.round):
            return self.loop.complete(record)

    def open(self) -> Opened:
        """Open the next round."""
        ready = self._prepared
        return self.loop.open((ready.asked, ready.dropped) if ready and ready.round == self.round + 1 else None)

    def train(self, opened: Opened) -> Replies:
        """Train the clients of a round, and let adversaries meddle with their replies."""
        ready = self._prepared
        if ready is None or ready.round != opened.round:
            ready = self._prepare(opened.round, opened.asked, opened.dropped)
        results = None
        if ready.job is not None:
            with explained("Training a client", CLIENT_NAMES):
                results = self.backend.train(self.make_job(opened, ready), ready.planned)
            self._look_ahead(opened.round + 1)
        return self.reply(opened, ready, results)

    def prepare(self, opened: Opened) -> Prepared:
        """What an open round needs, for training that is planned elsewhere."""
        return self._prepare(opened.round, opened.asked, opened.dropped, plans=False)

    def make_job(self, opened: Opened, ready: Prepared) -> Job:
        """The work of the clients that are there, with what they are sent and their state."""
        assert ready.job is not None
        state = {name: store.gather(ready.present) for name, store in self.client_state.items()}
        there = [place for place, client in enumerate(opened.asked) if client not in ready.absent]
        letters = opened.letters
        if letters and len(there) < len(opened.asked):
            letters = select(letters, put(torch.tensor(there), ready.job.device))
        return ready.job._replace(shared=opened.shared, state=state, letters=letters)

    def reply(self, opened: Opened, ready: Prepared, results: TrainingResult | None) -> Replies:
        """The clients' replies, after adversaries meddled with them; `results` is None if nobody trained."""
        cohort, bytes_up = self._nobody(), 0
        if results is not None and ready.job is not None:
            cohort = self.trainer.make_cohort(ready.present, ready.job, results)
            bytes_up = byte_count(pack_reply(results, cohort.examples, cohort.steps))
        cohort, strange, liars = meddle(self.adversaries, self.trainer.seed, opened.round, cohort, ready.present)
        absent = _add_silent(ready.absent | strange, ready.present, cohort)
        bytes_down = self.loop.bytes_to_each(opened) * _count_reached(ready)
        return Replies(cohort, absent, {}, bytes_up, bytes_down, liars, ready.present, results)

    def _prepare(self, round: int, asked: list[int], dropped: list[int], plans: bool = True) -> Prepared:
        clients = torch.tensor(asked, dtype=torch.int64)
        federation = self.trainer.federation
        sizes = federation.train.sizes(clients)
        absent = {client: _NO_DATA for client, n in zip(asked, sizes.tolist(), strict=True) if n == 0}
        absent |= {client: DROPPED for client in dropped if client not in absent}
        there = torch.tensor([client not in absent for client in asked], dtype=torch.bool)
        clients, sizes = clients[there], sizes[there]
        job = planned = None
        if len(clients):
            rows = federation.train.rows(clients)
            job = self.trainer.make_job(self._nothing, federation.base, clients, sizes, rows, round, {}, {})
            planned = self.backend.plan(job) if plans else None
        return Prepared(round, asked, dropped, clients.tolist(), absent, job, planned)

    def _look_ahead(self, round: int) -> None:
        """Prepare the next round while the device still trains this one."""
        self._prepared = None
        if self.overlaps:
            try:
                self._prepared = self._prepare(round, *self.loop.draw(round))
            except Exception as error:  # such as one in a user's availability; it is raised again if that round runs
                log.debug("Round %d could not be prepared ahead: %s", round, error)

    def _nobody(self) -> Cohort:
        model = self.server.model
        return Cohort(
            (),
            model.new_empty((0, len(model))),
            model.new_empty(0, dtype=torch.float64),
            model.new_empty(0, dtype=torch.float64),
        )

    def trained(self) -> nn.Module:
        """The model that is measured, as a module of its own in evaluation mode."""
        return self.loop.trained()


_NO_DATA = "it has no data"


def _add_silent(absent: dict[int, str], present: Sequence[int], cohort: Cohort) -> dict[int, str]:
    """Add the clients whose reply an adversary held back to those that are absent."""
    silent = {*present} - {*cohort.ids} - {*absent}
    return absent | dict.fromkeys(sorted(silent), SILENT)


def _count_reached(ready: Prepared) -> int:
    """How many clients are sent the model: all that are asked, except those without data."""
    return len(ready.asked) - sum(reason == _NO_DATA for reason in ready.absent.values())


def _check_lists(local: Local, clients: int) -> None:
    """Check that settings given client by client have one number for every client."""
    for name, given in (("steps", local.steps), ("memory", local.memory)):
        if isinstance(given, Sequence) and len(given) != clients:
            raise CounterpoiseError(
                f"local: {name} gives {len(given)} numbers for {clients} clients; give one for each."
            )
