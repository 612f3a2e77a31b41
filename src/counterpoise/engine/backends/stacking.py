"""Find out by a trial whether a cohort can be trained as one batch of clients, and by counts whether a CPU should.

Results are the same to rounding, so two questions decide. Is it faster? On a CPU this is known only for small models made
of plain functions. Does `vmap` take the model and every hook of the method? If either answer is no, clients train one by
one, which always works.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from counterpoise.engine.backends.batched import Batched
from counterpoise.engine.backends.buckets import pays
from counterpoise.engine.backends.interface import Job
from counterpoise.engine.backends.perclient import PerClient
from counterpoise.engine.backends.refusals import reason_of
from counterpoise.engine.clients.calling import outputs_of
from counterpoise.engine.clients.program import Program, Shared, by_autograd, by_functions
from counterpoise.engine.clients.statistics import initial_statistics, with_statistics
from counterpoise.federation.federation import Federation
from counterpoise.flat import Layout
from counterpoise.models.copies import sharing_copy
from counterpoise.trees import select

__all__ = ["stacks", "why_unbatched"]

log = logging.getLogger(__name__)

_PLAIN = frozenset(
    """
    linear matmul addmm mm bmm relu leaky_relu prelu elu selu gelu silu softplus sigmoid tanh softmax log_softmax dropout
    layer_norm group_norm batch_norm add radd iadd sub rsub isub mul rmul imul div rdiv truediv rtruediv neg abs exp log sqrt square pow
    clamp sum mean flatten unflatten view reshape squeeze unsqueeze transpose permute t expand split cat stack to float double
    size dim numel len get cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits
    requires_grad set_grad_enabled
    """.split()  # noqa: SIM905, one a line would be a page
)
"""Functions that a CPU is known to compute fast for stacks of clients. Convolutions and pooling are slower in a stack. A
table look-up (an embedding, ``x[rows]``) is left out because threads sum its gradient in any order, so that a run would
not repeat."""
_TRIED = 4
"""Samples per batch in the trial of `why_unbatched`, whatever the size of the model."""


def stacks(
    program: Program, module: nn.Module, federation: Federation, keyed: bool, steps: Tensor, most: int, batch: int
) -> bool:
    """Whether a cohort that takes these `steps` should be trained in chunks of at most `most` clients.

    `module` is as the engine would use it.
    """
    layout = Layout.of(module)
    if program.periods or not pays(steps, most, layout.size, batch):  # a chunk's traces would all lie in memory
        return False
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            why = _not_plain(program, module, layout, federation)
            if not why:
                _try_together(program, module, federation, keyed, batch)
    except Exception as error:  # whatever a user's model or hook raises; training will raise a mistake again
        why = reason_of(error)
    if why:
        log.info("Clients train one by one instead of as one batch, because: %s.", why)
    return not why


def why_unbatched(program: Program, module: nn.Module, federation: Federation, keyed: bool) -> str:
    """Why `vmap` does not take a model or a hook that works for one client alone; empty if it does.

    Empty also for a mistake that has nothing to do with `vmap`: training will raise it again.
    """
    device, batch = next(module.parameters()).device, min(program.local.batch, _TRIED)
    # Tried on the device that will train: a GPU may take what a CPU refuses.
    with torch.random.fork_rng([device] if device.type == "cuda" else []), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _try_together(program, module, federation, keyed, batch)
        except Exception as error:  # whatever a user's model or hook raises
            return reason_of(error) if _trains_alone(program, module, federation, keyed, batch) else ""
    return ""


def _not_plain(program: Program, module: nn.Module, layout: Layout, federation: Federation) -> str:
    """Why the model or the loss is not known to be fast and exact in a stack; empty if it is."""
    if any(isinstance(child, torch.jit.ScriptModule) for child in module.modules()):
        return "the model holds a TorchScript module, whose calls cannot be seen"
    dtype = next(p.dtype for p in module.parameters() if p.requires_grad)
    rows = torch.zeros(2, dtype=torch.int64)
    inputs, targets = federation.base.take(rows, dtype)
    trial, called = sharing_copy(module).train(), _Called()
    with torch.no_grad(), called:
        outputs = outputs_of(trial, inputs)
        activations = called.numbers / len(rows)
        program.loss(outputs, targets)
    if unknown := called.names - _PLAIN:
        return f"the model or the loss calls {sorted(unknown)[0]}"
    # `pays` assumes that a step's work grows with the number of parameters; here it grows with the activations.
    return "a sample has more activations than the model has parameters" if activations > layout.size else ""


class _Called(TorchFunctionMode):
    """The names of the functions called, without underscores at either end, and how many new numbers they returned."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.numbers = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(getattr(func, "__name__", "").strip("_"))
        given = func(*args, **(kwargs or {}))
        if isinstance(given, Tensor) and _storage(given) not in [_storage(t) for t in args if isinstance(t, Tensor)]:
            self.numbers += given.numel()  # not a view of an argument
        return given


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _try_together(program: Program, module: nn.Module, federation: Federation, keyed: bool, batch: int) -> None:
    """Try all that a stack does: train two clients with unequal steps as one batch, then compute their outputs."""
    job = _trial(program, module, federation, batch)
    program = replace(_shorten(program, batch), differentiate=by_functions)
    start, inputs = job.shared.start, job.samples.take(job.rows, job.shared.start.dtype)[0]
    backend = Batched(program, module, Layout.of(module), keyed, 2, start.dtype, graphs=False)
    backend.train(job)
    models = with_statistics(start.expand(2, -1), initial_statistics(module))
    backend.outputs(models, select(inputs, 0))
    backend.own_outputs(models, inputs)


