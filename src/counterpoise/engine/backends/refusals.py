"""Why clients cannot be trained as one batch, in words for whoever wrote the model, the loss or the hook."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from counterpoise.errors import CounterpoiseError

__all__ = ["reason_of", "refusal"]

_HERE, _TORCH = (str(Path(file).resolve().parents[up]) for file, up in ((__file__, 2), (torch.__file__, 0)))

_WRITES = "it writes into a tensor made beforehand; an operation that returns a new tensor works"
_CAUSES = {
    "control flow": "a tensor becomes a Python value, as in an if, .item() or float(); torch.where keeps it a tensor",
    ".item()": "a tensor becomes a Python value, as in .item() or float()",
    "dynamic shape": "a result's shape depends on the data, as with a boolean mask; torch.where keeps the shape",
    "inplace arithmetic": _WRITES,
    "doesn't match the broadcast shape": _WRITES,
    "data pointer": "it reads a tensor's memory, as .numpy() does",
}
"""For words in torch's message, what they mean."""


def reason_of(error: Exception) -> str:
    """Where the user's own code failed, and why: known causes in our words, others by torch's first sentence."""
    cause = error.__cause__ or error
    said = str(cause).strip().split("\n")[0].split(". ")[0].rstrip(".").removeprefix("vmap: ") or type(cause).__name__
    why = next((words for sign, words in _CAUSES.items() if sign in str(cause)), said)
    frames = [f for f in traceback.extract_tb(cause.__traceback__) if not f.filename.startswith((_HERE, _TORCH, "<"))]
    return f"{frames[-1].name} in {Path(frames[-1].filename).name}, line {frames[-1].lineno}: {why}" if frames else why


def refusal(reason: str) -> CounterpoiseError:
    """The error for a model or a hook that `vmap` does not take."""
    return CounterpoiseError(
        f"The model, its loss or a part of the method cannot be trained as one batch of clients ({reason}). Choose the "
        "per-client backend: engine=cp.Engine(backend='per-client'), or --set engine.backend=per-client."
    )
