"""One arm in a process of its own, from nothing to the last round: ``cold.py ARM WORK ROUNDS DEVICE THREADS``."""

from __future__ import annotations

import sys

import torch
from arms import Absent, Arm, Loop, Ours, Pfl
from works import WORKS


def main() -> None:
    name, work, rounds, device, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    try:
        arm = make(name, work, device, int(threads))
    except Absent as absent:
        sys.exit(str(absent))
    arm.run(int(rounds))
    if not bool(arm.weights().isfinite().all()):
        sys.exit("the model is not finite")


def make(name: str, work: str, device: str, threads: int) -> Arm:
    if name == "flower":
        from flower import Flower

        return Flower(work, device, threads)
    given = WORKS[work]
    if name == "ours":
        return Ours(given, given.data(), given.model(False), device, threads if device == "cpu" else None)
    return (Loop if name == "loop" else Pfl)(given, given.data(), given.model(False), device)


if __name__ == "__main__":
    main()
