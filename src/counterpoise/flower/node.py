"""The client's half on a node: a `ClientApp` made of a method, a model and a function that returns the node's data."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from counterpoise.engine.backends.settings import DTYPES, Engine
from counterpoise.engine.clients.messages import (
    SENT,
    Arrays,
    pack_reply,
    unpack_accepted,
    unpack_broadcast,
    unpack_letters,
    unpack_statistics,
)
from counterpoise.engine.clients.program import TrainingResult
from counterpoise.engine.rounds.evaluation import Evaluation
from counterpoise.engine.rounds.setup import Choice, Training
from counterpoise.engine.rounds.trainer import Trainer
from counterpoise.engine.scores import Loss, Metrics
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.flower.mods import fit_mods
from counterpoise.flower.records import Unreadable, from_record, to_record
from counterpoise.flower.replies import ARRAYS, CONFIG, METRICS
from counterpoise.flower.terms import VERSION, check_terms, other_version, show_version
from counterpoise.local import Local
from counterpoise.models.building import Model
from counterpoise.own import allow
from counterpoise.parts.statistics import BATCH_NORM
from counterpoise.trees import expand, on, select

__all__ = ["Data", "client_app"]

Data = Callable[[Context], Federation]
"""What a node holds, as a federation of one client: ``fed.only(2)``, or `Federation.from_datasets` of its own data."""

log = logging.getLogger(__name__)

_STATE = "counterpoise"
_ALONE = torch.tensor([0])
"""The node's own place in its federation of one."""


def client_app(
    method: Choice,
    model: Model,
    data: Data,
    *,
    local: Local | None = None,
    loss: Loss | str | None = None,
    metrics: Metrics | None = None,
    engine: Engine | None = None,
    mods: Sequence[Callable[..., Message]] = (),
    folder: str | Path | None = None,
) -> ClientApp:
    """A `ClientApp` that trains and evaluates as the simulator's clients do.

    Method, model, local settings, loss and metrics must be those of the server's `Strategy`. `data` is called with the
    node's context for every message; ``context.node_config["partition-id"]`` is then the number of the client that the
    server knows the node for. If `data` fails, the server learns only the kind of error. Of Flower's own mods,
    `LocalDpMod` works for methods whose clients send only updates; mods that cannot keep their promise are refused.
    `folder` as in `server_app`.
    """
    with _telling_version():
        allow([method, model, metrics], folder)
        training = Training.of(method, model, local=local, loss=loss, metrics=metrics, engine=engine)
        app = ClientApp(mods=fit_mods(mods, training.method))

    @app.train()  # type: ignore[untyped-decorator,unused-ignore]
    @_across_versions
    def train(message: Message, context: Context) -> Message:
        tensors = from_record(message.content.array_records[ARRAYS])
        here, config = _make_trainer(training, data, message, context, tensors), message.content.config_records[CONFIG]
        round, held = _whole(config["round"]), here.federation.train
        sizes = held.sizes(_ALONE)
        if not int(sizes):
            raise CounterpoiseError("This node holds no data to train on.")
        sent = {name: tensor.to(here.start.device) for name, tensor in tensors.items()}
        shared, letters = unpack_broadcast(sent), expand(unpack_letters(sent), 1)
        state = {name: store.gather([0]) for name, store in here.client_state.items()}
        number = torch.tensor([_whole(config["client"])])
        job = here.make_job(shared, here.federation.base, number, sizes, held.rows(_ALONE), round, state, letters)
        with here.setting(round):
            results = here.backend.train(job)
        for part in here.client_state:
            here.keep(part, [0], results, [True])
        _remember(context, here, unpack_accepted(tensors), round)
        own = TrainingResult(*(select(field, 0) for field in results))
        reply = pack_reply(own, sizes[0], job.steps[0] * here.program.local.passes)
        return _reply(message, {"round": round, "loss": float(own.loss), "version": VERSION}, to_record(reply))

    @app.evaluate()  # type: ignore[untyped-decorator,unused-ignore]
    @_across_versions
    def evaluate(message: Message, context: Context) -> Message:
        tensors = from_record(message.content.array_records[ARRAYS])
        here = _make_trainer(training, data, message, context, tensors)
        round, device = _whole(message.content.config_records[CONFIG]["round"]), here.start.device
        weights, statistics = tensors["model"].to(device), on(device, unpack_statistics(tensors))
        with here.setting(round):
            state = {BATCH_NORM: statistics}
            _, each = here.evaluator.evaluate(here.measured(weights, state), round, last=True)
            each |= here.personal(weights, state)
        return _reply(message, {"round": round} | {name: values[0] for name, values in each.items() if 0 in values})

    app.query()(_tell_number)
    return app


def _tell_number(message: Message, context: Context) -> Message:
    """Which client this node is by its own configuration."""
    if "partition-id" not in context.node_config:
        raise CounterpoiseError(
            "This node does not say which client it is: start it with --node-config 'partition-id=3', or register "
            "its key under a name that ends in the client's number."
        )
    return _reply(message, {"client": int(context.node_config["partition-id"])})


