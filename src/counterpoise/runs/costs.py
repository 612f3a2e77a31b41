"""What a method costs in traffic and memory, measured over one round."""

from __future__ import annotations

from typing import NamedTuple

from counterpoise.engine.backends.settings import Engine
from counterpoise.engine.rounds.simulation import Simulation
from counterpoise.engine.rounds.store import row_bytes
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import iid, load
from counterpoise.local import Local, sgd
from counterpoise.method import SLOTS, Method
from counterpoise.models import mlp

__all__ = ["Costs", "costs"]

_CLIENTS = 8


class Costs(NamedTuple):
    """All numbers are in units of the model's own size."""

    up: float
    """Sent by each client in a round."""
    down: float
    """Sent to each client in a round."""
    server: float
    """Kept on the server beside the model."""
    record: float
    """Kept on the server for each client seen."""
    client: float
    """Kept on each client."""
    when_lost: tuple[str, ...]
    """What happens if a client loses what it keeps."""


def costs(method: Method) -> Costs | None:
    """Run one round on a small federation; None if the method cannot do that."""
    federation = load("synthetic", partition=iid(clients=_CLIENTS), probe=1, proxy=100, samples=400, heldout=0.0)
    model = mlp(federation.shape, federation.classes or 2, hidden=512)
    local = Local(batch=32, optimizer=sgd(0.01))
    try:
        simulation = Simulation(method, federation, model, local=local, engine=Engine(device="cpu", threads=1))
        record = simulation.advance(last=False)
    except CounterpoiseError:
        return None
    server = simulation.server
    one = row_bytes({"model": server.model})
    return Costs(
        record.bytes_up / _CLIENTS / one,
        record.bytes_down / _CLIENTS / one,
        sum(row_bytes(named) for named in server.state.values()) / one,
        sum(store.row for store in server.records.values()) / one,
        sum(store.row for store in simulation.client_state.values()) / one,
        tuple(part.when_lost for slot in SLOTS for part in getattr(method, slot) if part.when_lost),
    )
