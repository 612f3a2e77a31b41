"""Clients that do not send the update they trained. Those that collude know the honest clients' updates.

By the same rule each also forges every report that is as long as the model, such as SCAFFOLD's change of a variate.
Otherwise SCAFFOLD would learn the truth from a client whose update is forged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from counterpoise.adversary.base import ADVERSARIES, Adversary, Clients, First, Fraction, Last, Often
from counterpoise.method import Cohort
from counterpoise.registry import Option

__all__ = ["free_rider", "inner_product", "little", "mimic", "noisy", "scaled", "sign_flip"]


@ADVERSARIES.register("sign-flip")
def sign_flip(
    scale: Annotated[float, Option("length of the reversed update, as a multiple of the true one", above=0)] = 1.0,
    clients: Clients = None,
    fraction: Fraction = None,
    often: Often = 1.0,
    first: First = 1,
    last: Last = None,
) -> Adversary:
    """Sends its update reversed."""

    def reply(cohort: Cohort, acting: Tensor) -> Cohort:
        return _sending(cohort, acting, lambda true: -scale * true)

    return Adversary(clients, fraction, often, reply, first=first, last=last)


@ADVERSARIES.register("scaled")
def scaled(
    factor: Annotated[float, Option("length of the update, as a multiple of the true one", above=0)] = 10.0,
    clients: Clients = None,
    fraction: Fraction = None,
    often: Often = 1.0,
) -> Adversary:
    """Sends its update many times as long, without claiming more data."""
    return Adversary(
        clients, fraction, often, lambda cohort, acting: _sending(cohort, acting, lambda true: factor * true)
    )


@ADVERSARIES.register("noisy")
def noisy(
    level: Annotated[float, Option("length of the noise, as a multiple of the update's", low=0)] = 1.0,
    clients: Clients = None,
    fraction: Fraction = None,
    often: Often = 1.0,
) -> Adversary:
    """Adds normal noise to its update."""

    def noise(cohort: Cohort, acting: Tensor, drawn: Tensor) -> Cohort:
        def noised(true: Tensor) -> Tensor:
            length: Tensor = torch.linalg.vector_norm(true, dim=1, keepdim=True) / true.shape[1] ** 0.5
            return true + level * length * drawn

        return _sending(cohort, acting, noised)

    return Adversary(clients, fraction, often, noise=noise)


@ADVERSARIES.register("free-rider")
def free_rider(
    level: Annotated[float, Option("length of what it sends, as a multiple of the honest clients' mean", low=0)] = 0.0,
    clients: Clients = None,
    fraction: Fraction = None,
    often: Often = 1.0,
) -> Adversary:
    """Does not train: sends nothing, or noise of a plausible length."""

    def noise(cohort: Cohort, acting: Tensor, drawn: Tensor) -> Cohort:
        def drawn_as_long(true: Tensor) -> Tensor:
            honest = true[~acting]
            length: Tensor = torch.linalg.vector_norm(honest, dim=1).mean() if len(honest) else true.new_zeros(())
            made: Tensor = level * length * drawn / true.shape[1] ** 0.5
            return made

        return _sending(cohort, acting, drawn_as_long)

    return Adversary(clients, fraction, often, noise=noise)


@ADVERSARIES.register("inner-product")
def inner_product(
    scale: Annotated[float, Option("epsilon, the factor on the reversed honest mean", above=0)] = 1.0,
    clients: Clients = None,
    fraction: Fraction = None,
    often: Often = 1.0,
) -> Adversary:
    """Sends the honest clients' mean reversed: ``-epsilon mean d`` (Xie, Koyejo, Gupta 2020)."""

    def reply(cohort: Cohort, acting: Tensor) -> Cohort:
        return _colluding(cohort, acting, lambda honest: -scale * honest.mean(0))

    return Adversary(clients, fraction, often, reply)


@ADVERSARIES.register("little-is-enough")
def little(
    deviations: Annotated[float, Option("z, standard deviations from the honest mean", above=0)] = 1.5,
    clients: Clients = None,
    fraction: Fraction = None,
    often: Often = 1.0,
) -> Adversary:
    """Stays within the honest clients' spread: ``mean d - z std d``, per coordinate (Baruch, Baruch, Goldberg 2019)."""

    def reply(cohort: Cohort, acting: Tensor) -> Cohort:
        return _colluding(cohort, acting, lambda honest: honest.mean(0) - deviations * honest.std(0, correction=0))

    return Adversary(clients, fraction, often, reply)


@ADVERSARIES.register("mimic")
def mimic(clients: Clients = None, fraction: Fraction = None, often: Often = 1.0) -> Adversary:
    """Repeats one honest client's update, so that it counts several times (Karimireddy, He, Jaggi 2022)."""

    def reply(cohort: Cohort, acting: Tensor) -> Cohort:
        return _colluding(cohort, acting, lambda honest: honest[0])

    return Adversary(clients, fraction, often, reply)


def _sending(cohort: Cohort, acting: Tensor, made: Callable[[Tensor], Tensor]) -> Cohort:
    """The acting clients' updates ``[C, D]``, and their reports of that shape, made anew from all that were trained."""

    def sent(true: Tensor) -> Tensor:
        return torch.where(acting[:, None], made(true).to(true.dtype), true)

    long = cohort.updates.shape
    told = {
        part: {name: sent(true) if true.shape == long else true for name, true in named.items()}
        for part, named in cohort.reports.items()
    }
    return replace(cohort, updates=sent(cohort.updates), reports=told)


def _colluding(cohort: Cohort, acting: Tensor, made: Callable[[Tensor], Tensor]) -> Cohort:
    """All acting clients send the same, made from what honest ones send ``[H, D]``; if there are none, they stay honest."""
    return cohort if bool(acting.all()) else _sending(cohort, acting, lambda true: made(true[~acting]))
