"""Clients that do not send the update they trained. Those that collude know the honest clients' updates."""

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
        return _sending(cohort, acting, -scale * cohort.updates)

    return Adversary(clients, fraction, often, reply, first=first, last=last)


@ADVERSARIES.register("scaled")
def scaled(
    factor: Annotated[float, Option("length of the update, as a multiple of the true one", above=0)] = 10.0,
    clients: Clients = None,
    fraction: Fraction = None,
    often: Often = 1.0,
) -> Adversary:
    """Sends its update many times as long, without claiming more data."""
    return Adversary(clients, fraction, often, lambda cohort, acting: _sending(cohort, acting, factor * cohort.updates))


@ADVERSARIES.register("noisy")
def noisy(
    level: Annotated[float, Option("length of the noise, as a multiple of the update's", low=0)] = 1.0,
    clients: Clients = None,
    fraction: Fraction = None,
    often: Often = 1.0,
) -> Adversary:
    """Adds normal noise to its update."""

    def noise(cohort: Cohort, acting: Tensor, drawn: Tensor) -> Cohort:
        updates = cohort.updates
        length = torch.linalg.vector_norm(updates, dim=1, keepdim=True) / updates.shape[1] ** 0.5
        return _sending(cohort, acting, updates + level * length * drawn)

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
        honest = cohort.updates[~acting]
        length = torch.linalg.vector_norm(honest, dim=1).mean() if len(honest) else cohort.updates.new_zeros(())
        return _sending(cohort, acting, level * length * drawn / cohort.updates.shape[1] ** 0.5)

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


def _sending(cohort: Cohort, acting: Tensor, updates: Tensor) -> Cohort:
    return replace(cohort, updates=torch.where(acting[:, None], updates, cohort.updates))


def _colluding(cohort: Cohort, acting: Tensor, made: Callable[[Tensor], Tensor]) -> Cohort:
    """All acting clients send one update, made from the honest ones ``[H, D]``; if there are none, they stay honest."""
    honest = cohort.updates[~acting]
    return _sending(cohort, acting, made(honest)) if len(honest) else cohort
