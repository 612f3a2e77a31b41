"""The server's half on Flower: a `Strategy` for a method. Its rounds are the simulator's, but the nodes train."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, strategy
from flwr.serverapp.strategy import Result

from counterpoise.engine.backends.settings import Engine
from counterpoise.engine.clients.messages import (
    Arrays,
    pack_accepted,
    pack_broadcast,
    pack_evaluation,
    pack_letters,
    template,
)
from counterpoise.engine.clients.program import Named
from counterpoise.engine.rounds.admission import Limits
from counterpoise.engine.rounds.evaluation import Evaluation
from counterpoise.engine.rounds.loop import Closed, Loop, Opened, Replies
from counterpoise.engine.rounds.server import Decision
from counterpoise.engine.rounds.setup import Choice, Setup
from counterpoise.engine.scores import Loss, Metrics
from counterpoise.errors import CounterpoiseError, Diverged, Failed
from counterpoise.federation import Availability, Federation, Sampler
from counterpoise.federation.absence import AWAY, DROPPED
from counterpoise.flower.records import from_record, to_metrics, to_record
from counterpoise.flower.replies import ARRAYS, CONFIG, most_bytes, read_metrics, sift_replies
from counterpoise.flower.roster import Roster
from counterpoise.flower.telling import describe_round, forgotten, judges_nobody, keep_names
from counterpoise.flower.terms import terms
from counterpoise.flower.wire import SMALL, exchange, with_secret
from counterpoise.local import Local
from counterpoise.models.building import Model
from counterpoise.parts.statistics import BATCH_NORM
from counterpoise.runs.build import describe
from counterpoise.runs.ending import doubts, untrained
from counterpoise.runs.folder import Folder
from counterpoise.runs.holdings import holdings
from counterpoise.runs.index import read_index
from counterpoise.runs.repeating import check_same
from counterpoise.runs.run import Run
from counterpoise.trees import select

__all__ = ["Strategy"]

log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 1.0


class Strategy(strategy.Strategy):
    """A method on Flower. The arguments are those of `counterpoise.simulate`.

    Only the federation's server sets and its number of clients are used. With `out`, the run is kept in that folder,
    with a checkpoint after every round; if the folder already holds the same run, that run is continued.
    `patience` is how many seconds a round waits for nodes to connect: the first round waits for all clients that it
    asks, later rounds for any of them.
    """

    _opened: Opened | None = None
    _closed: Closed | None = None
    """The round that the server has decided on, until the nodes have evaluated its model."""

    def __init__(
        self,
        method: Choice,
        federation: Federation,
        *,
        model: Model,
        rounds: int = 3,
        cohort: int | float | Availability | Sampler | None = None,
        local: Local | None = None,
        loss: Loss | str | None = None,
        metrics: Metrics | None = None,
        seed: int = 0,
        engine: Engine | None = None,
        evaluation: Evaluation | None = None,
        limits: Limits | None = None,
        out: str | Path | None = None,
        patience: float = 60.0,
    ) -> None:
        made = Setup.of(
            method,
            federation.on_server(),
            model,
            rounds,
            cohort=cohort,
            local=local,
            loss=loss,
            metrics=metrics,
            seed=seed,
            engine=engine,
            evaluation=_each_round(evaluation or Evaluation()),
            limits=limits,
        )
        self.setup, self.loop, self._last_round = made, Loop.of(made), made.rounds
        self.trainer, self.patience, self._first = self.loop.trainer, patience, True
        self.run = Run(made.training.method.name, made.seed, self.trainer.module)
        self.folder = None if out is None else self._folder(Path(out))
        self.roster = Roster(self.trainer.federation.clients)
        self._like: Arrays = {}
        """A reply of the right form to this round's training."""
        self._sent: dict[int, Message] = {}
        """For each client asked in this round, the message it was sent."""

    @property
    def simulation(self) -> Loop:
        """The former name of `loop`, for one version."""
        return self.loop

    def _folder(self, path: Path) -> Folder:
        config = describe(self.setup, self.trainer)
        if not (path / "config.toml").exists():
            with Folder.begun(path, config) as folder:
                folder.save(self.loop, "running")
        else:
            folder = Folder.open(path)
            check_same(folder.config, config)
            with folder.locked():  # restoring drops what the checkpoint does not count; another process may be writing
                self.run.rounds, status = folder.restore(self.loop)
                if status == "diverged":
                    raise CounterpoiseError(
                        f"The run in {path} diverged after round {self.loop.round}; continuing it would diverge again."
                    )
                if folder.config.rounds != config.rounds:
                    folder.extend(max(config.rounds, self.loop.round))
        names = (holdings(path) or {}).get("client_names")
        self.run.client_names = None if names is None else tuple(names)
        self.run.settings, self.run.folder = folder.config.plain(), path
        return folder

    # ------------------------------------------------------------ a run

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run to the last round, starting after the last one that the folder holds.

        `initial_arrays` replaces the model's initial weights; nodes that keep state must then be given the same ones.
        """
        rounds, result = num_rounds or self.setup.rounds, Result()
        self._last_round = rounds
        if initial_arrays is not None and not self.loop.round:
            self.loop.begin_with(from_record(initial_arrays))
        self.summary()
        with contextlib.nullcontext() if self.folder is None else self.folder.locked():
            self._check_mine()
            if self.loop.round >= rounds:
                log.warning("The run already reached round %d: nothing is left. Ask for more rounds.", self.loop.round)
            elif self.loop.round and (lost := forgotten(self.trainer.program.method)):
                log.warning("Nodes keep nothing from one run to the next. For each client: %s.", lost)
            try:
                while self.loop.round < rounds:
                    self._turn(grid, rounds, timeout, train_config, evaluate_config, evaluate_fn, result)
            except Diverged:
                self._save("diverged")
                raise
            why = untrained(self.run.rounds)
            status = "failed" if why else "finished"
            self._save(status)
            self.run.model, self.run.status = self.loop.trained(), status
            if self.folder is not None and not why:
                log.info("model: %s", self.folder.write_model(self.run.model))
        if why:
            failed = Failed(f"{why} The model is the one the run began with.")
            failed.run = self.run
            raise failed
        for sentence in doubts(self.run.rounds, self.loop.server.limits.norm_ratio, self.run.client_names):
            log.warning("%s", sentence)
        result.arrays = self.arrays()
        return result

    def _turn(
        self,
        grid: Grid,
        rounds: int,
        timeout: float,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        result: Result,
    ) -> None:
        number, arrays = self.loop.round + 1, self.arrays()
        messages = self.configure_train(number, arrays, train_config or ConfigRecord(), grid)
        _, trained = self.aggregate_train(number, exchange(grid, messages, timeout, most_bytes(self._like) + SMALL))
        arrays = self.arrays()
        messages = self.configure_evaluate(number, arrays, evaluate_config or ConfigRecord(), grid)
        evaluated = self.aggregate_evaluate(number, exchange(grid, messages, timeout, SMALL))
        central = evaluate_fn(number, arrays) if evaluate_fn is not None else to_metrics(self.run.rounds[-1].metrics)
        for history, found in (
            (result.train_metrics_clientapp, trained),
            (result.evaluate_metrics_clientapp, evaluated),
            (result.evaluate_metrics_serverapp, central),
        ):
            if found is not None:
                history[number] = found
        log.info("%s", describe_round(self.run.rounds[-1], rounds))
        if number == 1 and (why := judges_nobody(self.run.rounds[-1])):
            log.warning("nobody is judged, and every claim is believed: %s", why)

    def arrays(self) -> ArrayRecord:
        """The model that is measured, as Flower's other strategies hold it: the module's state by name."""
        state = self.loop.trained(self._closed and self._closed.decision).state_dict()
        moving = to_record({name: tensor for name, tensor in state.items() if name not in self._frozen})
        return ArrayRecord({name: self._frozen.get(name) or moving[name] for name in state})

    @cached_property
    def _frozen(self) -> ArrayRecord:
        """The frozen parameters, of which every record holds the same bytes."""
        named = self.trainer.module.named_parameters(remove_duplicate=False)
        return to_record({name: p for name, p in named if not p.requires_grad})

    def _check_given(self, arrays: ArrayRecord) -> None:
        """Refuse a model that someone changed between one call and the next: the change would be lost."""
        if any(name not in arrays or arrays[name].data != own.data for name, own in self.arrays().items()):
            raise CounterpoiseError(
                "The arrays given are not this strategy's model. It trains from one that it keeps itself, so a wrapper "
                "that changes them, such as Flower's DifferentialPrivacy strategies with their noise, has no effect "
                "here: leave it out."
            )

    def _check_mine(self) -> None:
        """Refuse a folder whose run another process continued after it was read here."""
        held = self.folder and self.folder.checkpoint.folder
        if held and (held / "checkpoint.json").exists() and read_index(held)["round"] != self.loop.round:
            raise CounterpoiseError(f"Another process has continued the run in {held.parent}. Start this one again.")

    def _save(self, status: str) -> None:
        if self.folder is not None:
            self.folder.save(self.loop, status)

    # ------------------------------------------------------------ what Flower asks of a strategy

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message to the node of every client that is drawn and connected. The model sent is the server's own."""
        self._check_given(arrays)
        self._opened = opened = self.loop.open()
        initial = {name: store.initial for name, store in self.loop.client_state.items()}
        one_letter = select(self.loop.server.letters([0]), 0)
        self._like = template(self.trainer.program, opened.shared, initial, one_letter)
        here = self._wait(grid, opened)
        there = [client for client in opened.asked if client in here and client not in opened.dropped]
        arrays, nodes = to_record(pack_broadcast(opened.shared)), {client: here[client] for client in there}
        places = {client: place for place, client in enumerate(opened.asked)}
        letters = {client: select(opened.letters, places[client]) for client in there}
        return self._messages(MessageType.TRAIN, nodes, arrays, opened.round, config, letters)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The server's half of the round."""
        opened = self._opened
        if opened is None:
            raise CounterpoiseError("aggregate_train was called before configure_train.")
        found = sift_replies(replies, self._clients_by_message(), opened.round, self._like)
        self.roster.note_versions(found.versions)
        absent = {client: AWAY for client in opened.asked if client not in self._sent}
        absent |= dict.fromkeys(opened.dropped, DROPPED) | found.reasons
        down = self.loop.bytes_to_each(opened) * len(self._sent)
        with self.trainer.setting(opened.round):
            replied = Replies(found.cohort, absent, found.losses, found.bytes_up, down)
            closed = self.loop.close(opened, replied, last=opened.round == self._last_round)
        self._opened, self._closed = None, closed
        return self.arrays(), to_metrics({"train_loss": closed.metrics.get("train_loss")})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message to every connected node, if the round is due for evaluation."""
        self._check_given(arrays)
        if self._closed is None:
            raise CounterpoiseError("configure_evaluate was called before aggregate_train.")
        every, decision = self.loop.evaluator.setting.clients_every, self._closed.decision
        due = bool(every) and (self._closed.last or decision.round % (every or 1) == 0)
        nodes = self.roster.present(grid) if due else {}
        statistics = decision.state.get(BATCH_NORM, {})
        model = to_record(pack_evaluation(self.loop.server.scored(decision), statistics))
        return self._messages(MessageType.EVALUATE, nodes, model, decision.round, config, {}, decision)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The means of what the nodes measured on their own held-out data; the round is then committed and kept."""
        if self._closed is None:
            raise CounterpoiseError("aggregate_evaluate was called before aggregate_train.")
        each = read_metrics(
            replies, self._clients_by_message(), self._closed.decision.round, self.loop.evaluator.ranges
        )
        record, self._closed = self.loop.commit(self._closed, each), None
        self.run.rounds.append(record)
        if self.folder is not None:
            self.folder.append(record)
            keep_names(self.folder, self.run, self.roster)
        self._save("running")
        return to_metrics({name: sum(values.values()) / len(values) for name, values in each.items()})

    def summary(self) -> None:
        """Log what is run."""
        log.info(
            "%s: %d parameters, %d clients, %d a round, from round %d%s",
            self.setup.training.method.name,
            self.trainer.layout.size,
            self.trainer.federation.clients,
            self.trainer.cohort_size,
            self.loop.round + 1,
            "" if self.folder is None else f", kept in {self.folder.path}",
        )

    # ------------------------------------------------------------ parts of it

    def _wait(self, grid: Grid, opened: Opened) -> dict[int, int]:
        """The connected nodes. The first round waits for all that are asked, later rounds for any of them."""
        first, since, self._first = self._first, time.monotonic(), False
        wanted = set(opened.asked) - set(opened.dropped)
        while True:
            here = self.roster.present(grid)
            enough = wanted <= here.keys() if first else bool(wanted & here.keys())
            if enough or not wanted or time.monotonic() - since >= self.patience:
                return here
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _messages(
        self,
        kind: str,
        nodes: Mapping[int, int],
        arrays: ArrayRecord,
        round: int,
        given: ConfigRecord,
        letters: Mapping[int, Named],
        decision: Decision | None = None,
    ) -> list[Message]:
        """A message for each client's node, with its own letters.

        With `decision`, the accepted rounds are those after its commit.
        """
        values = {**given, "round": round, "seed": self.trainer.seed, **terms(self.trainer)}
        server = self.loop.server

        def for_one(client: int) -> ArrayRecord:
            accepted = {part: server.accepted_rounds(part, [client], decision)[0] for part in server.accepted}
            own = pack_accepted(accepted) | pack_letters(letters.get(client, {}))
            return ArrayRecord({**arrays, **to_record(own)})

        self._sent = {
            client: Message(
                RecordDict({ARRAYS: for_one(client), CONFIG: with_secret({**values, "client": client})}),
                node,
                kind,
                group_id=str(round),
            )
            for client, node in nodes.items()
        }
        return list(self._sent.values())

    def _clients_by_message(self) -> dict[str, int]:
        """The client of each message sent, by the id that a message gets when it is sent."""
        return {message.metadata.message_id: client for client, message in self._sent.items()}


def _each_round(asked: Evaluation) -> Evaluation:
    """The evaluation asked for; an interval that was left open becomes every round."""
    every, clients_every = (1 if often is None else often for often in (asked.every, asked.clients_every))
    return replace(asked, every=every, clients_every=clients_every)
