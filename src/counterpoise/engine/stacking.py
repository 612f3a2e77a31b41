"""Whether a CPU had better train a cohort as one batch of clients: by counts, and if they say so by a trial.

Results are the same to rounding, so only two things count: that it is faster, which is known of small models made of plain
functions, and that `vmap` takes the model and every hook of the method. Else clients train one by one, as they always can.
"""

from __future__ import annotations

import copy
import logging
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from counterpoise.engine.backend import Job
from counterpoise.engine.batched import Batched
from counterpoise.engine.buckets import pays
from counterpoise.engine.client import Program, Shared, by_functions
from counterpoise.federation.federation import Federation
from counterpoise.flat import Layout

__all__ = ["stacks"]

log = logging.getLogger(__name__)

_PLAIN = frozenset(
    """
    linear matmul addmm mm bmm relu leaky_relu prelu elu selu gelu silu softplus sigmoid tanh softmax log_softmax dropout
    layer_norm group_norm add radd iadd sub rsub isub mul rmul imul div rdiv truediv rtruediv neg abs exp log sqrt square pow
    clamp sum mean flatten unflatten view reshape squeeze unsqueeze transpose permute t expand split cat stack to float double
    size dim numel len get cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits
    requires_grad set_grad_enabled
    """.split()  # noqa: SIM905, one a line would be a page
)
"""What stacks of clients are known to do well on a CPU. Convolutions and pooling are slower there, and the gradient of a look-up
in a table (an embedding, ``x[rows]``) is summed by threads in any order, so that a run would not repeat."""


def stacks(
    program: Program, model: nn.Module, federation: Federation, keyed: bool, steps: Tensor, most: int, batch: int
) -> bool:
    """Whether a cohort that takes so many steps had better be trained in chunks of at most `most`."""
    layout = Layout.of(model)
    if program.periods or not pays(steps, most, layout.size, batch):  # a chunk's traces would all lie in memory
        return False
    why = _not_plain(program, model, federation) or _refused(program, model, layout, federation, keyed)
    if why:
        log.info("A CPU would train this cohort faster as one batch of clients, but %s: clients train one by one.", why)
    return not why


def _two(federation: Federation, model: nn.Module) -> tuple[Tensor, Tensor]:
    rows = torch.zeros(2, dtype=torch.int64, device=federation.base.inputs.device)
    parameter = next(model.parameters())
    inputs, targets = federation.base.take(rows, parameter.dtype)
    return inputs.to(parameter.device), targets.to(parameter.device)


def _not_plain(program: Program, model: nn.Module, federation: Federation) -> str:
    """What of the model or the loss is not known to be fast and exact in a stack; nothing if all is."""
    inputs, targets = _two(federation, model)
    trial, called = copy.deepcopy(model).train(), _Called()
    with torch.no_grad(), torch.random.fork_rng(), called:
        outputs = trial(inputs)
        activations = called.numbers / len(inputs)
        program.loss(outputs, targets)
    if unknown := called.names - _PLAIN:
        return f"the model or the loss calls {sorted(unknown)[0]}"
    # The counts take a step's work to grow with the parameters.
    return "the model uses its weights at many places" if activations > Layout.of(model).size else ""


class _Called(TorchFunctionMode):
    """The names of the functions that are called, without underscores at either end, and how many numbers they gave."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.numbers = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(getattr(func, "__name__", "").strip("_"))
        given = func(*args, **(kwargs or {}))
        self.numbers += given.numel() if isinstance(given, Tensor) else 0
        return given


def _refused(program: Program, model: nn.Module, layout: Layout, federation: Federation, keyed: bool) -> str:
    """What a round of two clients with a sample each says to being trained as one; nothing if all goes well."""
    parts = program.method.parts
    start = layout.flatten([p.detach() for p in model.parameters() if p.requires_grad])
    states = {p.name: p.server_state(start) for p in parts if p.server_state is not None}
    broadcast = {p.name: p.broadcast(states.get(p.name, {})) for p in parts if p.broadcast is not None}
    kept = {
        p.name: {key: value.expand(2, *value.shape) for key, value in p.client_state(start).items()}
        for p in parts
        if p.client_state is not None
    }
    one, two = torch.ones(2, dtype=torch.int64), torch.arange(2)
    shared = Shared(start, broadcast, start.new_tensor(program.local.lr(1)))
    job = Job(shared, federation.base, 0 * one[:, None], one, one, two, two, kept)
    backend = Batched(replace(program, differentiate=by_functions), model, layout, keyed, 2, start.dtype)
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            backend.train(job)
            backend.outputs(start.expand(2, -1), _two(federation, model)[0])
    except Exception as error:  # whatever a user's model or hook says to it
        return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
    return ""
