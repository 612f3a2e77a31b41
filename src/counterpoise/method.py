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

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import isfinite
from numbers import Real
from typing import Any, Self

from torch import Tensor

from counterpoise.errors import CounterpoiseError, brief, check_call, takes_only_its_options, unknown
from counterpoise.hooks import (
    CLIENT_HOOKS,
    SERVER_HOOKS,
    Action,
    Client,
    Cohort,
    Reply,
    Round,
    Step,
    Tensors,
    Verdict,
    World,
)
from counterpoise.portraits import method_html, method_text, part_html, part_text
from counterpoise.registry import Spec
from counterpoise.signatures import readable

__all__ = [
    "SLOTS",
    "Action",
    "Client",
    "Cohort",
    "Method",
    "Part",
    "Reply",
    "Round",
    "Step",
    "Tensors",
    "Verdict",
    "World",
]

SLOTS = ("local", "upload", "trust", "weigh", "combine", "update")
Init = Callable[[Tensor], dict[str, Tensor]]


@dataclass(frozen=True)
class Part:
    """A bundle of optional hooks, with a name under which its state is stored. An absent hook costs nothing.

    A hook is a function. Arguments are given in this order:

    On one client, whose tensors are its own (`Client`, `Step`)::

        client_state(start)        what the client keeps from round to round, at first: named tensors
            client_state=lambda start: {"drift": torch.zeros_like(start)},
            when_lost="the drift starts again at zero"
        begin(client)              the memo, which lives for one round: named tensors
            begin=lambda client: {"sum": torch.zeros_like(client.start)}
        survey(client, step)       the memo after a batch of a pass at ``client.start``, before training
            survey=lambda client, step: {"sum": client.memo["sum"] + step.gradient_at(client.start)}
        loss(client, step, w)      one number to add to the task's loss; it is differentiated by ``w``
            loss=lambda client, step, w: 0.05 * (w - client.start).square().sum()
        gradient(client, step, g)  the changed gradient, before it enters the optimiser
            gradient=lambda client, step, g: g + 0.1 * (step.w - client.start)
        move(client, step, w)      the changed model after the optimiser's step
            move=lambda client, step, w: w.clamp(-5, 5)
        after_step(client, step)   the memo after a step, with the names, shapes and types of ``begin``
            after_step=lambda client, step: {"sum": client.memo["sum"] + step.gradient}
        after_epoch(client, w)     the memo after a pass over the data
            after_epoch=lambda client, w: {"sum": client.memo["sum"] / 2}
        finish(client, reply)      the changed `Reply`: update, reports to the server, state to keep
            finish=lambda client, reply: cp.Reply(reply.update / 2, {"sum": client.memo["sum"]}, reply.state)
        personal(model, state)     the model that a client uses for itself
            personal=lambda model, state: model + state["drift"]

    On the server, where the cohort's replies are stacked ``[C, ...]`` (`Round`, `World`)::

        check(world)               raises an error before the first round if the part cannot work
            check=lambda world: world.probe_targets  # raises if there is no probe set
        server_state(start)        what the server keeps for the part, at first: named tensors
            server_state=lambda start: {"mean": torch.zeros_like(start)}
        client_record(start)       what it keeps about each client, at first: named tensors
            client_record=lambda start: {"seen": start.new_zeros(())}
        broadcast(state)           what every client gets as ``client.broadcast``: named tensors
            broadcast=lambda state: {"mean": state["mean"]}
        letters(state, records)    what each client alone gets as ``client.letter``: a row for each
            letters=lambda state, records: {"seen": records["seen"]}
        apply(round)               the changed `Round`: weights, the combined update, the model, state, records
            apply=lambda round: round.but(weights=torch.ones_like(round.cohort.examples))
        scored(model, state)       the model to be measured and handed out, if it is not the server's
            scored=lambda model, state: state["mean"]

    Beside its hooks, what holds for the whole part::

        reads=("momentum",)        names of parts whose server state and broadcast it reads
        numbers={"mu": 0.1}        what client hooks read as ``client.numbers``; runs that differ only in these can
                                   train as one batch
        private=torch.arange(9)    places in the model that stay on the client, whose state holds them as ``private``
        tracks=True                the memo holds the running statistics of the model's batch norms
        second_order=True          ``gradient`` asks for ``step.curvature``
        trace_every=10             ``finish`` sees the displacements after the first step and after every tenth
        by_counts=True             ``apply`` depends on ``round.cohort.examples``; assumed of a part in the slot weigh
        amends=True                ``apply`` changes the model beside the part that makes it of the updates

    A client hook may run for many clients at once, so it has no ``if`` on a tensor's value: use ``torch.where``. The
    page docs/parts.md shows a whole method of one's own.
    """

    name: str
    reads: tuple[str, ...] = ()
    """Names of parts whose server state and broadcast this one reads."""

    numbers: Mapping[str, float] = field(default_factory=dict)
    """Numbers that client hooks read as ``client.numbers``. Runs that differ only in these can train as one batch."""
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
    move: Callable[[Client, Step, Tensor], Tensor] | None = None
    """The changed model after the optimiser's step; ``step`` is still the one that ``gradient`` saw."""
    after_step: Callable[[Client, Step], dict[str, Tensor]] | None = None
    """The memo after a step, laid out as in ``begin``."""
    after_epoch: Callable[[Client, Tensor], dict[str, Tensor]] | None = None
    """The memo after a pass over the data, given the model."""
    finish: Callable[[Client, Reply], Reply] | None = None
    """The changed reply: the update, the reports and the state to keep."""
    personal: Callable[[Tensor, Tensors], Tensor] | None = None
    """The model that a client uses for itself, given the model that is measured and the client's state."""
    scored: Callable[[Tensor, Tensors], Tensor] | None = None
    """The model to be measured and handed out, if it is not the server's: given that model and this part's server state."""
    private: Tensor | None = field(default=None, compare=False)
    """Places in the model ``[P]`` that stay on the client. It starts from its own numbers there, which its state holds
    as ``private``; no part's ``gradient``, ``move`` or ``finish`` changes them, and the server sees zeros."""
    tracks: bool = False
    """Whether the memo holds the running statistics of the model's batch norms (mean, variance, batches), from which
    every step begins."""
    second_order: bool = False
    """Whether ``gradient`` asks for `Step.curvature`."""
    trace_every: int = 0
    """For ``finish``, keep the displacement after the first step and then after every n-th; 0 keeps none."""

    broadcast: Callable[[Tensors], dict[str, Tensor]] | None = None
    """What to send to every client, given the server state."""
    letters: Callable[[Tensors, Tensors], dict[str, Tensor]] | None = None
    """What to send to each client alone, given the server state and the records of the clients asked, which are
    stacked ``[C, ...]``. The result has a row for each of them."""
    apply: Callable[[Round], Round] | None = None
    """This part's turn on the server."""
    by_counts: bool | Callable[[Mapping[str, Tensors]], bool] | None = None
    """Whether ``apply`` depends on `Cohort.examples`. If no part does, verdicts correct no counts, and say so. By default,
    a part in the slot weigh is taken to depend on them, and a part in any other slot is not.

    A rule that falls back on counts gives a function of the state of the parts it reads, asked in every round.
    """

    amends: bool = False
    """Whether ``apply`` changes the model beside the part that makes it of the updates. Two parts that do not say so
    and each change the model are refused, because the updates would count twice."""

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
                "A part's name must be a text and its reads a tuple of names, "
                f"not {brief(self.name)} and {brief(self.reads)}."
            )
        if not isinstance(self.when_lost, str):
            raise CounterpoiseError(
                f"part {self.name}: when_lost must say in a text what happens if a client loses its state, "
                f"not {brief(self.when_lost)}."
            )
        named = self.numbers.items() if isinstance(self.numbers, Mapping) else [(None, self.numbers)]
        for name, number in named:
            if not isinstance(name, str) or not isinstance(number, Real) or not isfinite(number):
                raise CounterpoiseError(
                    f"part {self.name}: numbers must give finite numbers by name, as {{'mu': 0.1}}, "
                    f"not {brief(self.numbers)}."
                )
        for hook, takes in {**CLIENT_HOOKS, **SERVER_HOOKS}.items():
            if getattr(self, hook) is not None:
                check_call(getattr(self, hook), hook + takes, f"part {self.name}")
        if self.by_counts is not None and not isinstance(self.by_counts, bool):
            check_call(self.by_counts, "by_counts(shared)", f"part {self.name}")
        if self.private is not None and (not isinstance(self.private, Tensor) or self.client_state is None):
            raise CounterpoiseError(
                f"part {self.name}: private must be a tensor of places in the model, and client_state must lay out the "
                "numbers that a client has there, as 'private'."
            )
        if type(self.trace_every) is not int or self.trace_every < 0:
            raise CounterpoiseError(
                f"part {self.name}: trace_every must be a whole number at least 0, not {brief(self.trace_every)}."
            )

    def __repr__(self) -> str:
        return part_text(self)

    def _repr_html_(self) -> str:
        return part_html(self)

    @property
    def on_client(self) -> bool:
        steps = (self.loss, self.gradient, self.move, self.after_step)
        hooks = (self.begin, self.survey, *steps, self.after_epoch, self.finish)
        return any(hook is not None for hook in hooks)


