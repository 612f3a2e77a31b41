"""`python benchmarks/peers`: compare our engine, a bare torch loop, pfl 0.6.0 and Flower's simulation on the same work.

First every arm does two rounds of one batch per epoch from the same weights, and all models must agree, which shows
that they do the same work. Then the arms take turns; a ratio is the median over turns of the ratio within a turn.
Peers keep their data on the device too, and use TF32 if ours does. With --cold each arm also runs as its own
program of 12 rounds, with start-up and imports. Flower's simulation is measured only in this way, because its
actors start with every run.

Install peers with benchmarks/install_peers.sh; a missing peer is skipped with a message. Raw times go to
benchmarks/results/ and replace earlier ones of the same work. On a machine where nothing is installed, run

    PYTHONPATH=src python benchmarks/peers ...
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from arms import Absent, Arm, Loop, Ours, Pfl, folder
from machine import machine
from works import WORKS, Work

import counterpoise as cp

_HERE = Path(__file__).resolve().parent
_OURS = {
    "cpu": {"ours": {}, "ours, 1 thread": {"threads": 1}, "ours, not recorded": {"record": False}},
    "cuda": {
        "ours, float32": {"tf32": False},
        "ours, TF32": {},
        "ours, TF32, compiled": {"compile": True},
        "ours, bf16": {"bf16": True},
        "ours, bf16, compiled": {"bf16": True, "compile": True},
    },
}


class Way(NamedTuple):
    """How to make an arm for a work, with or without dropout, and torch's settings while it runs."""

    make: Callable[[Work, bool], Arm]
    threads: int
    onednn: bool = True  # ours says for itself

    def run(self, arm: Arm, rounds: int) -> None:
        torch.set_num_threads(self.threads)
        torch.backends.mkldnn.enabled = self.onednn  # type: ignore[assignment]
        arm.run(rounds)


def arms(device: str, threads: int, more: list[str]) -> dict[str, Way]:
    """Every arm; on a CPU, peers also without oneDNN, which the engine turns off if that is faster."""
    known = {field.name for field in dataclasses.fields(cp.Engine)}
    ours: dict[str, dict[str, Any]] = dict(_OURS[device]) | dict(map(_option, more))
    found: dict[str, Way] = {}
    for name, options in ours.items():
        if unknown := options.keys() - known:
            print(f"{name}: skipped, as the engine has no {', '.join(sorted(unknown))}")
            continue
        some = {"threads": threads if device == "cpu" else None, **options}  # with a GPU it says for itself
        found[name] = Way(
            lambda w, d, some=some: Ours(w, w.data(), w.model(d), device, **some), some["threads"] or threads
        )
    loop, pfl = (partial(_peer, kind, device) for kind in (Loop, Pfl))
    peers = (("bare loop", loop), ("pfl", pfl))
    if device == "cpu":
        for onednn, without in ((True, ""), (False, ", no oneDNN")):
            for many in dict.fromkeys((1, threads)):
                found[f"bare loop, {many} thread{'s' * (many > 1)}{without}"] = Way(loop, many, onednn)
            found[f"pfl{without}"] = Way(pfl, threads, onednn)
    else:
        for many in dict.fromkeys((threads, 1)):  # ours takes one beside a GPU
            found |= {f"{name}, {many} thread{'s' * (many > 1)}": Way(make, many) for name, make in peers}
        found["bare loop, bf16"] = Way(partial(loop, bf16=True), threads)
        found["pfl, bf16"] = Way(partial(pfl, bf16=True), threads)
    return found


def _peer(kind: type[Loop | Pfl], device: str, work: Work, dropout: bool, bf16: bool = False) -> Arm:
    return kind(work, work.data(), work.model(dropout), device, bf16=bf16)


def _option(text: str) -> tuple[str, dict[str, Any]]:
    name, _, options = text.partition(":")
    try:
        given = {key: json.loads(value) for key, _, value in (o.partition("=") for o in options.split(","))}
    except json.JSONDecodeError:
        sys.exit(f"--engine {text}: write it as NAME:KEY=VALUE,..., such as eager:tf32=false,compile=true")
    return f"ours, {name}", given


def check(work: Work, ways: dict[str, Way]) -> dict[str, float]:
    """Distance of each arm's model from the first loop's after two rounds of whole batches, over the distance moved."""
    small = dataclasses.replace(work, clients=5, cohort=5, epochs=2)
    small = dataclasses.replace(small, batch=max(map(len, small.data().rows)))
    start = torch.nn.utils.parameters_to_vector(small.model(False).parameters()).detach()
    models = {}
    # Peers run in full precision here, so only those of our arms that are named for another precision may differ more.
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for name, way in ways.items():
        arm = way.make(small, False)
        way.run(arm, 2)
        models[name] = arm.weights().cpu()
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    first = next(name for name in models if name.startswith("bare loop"))
    if any("TF32" in name for name in models):  # how far rounding alone takes a peer
        arm = ways[first].make(small, False)
        ways[first].run(arm, 2)
        models["bare loop, TF32"] = arm.weights().cpu()
    reference = models[first]
    away = {name: float((w - reference).norm() / (reference - start).norm()) for name, w in models.items()}
    for name, distance in away.items():
        if not distance < (0.2 if "TF32" in name or "bf16" in name else 0.05):
            sys.exit(
                f"{name} does not do the same work: its model is {distance:.3g} away, relative to how far it went."
            )
    return away


