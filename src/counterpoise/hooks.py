"""What the hooks of a part see: client hooks one client and its step, server hooks one stacked cohort and its round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Protocol

import torch
from torch import Tensor

from counterpoise.errors import takes_only_its_options
from counterpoise.flat import Layout
from counterpoise.local import Local
from counterpoise.verdict import Action, Verdict

__all__ = [
    "CLIENT_HOOKS",
    "SERVER_HOOKS",
    "Action",
    "Client",
    "Cohort",
    "Reply",
    "Round",
    "Step",
    "Tensors",
    "Verdict",
    "World",
]

Tensors = Mapping[str, Tensor]

CLIENT_HOOKS = {
    "client_state": "(start)",
    "begin": "(client)",
    "survey": "(client, step)",
    "loss": "(client, step, w)",
    "gradient": "(client, step, g)",
    "move": "(client, step, w)",
    "after_step": "(client, step)",
    "after_epoch": "(client, w)",
    "finish": "(client, reply)",
    "personal": "(model, state)",
}
"""What a part's hooks on a client are called with, in the order in which they are called."""
SERVER_HOOKS = {
    "check": "(world)",
    "server_state": "(start)",
    "client_record": "(start)",
    "broadcast": "(state)",
    "letters": "(state, records)",
    "apply": "(round)",
    "scored": "(model, state)",
}
"""What its hooks on the server are called with."""


# ---------------------------------------------------------------- what a client hook sees


@dataclass(frozen=True)
class Client:
    """One client in one round, as one part sees it. All tensors are this client's alone."""

    start: Tensor
    """The server's model at the start of the round, ``[D]``."""
    broadcast: Tensors
    """What this part's server half sent to everyone."""
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
    """The learning rate: of this step in the hooks of a step, and of the round in others. If the schedule goes by
    epoch, the round's is the mean over its passes."""
    local: Local
    """How the client trains."""
    numbers: Mapping[str, float | Tensor] = field(default_factory=dict)
    """The part's own ``numbers``. Runs that differ only in these train as one batch, and then they are tensors."""
    letter: Tensors = field(default_factory=dict)
    """What this part's server half sent to this client alone."""
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
        """How many steps the client has taken: 0 in the first `loss` and `gradient`, 1 in the next `after_step`."""

    @property
    def examples(self) -> Tensor:
        """How many real samples the batch holds; padding does not count."""

    @property
    def real(self) -> Tensor | None:
        """For texts, ``[B, T]``: which places are not padding. By the targets if these are rows of tokens, otherwise by
        the inputs' ``attention_mask``; None if there is neither.
        """

    @property
    def statistics(self) -> Tensors:
        """For a part that ``tracks`` them, in ``after_step``: the running statistics of the model's batch norms. Only
        the task's own forward pass has moved them.
        """

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
    """Data counts ``[C]``: those claimed, until a trust part corrects them."""
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
    A client named in ``excluded`` is left out of everything that follows, except that later parts see its record in
    ``left_out`` and may change it there.
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
    left_out: Tensors = field(default_factory=dict)
    """This part's records of the clients that earlier parts excluded in this round, stacked like ``records``."""
    reports: Tensors = field(default_factory=dict)
    shared: Mapping[str, Tensors] = field(default_factory=dict)
    """The server state of the parts named in ``reads``."""
    excluded: Mapping[int, str] = field(default_factory=dict)
    notes: Tensors = field(default_factory=dict)
    """Named numbers ``[C]`` for later parts and for the run's record (a score, a reliability)."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Named numbers of the round as a whole, for the run's record (the iterations a rule took)."""
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)
    """What a trust part decided about each client's claim, for the run's record."""
    claims: Mapping[int, float] = field(default_factory=dict)
    """The data count that each client claimed, whatever an earlier part made of it in ``cohort.examples``."""
    by_counts: bool = True
    """Whether any part of the method depends on the counts claimed in this round: see `Part.by_counts`."""
    norm_ratio: float = inf
    """`counterpoise.Limits.norm_ratio`."""

    def but(self, **changes: Any) -> Round:
        """This round with some fields changed."""
        if not changes.keys() <= self.__dict__.keys():
            return replace(self, **changes)  # which says what is wrong with them
        made = object.__new__(type(self))  # every part changes a few of many fields, and `replace` goes through all
        made.__dict__.update(self.__dict__, **changes)
        return made

    def noting(self, **values: Tensor) -> Round:
        """Add named numbers ``[C]`` to the notes."""
        return self.but(notes={**self.notes, **values})

    def bounded(self, numbers: Tensor) -> Tensor:
        """Numbers ``[C]`` that clients report, each capped at `norm_ratio` times the upper median of those above 0."""
        place = (len(numbers) + (numbers <= 0).sum(0, keepdim=True)) // 2
        middle = numbers.sort().values.gather(0, place.clamp(max=len(numbers) - 1))
        return torch.where(numbers / self.norm_ratio > middle, self.norm_ratio * middle, numbers)

    def skip(self, reason: str) -> Round:
        """Leave the model unchanged, and say why."""
        return self.but(skipped=reason)
