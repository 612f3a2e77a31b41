"""A method is a frozen value of six slots, each a chain of parts; a part is a bundle of hooks.

**Client hooks are written for one client; server hooks for one stacked cohort.** The simulator adds
the client axis with `torch.func.vmap` or a loop over threads; the Flower adapter adds it by stacking
replies. Nothing here knows which.

Hooks are pure functions over tensors. State lives in three places. Each is declared by a function
that takes the initial model vector and returns one row of named tensors:

- ``server_state``: what the part keeps on the server (momentum, a control variate);
- ``client_record``: what the server keeps about each client (a history, a stored update), keyed by
  the authenticated identity and allocated when the client is first seen;
- ``client_state``: what a client keeps for itself (a variate, a personal model). A new state counts
  only if the server accepts the reply it came with; otherwise the client returns to the previous one.
  A real device can lose its state: ``when_lost`` says what then happens.

Slots fix the order in which parts act. They do not limit which hooks a part has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Any, Literal, Protocol, Self

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError, brief, check_call, takes_only_its_options, unknown
from counterpoise.flat import Layout
from counterpoise.local import Local
from counterpoise.registry import Spec

__all__ = ["SLOTS", "Client", "Cohort", "Method", "Part", "Reply", "Round", "Step", "Verdict", "World"]

Tensors = Mapping[str, Tensor]
SLOTS = ("local", "upload", "trust", "weigh", "combine", "update")


# ---------------------------------------------------------------- what a client hook sees


@dataclass(frozen=True)
class Client:
    """One client in one round, as one part sees it. All tensors are this client's alone."""

    start: Tensor
    """The server's model at the start of the round, ``[D]``."""
    broadcast: Tensors
    """What this part's server half sent."""
    shared: Mapping[str, Tensors]
    """What the parts named in ``reads`` sent."""
    state: Tensors
    """This part's state on this client, from the client's last reply that the server accepted."""
    memo: Tensors
    """This part's notes within the round: what ``begin`` and the later hooks returned."""
    index: Tensor
    """The client's number in the federation."""
    examples: Tensor
    """How many samples it trains on."""
    steps: Tensor
    """How many steps it takes in the round."""
    key: Tensor
    """The client's key for this round. To draw random numbers, hash it with a purpose of your own."""
    lr: Tensor
    """The round's learning rate."""
    local: Local
    """How the client trains."""
    trace: Tensor | None = None
    """For ``finish``, if the part has ``trace_every``: the displacements ``w - start`` along the way, ``[S, D]``."""
    traced: Tensor | None = None
    """How many rows of the trace are real; the rest is padding."""


class Step(Protocol):
    """One local step, and what a hook may ask about its batch."""

    @property
    def w(self) -> Tensor:
        """The client's model, ``[D]``: before the step in ``loss`` and ``gradient``, after it in ``after_step``."""

    @property
    def gradient(self) -> Tensor:
        """In ``gradient``: the gradient of the loss, before any part changed it. In ``after_step``: what the
        optimiser received, including every part's term and the weight decay.
        """

    @property
    def count(self) -> Tensor:
        """How many steps the client has taken: 0 in the first `loss` and `gradient`, 1 in the `after_step` that follows."""

    @property
    def examples(self) -> Tensor:
        """How many real samples the batch holds; padding does not count."""

    def loss_at(self, w: Tensor) -> Tensor:
        """The task's mean loss on this batch at the model ``w``."""

    def gradient_at(self, w: Tensor) -> Tensor:
        """The task's gradient on this batch at the model ``w``."""

    def output_at(self, w: Tensor, call: str = "forward") -> Tensor:
        """The output of the model ``w`` for this batch, from `forward` or another of its methods."""

    def mean(self, per_sample: Tensor) -> Tensor:
        """The mean over the batch's real samples; padding does not count."""

    def curvature(self, direction: Tensor) -> Tensor:
        """The Hessian of the local loss times a vector; only for parts with ``second_order``."""


@takes_only_its_options()
@dataclass(frozen=True)
class Reply:
    """What a client sends, and what it keeps, as one part sees it."""

    update: Tensor
    """``w_i - w``, to be added to the server's model."""
    reports: Tensors = field(default_factory=dict)
    """This part's named scalars and vectors for the server."""
    state: Tensors = field(default_factory=dict)
    """This part's state, to stay on the client."""
    trained: Tensor = field(default_factory=lambda: torch.empty(0))
    """Given to `finish` beside the update: ``w_i - w`` as training left it, before any part changed it."""


