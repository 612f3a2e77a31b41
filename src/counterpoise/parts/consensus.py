"""A sequential test of each client: is its update, over its rounds, opposed to the others'?"""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Action, Part, Round, Tensors, Verdict
from counterpoise.parts.bounded import clip_rows
from counterpoise.parts.columns import moved

__all__ = ["consensus_trust"]

_CLIP = 2.0
"""Updates are compared after clipping to this many median lengths, so that nobody outweighs the rest."""
_LEAST_SPREAD = 0.02
"""Cosines that differ by less than this are taken for equal."""
_MOST = 6.0
"""One round counts for at most this many standard deviations."""


def consensus_trust(
    exclude: bool = False, below: float = -3.0, again: float = -1.5, rounds: int = 3, clients: int = 5
) -> Part:
    """Flag clients whose updates keep pointing against the sum of the others'; with `exclude`, leave them out.

    A round's evidence is the cosine of a client's update with the sum of the others', as a z-score among those that are
    not flagged. A client's score is ``mean / sqrt(1/2 + 1/(2 rounds))`` over its rounds. It is flagged if the score is
    under `below` after at least `rounds` rounds and the cosine of this round is negative, until the score is at least
    `again`. Flagged clients are no part of the sum. With fewer than `clients` that are not flagged
    nobody is judged, and flags stay.
    """
    if again < below:
        raise CounterpoiseError(
            f"consensus-trust: clients are flagged at a score under {below:g} and would be cleared from {again:g} on, so "
            "they would be flagged and cleared by turns. Make trust_until (flag_until) at least trust_below (flag_below)."
        )

    def client_record(start: Tensor) -> dict[str, Tensor]:
        number = start.new_zeros((), dtype=torch.float64)
        return {"total": number, "rounds": number.clone(), "flagged": number.clone()}

    def test(cosine: Tensor, records: Tensors, standing: Tensor) -> dict[str, Tensor]:
        """The clients' records after this round."""
        new = {"total": records["total"] + _z_scores(cosine, standing), "rounds": records["rounds"] + 1}
        score = _score(new)
        opposed = (score < below) & (cosine < 0) & (new["rounds"] >= rounds)
        return new | {"flagged": torch.where(standing, opposed, score < again).to(score.dtype)}

    def apply(round: Round) -> Round:
        updates = round.cohort.updates
        records = moved(round.records, "cpu")
        standing = records["flagged"] == 0
        judged = int(standing.sum()) >= clients
        if judged:
            cosine = _agreements(clip_rows(updates, _CLIP), standing.to(updates.device))
            records, round = test(cosine.cpu(), records, standing), round.noting(consensus=cosine)
        columns = torch.stack((_score(records), records["rounds"], records["flagged"]))
        verdicts = {
            client: _verdict(exclude, float(round.claims[client]), *row)
            for client, row in zip(round.cohort.ids, columns.T.tolist(), strict=True)
            if judged or row[-1]
        }
        ours = {client for client, verdict in verdicts.items() if verdict.action != "accepted"}
        earlier = {c: v for c, v in round.verdicts.items() if v.action != "accepted" and c not in ours}
        return round.but(
            records=moved(records, updates.device),
            verdicts={**round.verdicts, **verdicts, **earlier},
            excluded={client: verdicts[client].reason for client in ours} if exclude else {},
        )

    return Part("consensus-trust", client_record=client_record, apply=apply)


def _agreements(updates: Tensor, standing: Tensor) -> Tensor:
    """The cosine of each update with the sum of the others that stand ``[C]``; 0 if either is zero."""
    kept = updates * standing[:, None]
    others = kept.sum(0) - kept
    lengths = torch.linalg.vector_norm(updates, dim=1) * torch.linalg.vector_norm(others, dim=1)
    cosine = (updates * others).sum(1) / torch.where(lengths > 0, lengths, 1)
    return cosine.double().clamp(-1, 1)


def _z_scores(values: Tensor, standing: Tensor) -> Tensor:
    """Distances from the median of those that stand, in standard deviations by their median distance, at most 6."""
    centre = values[standing].quantile(0.5)
    spread = 1.4826 * (values[standing] - centre).abs().quantile(0.5)
    return ((values - centre) / spread.clamp(min=_LEAST_SPREAD)).clamp(-_MOST, _MOST)


def _score(records: Tensors) -> Tensor:
    """A client's mean z-score over its rounds, in standard deviations of such a mean; rounds are half independent."""
    rounds = records["rounds"].clamp(min=1)
    return records["total"] / rounds / (0.5 + 0.5 / rounds).sqrt()


def _verdict(exclude: bool, claimed: float, score: float, rounds: float, flagged: float) -> Verdict:
    action: Action = "accepted" if not flagged else "excluded" if exclude else "warned"
    reason = f"over {rounds:.0f} rounds its updates point against the others' (score {score:.2f})" if flagged else ""
    return Verdict(claimed, None, None, None, max(-score, 0.0), action, reason)
