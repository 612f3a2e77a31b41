"""Recurrent layers as a loop of plain operations, which `vmap` takes and which can be differentiated repeatedly.

torch runs a whole LSTM, GRU or RNN as one operation. That operation has no `vmap` rule for a stack of clients with
different weights, and it draws the dropout between layers from torch's own generator. While `Unrolled` is active,
it is computed step by step instead. Packed sequences are left to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["Unrolled", "drops", "recurs", "unflatten_weights"]

State = tuple[Tensor, ...]
"""The hidden state; an LSTM's is followed by its cell state."""
Weights = Sequence[Tensor | None]
"""The recurrent weight, its bias and, for an LSTM with a projection, the projection's weight."""
Cell = Callable[[Tensor, State, Weights], State]
"""``(weighted input, state, weights) -> state``"""


def recurs(module: nn.Module) -> bool:
    """Whether a model has recurrent layers or cells."""
    return any(isinstance(child, nn.RNNBase | nn.RNNCellBase) for child in module.modules())


def drops(module: nn.Module) -> bool:
    """Whether a model has recurrent layers with dropout between them."""
    return any(isinstance(child, nn.RNNBase) and child.dropout > 0 for child in module.modules())


def unflatten_weights(module: nn.Module) -> None:
    """Keep recurrent layers from packing their weights for cuDNN, which needs addresses; under `vmap` there are none."""
    for child in module.modules():
        if isinstance(child, nn.RNNBase):
            child.flatten_parameters = lambda: None  # type: ignore[method-assign]


class Unrolled(TorchFunctionMode):
    """Compute recurrent layers and cells with plain operations. Enter after `Keyed`, which then keys their dropout."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (layers := _LAYERS.get(func)) and isinstance(args[3], bool):  # for a packed sequence, weights are here
            return layers(*args, **kwargs)
        if cell := _CELLS.get(func):
            return cell(*args, **kwargs)
        return func(*args, **kwargs)


# ---------------------------------------------------------------- one step


def _lstm(given: Tensor, state: State, weights: Weights) -> State:
    hidden, memory = state
    recurrent, bias, *projection = weights
    i, f, g, o = (given + F.linear(hidden, recurrent, bias)).chunk(4, -1)  # type: ignore[arg-type]
    memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
    hidden = o.sigmoid() * memory.tanh()
    return (F.linear(hidden, *projection) if projection else hidden), memory  # type: ignore[arg-type]


def _gru(given: Tensor, state: State, weights: Weights) -> State:
    (hidden,) = state
    r, z, n = given.chunk(3, -1)
    own_r, own_z, own_n = F.linear(hidden, *weights).chunk(3, -1)  # type: ignore[arg-type]
    n = (n + (r + own_r).sigmoid() * own_n).tanh()
    return (n + (z + own_z).sigmoid() * (hidden - n),)


def _plain(activation: Callable[[Tensor], Tensor]) -> Cell:
    return lambda given, state, weights: (activation(given + F.linear(state[0], *weights)),)  # type: ignore[arg-type]


# ---------------------------------------------------------------- torch's functions


def _layers(cell: Cell) -> Callable[..., tuple[Tensor, ...]]:
    """What ``torch.lstm``, ``torch.gru`` and the like return for a padded batch: the outputs and the last states."""

    def run(
        input: Tensor,
        state: Tensor | Sequence[Tensor],
        parameters: Sequence[Tensor],
        biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, ...]:
        states = (state,) if isinstance(state, Tensor) else tuple(state)
        ways = 2 if bidirectional else 1
        weights = iter(_by_layer(parameters, layers * ways, biases))
        x, last = input.transpose(0, 1) if batch_first else input, []
        for layer in range(layers):
            if layer and dropout and train:
                x = F.dropout(x.transpose(0, 1), dropout, True).transpose(0, 1)  # `Keyed` needs the batch first
            outputs = []
            for way in range(ways):
                begin = tuple(s[layer * ways + way] for s in states)
                output, end = _pass(cell, x, begin, *next(weights), backwards=way == 1)
                outputs.append(output)
                last.append(end)
            x = torch.cat(outputs, -1)
        ends = (torch.stack(parts) for parts in zip(*last, strict=True))
        return (x.transpose(0, 1) if batch_first else x, *ends)

    return run


def _by_layer(
    parameters: Sequence[Tensor], count: int, biases: bool
) -> Iterator[tuple[Tensor, Tensor | None, Weights]]:
    """For each layer and direction: the input weight, its bias, and the other weights."""
    each = len(parameters) // count
    for begin in range(0, len(parameters), each):
        inward, recurrent, *rest = parameters[begin : begin + each]
        both = [rest.pop(0), rest.pop(0)] if biases else [None, None]
        yield inward, both[0], (recurrent, both[1], *rest)


def _pass(
    cell: Cell, x: Tensor, state: State, inward: Tensor, bias: Tensor | None, weights: Weights, backwards: bool
) -> tuple[Tensor, State]:
    """One layer in one direction over ``[T, B, I]``: its outputs and its last state."""
    steps, outputs = F.linear(x, inward, bias).unbind(0), []
    for given in reversed(steps) if backwards else steps:
        state = cell(given, state, weights)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs), state


def _once(cell: Cell) -> Callable[..., Tensor | State]:
    """What ``torch.lstm_cell``, ``torch.gru_cell`` and the like return."""

    def run(
        input: Tensor,
        state: Tensor | Sequence[Tensor],
        inward: Tensor,
        recurrent: Tensor,
        bias: Tensor | None = None,
        own: Tensor | None = None,
    ) -> Tensor | State:
        given = F.linear(input, inward, bias)
        if isinstance(state, Tensor):
            return cell(given, (state,), (recurrent, own))[0]
        return cell(given, tuple(state), (recurrent, own))

    return run


_LAYERS: dict[Any, Callable[..., tuple[Tensor, ...]]] = {
    torch.lstm: _layers(_lstm),
    torch.gru: _layers(_gru),
    torch.rnn_tanh: _layers(_plain(torch.tanh)),
    torch.rnn_relu: _layers(_plain(torch.relu)),
}
_CELLS: dict[Any, Callable[..., Tensor | State]] = {
    torch.lstm_cell: _once(_lstm),
    torch.gru_cell: _once(_gru),
    torch.rnn_tanh_cell: _once(_plain(torch.tanh)),
    torch.rnn_relu_cell: _once(_plain(torch.relu)),
}
