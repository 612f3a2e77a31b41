"""How a client trains: epochs, batch size, optimiser, learning-rate schedule, clipping, augmentation.

Optimisers are pure ``init`` / ``step`` pairs on the flat vector of one client, so they run under
`vmap`, on threads and inside a CUDA graph alike. Their state starts anew each round, unless they say ``keep``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from numbers import Real
from typing import Annotated, Any

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError, brief, can_take, check_call, takes_only_its_options
from counterpoise.registry import Option, Registry, Spec
from counterpoise.schedules import SCHEDULES, Schedule, constant, cosine, exponential, listed, stairs

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "Local",
    "Optimizer",
    "Schedule",
    "adam",
    "adamw",
    "constant",
    "cosine",
    "exponential",
    "listed",
    "sgd",
    "stairs",
]

_MOST = 10**9
"""More epochs, steps or samples per batch than this are taken for a mistake."""

State = dict[str, Tensor]
Augment = Callable[[Tensor, Tensor], Tensor]
Init = Callable[[Tensor], State]
Stepping = Callable[[Tensor, Tensor, State, Tensor], tuple[Tensor, State]]
Update = Callable[[Tensor, State, Tensor], tuple[Tensor, State]]


@takes_only_its_options()
@dataclass(frozen=True)
class Optimizer:
    """A local optimiser: ``init(w) -> state`` and ``step(w, g, state, lr) -> (w, state)``.

    `step` returns the new weights, so a decay of the weights themselves belongs in it. `update`, of the form
    ``update(g, state, lr) -> (move, state)``, is the old form of `step` and is dropped in the next version.
    """

    lr: float
    init: Init
    step: Stepping = None  # type: ignore[assignment]  # never None once made
    weight_decay: float = 0.0
    """L2 decay: `step` is given ``g + weight_decay w``, and parts that read the gradient see it too."""
    reach: Callable[[Tensor], Tensor] | None = None
    """FedNova's ``|a|_1`` as a function of the number of steps: the move is ``-lr |a|_1`` times a mean of the
    gradients. None if the move is not linear in them (Adam) or depends on something else too: the weights (a decay
    inside `step`) or gradients of earlier rounds (`keep`)."""
    keep: bool = False
    """Whether a client keeps the state from round to round. Otherwise every round begins with a new one."""
    spec: Spec = field(default_factory=Spec)
    update: InitVar[Update | None] = None

    def __post_init__(self, update: Update | None) -> None:
        if callable(self.step) == callable(update):
            raise CounterpoiseError("Optimizer: give it one function step(w, g, state, lr) that returns (w, state).")
        for name, number in (("lr", self.lr), ("weight_decay", self.weight_decay)):
            if not isinstance(number, Real):
                raise CounterpoiseError(f"Optimizer: {name} must be a number, not {brief(number)}.")
        check_call(self.init, "init(w)", "Optimizer")
        old: Any = update or (self.step if not can_take(self.step, 4) and can_take(self.step, 3) else None)
        if old is None:
            check_call(self.step, "step(w, g, state, lr)", "Optimizer")
        if old is not None:
            message = (
                "Optimizer: update(g, state, lr) is dropped in the next version. "
                "Give it step(w, g, state, lr) instead, which returns (w - move, state)."
            )
            warnings.warn(message, DeprecationWarning, stacklevel=4)
            object.__setattr__(self, "step", partial(_subtract_move, old))


def _subtract_move(update: Update, w: Tensor, g: Tensor, state: State, lr: Tensor) -> tuple[Tensor, State]:
    """The step of an optimiser whose move does not depend on the weights: ``w - move``."""
    move, state = update(g, state, lr)
    return w - move, state


OPTIMIZERS: Registry[Optimizer] = Registry("optimizer", Optimizer)

Keep = Annotated[bool, Option("keep the optimiser's state on each client from round to round")]


@OPTIMIZERS.register("sgd")
def sgd(
    lr: Annotated[float, Option("learning rate", above=0)],
    momentum: Annotated[float, Option("momentum coefficient", low=0, below=1)] = 0.0,
    nesterov: Annotated[bool, Option("Nesterov's look-ahead form of the momentum")] = False,
    weight_decay: Annotated[float, Option("L2 decay added to the gradient", low=0)] = 0.0,
    keep: Keep = False,
) -> Optimizer:
    """Stochastic gradient descent with optional momentum, as torch.optim.SGD.

    ``b <- momentum b + g``, step ``lr b`` (Nesterov: ``lr (g + momentum b)``).
    """
    if nesterov and momentum == 0:
        raise CounterpoiseError("optimizer sgd: nesterov needs a momentum above 0.")
    if keep and momentum == 0:
        raise CounterpoiseError("optimizer sgd: without momentum there is no state to keep; leave keep out.")

    def init(w: Tensor) -> State:
        return {"buffer": torch.zeros_like(w)} if momentum else {}

    def update(g: Tensor, state: State, lr: Tensor) -> tuple[Tensor, State]:
        if not momentum:
            return lr * g, state
        buffer = momentum * state["buffer"] + g
        return lr * (g + momentum * buffer if nesterov else buffer), {"buffer": buffer}

    def reach(steps: Tensor) -> Tensor:
        if not momentum:
            return steps
        # The gradient of step k counts 1 + m + ... + m^(K-k), and with Nesterov one power more.
        lag = momentum ** (2 if nesterov else 1) * (1 - momentum**steps) / (1 - momentum)
        return (steps - lag) / (1 - momentum)

    return Optimizer(lr, init, partial(_subtract_move, update), weight_decay, None if keep else reach, keep)


@OPTIMIZERS.register("adam")
def adam(
    lr: Annotated[float, Option("learning rate", above=0)],
    beta1: Annotated[float, Option("decay of the mean", low=0, below=1)] = 0.9,
    beta2: Annotated[float, Option("decay of the square", low=0, below=1)] = 0.999,
    eps: Annotated[float, Option("added to the root", above=0)] = 1e-8,
    weight_decay: Annotated[float, Option("L2 decay added to the gradient", low=0)] = 0.0,
    keep: Keep = False,
) -> Optimizer:
    """Adam with bias correction, as torch.optim.Adam.

    ``w <- w - lr m/(1-beta1^t) / (sqrt(v/(1-beta2^t)) + eps)`` (Kingma and Ba 2015, Algorithm 1).
    """
    init, update = _moments(beta1, beta2, eps)
    return Optimizer(lr, init, partial(_subtract_move, update), weight_decay, keep=keep)


@OPTIMIZERS.register("adamw")
def adamw(
    lr: Annotated[float, Option("learning rate", above=0)],
    beta1: Annotated[float, Option("decay of the mean", low=0, below=1)] = 0.9,
    beta2: Annotated[float, Option("decay of the square", low=0, below=1)] = 0.999,
    eps: Annotated[float, Option("added to the root", above=0)] = 1e-8,
    weight_decay: Annotated[float, Option("decay of the weights per unit of learning rate", low=0)] = 0.01,
    keep: Keep = False,
) -> Optimizer:
    """Adam with weight decay apart from the gradient, as torch.optim.AdamW.

    ``w <- (1 - lr weight_decay) w - move``, where Adam computes the move from the gradient alone
    (Loshchilov and Hutter 2019, Algorithm 2).
    """
    init, update = _moments(beta1, beta2, eps)

    def step(w: Tensor, g: Tensor, state: State, lr: Tensor) -> tuple[Tensor, State]:
        move, state = update(g, state, lr)
        return (1 - lr * weight_decay) * w - move, state

    return Optimizer(lr, init, step, keep=keep)


def _moments(beta1: float, beta2: float, eps: float) -> tuple[Init, Update]:
    """Adam's state and move: running means of the gradient and of its square, corrected for their start at 0."""

    # 1 - beta^t as -expm1(t log beta): in float32 the plain form loses half its digits.
    log1, log2 = (math.log(beta) if beta else -math.inf for beta in (beta1, beta2))

    def init(w: Tensor) -> State:
        return {"mean": torch.zeros_like(w), "square": torch.zeros_like(w), "count": w.new_zeros(())}

    def update(g: Tensor, state: State, lr: Tensor) -> tuple[Tensor, State]:
        count = state["count"] + 1
        mean = beta1 * state["mean"] + (1 - beta1) * g
        square = beta2 * state["square"] + (1 - beta2) * g * g
        root = (square / -torch.expm1(count * log2)).sqrt() + eps
        return lr / -torch.expm1(count * log1) * mean / root, {"mean": mean, "square": square, "count": count}

    return init, update


