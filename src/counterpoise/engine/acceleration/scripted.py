"""A training step on a CPU as a list of torch operations, traced once and then run by torch without Python.

A small model's step is mostly Python overhead, and even more so under `vmap`. Threads that train clients side by
side also share Python's lock and wait for it at each of some hundred operations; a scripted step takes it once. It
gives the same numbers as the plain step: a script that does not is rejected.
"""

from __future__ import annotations

import gc
import logging
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from counterpoise.federation.samples import Samples
from counterpoise.trees import form, leaves, on, rebuild

__all__ = ["ScriptedSteps", "pure"]

log = logging.getLogger(__name__)

_MOST = 64
"""How many scripts a backend makes at most. torch keeps about 1 MiB of each for as long as the process lives."""
_ONE_AT_A_TIME = threading.Lock()
"""Held while a step is scripted, because torch changes its own modules then."""
aten = torch.ops.aten
Step = Callable[[Any, Any, Any], Any]


class ScriptedStep:
    """``step(fixed, progress, given) -> next progress``, scripted for trees of this form; the step must be pure.

    If something cannot be scripted (a branch on a tensor's value, an operation that torch's interpreter does not
    know), torch's own error is raised.
    """

    def __init__(self, step: Step, *arguments: Any) -> None:
        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            self._like = step(*rebuild(arguments, tensors))
            return tuple(leaves(self._like))

        self.form = form(arguments[:2])
        # Traced without values, so that none becomes part of the script. Each tensor is passed as a view of its own:
        # if one tensor were two arguments, torch could not tell which of them the step uses.
        trace = make_fx(run, {aten.max_pool2d_with_indices.default: _pool_by_twos}, "fake", _allow_non_fake_inputs=True)
        traced = trace(*(tensor.detach() for tensor in leaves(arguments)))
        self._like = on(torch.device("meta"), self._like)
        self._operations = _compile_script(traced)
        del traced
        gc.collect()  # otherwise leftovers of the trace keep the samples in memory

    def __call__(self, fixed: Sequence[Tensor], progress: Any, given: Any) -> Any:
        """`fixed` is given as its leaves, because it stays the same over many steps."""
        # Optimised execution would split a linear layer into a product and a sum, which rounds once more.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return rebuild(self._like, self._operations(*fixed, *leaves(progress), *leaves(given)))


class ScriptedSteps:
    """The scripted steps of a backend by kind of batch; a kind is scripted once it has been met `often` times."""

    def __init__(self, often: int, on: bool) -> None:
        self._often, self._on = often, on
        self._met: Counter[Hashable] = Counter()
        self._known: dict[Hashable, ScriptedStep] = {}
        self._samples: Samples | None = None

    def covers(self, samples: Samples) -> bool:
        """Whether steps on these samples are scripted: only the first samples met are, which are the federation's."""
        if self._samples is None:
            self._samples = samples
        return self._on and samples is self._samples

    def count(self, batches: Iterable[Hashable]) -> None:
        self._met.update(batches)

    @property
    def due(self) -> list[Hashable]:
        """The kinds of batch to script now."""
        if len(self._known) >= _MOST:
            return []
        return [batch for batch, times in self._met.items() if times > self._often and batch not in self._known]

    @property
    def sizes(self) -> list[int]:
        """The numbers of clients of the chunks whose steps are scripted; such a batch is given by its shapes."""
        return [batch[0][0] for batch in self._known if isinstance(batch, tuple)]

    def get(self, batch: Hashable, current_form: Any) -> ScriptedStep | None:
        """The scripted step for such batches, if it was made for fixed tensors and progress of this `form`.

        The form may change because a part may broadcast other tensors later.
        """
        scripted = self._known.get(batch)
        return scripted if scripted is not None and scripted.form == current_form else None

    def script(self, batch: Hashable, step: Step, fixed: Any, progress: Any, given: Any) -> None:
        """Script a step and try it. If torch cannot, or the numbers differ, script nothing from then on."""
        if not self._on:
            return
        try:
            with _ONE_AT_A_TIME:
                scripted = ScriptedStep(step, fixed, progress, given)
            reason = "" if _faithful(scripted, step, fixed, progress, given) else "a script gave other numbers"
        except Exception as error:  # whatever torch raises for a user's model; the plain step still works
            lines = [line.strip() for line in str(error).strip().split("\n")]
            reason = (
                next((line for line in lines if line.startswith("RuntimeError: ")), lines[0]) or type(error).__name__
            )
        if reason:
            log.info("Steps are not scripted, because: %s.", reason.rstrip("."))
            self._on = False
        else:
            self._known[batch] = scripted


