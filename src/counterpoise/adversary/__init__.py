"""Clients that lie or break: who, how often, and what they do to their data or their replies."""

from counterpoise.adversary.base import ADVERSARIES, Adversary
from counterpoise.adversary.counts import (
    claims,
    forged_branch,
    forged_factor,
    forged_gradient,
    repeated_data,
    scaled_update,
    silent_claim,
)
from counterpoise.adversary.faults import crashed, label_flip, not_a_number, twice
from counterpoise.adversary.updates import free_rider, inner_product, little, mimic, noisy, scaled, sign_flip

__all__ = [
    "ADVERSARIES",
    "Adversary",
    "claims",
    "crashed",
    "forged_branch",
    "forged_factor",
    "forged_gradient",
    "free_rider",
    "inner_product",
    "label_flip",
    "little",
    "mimic",
    "noisy",
    "not_a_number",
    "repeated_data",
    "scaled",
    "scaled_update",
    "sign_flip",
    "silent_claim",
    "twice",
]
