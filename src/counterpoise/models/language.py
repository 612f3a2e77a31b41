"""Language models: for every token of a text, an output for each token that may follow.

They take tokens ``[B, T]``, alone or as ``input_ids`` with an ``attention_mask``, and return ``[B, T, vocabulary]``. A
place sees itself and what stands before it, so that padding at the end of a text changes nothing before it.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor, nn

from counterpoise.errors import CounterpoiseError
from counterpoise.models.registry import MODELS
from counterpoise.registry import Option

__all__ = ["lstm", "transformer"]

_ASCII = 128
_LONGEST = 2**16
Vocabulary = Annotated[int, Option("different tokens, 0 to vocabulary - 1", low=2, high=2**20)]


@MODELS.register("lstm")
def lstm(
    vocabulary: Vocabulary = _ASCII,
    embedding: Annotated[int, Option("numbers for each token", low=1, high=_LONGEST)] = 8,
    hidden: Annotated[int, Option("units of each layer", low=1, high=_LONGEST)] = 256,
    layers: Annotated[int, Option("recurrent layers", low=1, high=100)] = 2,
) -> nn.Module:
    """A language model of LSTM layers (McMahan et al. 2017, for Shakespeare).

    >>> sum(p.numel() for p in lstm().parameters())
    832640
    """
    return _Recurrent(vocabulary, embedding, hidden, layers)


@MODELS.register("transformer")
def transformer(
    shape: Any = (80,),
    vocabulary: Vocabulary = _ASCII,
    width: Annotated[int, Option("numbers for each token", low=1, high=_LONGEST)] = 64,
    heads: Annotated[int, Option("attention heads; they share the width", low=1, high=_LONGEST)] = 4,
    layers: Annotated[int, Option("blocks of attention and dense layers", low=1, high=1000)] = 2,
) -> nn.Module:
    """A small causal transformer with learned positions; each block normalises before it transforms.

    >>> sum(p.numel() for p in transformer().parameters())
    121728
    """
    if width % heads:
        raise CounterpoiseError(f"model transformer: width must be a multiple of the {heads} heads, not {width}.")
    return _Transformer(_length(shape), vocabulary, width, heads, layers)


def _length(shape: Any) -> int:
    """How many tokens a sample has."""
    found = shape.get("input_ids") if isinstance(shape, dict) else shape
    found = found[0] if isinstance(found, tuple) and found and isinstance(found[0], tuple) else found
    if not isinstance(found, tuple | list | torch.Size) or len(found) != 1:
        raise CounterpoiseError(
            f"model transformer takes rows of tokens, alone or as input_ids; these samples have shape {shape}."
        )
    return int(found[0])


class _Recurrent(nn.Module):
    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, embedding)
        self.layers = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def features(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The last layer's outputs. The mask is not needed: what comes later has no effect."""
        return self.layers(self.tokens(input_ids))[0]  # type: ignore[no-any-return]

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(self.features(input_ids))  # type: ignore[no-any-return]


class _Transformer(nn.Module):
    def __init__(self, length: int, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def features(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The last block's outputs, normalised."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        seen = places[:, None] >= places
        if attention_mask is not None:  # a place always sees itself, so that no row of weights is empty
            seen = seen & ((attention_mask[:, None, None] != 0) | (places[:, None] == places))
        x = self.tokens(input_ids) + self.places(places)
        for block in self.blocks:
            x = block(x, seen)
        return self.norm(x)  # type: ignore[no-any-return]

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(self.features(input_ids, attention_mask))  # type: ignore[no-any-return]


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def extra_repr(self) -> str:
        return f"heads={self.heads}"

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = x + self.mixed(self._attend(self.asked(self.first(x)), seen))
        return x + self.dense(self.second(x))  # type: ignore[no-any-return]

    def _attend(self, asked: Tensor, seen: Tensor) -> Tensor:
        """Attention in plain products: torch's own function has no `vmap` rule on a CPU and no second derivative."""
        shape = (*asked.shape[:2], self.heads, -1)
        queries, keys, values = (t.reshape(shape).transpose(1, 2) for t in asked.chunk(3, 2))  # [B, heads, T, ...]
        likeness = torch.matmul(queries, keys.transpose(2, 3)) * queries.shape[3] ** -0.5
        weights = torch.where(seen, likeness, -torch.inf).softmax(3)
        return torch.matmul(weights, values).transpose(1, 2).flatten(2)
