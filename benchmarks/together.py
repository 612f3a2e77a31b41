"""`python benchmarks/together.py`: what a whole comparison takes, with Python's start, beside an earlier version.

Every arm is a command in a process of its own, and the arms of a row take turns. `--before` names the `src` folder of
another checkout. The rows gpu and mps need a GPU and Fashion-MNIST, and mps also NVIDIA's MPS, which the script starts
and stops. A ratio is the median over turns of the ratio within a turn.

    help    `counterpoise --help`; the target is in processor time
    run     one round of the quickstart
    sweep   12 values of `local.optimizer.lr` on the quickstart
    demo    the comparison of `make demo`
    twelve  12 runs of the quickstart, 60 rounds, over 12 times one alone; the same with one round is taken off both
    gpu     6 methods x 5 seeds, LeNet-5 on Fashion-MNIST, 10 of 100 clients, 200 rounds, test accuracy every 5
    mps     the same, with 14 processes of the earlier version at once, and 4 of ours

    git worktree add ../before COMMIT
    python benchmarks/together.py --before ../before/src --out benchmarks/results/together-cpu.json
    python benchmarks/together.py --before ../before/src --rows gpu mps --out benchmarks/results/together-cuda.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.machine import commit

_HERE = Path(__file__).resolve().parent
_NOW = _HERE.parent / "src"
SIX = """
rounds = 200
cohort = 10
method = { name = "fedavg" }
[data]
name = "fashion-mnist"
partition = { name = "dirichlet", alpha = 0.3, clients = 100 }
heldout = 0.0
probe = 1
[model]
name = "lenet5"
[local]
epochs = 1
batch = 20
optimizer = { name = "sgd", lr = 0.01, momentum = 0.9 }
[evaluation]
every = 5
clients_every = 0
[engine]
device = "cuda"
"""
_RATES = "local.optimizer.lr=0.005,0.01,0.015,0.02,0.03,0.04,0.05,0.06,0.08,0.1,0.12,0.15"
_SWEEP = ["sweep", "quickstart", "--seeds", "1", "--over", _RATES]
_DEMO = "fedavg,fedprox,scaffold,fedbac-soft,feda4,fedoaed,feddua:fedavg"
_LIES = ["--set", "adversary=claims", "--set", "adversary.clients=2"]
_TWELVE = ["compare", "quickstart", "--methods", "fedavg,avg,fedavgm,fedadam", "--seeds", "3"]
_SIX = ["compare", "six.toml", "--methods", "fedavg,fedavgm,fedadam,fedvarp,feda4,fedbac-soft", "--seeds", "5"]


@dataclass(frozen=True)
class Arm:
    """A command of the version in this checkout, or of the one before."""

    words: Sequence[str]
    before: bool = False
    mps: bool = False


def _both(words: Sequence[str]) -> dict[str, Arm]:
    return {"before": Arm(words, before=True), "now": Arm(words)}


ROWS: dict[str, dict[str, Arm]] = {
    "help": _both(["--help"]),
    "run": _both(["run", "quickstart", "--rounds", "1"]),
    "sweep": _both(_SWEEP),
    "demo": _both(["compare", "quickstart", "--seeds", "3", "--rounds", "20", "--methods", _DEMO, *_LIES]),
    "twelve": {
        "alone": Arm(["run", "quickstart", "--rounds", "60"]),
        "alone, one round": Arm(["run", "quickstart", "--rounds", "1"]),
        "twelve": Arm([*_TWELVE, "--rounds", "60"]),
        "twelve, one round": Arm([*_TWELVE, "--rounds", "1"]),
    },
    "gpu": _both(_SIX),
    "mps": {
        "before": Arm([*_SIX, "--jobs", "14"], before=True, mps=True),
        "default": Arm(_SIX),
        "now": Arm([*_SIX, "--jobs", "4"], mps=True),
    },
}
_NEED_A_GPU = ("gpu", "mps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, metavar="SRC", help="the src folder of another checkout")
    parser.add_argument("--rows", nargs="+", choices=[*ROWS], help="[default: those that need no GPU]")
    parser.add_argument("--turns", type=int, default=3, help="times that every arm is measured [default: 3]")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting in all arms")
    parser.add_argument("--out", type=Path, help="also write the raw times here, beside the rows that the file has")
    asked = parser.parse_args()
    before = asked.before.resolve()
    if not (before / "counterpoise").is_dir():
        parser.error(f"--before {asked.before} holds no folder counterpoise; name the src folder of a checkout")
    rows = asked.rows or [row for row in ROWS if row not in _NEED_A_GPU]
    if "mps" in rows and not shutil.which("nvidia-cuda-mps-control"):
        parser.error("the row mps needs nvidia-cuda-mps-control, which is not here; leave mps out of --rows")
    machine = _machine()
    kept = json.loads(asked.out.read_text())["rows"] if asked.out and asked.out.exists() else {}
    for source in (before, _NOW):  # no arm should be the first to compile our modules
        subprocess.run([sys.executable, "-m", "compileall", "-q", source], check=True)
    for row in rows:
        taken = turns(ROWS[row], asked.turns, before, asked.set)
        made = {"commit": commit(_NOW), "before": commit(before), "machine": machine, "settings": asked.set}
        kept[row] = {"ratio": ratio(row, taken), **made, "arms": taken}
        print(f"{row}: {kept[row]['ratio']:.2f} x", flush=True)
        if asked.out:
            asked.out.write_text(json.dumps({"six.toml": SIX, "rows": kept}, indent=1) + "\n")


def turns(arms: dict[str, Arm], many: int, before: Path, settings: Sequence[str]) -> dict[str, Any]:
    """The command and the times of each arm, arms in turn."""
    taken: dict[str, Any] = {name: {"command": [*arm.words], "wall": [], "processor": []} for name, arm in arms.items()}
    for _ in range(many):
        for name, arm in arms.items():
            for clock, seconds in measured(arm, before if arm.before else _NOW, settings).items():
                taken[name][clock].append(seconds)
            last = [taken[name][clock][-1] for clock in ("wall", "processor")]
            print(f"  {name:20} {last[0]:8.2f} s, {last[1]:.2f} s of processors", flush=True)
    return taken


def ratio(row: str, taken: dict[str, Any]) -> float:
    """How many times faster we are: than the version before, or for the row twelve, than one run after the other."""
    times = {name: arm["processor" if row == "help" else "wall"] for name, arm in taken.items()}
    if row != "twelve":
        return statistics.median(old / new for old, new in zip(times["before"], times["now"], strict=True))
    each = zip(times["alone"], times["alone, one round"], times["twelve"], times["twelve, one round"], strict=True)
    return statistics.median(12 * (alone - start) / (all - starts) for alone, start, all, starts in each)


def measured(arm: Arm, source: Path, settings: Sequence[str]) -> dict[str, float]:
    """Seconds that a command takes: on the clock, and of processors with its workers."""
    words = [*arm.words, *(word for one in settings for word in ("--set", one) if arm.words[0] != "--help")]
    path = os.pathsep.join([str(source), *filter(None, [os.environ.get("PYTHONPATH")])])
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "six.toml").write_text(SIX)
        variables = os.environ | {"PYTHONPATH": path} | (stack.enter_context(_mps(folder)) if arm.mps else {})
        said = stack.enter_context((folder / "said").open("w+"))
        begun = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-m", "counterpoise", *words], cwd=folder, env=variables, stdout=said, stderr=said
        )
        _, status, used = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - begun
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            sys.exit(f"counterpoise {' '.join(words)} ended with status {child.returncode}:\n{said.read()[-2000:]}")
    return {"wall": seconds, "processor": used.ru_utime + used.ru_stime}


@contextlib.contextmanager
def _mps(folder: Path) -> Iterator[dict[str, str]]:
    """NVIDIA's MPS, with which processes use the GPU at the same time, and the variables by which they find it."""
    places = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for place in places.values():
        Path(place).mkdir()
    control = ["nvidia-cuda-mps-control"]
    subprocess.run([*control, "-d"], env=os.environ | places, check=True)
    try:
        yield places
    finally:
        subprocess.run(control, input="quit\n", env=os.environ | places, text=True, check=True)


def _machine() -> dict[str, Any]:
    """The description of this machine, found in a process of its own, so that this one does not use the GPU."""
    code = """
import json, torch
from peers.machine import machine
print(json.dumps(machine("cuda" if torch.cuda.is_available() else "cpu")))
"""
    told = subprocess.run([sys.executable, "-c", code], cwd=_HERE, check=True, stdout=subprocess.PIPE).stdout
    return dict(json.loads(told))


if __name__ == "__main__":
    main()
