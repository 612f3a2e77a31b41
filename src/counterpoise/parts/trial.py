"""Whether clients apply the corrections that they are sent: two tests of each client, one of them an experiment.

``v_i = y_i - y_bar`` is what the memory says of a client, ``a_i`` the dose, the share of it that the client was sent,
and ``r_i = <-d_i / k_i - y_bar, v_i> / |v_i|^2`` how much of it is in the reply. If a client repeats itself by the
factor ``f_i``, r_i is ``f_i - a_i`` if it applied its correction, ``f_i`` if it ignored it and ``f_i + a_i`` if it
reversed its update.

The level of r_i compares the client with others, whose factors may differ from its own. The dose does not: a client in
doubt is sent its whole share and nothing by turns, and what changes in r_i with the dose is its answer to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.parts.columns import Columns, Numbers
from counterpoise.parts.robust import middle

__all__ = ["KEPT", "USUAL", "Bounds", "begin", "distrusted", "doses", "heard"]

KEPT = ("doubt", "proof", "ahead", "last", "dose")
"""What is kept of a client."""


@dataclass(frozen=True)
class Bounds:
    """The numbers of both tests. Evidence is a logarithm of likelihoods."""

    doubt: float = 5.0
    """Over this, a client is left out if it also fails the experiment, and a trial that was over opens again."""
    proof: float = 3.0
    """Over this, a client fails the experiment; at its negative, it passes. A reply adds at most this to doubt and half of
    it to proof, so that no single reply decides."""
    most: float = 10.0
    """Doubt stays within this, either way."""
    turn: float = 3.0
    """What speaks against a trusted client counts from minus this, so that a client that turns is soon in doubt."""
    spread: float = 0.05
    """The least spread between clients."""
    clients: int = 5
    """Fewer clients with a memory say too little about each other."""

    def __post_init__(self) -> None:
        if self.doubt >= self.most:
            raise CounterpoiseError(
                f"memory: gate_doubt is {self.doubt:g}, but doubt never exceeds gate_most, {self.most:g}, so nobody "
                "would ever be left out. Make gate_doubt smaller or gate_most larger."
            )


USUAL = Bounds()

Those = npt.NDArray[np.bool_]
"""Some of the clients ``[C]``."""


def begin() -> dict[str, Tensor]:
    """The record of a client that is not known: on trial, without a reading."""
    return {name: torch.tensor(-1.0 if name == "dose" else 0.0, dtype=torch.float64) for name in KEPT}


def doses(share: float, records: Columns, bounds: Bounds) -> Numbers:
    """The share ``a_i`` of its correction that each client is sent ``[C]``; in doubt, by turns all and nothing."""
    tried = (records["doubt"] > 0) & (records["proof"] > -bounds.proof)
    return np.where(tried & (records["dose"] > 0), 0, share)


def distrusted(records: Columns, bounds: Bounds) -> Those:
    """Who fails both tests ``[C]``."""
    return (records["doubt"] > bounds.doubt) & (records["proof"] > bounds.proof)


def heard(
    r: Numbers, dose: Numbers, known: Those, counts: Numbers, c: float, records: Columns, bounds: Bounds
) -> tuple[Numbers, dict[str, Numbers]]:
    """The share of its memory that each client is taken to have applied ``[C]``, and the clients' new records.

    `known` are the clients with a memory, and c is how much clients repeat themselves in general. m is the median of
    ``r + dose`` over the clients known, s is 1.4826 times the median distance from it, at least 0.05, and b is a client's
    count over the cohort's median, at most 1, because replies from few samples are noisier.

        doubt <- doubt + b dose (x + dose/2) / s^2,  x = min(r - c - ahead, r - m),  between -10 and 10; if it
                 grows, it is first raised to at least -3, so that long obedience does not hide a turn
        proof <- proof + b (2 dr da + da^2) / (4 s^2),  dr and da since its last reply,  between -3 and 6

    Both are logarithms of the likelihood that it ignored its correction over that it applied it. A reply changes doubt by
    at most 3 and proof by at most 1.5. At a proof of -3 the client is acquitted: its doubt is -10, and `ahead` is how far
    its own factor is above c. A doubt over 5 makes its proof 0, and the trial begins again.

    What a client is taken to have applied depends on its new doubt and proof:

    - acquitted, a doubt of -10, or too few clients known: the dose
    - in doubt (over 0): ``c - r``, from -dose (reversed) to 0
    - otherwise: the dose, but at most ``1 / sqrt(dose) - r``, and at least -dose. Otherwise the memory of a client that
      ignores its corrections would grow by ``dose v_i`` in every round, until its reply looked like obedience.

    These are the numbers of the default `bounds`.
    """
    doubt, proof, ahead, last, earlier = (records[name] for name in KEPT)
    enough = known.sum() >= bounds.clients
    m, s = _centre((r + dose)[known], bounds.spread)
    certainty = np.minimum(counts / middle(counts), 1) / s**2

    x = np.minimum(r - c - ahead, r - m)
    step = (certainty * dose * (x + dose / 2)).clip(-bounds.proof, bounds.proof)
    before = np.where(step > 0, np.maximum(doubt, -bounds.turn), doubt)
    doubt = np.where(enough & known & (dose > 0), (before + step).clip(-bounds.most, bounds.most), doubt)

    settled, once = -bounds.proof, bounds.proof / 2
    trial = proof > settled
    dr, da = r - last, dose - earlier
    step = (certainty * (2 * dr * da + da**2) / 4).clip(-once, once)
    tested = trial & enough & known & (earlier >= 0)
    proof = np.where(tested, (proof + step).clip(settled, 2 * bounds.proof), proof)

    over = trial & (proof <= settled)
    ahead = np.where(over, np.maximum(np.where(dose > 0, last, r) - c, 0), ahead)
    doubt = np.where(over, -bounds.most, doubt)
    proof = np.where(~trial & (doubt > bounds.doubt), 0, proof)
    trial = proof > settled
    applied = np.where(known & enough & trial & (doubt > -bounds.most), _at_most(dose, r), dose)
    applied = np.where(trial & (doubt > 0), np.maximum(np.minimum(c - r, 0), -dose), applied)
    new = {"doubt": doubt, "proof": proof, "ahead": ahead, "last": np.where(known, r, 0)}
    return applied, {**new, "dose": np.where(known, dose, -1)}


def _at_most(dose: Numbers, r: Numbers) -> Numbers:
    """The dose, or so much less, down to its negative, that ``r + dose`` is at most ``1 / sqrt(dose)``."""
    return np.clip(np.where(dose > 0, dose, 1) ** -0.5 - r, -dose, dose)


def _centre(values: Numbers, least: float) -> tuple[float, float]:
    """The median, and the spread by the median distance from it."""
    centre = middle(values)
    return centre, max(1.4826 * middle(np.abs(values - centre)), least)
