"""What an adversary is: some clients of the federation, and what they change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.federation import Federation
from counterpoise.method import Cohort
from counterpoise.randomness import counter, normal, purpose, sample, uniform
from counterpoise.registry import Option, Registry, Spec

__all__ = ["ADVERSARIES", "ARound", "Adversary", "Clients", "First", "Fraction", "Last", "Often"]

Clients = Annotated[
    list | int | None,  # type: ignore[type-arg]
    Option("which clients, by their numbers, or how many of them; by default one", low=0),
]
Fraction = Annotated[float | None, Option("which share of the clients, in place of their number", low=0, high=1)]
ARound = Annotated[
    int | None, Option("how many of every round's clients, drawn anew each round, in place of the same ones", low=0)
]
Often = Annotated[float, Option("the chance that one of them acts in a round", low=0, high=1)]
First = Annotated[int, Option("the first round in which they act", low=1)]
Last = Annotated[int | None, Option("the last round in which they act; by default the run's", low=1)]


@dataclass(frozen=True)
class Adversary:
    """Some clients, and what they do.

    `reply(cohort, acting)` changes the replies of the clients where `acting` holds, ``[C]``; `noise(cohort, acting, drawn)`
    does so with standard normal numbers ``[C, D]``; `data(federation, clients)` changes what those clients hold, once,
    before the first round.
    """

    clients: Sequence[int] | int | None = None
    """One, unless it, `fraction` or `a_round` says otherwise; 0 leaves it to them."""
    fraction: float | None = None
    often: float = 1.0
    reply: Callable[[Cohort, Tensor], Cohort] | None = None
    data: Callable[[Federation, Tensor], Federation] | None = None
    noise: Callable[[Cohort, Tensor, Tensor], Cohort] | None = None
    a_round: int | None = None
    """So many of every round's clients in place of the same ones always: who it is, each round draws anew."""
    first: int = 1
    last: int | None = None
    """The rounds in which they act."""
    spec: Spec = field(default_factory=Spec)

    def __post_init__(self) -> None:
        asked = {
            "clients": None if self.clients == 0 else self.clients,
            "fraction": self.fraction,
            "a_round": self.a_round,
        }
        given = [f"{name} = {value}" for name, value in asked.items() if value is not None]
        if len(given) > 1:
            raise CounterpoiseError(
                f"An adversary takes one of clients, fraction and a_round, not {' and '.join(given)}: "
                "leave out all but one. (Naming the adversary again, as in adversary=claims, drops what a preset says of it.)"
            )

    def who(self, seed: int, population: int) -> Tensor:
        """The clients' numbers: those named, or as many as asked for, drawn by the seed and the adversary's name."""
        if isinstance(self.clients, Sequence):
            named = sorted(set(self.clients))
            if any(type(client) is not int or not 0 <= client < population for client in named):
                raise CounterpoiseError(
                    f"adversary {self.spec.name}: clients must be numbers from 0 to {population - 1}, not {self.clients!r}."
                )
            return torch.tensor(named, dtype=torch.int64)
        count = 1 if self.clients is None else self.clients
        if self.fraction is not None:
            count = round(self.fraction * population)
        if count > population:
            raise CounterpoiseError(
                f"adversary {self.spec.name}: there are {population} clients, and {count} of them cannot lie."
            )
        return sample(population, count, seed, purpose(f"adversary {self.spec.name}")).sort().values

    def acting(self, seed: int, round: int, ids: Sequence[int], who: Tensor) -> Tensor:
        """Which clients of a cohort act in this round, ``[C]``."""
        clients = torch.tensor(ids, dtype=torch.int64)
        if self.a_round is not None:
            count = min(self.a_round, len(ids))
            who = clients[sample(len(ids), count, seed, purpose(f"adversary {self.spec.name}"), round)]
        chance = uniform(counter(seed, purpose(f"acting {self.spec.name}"), round, clients))
        now = self.first <= round and (self.last is None or round <= self.last)
        return torch.isin(clients, who) & (chance < self.often) & now

    def replies(self, seed: int, round: int, cohort: Cohort, acting: Tensor) -> Cohort:
        """What arrives. Numbers drawn depend on seed, round and client, not on the updates: these differ by rounding."""
        if self.reply is not None:
            cohort = self.reply(cohort, acting)
        if self.noise is not None:
            updates = cohort.updates
            ids = torch.tensor(cohort.ids, dtype=torch.int64, device=updates.device)[:, None]
            places = torch.arange(updates.shape[1], device=updates.device)
            key = counter(seed, purpose(f"adversary {self.spec.name}"), round, ids, places, device=updates.device)
            cohort = self.noise(cohort, acting, normal(key, updates.dtype))
        return cohort


ADVERSARIES: Registry[Adversary] = Registry("adversary")
