"""A node's own memory decides what its client does with it."""

from __future__ import annotations

from dataclasses import replace

import torch
from grids import InProcess
from helpers import blobs, double, flat, small

from counterpoise.engine import Simulation
from counterpoise.flower import Strategy, client_app
from counterpoise.local import Local, sgd
from counterpoise.methods import fedoaed
from counterpoise.methods.fedoaed import dense_bytes

LOCAL = Local(epochs=2, batch=2, optimizer=sgd(0.05))
FEDERATION = blobs((9, 8, 12), proxy=4)
NEEDED = dense_bytes(len(flat(small())), 6, 3, torch.float64) / 2**30
METHOD = fedoaed("auto", hidden=6, latent=3, budget=NEEDED / 2)


def test_each_node_chooses_by_its_own_memory():
    engine = double(backend="per-client", threads=1)
    app = client_app(
        METHOD, small(), lambda c: FEDERATION.only(c.node_config["partition-id"]), local=LOCAL, engine=engine
    )
    grid = InProcess(app, 3)
    for node, client in grid.ids.items():
        if client == 1:
            grid.restart(node, {"partition-id": client, "memory-gib": NEEDED})
    made = Strategy(METHOD, FEDERATION, model=small(), rounds=1, local=LOCAL, engine=engine, patience=0)
    made.start(grid)
    found = {}
    for name, memory in (("own", [NEEDED / 2, NEEDED, NEEDED / 2]), ("none", None)):
        simulation = Simulation(METHOD, FEDERATION, small(), local=replace(LOCAL, memory=memory), engine=engine)
        simulation.advance()
        found[name] = simulation.server.model
    assert torch.equal(made.simulation.server.model, found["own"])
    assert not torch.equal(found["own"], found["none"])
