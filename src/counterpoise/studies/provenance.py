"""What a study is run with: the commit of the package, and the machine."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import torch

from counterpoise import __version__
from counterpoise.errors import CounterpoiseError
from counterpoise.studies.results import Made

__all__ = ["COMMIT", "made_here"]

COMMIT = "COUNTERPOISE_COMMIT"
"""The variable that names the commit if the package lies in no checkout."""


def made_here(on: str = "") -> Made:
    """The commit and the machine of this process, or the kind of cluster that it sends its runs to."""
    machine = f"a cluster ({on.partition(':')[0]})" if on else _machine()
    return Made(_named() or _commit(Path(__file__).parent), machine, __version__)


def _named() -> str:
    """The commit that the variable names. A branch is refused: it soon names another commit."""
    name = os.environ.get(COMMIT, "")
    if name and not re.fullmatch(r"[0-9a-f]{7,40}", name):
        raise CounterpoiseError(f"{COMMIT} is {name!r}. Give a commit: 7 to 40 hexadecimal digits, no branch or tag.")
    return name


def _machine() -> str:
    """The GPUs or the processor, the cores, and torch's version."""
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    names = [f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)]
    return ", ".join([*names, _processor(), f"{os.cpu_count()} cores", f"torch {torch.__version__}"])


def _processor() -> str:
    """The processor's name, or its architecture if the system does not give the name."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit(folder: Path) -> str:
    """The commit of the checkout that a folder lies in, marked if files were changed; empty if git does not know it."""
    if not shutil.which("git"):
        return ""
    asked = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip()
