"""Explain to the author of a model, loss or hook why it fails or cannot be trained as one batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from counterpoise.blame import hook_of, place_of
from counterpoise.errors import CounterpoiseError, brief
from counterpoise.hooks import Client, Cohort, Reply, Round, Step
from counterpoise.memory import out_of_memory

__all__ = ["CLIENT_NAMES", "explained", "reason_of", "refusal"]

CLIENT_NAMES = (
    "client.numbers has the names that the part's numbers give, client.state those of its client_state, client.memo "
    "those of begin, and client.broadcast those that its broadcast sends."
)
"""A hint for a client hook that reads an unknown name."""

_WRITES = "it writes into a tensor made beforehand; an operation that returns a new tensor works"
_CAUSES = {
    "control flow": "a tensor becomes a Python value, as in an if, .item() or float(); torch.where keeps it a tensor",
    ".item()": "a tensor becomes a Python value, as in .item() or float()",
    "dynamic shape": "a result's shape depends on the data, as with a boolean mask; torch.where keeps the shape",
    "inplace arithmetic": _WRITES,
    "doesn't match the broadcast shape": _WRITES,
    "data pointer": "it reads a tensor's memory, as .numpy() does",
}
"""What a user's code did, by words in torch's message."""


def reason_of(error: Exception) -> str:
    """Where the user's own code failed, and why: in our words if the cause is known, otherwise torch's first sentence."""
    cause = error.__cause__ or error
    said = str(cause).strip().split("\n")[0].split(". ")[0].rstrip(".").removeprefix("vmap: ") or type(cause).__name__
    why = next((words for sign, words in _CAUSES.items() if sign in str(cause)), said)
    where = place_of(cause)
    return f"{where}: {why}" if where else why


@contextmanager
def explained(what: str, names: str = "") -> Iterator[None]:
    """Turn an error in the user's own code into a sentence that names the hook, or `what` if it was in none.

    `names` is a hint that is added if a key was missing.
    """
    try:
        yield
    except CounterpoiseError:
        raise
    except Exception as error:
        if out_of_memory(error) or not (where := place_of(error)):
            raise
        said = brief(" ".join(str(error).split()))[1:-1].rstrip(".")
        hint = f" {names}" if isinstance(error, KeyError) and names else _offered(error)
        raise CounterpoiseError(
            f"{hook_of(error) or what} failed ({where}): {type(error).__name__}: {said}.{hint}"
        ) from error


def _offered(error: Exception) -> str:
    """If a hook asked one of its arguments for an attribute that it lacks: the attributes that it has."""
    asked = getattr(error, "obj", None) if isinstance(error, AttributeError) else None
    kinds: dict[str, type] = {kind.__name__: kind for kind in (Client, Cohort, Reply, Round)} | {"BatchStep": Step}
    kind = kinds.get(type(asked).__name__)
    if kind is None:
        return ""
    has = sorted({*dir(kind), *getattr(kind, "__dataclass_fields__", ())})
    return f" A {kind.__name__} has {', '.join(name for name in has if name[0] != '_')}."


def refusal(reason: str) -> CounterpoiseError:
    """The error for a model or a hook that `vmap` does not take."""
    return CounterpoiseError(
        f"The model, its loss or a part of the method cannot be trained as one batch of clients ({reason}). Choose the "
        "per-client backend: engine=cp.Engine(backend='per-client'), or --set engine.backend=per-client."
    )
