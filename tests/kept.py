"""Runs on disk whose every number is made up, written by the writer that real runs have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.comparisons.worker import work
from counterpoise.engine.rounds.records import Outcome, RoundRecord
from counterpoise.method import Verdict
from counterpoise.runs.config import parse
from counterpoise.runs.folder import Folder

CONFIG: dict[str, Any] = {
    "rounds": 12,
    "cohort": 4,
    "data": {"name": "digits", "partition": {"name": "iid", "clients": 8}},
    "model": {"name": "linear"},
    "method": {"name": "fedavg"},
}


def keep(
    path: Path,
    *,
    method: dict[str, Any] | None = None,
    seed: int = 0,
    rounds: int = 12,
    clients: int = 8,
    cohort: int = 4,
    status: str = "finished",
    metrics: bool = True,
    heldout: bool = True,
    personal: bool = False,
    weights: bool = True,
    verdicts: bool = False,
    liars: tuple[int, ...] = (),
    holdings: bool = True,
    classes: int | None = 5,
    data: dict[str, Any] | None = None,
    level: float = 0.9,
    epsilon: float | None = None,
) -> list[RoundRecord]:
    """A run's folder, and its records. With an epsilon, each round spends so much of it."""
    draw = np.random.default_rng([seed, rounds, clients, len(str(method))])
    own = {**CONFIG["data"], "seed": seed, "fingerprint": f"f{seed}", **(data or {})}
    values = {
        **CONFIG,
        "rounds": rounds,
        "cohort": cohort,
        "seed": seed,
        "data": own,
        "method": method or CONFIG["method"],
    }
    folder = Folder.create(path, parse(values, "the test"))
    sizes = draw.integers(20, 200, clients)
    if holdings:
        labels = draw.multinomial(60, np.ones(classes) / classes, clients) if classes else None
        shown = {} if labels is None else {"shown": list(range(clients)), "labels": labels.tolist()}
        folder.write_holdings({"clients": clients, "sizes": sizes.tolist(), **shown})
    records = []
    for number in range(1, rounds + 1):
        ids = sorted(draw.choice(clients, cohort, replace=False).tolist())
        lied = tuple(c for c in ids if c in liars)
        judged = {c: _verdict(draw, float(sizes[c]), c in lied) for c in ids} if verdicts else {}
        out = {c: "it was warned" for c, v in judged.items() if v.action == "excluded"}
        share = draw.dirichlet(np.ones(cohort))
        given = {c: float(w) for c, w in zip(ids, share, strict=True) if c not in out} if weights else None
        reached = level * (1 - math.exp(-number / 3)) + draw.normal(0, 0.01)
        each = {c: float(np.clip(reached + draw.normal(0, 0.1), 0, 1)) for c in range(clients)}
        spent = {} if epsilon is None else {"epsilon": number * epsilon}
        records.append(
            RoundRecord(
                number,
                tuple(ids),
                Outcome({c: int(sizes[c]) for c in ids}, given, out, "", {}, judged, spent),
                {"train_loss": 1 / number, **({"accuracy": reached, "loss": 2 / number} if metrics else {})},
                ({"accuracy": each} if heldout else {})
                | ({"personal_accuracy": {c: v / 2 for c, v in each.items()}} if personal else {}),
                0.5 + 0.01 * seed,
                1000,
                500,
                10**8,
                lied,
                2000,
                0,
            )
        )
        folder.append(records[-1])
    index = {
        "schema": 1,
        "run": folder.checkpoint.fingerprint,
        "round": rounds,
        "status": status,
        "state": "",
        "rows": {},
    }
    (path / "checkpoint").mkdir(exist_ok=True)
    (path / "checkpoint" / "checkpoint.json").write_text(json.dumps(index))
    return records


def _verdict(draw: np.random.Generator, size: float, lied: bool) -> Verdict:
    claimed = size * 3 if lied else size
    estimated = size * float(np.exp(draw.normal(0, 0.1)))
    z = 6.0 if lied else float(draw.normal())
    flagged = abs(z) > 1.9
    return Verdict(claimed, estimated, estimated * 0.8, estimated * 1.2, z, "excluded" if flagged else "accepted")


def comparison(folder: Path, seeds: int = 3, **settings: Any) -> dict[str, list[list[RoundRecord]]]:
    """Three methods over the same seeds, one of which judges what two liars claim."""
    found: dict[str, list[list[RoundRecord]]] = {}
    for name, level in (("fedavg", 0.8), ("feddua:fedavg", 0.9), ("scaffold", 0.85)):
        more = {"level": level, "verdicts": name.startswith("feddua"), "liars": (1, 6), **settings}
        place = name.replace(":", "-")
        found[name] = [
            keep(folder / place / f"seed-{seed}", method={"name": name}, seed=seed, **more) for seed in range(seeds)
        ]
    return found


def do(folder: Path, values: Mapping[str, Any], rounds: list[int] | None = None) -> str:
    """Do one piece as a worker does. Return the sentence that says why it failed, or an empty text."""
    told: list[dict[str, Any]] = []
    work([{"folder": str(folder), "values": values}], None, lambda **news: told.append(news))
    if rounds is not None:
        rounds += [news["round"] for news in told if "round" in news]
    return str(told[-1]["sentence"])