# ---------------------------------------------------------------- what a server hook sees


@takes_only_its_options()
@dataclass(frozen=True)
class Cohort:
    """The stacked replies of a round, ordered by identity."""

    ids: tuple[int, ...]
    """Authenticated identities; in the simulator, clients' numbers."""
    updates: Tensor
    """``[C, D]``"""
    examples: Tensor
    """Claimed data counts, ``[C]``."""
    steps: Tensor
    """Local steps taken, ``[C]``."""
    reports: Mapping[str, Tensors] = field(default_factory=dict)
    """By part, then by name: ``[C, ...]``."""

    def __len__(self) -> int:
        return len(self.ids)

    def keep(self, mask: Tensor) -> Cohort:
        """The rows where the mask holds."""
        if bool(mask.all()):
            return self
        rows = mask.nonzero().squeeze(1)
        return Cohort(
            tuple(self.ids[i] for i in rows.tolist()),
            self.updates[rows],
            self.examples[rows],
            self.steps[rows],
            {part: {k: v[rows] for k, v in named.items()} for part, named in self.reports.items()},
        )


Action = Literal["accepted", "corrected", "warned", "excluded"]
"""The claim stands; another count replaces it; it is found false but still used; its client is left out."""


@takes_only_its_options()
@dataclass(frozen=True)
class Verdict:
    """A trust part's decision about one client's claim in one round."""

    claimed: float
    estimated: float | None
    """The count that the evidence supports; None if there is no evidence."""
    low: float | None
    high: float | None
    """The interval of counts that the deciding evidence cannot tell apart: ``low < n <= high``."""
    z: float | None
    """How far the claim lies above what the evidence supports, in standard deviations."""
    action: Action
    reason: str = ""


class World(Protocol):
    """Everything a server hook may ask of its surroundings. Every runtime provides it."""

    round: int
    key: int
    """The server's key for this round. To draw random numbers, hash it with a purpose of your own."""
    population: int
    cohort: int
    """How many clients a round should have."""
    local: Local
    layout: Layout

    @property
    def probe_targets(self) -> Tensor:
        """The probe set's targets."""

    def probe(self, models: Tensor) -> Tensor:
        """The outputs of a stack of models ``[M, D]`` on the probe set: ``[M, P, ...]``."""

    def offers(self, call: str) -> bool:
        """Whether the model has a method of this name for `Step.output_at`, such as ``features``."""

    @property
    def proxy_size(self) -> int:
        """How many samples the server's proxy set has; 0 if there is none."""

    def rehearse(self, sizes: Sequence[int]) -> Cohort:
        """Replies of imagined clients, one for each size, that train on this many samples of the server's proxy set."""


@takes_only_its_options()
@dataclass(frozen=True)
class Round:
    """One round on the server, as one part sees it; ``apply`` returns it changed.

    ``records`` are stacked in the cohort's order; the returned ones replace the stored rows of the same clients.
    A client named in ``excluded`` is left out of everything that follows.
    """

    cohort: Cohort
    model: Tensor
    world: World
    weights: Tensor | None = None
    """``[C]``, or ``[C, layers]``. After the slot combine: the factor of each client's update in the combined one.

    The weights of a mean sum to 1. None for a rule without weights (a median).
    """
    combined: Tensor | None = None
    """One update ``[D]``; None until the cohort is combined."""
    skipped: str = ""
    """Why this round leaves the model unchanged; empty if it is not skipped."""
    state: Tensors = field(default_factory=dict)
    records: Tensors = field(default_factory=dict)
    reports: Tensors = field(default_factory=dict)
    shared: Mapping[str, Tensors] = field(default_factory=dict)
    excluded: Mapping[int, str] = field(default_factory=dict)
    notes: Tensors = field(default_factory=dict)
    """Named numbers ``[C]`` for later parts and for the run's record (a score, a reliability)."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Named numbers of the round as a whole, for the run's record (the iterations a rule took)."""
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)
    """What a trust part decided about each client's claim, for the run's record."""
    by_counts: bool = True
    """Whether any part of the method depends on the counts claimed in this round: see `Part.by_counts`."""
    norm_ratio: float = inf
    """`counterpoise.Limits.norm_ratio`."""

    def but(self, **changes: Any) -> Round:
        """This round with some fields changed."""
        return replace(self, **changes)

    def noting(self, **values: Tensor) -> Round:
        """Add named numbers ``[C]`` to the notes."""
        return replace(self, notes={**self.notes, **values})

    def bounded(self, numbers: Tensor) -> Tensor:
        """Numbers ``[C]`` that clients report, each capped at `norm_ratio` times the upper median of those above 0."""
        place = (len(numbers) + (numbers <= 0).sum(0, keepdim=True)) // 2
        middle = numbers.sort().values.gather(0, place.clamp(max=len(numbers) - 1))
        return torch.where(numbers / self.norm_ratio > middle, self.norm_ratio * middle, numbers)

    def skip(self, reason: str) -> Round:
        """Leave the model unchanged, and say why."""
        return replace(self, skipped=reason)


