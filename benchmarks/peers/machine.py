"""Describe the machine and the versions that a result was measured with."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

__all__ = ["commit", "machine"]


def machine(device: str) -> dict[str, Any]:
    """The computer, Python, torch, and the commit of this checkout if git knows it."""
    found = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
    }
    names = {line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith(("model name", "CPU part"))}
    if names:
        found["cpu"] = ", ".join(sorted(names))
    if device == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    if name := commit(Path(__file__).parent):
        found["commit"] = name
    return found


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.is_file() else []


def commit(folder: Path) -> str:
    """The commit of the checkout that a folder lies in, or '' if git does not know it."""
    if not shutil.which("git"):
        return ""
    asked = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip()
