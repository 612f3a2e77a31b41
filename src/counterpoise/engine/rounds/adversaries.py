"""Adversaries between the simulated clients and the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from counterpoise.adversary import ADVERSARIES, Adversary
from counterpoise.errors import CounterpoiseError, brief, check_call
from counterpoise.federation.federation import Federation
from counterpoise.method import Cohort

__all__ = ["Acting", "Adversaries", "each_adversary", "meddle", "recruit"]

Meddler = Callable[[int, Cohort], Cohort]
"""``(round, replies) -> replies``: a user's own function between the clients and the server."""
Adversaries = Adversary | Meddler | str | Sequence[Adversary | Meddler | str]
Acting = list[tuple[Adversary | Meddler, Tensor]]
"""Each adversary with the clients it plays."""


def each_adversary(given: Adversaries | None) -> list[Adversary | Meddler]:
    """One adversary, several or none, as a list; an adversary given by name is made."""
    several = isinstance(given, Sequence) and not isinstance(given, str)
    found = [] if given is None else list(given) if several else [given]  # type: ignore[arg-type]
    return [_adversary(one) for one in found]


def _adversary(given: object) -> Adversary | Meddler:
    if isinstance(given, str):
        return ADVERSARIES.make(given)
    if not isinstance(given, Adversary) and not callable(given):
        raise CounterpoiseError(
            "adversary must be an adversary such as cp.adversary.sign_flip(), its name, a function of round and "
            f"cohort, or a list of those, not {brief(given)}."
        )
    if not isinstance(given, Adversary):
        check_call(given, "adversary(round, cohort)", "simulate")
    return given


def recruit(given: Adversaries | None, seed: int, federation: Federation) -> tuple[Acting, Federation]:
    """Draw the clients that each adversary plays, and let adversaries that falsify data do so."""
    acting: Acting = []
    for one in each_adversary(given):
        who = one.who(seed, federation.clients) if isinstance(one, Adversary) else torch.empty(0)
        acting.append((one, who))
        if isinstance(one, Adversary) and one.data is not None:
            federation = one.data(federation, who)
            if not isinstance(federation, Federation):
                raise CounterpoiseError(
                    f"An adversary's data must return the changed federation, not {type(federation).__name__}."
                )
    return acting, federation


def meddle(
    acting: Acting, seed: int, round: int, cohort: Cohort, asked: Sequence[int]
) -> tuple[Cohort, dict[int, str], frozenset[int]]:
    """Let adversaries change a round's replies. Returns the replies to use, why others are refused, and the liars."""
    strange: dict[int, str] = {}
    liars: set[int] = set()
    for adversary, who in acting:
        if isinstance(adversary, Adversary):
            acts = adversary.acting(seed, round, cohort.ids, who)
            liars |= {client for client, lies in zip(cohort.ids, acts.tolist(), strict=True) if lies}
            cohort = adversary.replies(seed, round, cohort, acts.to(cohort.updates.device))
        else:
            cohort = adversary(round, cohort)
        _check_cohort(adversary, cohort)
        cohort, refused = _keep_expected(cohort, asked)
        strange |= refused
    return cohort, strange, frozenset(liars)


def _check_cohort(adversary: Adversary | Meddler, cohort: object) -> None:
    """Refuse what an adversary returned if it is no cohort; perhaps the function was meant for `cp.Adversary`."""
    if isinstance(cohort, Cohort):
        return
    found = type(cohort).__name__
    if isinstance(adversary, Adversary):
        raise CounterpoiseError(f"An adversary's reply and noise must return the changed cp.Cohort, not {found}.")
    raise CounterpoiseError(
        f"adversary(round, cohort) must return the changed cp.Cohort, not {found}. "
        "For a function reply(cohort, acting), give adversary=cp.Adversary(clients=[0], reply=reply)."
    )


def _keep_expected(cohort: Cohort, asked: Sequence[int]) -> tuple[Cohort, dict[int, str]]:
    """The replies from clients that were asked and replied once, and why the others are refused."""
    known = {*asked}
    strange = {client: "it was not asked" for client in cohort.ids if client not in known}
    strange |= {client: "it replied more than once" for client, times in Counter(cohort.ids).items() if times > 1}
    good = torch.tensor(
        [client not in strange for client in cohort.ids], dtype=torch.bool, device=cohort.updates.device
    )
    return cohort.keep(good), strange
