"""The client's half on a node: a `ClientApp` of a method, a model and a function that gives the node its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from counterpoise.engine.client import Loss, Sent
from counterpoise.engine.evaluation import Evaluation, Metric
from counterpoise.engine.messages import pack_reply, unpack_broadcast
from counterpoise.engine.settings import DTYPES, Engine
from counterpoise.engine.trainer import Trainer
from counterpoise.engine.trees import select
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.flower.records import Unreadable, from_record, to_record
from counterpoise.flower.replies import ARRAYS, CONFIG, METRICS
from counterpoise.local import Local
from counterpoise.method import Method
from counterpoise.methods import METHODS
from counterpoise.runs.setup import Model, build_model

__all__ = ["Data", "client_app"]

Data = Callable[[Context], Federation]
"""What a node holds, as a federation of one client: ``fed.only(2)``, or `Federation.from_clients` of its own arrays."""

_STATE = "counterpoise"
_ALONE = torch.tensor([0])
"""The node's own place in its federation of one."""


def client_app(
    method: Method | str,
    model: Model,
    data: Data,
    *,
    local: Local | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    engine: Engine | None = None,
    mods: Sequence[Callable[..., Message]] = (),
) -> ClientApp:
    """A `ClientApp` that trains and evaluates as the simulator's clients do.

    Method, model, local settings, loss and metrics must be those of the server's `Strategy`. `data` is called with the
    node's context for every message. Seed, round and the client's number come with the message.
    """
    made = METHODS.make(method) if isinstance(method, str) else method
    app = ClientApp(mods=list(mods))

    def trainer(message: Message, context: Context, tensors: Mapping[str, Tensor]) -> Trainer:
        start, config = tensors["model"], message.content.config_records[CONFIG]
        dtype = next(name for name, kind in DTYPES.items() if kind == start.dtype)
        federation, seed = data(context), _whole(config["seed"])
        here = Trainer(
            made,
            federation,
            build_model(model, federation, seed),
            cohort=1,
            local=local or Local(),
            loss=loss,
            metrics=metrics,
            seed=seed,
            engine=replace(engine or Engine(), dtype=dtype),
            evaluation=Evaluation(every=0, clients_every=1),
        )
        if here.layout.size != len(start):
            raise CounterpoiseError(
                f"The model on this node has {here.layout.size} parameters, and the server's has {len(start)}. "
                "Both must be made by the same code, for the same number of classes."
            )
        _recall(context, here)
        return here

    @app.train()  # type: ignore[untyped-decorator,unused-ignore]
    def train(message: Message, context: Context) -> Message:
        tensors = from_record(message.content.array_records[ARRAYS])
        here, config = trainer(message, context, tensors), message.content.config_records[CONFIG]
        round, held = _whole(config["round"]), here.federation.train
        sizes = held.sizes(_ALONE)
        if not int(sizes):
            raise CounterpoiseError("This node holds no data to train on.")
        shared = unpack_broadcast({name: tensor.to(here.start.device) for name, tensor in tensors.items()})
        state = {name: store.gather([0]) for name, store in here.client_state.items()}
        number = torch.tensor([_whole(config["client"])])
        job = here.job(shared, here.federation.base, number, sizes, held.rows(_ALONE), round, state)
        with here.setting(round):
            sent = here.backend.train(job)
        here.keep([0], sent)
        _remember(context, here)
        own = Sent(*(select(field, 0) for field in sent))
        reply = pack_reply(own, sizes[0], job.steps[0] * here.program.local.passes)
        return _reply(message, {"round": round, "loss": float(own.loss)}, to_record(reply))

    @app.evaluate()  # type: ignore[untyped-decorator,unused-ignore]
    def evaluate(message: Message, context: Context) -> Message:
        tensors = from_record(message.content.array_records[ARRAYS])
        here = trainer(message, context, tensors)
        round, weights = _whole(message.content.config_records[CONFIG]["round"]), tensors["model"].to(here.start.device)
        with here.setting(round):
            _, each = here.evaluator.evaluate(weights, round, last=True)
            each |= here.personal(weights)
        return _reply(message, {"round": round} | {name: values[0] for name, values in each.items() if 0 in values})

    @app.query()  # type: ignore[untyped-decorator,unused-ignore]
    def query(message: Message, context: Context) -> Message:
        if "partition-id" not in context.node_config:
            raise CounterpoiseError(
                "This node does not say which client it is: start it with --node-config 'partition-id=3', or register "
                "its key under a name that ends in the client's number."
            )
        return _reply(message, {"client": int(context.node_config["partition-id"])})

    return app


def _reply(message: Message, metrics: dict[str, Any], arrays: ArrayRecord | None = None) -> Message:
    records: dict[str, Any] = {METRICS: MetricRecord(metrics)} | ({} if arrays is None else {ARRAYS: arrays})
    return Message(RecordDict(records), reply_to=message)


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value


# ---------------------------------------------------------------- what a client keeps


def _remember(context: Context, here: Trainer) -> None:
    """Keep the client's state in the node's context, where its next round finds it."""
    rows = {f"{part}/{name}": t for part, store in here.client_state.items() for name, t in store[0].items()}
    if rows:
        context.state[_STATE] = to_record(rows)


def _recall(context: Context, here: Trainer) -> None:
    """Take it up again. A node that lost it, or has another model's, begins as a client never seen does."""
    try:
        rows = from_record(context.state.array_records.get(_STATE, ArrayRecord()))
    except Unreadable:
        return
    initial = {f"{part}/{name}": t for part, store in here.client_state.items() for name, t in store.initial.items()}
    if {k: (t.shape, t.dtype) for k, t in rows.items()} != {k: (t.shape, t.dtype) for k, t in initial.items()}:
        return
    for part, store in here.client_state.items():
        store.put(0, {name: rows[f"{part}/{name}"].to(here.start.device) for name in store.initial})
