"""A sequential test of each client: is its update, over its rounds, opposed to the others'?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Action, Part, Round, Verdict
from counterpoise.parts.bounded import clip_factors
from counterpoise.parts.columns import Columns, Numbers, column, divided, fetch, lengths, read, written
from counterpoise.parts.robust import middle

__all__ = ["consensus_trust"]

_KEPT = ("total", "rounds", "flagged")
"""What is kept of a client: its z-scores added up, over how many rounds, and whether it is flagged."""

Standing = npt.NDArray[np.bool_]
"""Who is not flagged ``[C]``."""


def consensus_trust(
    exclude: bool = False,
    below: float = -3.0,
    again: float = -1.5,
    rounds: int = 3,
    clients: int = 5,
    clip: float = 2.0,
    spread: float = 0.02,
    most: float = 6.0,
) -> Part:
    """Flag clients whose updates keep pointing against the sum of the others'; with `exclude`, leave them out.

    A round's evidence is the cosine of a client's update with the sum of the others', as a z-score among those that are
    not flagged. Updates count in the sum as clipped to `clip` median lengths, so that nobody outweighs the rest;
    cosines that differ by less than `spread` are taken for equal; and a round counts for at most `most` standard
    deviations. A client's score is ``mean / sqrt(1/2 + 1/(2 rounds))`` over its rounds. It is flagged if the score is
    under `below` after at least `rounds` rounds and the cosine of this round is negative, until the score is at least
    `again`. Flagged clients are no part of the sum. With fewer than `clients` that are not flagged nobody is judged,
    and flags stay.
    """
    if again < below:
        raise CounterpoiseError(
            f"consensus-trust: clients are flagged at a score under {below:g} and would be cleared from {again:g} on, so "
            "they would be flagged and cleared by turns. Make trust_until (flag_until) at least trust_below (flag_below)."
        )

    if most * 2**0.5 <= -below:
        raise CounterpoiseError(
            f"consensus-trust: no score falls under {below:g} if a round counts for at most {most:g}, so nobody would ever "
            "be flagged. Make trust_most (flag_most) larger, or bring trust_below (flag_below) closer to 0."
        )

    def client_record(start: Tensor) -> dict[str, Tensor]:
        return {name: torch.zeros((), dtype=torch.float64) for name in _KEPT}

    def test(cosine: Numbers, records: Columns, standing: Standing) -> dict[str, Numbers]:
        """The clients' records after this round."""
        new = {"total": records["total"] + _z_scores(cosine, standing, spread, most), "rounds": records["rounds"] + 1}
        score = _score(new)
        opposed = (score < below) & (cosine < 0) & (new["rounds"] >= rounds)
        return new | {"flagged": np.where(standing, opposed, score < again).astype(score.dtype)}

    def apply(round: Round) -> Round:
        updates, records = round.cohort.updates, read(round.records, _KEPT)
        standing = records["flagged"] == 0
        judged = int(standing.sum()) >= clients
        if judged:
            cosine = _agreements(updates, standing, clip)
            noted = torch.from_numpy(cosine).to(updates.device, non_blocking=True)
            records, round = test(cosine, records, standing), round.noting(consensus=noted)
        columns = _score(records), records["rounds"], records["flagged"]
        verdicts = {
            client: _verdict(exclude, float(round.claims[client]), *row)
            for client, *row in zip(round.cohort.ids, *(told.tolist() for told in columns), strict=True)
            if judged or row[-1]
        }
        # An earlier part's verdict stays, unless it accepted the client or the client is flagged here.
        ours = {client for client, verdict in verdicts.items() if verdict.action != "accepted"}
        earlier = {c: v for c, v in round.verdicts.items() if v.action != "accepted" and c not in ours}
        return round.but(
            records=written(records),
            verdicts={**round.verdicts, **verdicts, **earlier},
            excluded={client: verdicts[client].reason for client in ours} if exclude else {},
        )

    return Part("consensus-trust", client_record=client_record, apply=apply)


def _agreements(updates: Tensor, standing: Standing, clip: float) -> Numbers:
    """The cosine of each update with the clipped sum of the others that stand ``[C]``; 0 if either is zero."""
    own = lengths(updates)
    kept = updates * column(standing * clip_factors(own, clip), updates)
    others = kept.sum(0) - kept
    inner, far = fetch((updates * others).sum(1), torch.linalg.vector_norm(others, dim=1))
    return divided(inner, own * far).clip(-1, 1)


def _z_scores(values: Numbers, standing: Standing, least: float, most: float) -> Numbers:
    """Distances from the median of those that stand, in standard deviations by their median distance."""
    centre = middle(values[standing])
    spread = 1.4826 * middle(np.abs(values[standing] - centre))
    return ((values - centre) / max(spread, least)).clip(-most, most)


def _score(records: Columns) -> Numbers:
    """A client's mean z-score over its rounds, in standard deviations of such a mean; rounds are half independent."""
    rounds = np.maximum(records["rounds"], 1)
    return records["total"] / rounds / np.sqrt(0.5 + 0.5 / rounds)


def _verdict(exclude: bool, claimed: float, score: float, rounds: float, flagged: float) -> Verdict:
    action: Action = "accepted" if not flagged else "excluded" if exclude else "warned"
    reason = f"over {rounds:.0f} rounds its updates point against the others' (score {score:.2f})" if flagged else ""
    return Verdict(claimed, None, None, None, max(-score, 0.0), action, reason)
