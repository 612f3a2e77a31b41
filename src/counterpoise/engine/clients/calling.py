"""How a model is given samples in parts, and which part of what it returns are its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

__all__ = ["outputs_of"]


def outputs_of(model: Callable[..., Any], inputs: Any) -> Any:
    """A model's outputs for a batch. A dictionary is given as keywords, a tuple as positions.

    If a model returns something with ``logits``, as those of Hugging Face do, these are its outputs.
    """
    if isinstance(inputs, dict):
        returned = model(**inputs)
    else:
        returned = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    if isinstance(returned, Tensor):
        return returned
    return returned.get("logits", returned) if isinstance(returned, Mapping) else getattr(returned, "logits", returned)
