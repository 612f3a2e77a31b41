"""What an adversary is: some clients of the federation, and what they change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Annotated, get_args

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError, brief, check_call, takes_only_its_options
from counterpoise.federation.federation import Federation
from counterpoise.method import Cohort
from counterpoise.randomness import counter, normal, purpose, sample, uniform
from counterpoise.registry import Option, Parameter, Registry, Spec
from counterpoise.texts import counted

__all__ = ["ADVERSARIES", "ARound", "Adversary", "Clients", "First", "Fraction", "Last", "Often"]

Clients = Annotated[
    list | int | None,  # type: ignore[type-arg]
    Option("the clients' numbers, or how many to draw; by default one", low=0),
]
Fraction = Annotated[float | None, Option("share of the clients, instead of their number", low=0, high=1)]
ARound = Annotated[
    int | None, Option("how many clients of each round, drawn anew every round, instead of the same ones", low=0)
]
Often = Annotated[float, Option("the chance that each of them acts in a round", low=0, high=1)]
First = Annotated[int, Option("the first round in which they act", low=1)]
Last = Annotated[int | None, Option("the last round in which they act; by default the run's last", low=1)]

_CHECKED = {"fraction": Fraction, "often": Often, "a_round": ARound, "first": First, "last": Last}


@takes_only_its_options()
@dataclass(frozen=True)
class Adversary:
    """Some clients, and what they do.

    `reply(cohort, acting)` changes the replies of the clients that the mask `acting` ``[C]`` selects.
    `noise(cohort, acting, drawn)` does so with standard normal numbers ``[C, D]``.
    `data(federation, clients)` changes those clients' data once, before the first round.
    """

    clients: Sequence[int] | int | None = None
    """The clients' numbers, or how many to draw: one by default. Beside `fraction` or `a_round`, 0 means not given."""
    fraction: float | None = None
    often: float = 1.0
    reply: Callable[[Cohort, Tensor], Cohort] | None = None
    data: Callable[[Federation, Tensor], Federation] | None = None
    noise: Callable[[Cohort, Tensor, Tensor], Cohort] | None = None
    a_round: int | None = None
    """How many clients of each round act, drawn anew every round, instead of the same ones."""
    first: int = 1
    last: int | None = None
    """They act in the rounds from `first` to `last`."""
    spec: Spec = field(default_factory=Spec)

    def __post_init__(self) -> None:
        for name, takes in (
            ("reply", "cohort, acting"),
            ("data", "federation, clients"),
            ("noise", "cohort, acting, drawn"),
        ):
            if getattr(self, name) is not None:
                check_call(getattr(self, name), f"{name}({takes})", "Adversary")
        for name, hint in _CHECKED.items():
            kind, option = get_args(hint)
            Parameter(name, kind, None, option).check(getattr(self, name), "Adversary")
        if self.last is not None and self.last < self.first:
            raise CounterpoiseError(
                f"{self._called}: first is {self.first} and last is {self.last}, so nobody would ever act. "
                "Make last at least first."
            )
        one = isinstance(self.clients, Integral) and self.clients >= 0
        if not (
            one or self.clients is None or (isinstance(self.clients, Sequence) and not isinstance(self.clients, str))
        ):
            raise CounterpoiseError(
                f"Adversary: clients must be a list of their numbers, or how many to draw, not {brief(self.clients)}."
            )
        asked = {
            "clients": None if self.clients == 0 else self.clients,
            "fraction": self.fraction,
            "a_round": self.a_round,
        }
        given = [f"{name} = {value}" for name, value in asked.items() if value is not None]
        if len(given) > 1:
            raise CounterpoiseError(
                f"An adversary takes one of clients, fraction and a_round, not {' and '.join(given)}. "
                "Leave out all but one. (Naming the adversary again, as in adversary=claims, drops a preset's options.)"
            )

    @property
    def _called(self) -> str:
        """How an error names it; one of the user's own has no name."""
        return f"adversary {self.spec.name}" if self.spec.name else "Adversary"

    def who(self, seed: int, population: int) -> Tensor:
        """The clients' numbers: the ones given, or a draw that depends on the seed and the adversary's name."""
        if isinstance(self.clients, Sequence):
            if any(type(client) is not int or not 0 <= client < population for client in self.clients):
                raise CounterpoiseError(
                    f"{self._called}: clients must be numbers from 0 to {population - 1}, not {self.clients!r}."
                )
            return torch.tensor(sorted(set(self.clients)), dtype=torch.int64)
        count = 1 if self.clients is None else self.clients
        if self.fraction is not None:
            count = round(self.fraction * population)
        if count > population:
            raise CounterpoiseError(
                f"{self._called}: there {'is' if population == 1 else 'are'} only {counted(population, 'client')}, "
                f"so {count} of them cannot act."
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
        """The replies that arrive. Noise depends on seed, round and client, not on updates, which vary by rounding."""
        if self.reply is not None:
            cohort = self.reply(cohort, acting)
        if self.noise is not None:
            updates = cohort.updates
            ids = torch.tensor(cohort.ids, dtype=torch.int64, device=updates.device)[:, None]
            places = torch.arange(updates.shape[1], device=updates.device)
            key = counter(seed, purpose(f"adversary {self.spec.name}"), round, ids, places, device=updates.device)
            cohort = self.noise(cohort, acting, normal(key, updates.dtype))
        return cohort


ADVERSARIES: Registry[Adversary] = Registry("adversary", Adversary)