# ---------------------------------------------------------------- parts and methods

Init = Callable[[Tensor], dict[str, Tensor]]

_HOOKS = {
    **dict.fromkeys(("server_state", "client_record", "client_state"), "(start)"),
    "begin": "(client)",
    "survey": "(client, step)",
    "loss": "(client, step, w)",
    "gradient": "(client, step, g)",
    "after_step": "(client, step)",
    "after_epoch": "(client, w)",
    "finish": "(client, reply)",
    "personal": "(model, state)",
    "broadcast": "(state)",
    "apply": "(round)",
    "check": "(world)",
}
"""What the engine calls each hook with."""


@dataclass(frozen=True)
class Part:
    """A bundle of optional hooks. An absent hook costs nothing."""

    name: str
    reads: tuple[str, ...] = ()
    """Names of parts whose server state and broadcast this one reads."""

    server_state: Init | None = None
    client_record: Init | None = None
    client_state: Init | None = None
    when_lost: str = ""

    begin: Callable[[Client], dict[str, Tensor]] | None = None
    """The memo at the start of the round."""
    survey: Callable[[Client, Step], dict[str, Tensor]] | None = None
    """The memo after a batch of a pass over the data at ``client.start``, before training; laid out as in ``begin``."""
    loss: Callable[[Client, Step, Tensor], Tensor] | None = None
    """A scalar to add to the task's loss; both are differentiated with respect to the last argument."""
    gradient: Callable[[Client, Step, Tensor], Tensor] | None = None
    """The changed gradient, before it enters the optimiser."""
    after_step: Callable[[Client, Step], dict[str, Tensor]] | None = None
    """The memo after a step, laid out as in ``begin``."""
    after_epoch: Callable[[Client, Tensor], dict[str, Tensor]] | None = None
    """The memo after a pass over the data, given the model."""
    finish: Callable[[Client, Reply], Reply] | None = None
    """The changed reply: the update, the reports and the state to keep."""
    personal: Callable[[Tensor, Tensors], Tensor] | None = None
    """The model that a client uses for itself, given the server's model and the client's state."""
    second_order: bool = False
    """Whether ``gradient`` asks for `Step.curvature`."""
    trace_every: int = 0
    """For ``finish``, keep the displacement after the first step and then after every n-th; 0 keeps none."""

    broadcast: Callable[[Tensors], dict[str, Tensor]] | None = None
    """What to send to every client, given the server state."""
    apply: Callable[[Round], Round] | None = None
    """This part's turn on the server."""
    by_counts: bool | Callable[[Mapping[str, Tensors]], bool] = False
    """Whether ``apply`` depends on `Cohort.examples`. If no part does, a verdict corrects no count, and says so.

    A rule that falls back on counts gives a function of the state of the parts it reads, asked in every round.
    """

    check: Callable[[World], None] | None = None
    """Raises an error before the first round if the part cannot work."""

    def __new__(cls, *given: Any, **named: Any) -> Self:
        """Refuse an unknown hook and suggest the right name; a plain dataclass would raise a bare TypeError."""
        known = [field.name for field in fields(cls)]
        for name in named:
            if name not in known:
                raise unknown("hook", name, known, "of a part")
        if not given and "name" not in named:
            raise CounterpoiseError("A part needs a name, because its state is stored under it: Part('mine', ...).")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or isinstance(self.reads, str):
            raise CounterpoiseError(
                f"A part's name must be a text and its reads a tuple of names, not {brief(self.name)} and {brief(self.reads)}."
            )
        for hook, takes in _HOOKS.items():
            if getattr(self, hook) is not None:
                check_call(getattr(self, hook), hook + takes, f"part {self.name}")
        if not isinstance(self.by_counts, bool):
            check_call(self.by_counts, "by_counts(shared)", f"part {self.name}")
        if type(self.trace_every) is not int or self.trace_every < 0:
            raise CounterpoiseError(
                f"part {self.name}: trace_every must be a whole number at least 0, not {brief(self.trace_every)}."
            )

    @property
    def on_client(self) -> bool:
        hooks = (self.begin, self.survey, self.loss, self.gradient, self.after_step, self.after_epoch, self.finish)
        return any(hook is not None for hook in hooks)