def _trains_alone(program: Program, module: nn.Module, federation: Federation, keyed: bool, batch: int) -> bool:
    """Whether what `_try_together` tries works one client after the other."""
    try:
        job = _trial(program, module, federation, batch)
        start, inputs = job.shared.start, job.samples.take(job.rows, job.shared.start.dtype)[0]
        program = replace(_shorten(program, batch), differentiate=by_autograd)
        backend = PerClient(program, module, Layout.of(module), keyed, 1, start.dtype)
        backend.train(job)
        backend.outputs(with_statistics(start.expand(2, -1), initial_statistics(module)), select(inputs, 0))
    except Exception as error:  # a mistake, which training will raise again
        log.debug("A trial of one client at a time failed: %s", error)
        return False
    return True


def _shorten(program: Program, batch: int) -> Program:
    return replace(program, local=replace(program.local, batch=batch, epochs=1))


def _trial(program: Program, module: nn.Module, federation: Federation, batch: int) -> Job:
    """The first round of two unequal clients: one with a batch of samples, the other with one sample more."""
    parts, samples = program.method.parts, federation.base.rows(torch.arange(min(batch + 1, len(federation.base))))
    start = Layout.of(module).flatten([p.detach() for p in module.parameters() if p.requires_grad])
    states = {p.name: p.server_state(start) for p in parts if p.server_state is not None}
    broadcast = {p.name: p.broadcast(states.get(p.name, {})) for p in parts if p.broadcast is not None}
    kept = {
        p.name: {key: value.expand(2, *value.shape) for key, value in p.client_state(start).items()}
        for p in parts
        if p.client_state is not None
    }
    letters = {
        p.name: p.letters(states.get(p.name, {}), {k: v.expand(2, *v.shape) for k, v in p.client_record(start).items()})
        for p in parts
        if p.letters is not None and p.client_record is not None
    }
    shared = Shared(start, broadcast, start.new_tensor(program.local.rates(1)))
    two, rows = torch.arange(2), (torch.arange(batch + 1) % len(samples)).expand(2, -1)
    return Job(shared, samples.to(start.device), rows, two + batch, two + 1, two, two, kept, letters)
