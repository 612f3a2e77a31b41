"""Flower's own client mods around our messages: which of them keep their promise, and why others are refused.

Flower's privacy mods expect a reply that holds the trained weights under the names of the arrays received. Our replies
hold an update, counts and whatever a method reports. So such a mod is shown only the model, before and after training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import cast

import torch
from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.app.message import make_message
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod, message_size_mod
from torch import Tensor, nn

from counterpoise.engine.backends.settings import Engine
from counterpoise.engine.clients.messages import template
from counterpoise.engine.rounds.simulation import Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.federation.partition import iid
from counterpoise.flower.records import from_record, to_record
from counterpoise.flower.replies import ARRAYS, CONFIG, METRICS
from counterpoise.local import Local
from counterpoise.method import Method
from counterpoise.parts.statistics import BATCH_NORM
from counterpoise.trees import select

__all__ = ["fit_mods"]

Mod = Callable[..., Message]

_CENTRAL = "it is half of Flower's central privacy, and a Counterpoise server does not add the noise of the other half"
_REFUSED = {
    "fixedclipping_mod": _CENTRAL,
    "adaptiveclipping_mod": _CENTRAL,
    "secagg_mod": "a Counterpoise server needs each client's update in the clear",
    "secaggplus_mod": "a Counterpoise server needs each client's update in the clear",
}
_CLIENTS = 1000
"""Clients of the trial that shows what a method's clients send: enough for a rule that needs many."""


def fit_mods(mods: Iterable[Mod], method: Method) -> list[Mod]:
    """The mods, fitted to our messages; a mod of Flower's that could not keep its promise is refused."""
    if callable(mods) or not isinstance(mods, Iterable) or not all(map(callable, mods := list(mods))):
        raise CounterpoiseError("mods must be a list of Flower mods, each a function of message, context and the next.")
    return [_fit_mod(mod, method) for mod in mods]


def _fit_mod(mod: Mod, method: Method) -> Mod:
    inner = mod
    while isinstance(inner, functools.partial):
        inner = inner.func
    if isinstance(inner, LocalDpMod):
        _refuse_reports(_list_sent(method), method)
        return _of_weights(mod, method)
    if not inner.__module__.startswith("flwr.") or inner in (arrays_size_mod, message_size_mod):
        return mod
    name = getattr(inner, "__name__", type(inner).__name__)
    why = _REFUSED.get(name, "it was made for other messages than ours")
    raise CounterpoiseError(
        f"Flower's {name} cannot be used here: {why}. For privacy use LocalDpMod of flwr.clientapp.mod."
    )


def _refuse_reports(sent: Iterable[str], method: Method) -> None:
    reports = sorted(name.removeprefix("report/") for name in sent if name.startswith("report/"))
    if reports:
        how = "Take a method whose clients send updates alone, such as fedavg."
        if all(name.startswith(f"{BATCH_NORM}/") for name in reports):
            how = "Choose norm='local' or 'batch' for the model, whose clients send no statistics."
        raise CounterpoiseError(
            f"LocalDpMod makes updates private and nothing else, and clients of {method.name} send "
            f"{' and '.join(reports)} too. {how}"
        )


def _list_sent(method: Method) -> Iterable[str]:
    """The names of what a method's clients send, found out with a model of a few weights.

    The trial has as many clients and proxy samples as any method asks for. One that fails it nevertheless is refused.
    """
    proxy = 2 * Local().batch
    y = torch.arange(proxy + _CLIENTS + 2) % 2  # two classes, so that two samples are the probe
    tiny = Federation.from_arrays(y[:, None].float(), y, partition=iid(_CLIENTS), heldout=0, probe=1, proxy=proxy)
    try:
        simulation = Simulation(method, tiny, _Tiny(), engine=Engine(device="cpu", threads=1))
        state = {name: store.initial for name, store in simulation.client_state.items()}
        return template(
            simulation.trainer.program, simulation.open().shared, state, select(simulation.server.letters([0]), 0)
        )
    except Exception as error:  # hooks are the user's and may raise anything
        raise CounterpoiseError(
            f"LocalDpMod makes updates private and nothing else. What clients of {method.name} send could not be "
            f"checked, because the method failed on a tiny model: {error} Take a method whose clients send updates "
            "alone, such as fedavg."
        ) from error


class _Tiny(nn.Module):
    """A model that offers whatever a method may ask of one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(1, 2), nn.Linear(2, 2)

    def features(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.body(x))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.features(x)))


def _of_weights(mod: Mod, method: Method) -> Mod:
    """Fit a mod that expects weights to replies that hold an update."""

    def around(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        if message.metadata.message_type != MessageType.TRAIN:
            return call_next(message, context)
        start = from_record(message.content.array_records[ARRAYS])["model"]
        replies: list[Message] = []

        def train(_: Message, own: Context) -> Message:
            replies.append(reply := call_next(message, own))
            if not reply.has_content():
                return reply
            sent = from_record(reply.content.array_records[ARRAYS])
            _refuse_reports(sent, method)
            trained = {ARRAYS: to_record({"model": start + sent["update"]}), METRICS: reply.content[METRICS]}
            return make_message(metadata=reply.metadata, content=RecordDict(trained))

        model = {ARRAYS: to_record({"model": start}), CONFIG: message.content[CONFIG]}
        made = mod(make_message(metadata=message.metadata, content=RecordDict(model)), context, train)
        if not made.has_content():
            return made
        private = from_record(made.content.array_records[ARRAYS])["model"] - start
        (reply,) = replies
        reply.content[ARRAYS] = ArrayRecord({**reply.content.array_records[ARRAYS], **to_record({"update": private})})
        return reply

    return around