def _faithful(scripted: ScriptedStep, step: Step, fixed: Any, progress: Any, given: Any) -> bool:
    """Whether the scripted and the plain step agree over two steps, the second on the reversed batch.

    Every tensor is given different values. When training starts, several are equal, and mistaking one for another
    would go unnoticed.
    """
    fixed, progress = rebuild((fixed, progress), [_shift(t, k) for k, t in enumerate(leaves((fixed, progress)), 1)])
    turned = rebuild(given, [t.flip(-1) if t.ndim else t for t in leaves(given)])
    shown = progress
    for batch in (given, turned):
        progress, shown = step(fixed, progress, batch), scripted(list(leaves(fixed)), shown, batch)
    pairs = zip(leaves(progress), leaves(shown), strict=True)
    return all(a.dtype == b.dtype and bool(((a == b) | (a != a) & (b != b)).all()) for a, b in pairs)


def _shift(tensor: Tensor, place: int) -> Tensor:
    return tensor + 1e-3 * place if tensor.is_floating_point() and tensor.is_contiguous() else tensor


def _compile_script(traced: GraphModule) -> Callable[..., tuple[Tensor, ...]]:
    for node in traced.graph.nodes:
        if node.target is aten._to_copy.default and not isinstance(node.args[0], Node):  # a plain number, added by vmap
            node.target = aten.scalar_tensor.default
        if isinstance(node.target, torch._ops.OpOverload):  # the interpreter picks the overload by the arguments
            node.target = node.target.overloadpacket
    traced.recompile()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated; without it, steps just stay plain
        return torch.jit.script(traced).forward


def _pool_by_twos(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil: bool = False,
) -> tuple[Tensor, Tensor]:
    """Maxima over 2 x 2 and their places, 2 to 3 times faster than torch's own loop, which branches at every value.

    Among equal values it takes the first, row by row, as torch does. For a tie of 0 and -0, either may be returned,
    and the place of a NaN may differ. No finite result changes because of that.
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
    offset = on_top + down * (below + width - on_top)  # in uint8: intermediate overflow cancels out
    corners = 2 * (width * torch.arange(rows)[:, None] + torch.arange(columns))
    return torch.maximum(top, bottom), corners + offset


_PURE = ("counterpoise", "torch", "torchvision")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def pure(module: nn.Module, code: Sequence[Callable[..., Any]]) -> bool:
    """Whether a model and a step's functions belong to torch or to this package, and so do nothing but compute."""
    modules = [child for top in (module, *code) if isinstance(top, nn.Module) for child in top.modules()]
    everywhere = (getattr(nn.modules.module, f"_global{kind}", {}) for kind in _HOOKS)
    return not any(everywhere) and all(map(_known, code)) and all(map(_plain, modules))


def _plain(module: nn.Module) -> bool:
    """Whether a module has no hooks or functions of its own, and its class belongs to torch or to this package."""
    own = vars(module)
    functions = [value for value in own.values() if isinstance(value, FunctionType | MethodType | partial)]
    hooked = "forward" in own or any(getattr(module, kind, {}) for kind in _HOOKS)
    return not hooked and all(map(_known, (type(module), type(module).forward, *functions)))


def _known(code: Any) -> bool:
    """Whether a function, a method, a class or a callable object belongs to torch or to this package."""
    if type(code) is partial:
        return all(map(_known, filter(callable, (code.func, *code.args, *code.keywords.values()))))
    if isinstance(code, MethodType):
        return _known(code.__func__) and _known(type(code.__self__))
    if isinstance(code, FunctionType):  # where it was written; its __module__ may name another
        home = code.__globals__.get("__name__")
    else:
        home = getattr(code if isinstance(code, type | BuiltinFunctionType) else type(code), "__module__", None)
    return str(home).split(".")[0] in _PURE
