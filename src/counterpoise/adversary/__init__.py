"""Clients that lie: who, how often, and what they do to their data or to their reply."""

from counterpoise.adversary.base import ADVERSARIES, Adversary
from counterpoise.adversary.counts import claims, forged_factor, forged_gradient, repeated_data, scaled_update

__all__ = [
    "ADVERSARIES",
    "Adversary",
    "claims",
    "forged_factor",
    "forged_gradient",
    "repeated_data",
    "scaled_update",
]