# Otherwise help() would show the arguments of `__new__`.
Part.__signature__ = readable(inspect.signature(partial(Part.__init__, None)))  # type: ignore[arg-type, attr-defined]

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
    spec: Spec = field(default_factory=Spec, compare=False, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise CounterpoiseError(f"A method's name must be a text, not {brief(self.name)}.")
        for slot, chain in self._slots.items():
            _check_chain(f"method {self.name}: the slot {slot}", chain)
        names = [part.name for part in self.parts]
        for name in names:
            if not name or "/" in name:
                raise CounterpoiseError(f"A part's name must not be empty or contain a slash, so {name!r} is refused.")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise CounterpoiseError(
                f"method {self.name} has the part {twice[0]!r} twice. If the method inside has it already, set that "
                "part's options instead of adding another. If it is a part of your own, give it another name."
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
            if part.letters is not None and part.client_record is None:
                raise CounterpoiseError(
                    f"part {part.name} has letters but keeps nothing about clients, so all of them would be alike; "
                    "lay out a client_record, or send it to everyone with broadcast."
                )
            if part.client_state is not None and not part.when_lost:
                raise CounterpoiseError(
                    f"part {part.name} keeps state on clients, so its when_lost must say what happens if that is lost."
                )

    def __repr__(self) -> str:
        return method_text(self.name, self._slots)

    def _repr_html_(self) -> str:
        return method_html(self.name, self._slots)

    @property
    def _slots(self) -> dict[str, Chain]:
        return {slot: getattr(self, slot) for slot in SLOTS}

    @property
    def parts(self) -> Chain:
        """All parts, in the order in which they act."""
        return tuple(part for slot in SLOTS for part in getattr(self, slot))

    def part(self, name: str) -> Part:
        for part in self.parts:
            if part.name == name:
                return part
        raise unknown("part", name, [part.name for part in self.parts], f"in {self.name}")

    def adding(self, name: str = "", **slots: Part | Sequence[Part]) -> Method:
        """This method with a part, or several, appended to each named chain. This is how a method is wrapped.

        A rule that takes the place of another, such as another server step, goes in with `replacing`.

        >>> from counterpoise import methods, parts
        >>> [p.name for p in methods.fedavgm().adding(local=parts.proximal(0.1)).local]
        ['proximal']
        """
        longer: dict[str, Any] = {slot: (*getattr(self, _slot(slot)), *_chain(given)) for slot, given in slots.items()}
        return replace(self, name=name or self.name, **longer)

    def replacing(self, name: str = "", **places: Part | Sequence[Part]) -> Method:
        """This method with whole chains replaced, or single parts by their names (by_data for by-data).

        >>> from counterpoise import methods, parts
        >>> [p.name for p in methods.fedavgm().replacing(weigh=parts.uniform()).weigh]
        ['uniform']
        >>> [p.name for p in methods.counterpoise().replacing(by_data=parts.uniform()).weigh]
        ['memory', 'bounded', 'uniform', 'capped']
        """
        chains: dict[str, Any] = self._slots
        for place, given in places.items():
            slot, gone = self._place(place)
            if gone is None:
                _check_lone(self.name, slot, given, chains[slot])
                chains[slot] = _chain(given)
            else:
                at = chains[slot].index(gone)
                chains[slot] = (*chains[slot][:at], *_chain(given), *chains[slot][at + 1 :])
        return replace(self, name=name or self.name, **chains)

    def _place(self, name: str) -> tuple[str, Part | None]:
        """The slot of that name, or the part of that name with its slot."""
        if name in SLOTS:
            return name, None
        for slot, chain in self._slots.items():
            for part in chain:
                if part.name.replace("-", "_") == name:
                    return slot, part
        known = [*SLOTS, *(part.name.replace("-", "_") for part in self.parts)]
        raise unknown("slot or part", name, known, f"in {self.name}")


def _check_lone(method: str, slot: str, given: Any, chain: Chain) -> None:
    """Refuse one part for a chain of several: it is more often meant for one of them, and the rest would be lost."""
    if isinstance(given, Part) and len(chain) > 1:
        names = [part.name for part in chain]
        rule = "by-data" if "by-data" in names else names[0]
        raise CounterpoiseError(
            f"The slot {slot} of {method} has {len(chain)} parts: {', '.join(names)}. To put part {given.name} in the "
            f"place of one of them, name it: .replacing({rule.replace('-', '_')}=...). "
            f"To drop them all, give a tuple: .replacing({slot}=(part,))."
        )


def _chain(given: Any) -> tuple[Any, ...]:
    """A chain from one part or several; the method refuses anything else."""
    return tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)


def _check_chain(what: str, chain: Any) -> None:
    if not isinstance(chain, tuple) or not all(isinstance(part, Part) for part in chain):
        hint = " Was a function given without its parentheses?" if any(map(callable, _chain(chain))) else ""
        given = chain[0] if isinstance(chain, tuple) and len(chain) == 1 else chain
        raise CounterpoiseError(f"{what} must be a tuple of parts, not {brief(given)}.{hint}")


def _slot(name: str) -> str:
    if name not in SLOTS:
        raise unknown("slot", name, SLOTS, "in a method")
    return name
