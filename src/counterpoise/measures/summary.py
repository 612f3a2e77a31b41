"""All measures of one run by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from counterpoise.measures.cost import cost
from counterpoise.measures.coupling import couplings, effective_clients
from counterpoise.measures.curves import (
    best,
    best_by_clients,
    bytes_to,
    curve,
    last,
    mean_of_last,
    rounds_to,
    volatility,
)
from counterpoise.measures.detection import detection
from counterpoise.measures.fairness import distribution
from counterpoise.measures.personal import has_personal, own, own_curve
from counterpoise.measures.records import Record

__all__ = ["summary"]


def summary(
    records: Sequence[Record],
    metric: str = "accuracy",
    target: float | None = None,
    lower: bool = False,
    counts: Mapping[int, float] | None = None,
    truth: bool = True,
) -> dict[str, Any]:
    """Every measure of a run's rounds (``run.rounds``) as plain values; what could not be measured is left out.

    `target` adds the rounds and bytes it took to reach it; `lower` says that a lower metric is better.
    Client values come from the last round that measured clients. `counts`, clients' true data counts,
    adds the error of the estimated ones. `truth` says whether the record knows who lied; a deployment's does not.
    """
    found: dict[str, Any] = {}
    curves = [(name, curve(records, name), less) for name, less in ((metric, lower), ("loss", True))]
    curves += [(f"train_{metric}", curve(records, f"train_{metric}"), lower)]
    if has_personal(records, metric):
        curves += [(f"own model's {metric}", own_curve(records, metric), lower)]
    for name, values, less in curves:
        if values:
            top = best(values, less)
            found |= {
                f"{name} (last round)": last(values),
                f"{name} (mean of last 10 rounds)": mean_of_last(values),
                f"{name} (best round)": top.value,
                f"best round by {name}": top.round,
                f"{name} volatility": volatility(values),
            }
    chosen = best_by_clients(records, metric, lower)
    if chosen.round is not None:
        found[f"{metric} (round best on clients' held-out data)"] = chosen.value
        found[f"best round by clients' held-out {metric}"] = chosen.round
    if target is not None:
        found[f"rounds to {metric} {target:g}"] = rounds_to(curve(records, metric), target, lower)
        found[f"bytes to {metric} {target:g}"] = bytes_to(records, target, metric, lower)
    each = next((r.clients[metric] for r in reversed(records) if metric in r.clients), None)
    if each:
        spread = distribution(each.values(), lower)
        found |= {f"client {metric} {name.replace('_', ' ')}": value for name, value in spread._asdict().items()}
    if has_personal(records, metric):
        spread = distribution(next(each for r in reversed(records) if (each := own(r, metric))).values(), lower)
        found |= {f"own model's {metric} {name.replace('_', ' ')}": v for name, v in spread._asdict().items()}
    notes = sorted({name for r in records for name in r.outcome.notes})
    for of in ("weight", *notes):
        pairs = [value for _, value in couplings(records, of, metric) if not np.isnan(value)]
        if pairs:
            found[f"coupling of {of} with client {metric} (mean over rounds)"] = float(np.mean(pairs))
    weighed = effective_clients(records)
    if weighed:
        found["effective clients (mean over rounds)"] = float(np.mean([value for _, value in weighed]))
    found |= {f"fact {name} (last round)": value for r in records for name, value in r.outcome.facts.items()}
    rows = [{"round": r.round, "client": c, **vars(v)} for r in records for c, v in r.outcome.verdicts.items()]
    if rows and not truth:
        found["detection claims"] = sum(v.judged for r in records for v in r.outcome.verdicts.values())
    elif rows:
        told = detection(rows, {(client, r.round) for r in records for client in r.liars}, counts)
        found |= {f"detection {k.replace('_', ' ')}": v for k, v in told._asdict().items() if not np.isnan(v)}
    return found | {name.replace("_", " "): value for name, value in cost(records)._asdict().items()}
