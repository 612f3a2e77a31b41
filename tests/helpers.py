"""What many tests need: small federations, small models, and a run in float64."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import counterpoise as cp
from counterpoise.engine import Engine, Simulation
from counterpoise.engine.clients.batches import client_keys, plan
from counterpoise.engine.clients.likeness import alike, client_hooks
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.local import Local, sgd
from counterpoise.method import Part, Reply
from counterpoise.methods import METHODS
from counterpoise.models.registry import Layers

BACKENDS = ("batched", "per-client")
ENGINES = [{"backend": "batched", "chunk": chunk} for chunk in (1, 2, 3, 4, 5, 9)] + [
    {"backend": "per-client", "threads": threads} for threads in (1, 2)
]
ALL_METHODS = [entry.name for entry in METHODS]


def differing_on_clients(names: list[str]) -> list[str]:
    """The first of all methods that do the same on clients: for tests of what clients compute."""
    found: dict[str, Any] = {}
    for name in names:
        hooks = client_hooks(METHODS.make(name))
        if not any(alike(hooks, other) for other in found.values()):
            found[name] = hooks
    return [*found]


def on_backends(names: list[str]) -> list[tuple[str, str]]:
    """Every method with the backend that stacks clients, and those that differ on clients with the other one too."""
    alone = differing_on_clients(names)
    return [(name, "batched") for name in names] + [(name, "per-client") for name in alone]


def double(**engine) -> Engine:
    """An engine in float64, on one thread of the CPU unless told otherwise."""
    return Engine(**{"dtype": "float64", "device": "cpu", "threads": 1} | engine)


# ---------------------------------------------------------------- quadratics

H, M = (1.0, 10.0), (4.0, -1.0)


class Point(nn.Module):
    """A model that is one number, whatever its input."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([start], dtype=torch.float64))

    def forward(self, inputs):
        return self.w.expand(len(inputs))

    def features(self, inputs):
        return self.w.expand(len(inputs), 1)


def half_square(outputs, targets):
    """h/2 (w - m)^2 for targets (h, m)."""
    h, m = targets.unbind(1)
    return h / 2 * (outputs - m) ** 2


def push(outputs, targets):
    """A loss whose gradient is -1 everywhere: a step of lr 1 moves a `Point` by +1."""
    return -outputs


def quadratics(h, m, counts=None) -> Federation:
    """Client i holds counts[i] samples, each with the loss h_i/2 (w - m_i)^2."""
    counts = counts or [1] * len(h)
    clients = [(np.zeros((n, 1)), np.tile([float(a), float(b)], (n, 1))) for a, b, n in zip(h, m, counts, strict=True)]
    return Federation.from_clients(clients, heldout=0)


def descend(method, h, m, steps, *, counts=None, start=0.0, lr=0.02, backend="per-client", **settings) -> Simulation:
    """A simulation of quadratics with steps[i] plain gradient steps on client i."""
    return Simulation(
        method,
        quadratics(h, m, counts),
        Point(start),
        loss=half_square,
        local=Local(batch=1000, steps=steps, optimizer=sgd(lr)),
        engine=double(backend=backend),
        **settings,
    )


def points(simulation: Simulation, rounds: int) -> list[float]:
    """The one-number model after each of some rounds."""
    values = []
    for _ in range(rounds):
        simulation.advance()
        values.append(float(simulation.server.model[0]))
    return values


def without_probe(clients: int = 2) -> list[str]:
    """Methods that so many clients are enough for, and that ask for no probe set: quadratics have no classes."""
    names = []
    for name in ALL_METHODS:
        try:
            descend(METHODS.make(name), [1.0] * clients, [0.0] * clients, 1)
        except CounterpoiseError as error:
            reasons = ("needs a probe set", "local.steps", "clients a round")
            assert any(reason in str(error) for reason in reasons)  # noqa: PT017
        else:
            names.append(name)
    return names


# ---------------------------------------------------------------- small real data and models


def blobs(sizes, *, shape=(6,), classes=3, seed=0, **settings) -> Federation:
    """Clients of the given sizes with normal inputs and class targets; nothing is held out."""
    rng = np.random.default_rng(seed)
    clients = [(rng.standard_normal((n, *shape)), rng.integers(0, classes, n)) for n in sizes]
    clients[0][1][0] = classes - 1
    return Federation.from_clients(clients, **{"heldout": 0} | settings)