def timed(way: Way, arm: Arm, rounds: int, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    way.run(arm, rounds)
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / rounds


def turns(work: Work, ways: dict[str, Way], dropout: bool, asked: argparse.Namespace) -> dict[str, Any]:
    made = {name: (way, way.make(work, dropout)) for name, way in ways.items()}
    for name, (way, arm) in made.items():
        many = asked.warm if name.startswith("ours") else 2
        print(f"  warm-up of {name}: {timed(way, arm, many, asked.device):.3f} s a round", flush=True)
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(asked.turns):
        for name, (way, arm) in made.items():
            many = asked.rounds if name.startswith("ours") else max(1, asked.rounds // asked.slower)
            times[name].append(timed(way, arm, many, asked.device))
    return times


def cold(work: str, asked: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of a whole program of 12 rounds, arms in turn."""
    paths = [str(_HERE), str(Path(cp.__file__).parents[1])]
    times: dict[str, list[float]] = {}
    for _ in range(asked.cold):
        for name in ("ours", "loop", "pfl", "flower"):
            more = [str(folder("flower"))] if name == "flower" else []
            quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
            path = os.pathsep.join([*more, *paths, os.environ.get("PYTHONPATH", "")])
            command = [sys.executable, str(_HERE / "cold.py"), name, work, "12", asked.device, str(asked.threads)]
            begun = time.perf_counter()
            done = subprocess.run(
                command, env={**os.environ, **quiet, "PYTHONPATH": path}, capture_output=True, text=True
            )
            if done.returncode:
                print(f"  {name}, cold: skipped: {(done.stderr.strip() or 'it failed').splitlines()[-1]}", flush=True)
                continue
            times.setdefault(name, []).append(time.perf_counter() - begun)
    return times


def table(times: dict[str, list[float]], title: str) -> str:
    """Milliseconds of every arm, and how many times faster each of ours is than each peer: the median over turns."""
    ours = {name: chr(ord("a") + i) for i, name in enumerate(name for name in times if name.startswith("ours"))}
    lines = [title, f"{'and how many times faster ours is':35}{'ms':>8}"]
    lines[-1] += "".join(f"{letter:>7}" for letter in ours.values())
    for name, own in times.items():
        label = f"{ours[name]} = {name}" if name in ours else name
        cells = ""
        if ours and name not in ours and len(own) == len(times[next(iter(ours))]):
            over = (statistics.median(b / a for a, b in zip(times[mine], own, strict=True)) for mine in ours)
            cells = "".join(f"{ratio:7.3g}" for ratio in over)
        lines.append(f"  {label:33}{1000 * statistics.median(own):8.1f}{cells}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", action="append", choices=[*WORKS], help="may be given again [default: all]")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of an arm of ours in a turn")
    parser.add_argument("--slower", type=int, default=1, help="peers do this many times fewer")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument(
        "--warm",
        type=int,
        help="rounds of an arm of ours before it is timed [default: 2; on a CPU, which scripts steps after 5,000, 60]",
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", action="append", help="only arms with this in their name; may be given again")
    parser.add_argument(
        "--engine", action="append", default=[], metavar="NAME:KEY=VALUE,...", help="one more arm of ours"
    )
    parser.add_argument(
        "--cold", type=int, default=0, metavar="TIMES", help="also whole programs of 12 rounds, so often"
    )
    parser.add_argument("--no-turns", action="store_true", help="only --cold")
    parser.add_argument("--out", type=Path, help="[default: benchmarks/results/peers-DEVICE.json]")
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; use --device cpu")
    if asked.warm is None:
        asked.warm = 60 if asked.device == "cpu" else 2
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    ways = arms(asked.device, asked.threads, asked.engine)
    if asked.only:
        ways = {name: way for name, way in ways.items() if any(part in name for part in asked.only)}
        if not any(name.startswith("bare loop") for name in ways):
            parser.error("--only must leave a bare loop, which the other arms are held against")
    out = asked.out or _HERE.parent / "results" / f"peers-{asked.device}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
    settings = {key: value for key, value in vars(asked).items() if key not in ("out", "work")}
    tables = []
    for name in asked.work or [*WORKS]:
        work = WORKS[name]
        measured: dict[str, Any] = {"machine": machine(asked.device), "asked": settings}
        if not asked.no_turns:
            here = _present(work, ways)
            measured["away"] = away = check(work, here)
            print(f"{work.about}: all arms do the same work, to {max(away.values()):.1g} of its way", flush=True)
            for dropout in (False, True) if name == "cifar" else (False,):
                title = f"{work.about}{', dropout' if dropout else ''}"
                print(title, flush=True)
                times = turns(work, here, dropout, asked)
                measured[f"seconds_a_round{', dropout' if dropout else ''}"] = times
                tables.append(table(times, f"{title}: a round"))
        if asked.cold and name == "lenet5":
            print(f"{work.about}: whole programs of 12 rounds", flush=True)
            measured["seconds_cold"] = cold(name, asked)
            tables.append(table(measured["seconds_cold"], f"{work.about}: 12 rounds with start-up"))
        if measured.keys() == {"machine", "asked"}:
            continue
        results[name] = results.get(name, {}) | measured
        out.write_text(json.dumps(results, indent=1) + "\n")
    print("\n" + "\n\n".join(tables) + f"\n\nRaw times: {out}")


def _present(work: Work, ways: dict[str, Way]) -> dict[str, Way]:
    """The arms that can be made here; print why the others cannot."""
    found = {}
    tiny = dataclasses.replace(work, clients=2, cohort=2)
    for name, way in ways.items():
        try:
            way.make(tiny, False)
        except (Absent, ImportError) as reason:
            print(f"{name}: skipped: {reason}", flush=True)
            continue
        found[name] = way
    return found


if __name__ == "__main__":
    main()
