"""Low-rank adapters (LoRA, Hu et al. 2021): a small trainable term beside each frozen linear layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.lazy import LazyModuleMixin

from counterpoise.errors import CounterpoiseError, brief, takes_only_its_options
from counterpoise.models.copies import check_module, sharing_copy

__all__ = ["LowRank", "merge_lora", "with_lora"]


class LowRank(nn.Module):
    """``W x + b + s B A x`` with W and b frozen: A is `down` ``[rank, in]``, B is `up` ``[out, rank]``, zero at first."""

    def __init__(self, base: nn.Module, rank: int, scale: float) -> None:
        super().__init__()
        weight: Tensor = base.weight  # type: ignore[assignment]
        self.base, self.scale, self.turned = base, scale, not isinstance(base, nn.Linear)
        out, wide = reversed(weight.shape) if self.turned else weight.shape
        self.down = nn.Parameter(weight.new_empty(rank, wide))
        self.up = nn.Parameter(weight.new_zeros(out, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * F.linear(F.linear(x, self.down), self.up)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"rank={len(self.down)}, scale={self.scale:g}"

    @property
    def weight(self) -> Tensor:
        """What the layer multiplies by, for modules that read it instead of calling the layer (attention does)."""
        added = self.scale * self.up @ self.down
        return self.base.weight + (added.T if self.turned else added)  # type: ignore[operator]

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias  # type: ignore[return-value]


@takes_only_its_options()
def with_lora(
    model: nn.Module,
    rank: int = 8,
    where: str | Sequence[str] = "*",
    *,
    alpha: float | None = None,
    whole: str | Sequence[str] = (),
    train: str = "both",
) -> nn.Module:
    """A copy of the model that trains low-rank adapters, and nothing else but the layers named in `whole`.

    Every linear layer whose name matches a pattern of `where` computes ``W x + b + (alpha / rank) B A x``. W and b are
    frozen, A is random and B is zero, so that the copy begins as the model. `alpha` is `rank` unless given. With
    ``train="up"`` only B is trained: then the mean of clients' adapters is the adapter of the mean, which the mean of
    both factors is not. `whole` are patterns of layers that train in full, such as a new head.

    The copy's frozen weights lie in the memory of the model's own, so do not train the model any more.

    >>> net = with_lora(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), rank=2, where="0", whole="2")
    >>> [name for name, p in net.named_parameters() if p.requires_grad]
    ['0.down', '0.up', '2.weight', '2.bias']
    """
    check_module(model, "with_lora")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise CounterpoiseError(f"with_lora: rank must be a whole number from 1 on, not {brief(rank)}.")
    if alpha is not None and not (isinstance(alpha, int | float) and 0 < alpha < math.inf):
        raise CounterpoiseError(f"with_lora: alpha must be a positive number, not {brief(alpha)}.")
    if train not in ("both", "up"):
        raise CounterpoiseError(f"with_lora: train must be 'both' or 'up', not {brief(train)}.")
    if any(isinstance(child, LowRank) for child in model.modules()):
        raise CounterpoiseError("with_lora: the model has adapters already. Use merge_lora first.")
    if any(isinstance(child, LazyModuleMixin) for child in model.modules()):
        raise CounterpoiseError(
            "with_lora: the model has layers that do not know their sizes yet. Call it once before."
        )
    named = dict(model.named_modules(remove_duplicate=False))
    full = _matching(whole, named, "whole")
    linear = [name for name, layer in named.items() if _is_linear(layer)]
    adapted = _matching(where, linear, "where")
    adapted = [name for name in adapted if not any(f"{name}.".startswith(f"{top}.") for top in full)]
    if not adapted:
        raise CounterpoiseError("with_lora: the layers that `where` names are all in `whole`, so there is no adapter.")
    made = sharing_copy(model, trained=[p for name in full for p in named[name].parameters()])
    for name in full:
        made.get_submodule(name).requires_grad_(True)
    # A layer that is used at several places has one adapter. In the model's order, so that each draws the same numbers.
    bases = dict.fromkeys(made.get_submodule(name) for name in adapted)
    layers = {base: LowRank(base, rank, (rank if alpha is None else alpha) / rank) for base in bases}
    for layer in layers.values():
        layer.down.requires_grad_(train == "both")
    return _replaced(made, layers)


@takes_only_its_options()
def merge_lora(model: nn.Module) -> nn.Module:
    """A copy of the model, all of it trainable, with each adapter added to the weight beside it in the original layers."""
    check_module(model, "merge_lora", "run.model")
    made = copy.deepcopy(model)
    layers = [layer for layer in made.modules() if isinstance(layer, LowRank)]
    for layer in layers:
        layer.base.weight = nn.Parameter(layer.weight.detach())
    return _replaced(made, {layer: layer.base for layer in layers}).requires_grad_(True)


def _is_linear(layer: nn.Module) -> bool:
    """Whether it is a linear layer, or the one of Hugging Face's GPT-2, whose weight is the other way round."""
    return isinstance(layer, nn.Linear) or (type(layer).__name__ == "Conv1D" and hasattr(layer, "nf"))


def _matching(given: Any, names: Collection[str], what: str) -> list[str]:
    """The names that match a pattern or one of a list, in their order."""
    patterns = [given] if isinstance(given, str) else given
    if not isinstance(patterns, Sequence) or not all(isinstance(pattern, str) for pattern in patterns):
        raise CounterpoiseError(f"with_lora: {what} must be a pattern of layers' names or a list, not {brief(given)}.")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            some = ", ".join([name for name in names if name][:6]) or "none"
            kind = "linear layer" if what == "where" else "layer"
            raise CounterpoiseError(f"with_lora: {what}={brief(pattern)} matches no {kind}. There are: {some}.")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _replaced(model: nn.Module, layers: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """The model with other layers in the place of some, wherever they are used."""
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if layer in layers and name:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, layers[layer])
    return layers.get(model, model)
