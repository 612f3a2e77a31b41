"""Whether clients apply the corrections that they are sent: two tests of each client, one of them an experiment.

``v_i = y_i - y_bar`` is what the memory says of a client, ``a_i`` the dose, the share of it that the client was sent,
and ``r_i = <-d_i / k_i - y_bar, v_i> / |v_i|^2`` how much of it is in the reply. If a client repeats itself by the
factor ``f_i``, r_i is ``f_i - a_i`` if it applied its correction, ``f_i`` if it ignored it and ``f_i + a_i`` if it
reversed its update.

r_i alone compares a client with others, whose factors may differ from its own. The experiment compares it with itself: a
client under suspicion is sent its share and nothing by turns, and applies its correction if r_i moves against the dose.
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
"""What is kept of a client: its doubt and proof, how far its own factor was above c when it was acquitted, and its last
reply: r and the dose (-1 if there is none, or if the client had no memory then)."""


@dataclass(frozen=True)
class Bounds:
    """The numbers of both tests. Evidence is the logarithm of a likelihood ratio: ignored over applied."""

    doubt: float = 5.0
    """Over this, a client is left out if the experiment speaks against it too, and an acquitted client is tried again."""
    proof: float = 3.0
    """Over this, the experiment speaks against a client; at its negative, the client is acquitted. A reply changes doubt by
    at most this, and proof by at most half of it, so that no single experiment decides. Proof is at most twice this."""
    most: float = 10.0
    """Doubt stays within this, either way."""
    turn: float = 3.0
    """Before doubt grows, it is raised to at least minus this, so that a trusted client that turns is soon in doubt."""
    spread: float = 0.05
    """The least spread between clients."""
    clients: int = 5
    """With fewer clients that have a memory, doubt and proof do not change."""

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
    """The record of a client that is not known: nothing speaks against it, and there is no last reply."""
    return {name: torch.tensor(-1.0 if name == "dose" else 0.0, dtype=torch.float64) for name in KEPT}


def doses(share: float, records: Columns, bounds: Bounds) -> Numbers:
    """The share ``a_i`` of its correction that each client is sent ``[C]``; on trial, by turns all and nothing."""
    tried = _on_trial(records["doubt"], records["proof"], bounds)
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

        doubt <- doubt + b dose (x + dose/2) / s^2,  x = min(r - c - ahead, r - m),  between -10 and 10
        proof <- proof + b (2 dr da + da^2) / (4 s^2),  dr and da since its last reply,  between -3 and 6

    One reply changes doubt by at most 3 and proof by at most 1.5. Before doubt grows, it is raised to at least -3, so that
    long obedience does not hide a turn. Doubt and proof stay as they are if the client is not known or fewer than five
    are, and proof also if the client had no memory at its last reply.

    - At a proof of -3 a client is acquitted. Its doubt becomes -10 and its proof stays. `ahead` is how far its own factor
      is above c. If its doubt rises over 5 later, its proof becomes 0.
    - A client is on trial if its doubt or its proof is positive, unless it is acquitted.
    - It is left out while its doubt is over 5 and its proof over 3.

    What a client is taken to have applied depends on its new doubt and proof:

    - on trial: ``c - r``, from -dose (reversed) to 0
    - trusted, that is, with a doubt of -10, or if acquitted of at most -3, or if too few are known: the dose
    - otherwise: the dose, but at most ``1 / sqrt(dose) - r``, and at least -dose. Without this bound the memory of a client
      that ignores its corrections would grow by ``dose v_i`` in every round, until its reply looked like obedience.

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
    pending = proof > settled
    dr, da = r - last, dose - earlier
    step = (certainty * (2 * dr * da + da**2) / 4).clip(-once, once)
    tested = pending & enough & known & (earlier >= 0)
    proof = np.where(tested, (proof + step).clip(settled, 2 * bounds.proof), proof)

    over = pending & (proof <= settled)
    ahead = np.where(over, np.maximum(np.where(dose > 0, last, r) - c, 0), ahead)
    doubt = np.where(over, -bounds.most, doubt)
    proof = np.where(~pending & (doubt > bounds.doubt), 0, proof)

    trusted = doubt <= np.where(proof > settled, -bounds.most, -bounds.turn)
    applied = np.where(known & enough & ~trusted, _at_most(dose, r), dose)
    applied = np.where(_on_trial(doubt, proof, bounds), np.maximum(np.minimum(c - r, 0), -dose), applied)
    new = {"doubt": doubt, "proof": proof, "ahead": ahead, "last": np.where(known, r, 0)}
    return applied, {**new, "dose": np.where(known, dose, -1)}


def _on_trial(doubt: Numbers, proof: Numbers, bounds: Bounds) -> Those:
    """Whom something speaks against, unless acquitted ``[C]``."""
    return ((doubt > 0) | (proof > 0)) & (proof > -bounds.proof)


def _at_most(dose: Numbers, r: Numbers) -> Numbers:
    """The dose, reduced until r and it are at most ``1 / sqrt(dose)`` together, but not below minus the dose."""
    return np.clip(np.where(dose > 0, dose, 1) ** -0.5 - r, -dose, dose)


def _centre(values: Numbers, least: float) -> tuple[float, float]:
    """The median, and the spread by the median distance from it."""
    centre = middle(values)
    return centre, max(1.4826 * middle(np.abs(values - centre)), least)
