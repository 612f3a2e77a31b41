"""Why code of the user's fails or cannot be trained as one batch, in words for whoever wrote that model, loss or hook."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from counterpoise.errors import CounterpoiseError, brief
from counterpoise.memory import out_of_memory

__all__ = ["CLIENT_NAMES", "explained", "is_ours", "reason_of", "refusal"]

_HERE, _TORCH = (str(Path(file).resolve().parents[up]) for file, up in ((__file__, 2), (torch.__file__, 0)))

CLIENT_NAMES = (
    "client.numbers has the names that the part's numbers give, client.state those of its client_state, client.memo "
    "those of begin, and client.broadcast those that its broadcast sends."
)
"""Where the names come from that a client hook reads."""

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
    where = _place_of(cause)
    return f"{where}: {why}" if where else why


@contextmanager
def explained(what: str, names: str) -> Iterator[None]:
    """Tell an error in the user's own code in a sentence; `names` says where the names come from that may be missing."""
    try:
        yield
    except CounterpoiseError:
        raise
    except Exception as error:
        if out_of_memory(error) or not (where := _place_of(error)):
            raise
        said = brief(" ".join(str(error).split()))[1:-1].rstrip(".")
        hint = f" {names}" if isinstance(error, KeyError) else ""
        raise CounterpoiseError(f"{what} failed ({where}): {type(error).__name__}: {said}.{hint}") from error


def _place_of(error: BaseException) -> str:
    """The function, file and line of the user's own code that failed; empty if it was not in the user's code."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_ours(f.filename)]
    return f"{frames[-1].name} in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""


def is_ours(file: str) -> bool:
    """Whether code is this package's, torch's or made while running, rather than in a file of the user's."""
    return file.startswith((_HERE, _TORCH, "<"))


def refusal(reason: str) -> CounterpoiseError:
    """The error for a model or a hook that `vmap` does not take."""
    return CounterpoiseError(
        f"The model, its loss or a part of the method cannot be trained as one batch of clients ({reason}). Choose the "
        "per-client backend: engine=cp.Engine(backend='per-client'), or --set engine.backend=per-client."
    )
