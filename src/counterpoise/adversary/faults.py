"""Clients that break, and clients whose labels are wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from counterpoise.adversary.base import ADVERSARIES, Adversary, Clients, Fraction, Often
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.assignment import apart
from counterpoise.federation.federation import Federation
from counterpoise.method import Cohort
from counterpoise.registry import Option

__all__ = ["crashed", "label_flip", "not_a_number", "twice"]


@ADVERSARIES.register("nan")
def not_a_number(clients: Clients = None, fraction: Fraction = None, often: Often = 1.0) -> Adversary:
    """Sends NaN."""

    def reply(cohort: Cohort, acting: Tensor) -> Cohort:
        return replace(cohort, updates=torch.where(acting[:, None], torch.nan, cohort.updates))

    return Adversary(clients, fraction, often, reply)


@ADVERSARIES.register("crashed")
def crashed(clients: Clients = None, fraction: Fraction = None, often: Often = 1.0) -> Adversary:
    """Trains and does not reply."""
    return Adversary(clients, fraction, often, lambda cohort, acting: cohort.keep(~acting))


@ADVERSARIES.register("twice")
def twice(clients: Clients = None, fraction: Fraction = None, often: Often = 1.0) -> Adversary:
    """Replies twice in a round."""

    def reply(cohort: Cohort, acting: Tensor) -> Cohort:
        again = cohort.keep(acting)
        if not len(again):
            return cohort
        reports = {
            part: {name: torch.cat([values, again.reports[part][name]]) for name, values in named.items()}
            for part, named in cohort.reports.items()
        }
        updates, examples, steps = (
            torch.cat([getattr(cohort, name), getattr(again, name)]) for name in ("updates", "examples", "steps")
        )
        return Cohort(cohort.ids + again.ids, updates, examples, steps, reports)

    return Adversary(clients, fraction, often, reply)


@ADVERSARIES.register("label-flip")
def label_flip(
    of: Annotated[int | None, Option("the only class to flip; by default all", low=0)] = None,
    to: Annotated[int | None, Option("the class it becomes; by default its mirror, classes - 1 - y", low=0)] = None,
    clients: Clients = None,
    fraction: Fraction = None,
) -> Adversary:
    """Trains on wrong labels."""

    def data(federation: Federation, liars: Tensor) -> Federation:
        classes, train = federation.classes, federation.train
        if classes is None or not apart(train, federation.heldout):
            raise CounterpoiseError(
                "adversary label-flip needs classes, and a partition that gives each sample to one client."
            )
        for name, label in (("of", of), ("to", to)):
            if label is not None and label >= classes:
                raise CounterpoiseError(
                    f"adversary label-flip: {name} must be below the {classes} classes, not {label}."
                )
        rows = torch.cat([train.rows(liar[None])[0] for liar in liars]) if len(liars) else liars
        targets = federation.base.targets.clone()
        old = targets[rows]
        new = torch.full_like(old, to) if to is not None else classes - 1 - old
        targets[rows] = new if of is None else torch.where(old == of, new, old)
        return replace(federation, base=replace(federation.base, targets=targets))

    return Adversary(clients, fraction, data=data)