Chain = tuple[Part, ...]


@takes_only_its_options()
@dataclass(frozen=True)
class Method:
    """Six slots, each a chain of parts that act in order.

    >>> from counterpoise import methods
    >>> method = methods.fedprox(mu=0.1)
    >>> [part.name for part in method.parts]
    ['proximal', 'by-data', 'mean', 'server-step']
    """

    name: str
    local: Chain = ()
    """What a client adds to its training."""
    upload: Chain = ()
    """What it does to its update before sending it."""
    trust: Chain = ()
    """Which of a client's claims the server believes."""
    weigh: Chain = ()
    """The cohort's weights."""
    combine: Chain = ()
    """One update out of many."""
    update: Chain = ()
    """The server's new model."""
    spec: Spec = field(default_factory=Spec, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise CounterpoiseError(f"A method's name must be a text, not {brief(self.name)}.")
        for slot in SLOTS:
            chain = getattr(self, slot)
            if not isinstance(chain, tuple) or not all(isinstance(part, Part) for part in chain):
                raise CounterpoiseError(f"method {self.name}: the slot {slot} must be a tuple of parts, not {chain!r}.")
        names = [part.name for part in self.parts]
        for name in names:
            if not name or "/" in name:
                raise CounterpoiseError(f"A part's name must not be empty or contain a slash, so {name!r} is refused.")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise CounterpoiseError(
                f"method {self.name} has two parts named {twice[0]!r}; rename one, as state is stored by part name."
            )
        for part in self.parts:
            for other in part.reads:
                if other not in names:
                    raise unknown("part", other, names, f"in {self.name} for {part.name} to read")
            if (part.survey or part.after_step or part.after_epoch) and part.begin is None:
                raise CounterpoiseError(
                    f"part {part.name} has survey, after_step or after_epoch, so it must lay out its memo in begin."
                )
            if part.personal is not None and part.client_state is None:
                raise CounterpoiseError(
                    f"part {part.name} has personal but keeps nothing on clients, so it would never be asked; "
                    "lay out in client_state what a client's own model is made of."
                )
            if part.client_state is not None and not part.when_lost:
                raise CounterpoiseError(
                    f"part {part.name} keeps state on clients, so its when_lost must say what happens if that is lost."
                )

    @property
    def parts(self) -> Chain:
        """All parts, in the order in which they act."""
        return tuple(part for slot in SLOTS for part in getattr(self, slot))

    def part(self, name: str) -> Part:
        for part in self.parts:
            if part.name == name:
                return part
        raise unknown("part", name, [part.name for part in self.parts], f"in {self.name}")

    def adding(self, name: str = "", **slots: Part) -> Method:
        """This method with a part appended to each named chain. This is how a method is wrapped.

        >>> from counterpoise import methods, parts
        >>> [p.name for p in methods.fedavgm().adding(local=parts.proximal(0.1)).local]
        ['proximal']
        """
        longer = {slot: (*getattr(self, _slot(slot)), part) for slot, part in slots.items()}
        return replace(self, name=name or self.name, spec=Spec(), **longer)

    def replacing(self, name: str = "", **slots: Part | Sequence[Part]) -> Method:
        """This method with whole chains replaced.

        >>> from counterpoise import methods, parts
        >>> [p.name for p in methods.fedavgm().replacing(weigh=parts.uniform()).weigh]
        ['uniform']
        """
        chains = {_slot(slot): _chain(chain) for slot, chain in slots.items()}
        return replace(self, name=name or self.name, spec=Spec(), **chains)


def _chain(given: Any) -> Any:
    """A chain from one part or several; anything else is left to the method, which refuses it."""
    return (given,) if isinstance(given, Part) else tuple(given) if isinstance(given, Sequence) else given


def _slot(name: str) -> str:
    if name not in SLOTS:
        raise unknown("slot", name, SLOTS, "in a method")
    return name