_SGD = "optimizer=cp.sgd(0.1)"


@takes_only_its_options({"lr": _SGD, "learning_rate": _SGD, "momentum": "optimizer=cp.sgd(0.1, momentum=0.9)"})
@dataclass(frozen=True)
class Local:
    """Local training: `epochs` passes over a client's data, or `steps` batches if given.

    `steps` is one number for all clients or one per client. `augment(inputs, keys)` changes a stack of samples
    ``[S, ...]``, given one int64 key per sample (see `counterpoise.augment`). `memory` is how many GiB a client has for
    what a method does besides training: one number for all clients or one per client. None leaves it to the method.
    `clip` is the longest gradient that enters the optimiser; longer ones are scaled down to it.
    """

    epochs: int = 1
    batch: int = 32
    optimizer: Optimizer = field(default_factory=lambda: sgd(0.1))
    schedule: Schedule = field(default_factory=constant)
    steps: int | Sequence[int] | None = None
    augment: Augment | None = None
    memory: float | Sequence[float] | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= _MOST:
                raise CounterpoiseError(f"local: {name} must be a whole number from 1 to {_MOST}, not {brief(value)}.")
        if self.steps is not None:
            steps = self.steps if isinstance(self.steps, Sequence) else [self.steps]
            if not steps or any(type(k) is not int or not 1 <= k <= _MOST for k in steps):
                raise CounterpoiseError(
                    f"local: steps must be a whole number from 1 to {_MOST}, or one such number per client."
                )
        if self.memory is not None:
            held = self.memory if isinstance(self.memory, Sequence) else [self.memory]
            if not held or any(
                isinstance(gib, bool) or not isinstance(gib, int | float) or not gib > 0 for gib in held
            ):
                raise CounterpoiseError(
                    "local: memory must be a number of GiB above 0, or one such number per client, "
                    f"not {self.memory!r}."
                )
        if self.clip is not None and (
            isinstance(self.clip, bool) or not isinstance(self.clip, int | float) or not 0 < self.clip < math.inf
        ):
            raise CounterpoiseError(f"local: clip must be a number above 0, or left out, not {brief(self.clip)}.")
        self._check_kinds()

    def _check_kinds(self) -> None:
        if not isinstance(self.optimizer, Optimizer):
            raise CounterpoiseError(
                "local: optimizer must be made by cp.sgd(...), cp.adam(...), cp.adamw(...) or cp.Optimizer(...), "
                f"not {brief(self.optimizer)}."
            )
        if not isinstance(self.schedule, Schedule):
            raise CounterpoiseError("local: schedule must be made by cp.exponential(...), cp.cosine(...) or the like.")
        if self.augment is not None and not callable(self.augment):
            raise CounterpoiseError("local: augment must be a function of inputs and keys, such as cp.augment.flip().")
        if self.augment is not None:
            check_call(self.augment, "augment(inputs, keys)", "local")

    @property
    def passes(self) -> int:
        """How many passes a round has: its epochs, or one if training is counted in steps."""
        return self.epochs if self.steps is None else 1

    def lr(self, round: int) -> float:
        """The learning rate of a round; the mean over its passes if the schedule goes by epoch."""
        rates = self.rates(round)
        return sum(rates) / len(rates) if isinstance(rates, list) else rates

    def rates(self, round: int) -> float | list[float]:
        """The learning rate of a round; if the schedule goes by epoch, that of each pass."""
        if not self.schedule.by_epoch:
            return self._rate(round, round)
        return [self._rate(round, round + epoch / self.passes) for epoch in range(self.passes)]

    def _rate(self, round: int, time: float) -> float:
        """The rate at some time in a round. It must be above 0: methods divide by it, and at 0 no client would move."""
        factor = self.schedule.factor(time)
        if not isinstance(factor, Real):
            raise CounterpoiseError(f"The schedule's factor of round {round} must be a number, not {brief(factor)}.")
        lr = self.optimizer.lr * factor
        if not 0 < lr < math.inf:
            raise CounterpoiseError(
                f"The schedule sets the learning rate of round {round} to {lr:g}; it must be above 0 in every round. "
                "Give cosine a floor or more rounds, or end the run earlier."
            )
        return lr

    def entering(self, w: Tensor, g: Tensor) -> Tensor:
        """What enters the optimiser at the weights w: the gradient, clipped, and then the L2 decay.

        As torch's `clip_grad_norm_`, which adds 1e-6 to the gradient's length.
        """
        if self.clip is not None:
            g = g * (self.clip / (torch.linalg.vector_norm(g) + 1e-6)).clamp(max=1)
        return g + self.optimizer.weight_decay * w if self.optimizer.weight_decay else g

    def asked(self, clients: Sequence[int], counts: Tensor) -> Tensor:
        """How many steps each client is asked to take in a round ``[C]``, if it holds ``counts[i]`` samples."""
        counts = counts.ceil().clamp(min=1)  # an estimated count need not be whole
        return self.passes * self.steps_of(torch.tensor(clients, device=counts.device), counts)

    def steps_of(self, clients: Tensor, sizes: Tensor) -> Tensor:
        """The steps per pass of each client ``[C]``: ``ceil(n / batch)``, or `steps` if that is set."""
        if self.steps is None:
            return (sizes + self.batch - 1) // self.batch
        if isinstance(self.steps, int):
            steps = torch.full_like(sizes, self.steps)
        else:
            steps = torch.as_tensor(self.steps, device=sizes.device)[clients]
        return torch.where(sizes > 0, steps, 0)
