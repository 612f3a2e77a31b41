"""Check what hooks and optimisers return; one sentence says which name, shape or type is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Client, Part

__all__ = [
    "check_layout",
    "check_named",
    "check_number",
    "check_step",
    "check_vector",
    "layout_of",
    "shape_of",
    "shapes_of",
]


def check_layout(part: Part, client: Client, new: Mapping[str, Tensor], what: str = "memo") -> dict[str, Tensor]:
    """A part's new memo or state, checked to have the old one's layout, because masks, graphs and stores rely on it."""
    old = getattr(client, what)
    if not isinstance(new, Mapping):
        raise CounterpoiseError(
            f"part {part.name}: its {what} must stay a dictionary of tensors and not become {type(new).__name__}."
        )
    if layout_of(new) != layout_of(old):
        raise CounterpoiseError(
            f"part {part.name} changed the layout of its {what}: it began as {shapes_of(old)} and became {shapes_of(new)}."
        )
    return {name: new[name] for name in old}


def check_step(made: Any, w: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The weights and the state that an optimiser's `step` returned, checked to have the layout that it was given."""
    old = ({"w": w}, state)
    pair = isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping)
    new = ({"w": made[0]}, made[1]) if pair else ({}, {})
    if not pair or [*map(layout_of, new)] != [*map(layout_of, old)]:
        wanted, found = ("; ".join(map(shapes_of, both)) for both in (old, new))
        raise CounterpoiseError(
            "The optimizer's step must return (w, state) with the same names, shapes and types that it was given: "
            f"{wanted}. It returned {found if pair else type(made).__name__}."
        )
    return made[0], {name: made[1][name] for name in state}


def check_number(part: Part, value: Tensor) -> Tensor:
    """What a `loss` hook returned, checked to be one number."""
    if not isinstance(value, Tensor) or value.ndim:
        shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise CounterpoiseError(
            f"part {part.name}: its hook loss must return one number, not {shown}. "
            "Make it a tensor of w: take the sum, or for one value per sample step.mean(...)."
        )
    return value


def check_named(part: Part, hook: str, made: Any, how: str = "return") -> dict[str, Tensor]:
    """What a hook returned, checked to be a dictionary of tensors."""
    if not isinstance(made, Mapping) or not all(isinstance(value, Tensor) for value in made.values()):
        found = shapes_of(made) if isinstance(made, Mapping) else type(made).__name__
        raise CounterpoiseError(f"part {part.name}: its hook {hook} must {how} a dictionary of tensors, not {found}.")
    return dict(made)


def check_vector(part: Part, hook: str, value: Tensor, like: Tensor, what: str = "") -> Tensor:
    """What a hook returned, checked to have the model's length and type: a single number would be broadcast."""
    if not isinstance(value, Tensor) or value.shape != like.shape or value.dtype != like.dtype:
        raise CounterpoiseError(
            f"part {part.name}: its hook {hook} must return {what}a vector of the model's {len(like)} numbers "
            f"({shape_of(like)}), not {shape_of(value)}."
        )
    return value


def layout_of(named: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """By name, each tensor's shape and type."""
    return {name: (t.shape, t.dtype) if isinstance(t, Tensor) else (type(t),) for name, t in named.items()}


def shapes_of(named: Mapping[str, Any]) -> str:
    """Named tensors in short, such as drift float32[3], seen float32[]."""
    return ", ".join(f"{name} {shape_of(t)}" for name, t in named.items()) or "nothing"


def shape_of(value: Any) -> str:
    """A tensor's type and shape in short, such as float32[3]; for anything else the name of its type."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