def _make_trainer(
    training: Training, data: Data, message: Message, context: Context, tensors: Mapping[str, Tensor]
) -> Trainer:
    """What trains and evaluates this node's client, as of the message's round."""
    start, config = tensors["model"], message.content.config_records[CONFIG]
    dtype = next(name for name, kind in DTYPES.items() if kind == start.dtype)
    client, seed = _whole(config["client"]), _whole(config["seed"])
    federation = _load(data, context, client)
    own = replace(
        training,
        local=_own(training.local, context, client),
        engine=replace(training.engine, dtype=dtype),
    )
    alone = Evaluation(every=0, clients_every=1)
    try:
        here = Trainer(own, federation, cohort=1, seed=seed, evaluation=alone)
    except CounterpoiseError:
        raise
    except Exception as error:  # the model is the user's code, and may read files of this node
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CounterpoiseError(f"This node could not make the model ({why}); its own log says more.") from error
    check_terms(here, config, len(start))
    _recall(context, here, unpack_accepted(tensors))
    return here


def _load(data: Data, context: Context, client: int) -> Federation:
    """What this node holds, as the client that the server knows it for."""
    given = context.node_config.get("partition-id", client)
    if str(given) != str(client):
        raise CounterpoiseError(
            f"This node is client {client} by the name of its key, and client {given} by its partition-id. Start it "
            "without a partition-id, or register its key under a name that ends in that number."
        )
    try:
        return data(replace(context, node_config={**context.node_config, "partition-id": client}))
    except Exception as error:  # the text stays here: it may name the site's files, or what is in them
        raise CounterpoiseError(
            f"This node could not load its data ({type(error).__name__}); its own log says why."
        ) from error


@contextlib.contextmanager
def _telling_version() -> Iterator[None]:
    """If an app cannot be loaded on a node, name the version in the error: the server could load it, so they may differ."""
    try:
        yield
    except CounterpoiseError as error:
        if Path(sys.argv[0]).name != "flwr-clientapp":
            raise
        logging.getLogger("flwr").addFilter(_in_a_sentence)
        raise CounterpoiseError(
            f"{error} This node runs counterpoise {show_version(VERSION)}: if the server runs another, install that."
        ) from None


def _across_versions(answer: Callable[[Message, Context], Message]) -> Callable[[Message, Context], Message]:
    """Answer a server of another version, too, if everything in its message is known. An error names both versions."""

    @functools.wraps(answer)
    def answered(message: Message, context: Context) -> Message:
        logging.getLogger("flwr").addFilter(_in_a_sentence)
        differ = other_version(message.content.config_records.get(CONFIG, {}))
        if not differ:
            return answer(message, context)
        try:
            names = {name.partition("/")[0] for name in message.content.array_records[ARRAYS]}
            if unknown := names - SENT:
                raise CounterpoiseError(f"The server's message holds {min(unknown)!r}, which this node does not know.")
            reply = answer(message, context)
        except CounterpoiseError as error:
            raise CounterpoiseError(f"{error} {differ}") from error.__cause__
        except Exception as error:  # such as a name that the other version does not use
            raise CounterpoiseError(f"{differ} It failed with {type(error).__name__}: {error}.") from None
        log.warning("%s", differ)
        return reply

    return answered


def _in_a_sentence(record: logging.LogRecord) -> bool:
    """Flower logs a failure with two tracebacks. An error of ours is a sentence for the site's operator and needs none."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, CounterpoiseError):
        cause = error.__cause__ or error
        # A node's federation has one client, and errors about its data call it by its place there.
        record.msg, record.args = "This node could not answer: %s", (str(cause).removeprefix("client 0: "),)
        plain = isinstance(cause, CounterpoiseError | FileNotFoundError | PermissionError)  # these name the file
        record.exc_info = None if plain else (type(cause), cause, cause.__traceback__)
    return True


def _reply(message: Message, metrics: dict[str, Any], arrays: ArrayRecord | None = None) -> Message:
    records: dict[str, Any] = {METRICS: MetricRecord(metrics)} | ({} if arrays is None else {ARRAYS: arrays})
    return Message(RecordDict(records), reply_to=message)


def _own(local: Local, context: Context, client: int) -> Local:
    """Local settings with this node's own memory: from its configuration, or from the list for all clients."""
    memory = local.memory[client] if isinstance(local.memory, Sequence) else local.memory
    given = context.node_config.get("memory-gib", memory)
    return replace(local, memory=None if given is None else float(given))


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value


# ---------------------------------------------------------------- what a client keeps


# A client's new state counts only if the server accepts the reply of the same round, and the node learns this from the
# next message. Until then it keeps two states, named by their rounds: the one that the server named last, and the one
# that belongs to its own last reply.


def _remember(context: Context, here: Trainer, accepted: Mapping[str, int], round: int) -> None:
    """Keep the client's new state in the node's context, beside the one it began with."""
    before = context.state.array_records.get(_STATE, ArrayRecord())
    begun = tuple(f"{accepted[part]}/{part}/" for part in here.client_state)
    rows = {f"{round}/{part}/{name}": t for part, store in here.client_state.items() for name, t in store[0].items()}
    if rows:
        context.state[_STATE] = ArrayRecord(
            {**{key: array for key, array in before.items() if key.startswith(begun)}, **to_record(rows)}
        )


def _recall(context: Context, here: Trainer, accepted: Mapping[str, int]) -> None:
    """Go back to the state that the server accepted last. A node without it starts as a client never seen does."""
    try:
        rows = from_record(context.state.array_records.get(_STATE, ArrayRecord()))
    except Unreadable:
        return
    for part, store in here.client_state.items():
        head = f"{accepted[part]}/{part}/"
        own = {key.removeprefix(head): t for key, t in rows.items() if key.startswith(head)}
        if _layout(own) == _layout(store.initial):
            store.put(0, {name: t.to(here.start.device) for name, t in own.items()})


def _layout(rows: Arrays) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in rows.items()}