def net(*layers: nn.Module, seed: int = 0) -> nn.Module:
    """The layers in a row, initialised from a seed, whatever was drawn before."""
    return fresh(Layers(*layers), seed)


def fresh(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module in float64 with normal weights drawn from a seed."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(0.4 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return module


def small(inputs: int = 6, classes: int = 3) -> nn.Module:
    """A smooth network of one hidden layer."""
    return net(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, classes))


def required(model) -> dict[str, str]:
    """Values for the options that a registered model must be given."""
    return {"norm": "batch"} if "norm" in model.parameters else {}


def digits(clients: int = 5, **settings) -> Federation:
    return cp.load("digits", partition=cp.iid(clients=clients), **settings)


def run(simulation: Simulation, rounds: int = 2) -> torch.Tensor:
    """The server's model after some rounds."""
    for _ in range(rounds):
        simulation.advance()
    return simulation.server.model


def flat(module: nn.Module) -> torch.Tensor:
    """A module's trainable parameters as one vector, without our own code."""
    return torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad])


def gradient(module: nn.Module, inputs, targets, loss=F.cross_entropy) -> torch.Tensor:
    """The gradient of a mean loss by torch alone."""
    module.zero_grad()
    loss(module(inputs), targets).backward()
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.requires_grad])


def data_of(federation: Federation, client: int, dtype=torch.float64):
    """A client's training samples, in their stored order."""
    ids = torch.tensor([client])
    rows = federation.train.rows(ids)[0][: int(federation.train.sizes(ids))]
    return federation.base.take(rows, dtype)


def by_torch(model, federation, client, make, local, round, seed):
    """Local training of one client in one round: torch.optim over the batches that the plan names."""
    inputs, targets = data_of(federation, client)
    optimizer = make(list(model.parameters()), local.lr(round))
    size = torch.tensor([len(targets)])
    steps = (size + local.batch - 1) // local.batch
    for epoch in range(local.epochs):
        batches = plan(client_keys(seed, round, torch.tensor([client])), size, steps, local.batch, epoch)
        for places, real in zip(batches.places[0], batches.real[0], strict=True):
            rows = places[real]
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()


def joined(lists) -> list:
    """Lists as one list."""
    return list(chain.from_iterable(lists))


def assert_close(a, b, scale, tolerance: float = 1e-10) -> None:
    """a and b differ by at most `tolerance` of the norm of `scale`."""
    assert scale.norm() > 0, "nothing moved: the comparison would be empty"
    assert (a - b).norm() <= tolerance * scale.norm(), float((a - b).norm() / scale.norm())


class Spy:
    """An adversary that changes nothing and keeps what it saw."""

    def __init__(self) -> None:
        self.cohorts = []

    def __call__(self, round, cohort):
        self.cohorts.append(cohort)
        return cohort


def tracing(every: int, most: int, name: str = "tracing") -> Part:
    """A part that changes nothing and reports the trace it was shown, padded to `most` rows, and the raw update."""

    def finish(client, reply):
        rows = F.pad(client.trace, (0, 0, 0, most - len(client.trace)))
        length = torch.full_like(client.traced, len(client.trace))
        told = {"trace": rows, "traced": client.traced, "length": length, "raw": reply.update}
        return Reply(reply.update, told, reply.state)

    return Part(name, trace_every=every, finish=finish)


def postman() -> Part:
    """A part whose server writes to each client, from its record; clients report the letter and add it to the update.

    The letter is 0.001 times the sum of the client's number and 10 times the rounds in which it was heard; at first 0.
    """

    def apply(round):
        numbers = torch.tensor(round.cohort.ids, dtype=round.model.dtype)
        heard = {"number": numbers, "rounds": round.records["rounds"] + 1}
        return round.but(records=heard, state={"factor": round.state["factor"]})

    def letters(state, records):
        return {"value": (records["number"] + 10 * records["rounds"])[:, None] * state["factor"]}

    def finish(client, reply):
        value = client.letter["value"]
        return Reply(reply.update + value.sum(), {"letter": value})

    return Part(
        "postman",
        server_state=lambda start: {"factor": start.new_full((1,), 1e-3)},
        client_record=lambda start: {"number": start.new_zeros(()), "rounds": start.new_zeros(())},
        letters=letters,
        gradient=lambda client, step, g: g + client.letter["value"],
        finish=finish,
        apply=apply,
    )
