"""Call a model on a batch and pick its outputs from what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

__all__ = ["outputs_of"]


def outputs_of(model: Callable[..., Any], inputs: Any) -> Any:
    """A model's outputs for a batch; a dictionary is passed as keyword arguments, a tuple as positional ones.

    If the model returns something with ``logits``, as Hugging Face models do, these are the outputs.
    """
    if isinstance(inputs, dict):
        returned = model(**inputs)
    else:
        returned = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    if isinstance(returned, Tensor):
        return returned
    return returned.get("logits", returned) if isinstance(returned, Mapping) else getattr(returned, "logits", returned)
