"""`python benchmarks/scaling.py`: how time and memory grow with cohort, population, parameters and local steps.

Each point runs in its own process on the CPU, so that its peak memory is its own. A round's time is the median over
the rounds after the first, in processor time over all threads, because others may be using the machine. Set-up runs
from the first import to the first round. Raw numbers go to benchmarks/results/scaling.json, figures to
docs/figures/. `--draw` draws earlier measurements.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_FIXED = {"population": 1_000_000, "cohort": 100, "width": 64, "steps": 2}
_VARY: dict[str, list[int]] = {
    "cohort": [10, 30, 100, 300, 1000],
    "population": [1_000, 10_000, 100_000, 1_000_000],
    "width": [4, 64, 1024, 16_384],
    "steps": [1, 3, 10, 30, 100],
}
_TITLES = {"cohort": "clients a round", "population": "population", "width": "parameters", "steps": "local steps"}


def point(population: int, cohort: int, width: int, steps: int) -> dict[str, Any]:
    begun = time.process_time()
    import counterpoise as cp
    from counterpoise.engine import Simulation

    federation = cp.load("synthetic", partition=cp.draws(clients=population, size=20))
    simulation = Simulation(
        cp.methods.fedavg(),
        federation,
        cp.models.mlp(federation.shape, 10, hidden=width),
        cohort=cohort,
        local=cp.Local(batch=10, steps=steps, optimizer=cp.sgd(0.05)),
        engine=cp.Engine(device="cpu"),
        evaluation=cp.Evaluation(every=0, clients_every=0),
    )
    rounds = [time.process_time()]
    for _ in range(6):
        simulation.advance()
        rounds.append(time.process_time())
    ready, rounds = rounds[0], [after - before for before, after in itertools.pairwise(rounds[1:])]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "setup": ready - begun,
        "round": statistics.median(rounds),
        "rounds": rounds,
        "memory": peak,
        "parameters": simulation.trainer.layout.size,
    }


def measure() -> list[dict[str, Any]]:
    found = []
    for varied, values in _VARY.items():
        for value in values:
            setting = {**_FIXED, varied: value}
            done = subprocess.run(
                [sys.executable, __file__, "--point", json.dumps(setting)], capture_output=True, text=True, check=True
            )
            found.append({"varied": varied, **setting, **json.loads(done.stdout)})
            print(
                f"{varied} {value}: {found[-1]['round']:.3f} s a round, {found[-1]['memory'] / 2**20:.0f} MiB",
                flush=True,
            )
    return found


def figure(points: list[dict[str, Any]], varied: str) -> str:
    """Seconds a round and peak memory over what was varied, on logarithmic axes, as SVG."""
    some = [one for one in points if one["varied"] == varied]
    across = [one["parameters" if varied == "width" else varied] for one in some]
    panels = [
        ("processor seconds a round", [one["round"] for one in some]),
        ("peak GiB", [one["memory"] / 2**30 for one in some]),
    ]
    drawn = [_panel(60 + 330 * i, name, _TITLES[varied], across, values) for i, (name, values) in enumerate(panels)]
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="680" height="250" font-family="sans-serif" font-size="11">'
    return "\n".join([head, '<rect width="680" height="250" fill="white"/>', *drawn, "</svg>"]) + "\n"


def _panel(left: int, name: str, title: str, across: list[float], values: list[float]) -> str:
    width, height, top = 250, 170, 30
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    first, last = math.log10(across[0]), math.log10(across[-1])

    def x(value: float) -> float:
        return left + width * (math.log10(value) - first) / (last - first)

    def y(value: float) -> float:
        return top + height * (high - math.log10(value)) / max(high - low, 1)

    parts = [f'<text x="{left}" y="{top - 12}" font-weight="bold">{name}</text>']
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<path d="M{left} {at:.1f}H{left + width}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for value in across:
        parts.append(f'<text x="{x(value):.1f}" y="{top + height + 16}" text-anchor="middle">{_short(value)}</text>')
    line = " ".join(f"{x(a):.1f},{y(v):.1f}" for a, v in zip(across, values, strict=True))
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1f5f99" stroke-width="2"/>')
    parts += [
        f'<circle cx="{x(a):.1f}" cy="{y(v):.1f}" r="3" fill="#1f5f99"/>' for a, v in zip(across, values, strict=True)
    ]
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 34}" text-anchor="middle">{title}</text>')
    return "\n".join(parts)


def _short(value: float) -> str:
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw the last results")
    parser.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.point:
        print(json.dumps(point(**asked.point)))
        return
    kept = _ROOT / "benchmarks" / "results" / "scaling.json"
    if not asked.draw:
        from peers.machine import machine  # imports torch, which a point's set-up counts

        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps({"machine": machine("cpu"), "points": measure()}, indent=1) + "\n")
    points = json.loads(kept.read_text())["points"]
    figures = _ROOT / "docs" / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    for varied in _VARY:
        (figures / f"scaling-{varied}.svg").write_text(figure(points, varied))


if __name__ == "__main__":
    main()
