"""A training step on a CPU as a list of torch's own operations, recorded once and replayed by torch without Python.

A step of a small model is mostly Python, and `vmap`'s all the more. Threads that train clients beside each other also share
Python's lock, and wait for it at each of some hundred operations; a replay takes it once. It gives the same numbers: a
recording that does not is refused.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from counterpoise.engine.client import Program
from counterpoise.engine.trees import leaves, on, own, replaced
from counterpoise.federation.samples import Samples

__all__ = ["Replays", "pure"]

log = logging.getLogger(__name__)

_MOST = 64
"""Recordings of one backend. torch keeps about a MiB of each for as long as the process lives."""
aten = torch.ops.aten
Step = Callable[[Any, Any, Any], Any]


class Replay:
    """``step(fixed, carry, given)`` of trees of tensors to the next carry, for tensors of these shapes; it must be pure.

    Whatever cannot be recorded (a branch on a tensor's value, an operation that torch's interpreter does not know) raises
    what torch says to it.
    """

    def __init__(self, step: Step, *arguments: Any) -> None:
        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            self._carry = step(*replaced(arguments, tensors))
            return tuple(leaves(self._carry))

        # Copies: of a tensor that is there twice, torch would not tell which one is used.
        traced = make_fx(run, {aten.max_pool2d_with_indices.default: _pooled})(*leaves(own(arguments)))
        self._carry = on(torch.device("meta"), self._carry)  # its form; the numbers of the recording may go
        self._operations = _scripted(traced)

    def __call__(self, fixed: Sequence[Tensor], carry: Any, given: Any) -> Any:
        """`fixed` comes as its leaves, as it is the same over many steps."""
        # Optimised, it would take a linear layer apart into a product and a sum, which rounds once more.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return replaced(self._carry, self._operations(*fixed, *leaves(carry), *leaves(given)))


class Replays:
    """The recordings of a backend's steps by the form of their batches, each made when its form has been met `often`."""

    def __init__(self, often: int, on: bool) -> None:
        self._often, self._on = often, on
        self._met: Counter[Hashable] = Counter()
        self._known: dict[Hashable, Replay] = {}
        self._samples: Samples | None = None

    def of(self, samples: Samples) -> bool:
        """Whether steps on these samples are recorded: on the first that were met, the federation's."""
        if self._samples is None:
            self._samples = samples
        return self._on and samples is self._samples

    def meet(self, forms: Iterable[Hashable]) -> None:
        self._met.update(forms)

    @property
    def due(self) -> list[Hashable]:
        """The forms that are to be recorded."""
        if len(self._known) >= _MOST:
            return []
        return [form for form, times in self._met.items() if times > self._often and form not in self._known]

    def get(self, form: Hashable) -> Replay | None:
        return self._known.get(form)

    def record(self, form: Hashable, step: Step, fixed: Any, carry: Any, given: Any) -> None:
        """Record a step and try it. Where torch cannot record it, or it then gives other numbers, nothing is recorded any more."""
        if not self._on:
            return
        try:
            replay = Replay(step, fixed, carry, given)
            fixed, carry = _apart((fixed, carry))
            shown = carry
            for _ in range(2):
                carry, shown = step(fixed, carry, given), replay(list(leaves(fixed)), shown, given)
            same = all(torch.equal(a, b) for a, b in zip(leaves(carry), leaves(shown), strict=True))
            reason = "" if same else "a recording gave other numbers"
        except Exception as error:  # whatever torch says to a user's model; the step itself is still there
            reason = str(error).strip().split("\n")[0] or type(error).__name__
        if reason:
            log.info("Steps are not recorded, because: %s.", reason.rstrip("."))
            self._on = False
        else:
            self._known[form] = replay


def _apart(tree: Any) -> Any:
    """A tree whose tensors differ: at the start of training several are equal, and one taken for another would not be seen."""
    shifted = [t + k * 1e-3 if t.is_floating_point() else t for k, t in enumerate(leaves(tree), 1)]
    return replaced(tree, shifted)


def _scripted(traced: GraphModule) -> Callable[..., tuple[Tensor, ...]]:
    for node in traced.graph.nodes:
        if node.target is aten._to_copy.default and not isinstance(node.args[0], Node):  # a number, as vmap adds it
            node.target = aten.scalar_tensor.default
        if isinstance(node.target, torch._ops.OpOverload):  # an interpreter tells them apart by their arguments
            node.target = node.target.overloadpacket
    traced.recompile()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it will be gone one day: then steps are not recorded
        return torch.jit.script(traced).forward


def _pooled(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil: bool = False,
) -> tuple[Tensor, Tensor]:
    """Maxima of 2 x 2 and where they lie, without branches, which torch's own loop takes at every number: 2 to 3 times faster.

    Of equal numbers it takes the first, row by row, as torch does.
    """
    height, width = x.shape[-2:]
    plain = set(kernel) == {2} and set(stride) <= {2} and set(padding) == {0} and set(dilation) == {1} and not ceil
    if not plain or not x.is_contiguous() or min(height, width) < 2 or width > 250:
        return NotImplemented  # type: ignore[no-any-return]
    rows, columns = height // 2, width // 2
    x = x[..., : 2 * rows, : 2 * columns]
    left, right = x[..., ::2], x[..., 1::2]
    across, wider = (right > left).to(torch.uint8), torch.maximum(left, right)
    top, bottom = wider[..., ::2, :], wider[..., 1::2, :]
    down, on_top, below = (bottom > top).to(torch.uint8), across[..., ::2, :], across[..., 1::2, :]
    offset = on_top + down * (below + width - on_top)  # in bytes; what runs over in between runs back
    corners = 2 * (width * torch.arange(rows)[:, None] + torch.arange(columns))
    return torch.maximum(top, bottom), corners + offset


_PURE = ("counterpoise", "torch", "torchvision")


def pure(program: Program, module: nn.Module) -> bool:
    """Whether all that a step runs is torch's or ours, and so does nothing but compute."""
    hooks = [hook for part in program.parts for hook in (part.loss, part.gradient, part.after_step) if hook]
    local = program.local
    code = [program.loss, local.optimizer.update, *filter(None, [local.augment]), *hooks, *map(type, module.modules())]
    known = all(str(getattr(getattr(c, "func", c), "__module__", "")).split(".")[0] in _PURE for c in code)
    return known and not any(
        child._forward_hooks or child._forward_pre_hooks or child._backward_hooks or "forward" in vars(child)
        for child in module.modules()
    )
