"""A part's turn on the server: call its `apply` and check what it returns.

An error names the part and, if a user wrote it, the file and line.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from torch import Tensor

from counterpoise.blame import call_hook, is_ours
from counterpoise.engine.backends.refusals import explained
from counterpoise.engine.clients.returned import layout_of, shape_of, shapes_of
from counterpoise.engine.rounds.records import RESERVED_NOTES
from counterpoise.errors import CounterpoiseError, brief
from counterpoise.method import Cohort, Part, Round, Verdict

__all__ = ["call_apply", "call_on_server"]

_NAMES = (
    "round.records has the names that the part's client_record declares, round.state those of its server_state, and "
    "round.reports those that its finish reports."
)


def call_on_server(part: Part, hook: str, *given: Any) -> Any:
    """Call a part's server hook other than `apply`."""
    with explained(hook):
        return call_hook(part, hook, *given)


def call_apply(part: Part, seen: Round) -> Round:
    """Call a part's `apply`: the round as it returns it, with the facts of earlier parts."""
    assert part.apply is not None
    with explained("apply", _NAMES):
        round: Round = call_hook(part, "apply", seen)
    try:
        _check_applied(part, seen, round)
    except CounterpoiseError as error:
        raise CounterpoiseError(f"{error}{_written_in(part.apply)}") from None
    return round if round.facts is seen.facts else round.but(facts={**seen.facts, **round.facts})


def _written_in(function: Any) -> str:
    """Where a user's function is written, in brackets; empty if it is ours or if Python does not know."""
    code = getattr(function, "__code__", None)
    if code is None or is_ours(code.co_filename):
        return ""
    return f" ({code.co_name} in {Path(code.co_filename).name}, line {code.co_firstlineno})"


def _check_applied(part: Part, seen: Round, round: Any) -> None:
    """Check the round that a part returned for the one it has seen."""
    if not isinstance(round, Round):
        raise CounterpoiseError(f"part {part.name}: apply must return the round, not {shape_of(round)}.")
    if not isinstance(round.cohort, Cohort) or round.cohort.ids != seen.cohort.ids:
        found = "a cohort of others" if isinstance(round.cohort, Cohort) else brief(round.cohort)
        raise CounterpoiseError(
            f"part {part.name}: apply must return a cohort of the same clients, not {found}. "
            "To leave clients out, name them in excluded."
        )
    _check_vectors(part, seen, round)
    _check_weights(part, round)
    _check_words(part, round)
    _check_kept(part, seen, round)


def _check_vectors(part: Part, seen: Round, round: Round) -> None:
    """Check the new model and the combined update: as long as the model, and numbers with a fraction."""
    for what, value in (("a model", round.model), ("a combined update", round.combined)):
        if value is None and what != "a model":
            continue
        right = isinstance(value, Tensor) and value.shape == seen.model.shape and value.is_floating_point()
        if not right:
            raise CounterpoiseError(
                f"part {part.name}: apply must return {what} of {shape_of(seen.model)}, not {shape_of(value)}."
            )


def _check_weights(part: Part, round: Round) -> None:
    """Check that there is a weight for each client, or one for each client and layer."""
    weights, clients = round.weights, len(round.cohort)
    if weights is None:
        return
    if not isinstance(weights, Tensor):
        raise CounterpoiseError(
            f"part {part.name}: weights must be a tensor with a number for each of the {clients} clients, "
            f"not {type(weights).__name__}; torch.as_tensor(weights) makes one."
        )
    layers = int(round.world.layout.layers.max()) + 1 if weights.ndim == 2 else 0
    if weights.shape not in ((clients,), (clients, layers)):
        raise CounterpoiseError(
            f"part {part.name}: weights must have the shape [{clients}], one for each client, or one for each client "
            f"and layer, not {list(weights.shape)}."
        )


def _check_words(part: Part, round: Round) -> None:
    """Check what goes into the run's record: notes, facts, verdicts and reasons."""
    for field in ("notes", "facts", "verdicts"):
        if not isinstance(getattr(round, field), Mapping):
            raise CounterpoiseError(
                f"part {part.name}: {field} must be a dictionary, not {brief(getattr(round, field))}."
            )
    for name, noted in round.notes.items():
        if name in RESERVED_NOTES or name.startswith("client_"):
            raise CounterpoiseError(
                f"part {part.name}: a note cannot be called {name}, because that is a column of the run's record. "
                f"Give it another name, such as {part.name}_{name}."
            )
        if not isinstance(noted, Tensor) or noted.shape != (len(round.cohort),):
            hint = "" if isinstance(noted, Tensor) else "; torch.as_tensor makes one of a list"
            if isinstance(noted, Real):
                hint = f"; a number of the whole round is a fact, as in round.but(facts={{{name!r}: {noted}}})"
            raise CounterpoiseError(
                f"part {part.name}: the note {name} must be a tensor with a number for each of the "
                f"{len(round.cohort)} clients, not {shape_of(noted)}{hint}."
            )
    for name, fact in round.facts.items():
        if not isinstance(fact, Real):
            raise CounterpoiseError(f"part {part.name}: the fact {name} must be a number, not {brief(fact)}.")
    for client, verdict in round.verdicts.items():
        if not isinstance(verdict, Verdict):
            raise CounterpoiseError(
                f"part {part.name}: the verdict on client {client} must be a cp.Verdict, not {verdict!r}."
            )
    if not isinstance(round.skipped, str):
        raise CounterpoiseError(
            f"part {part.name}: skipped must be the reason as a text, as in round.skip('too few'), "
            f"not {brief(round.skipped)}."
        )
    given = round.excluded.values() if isinstance(round.excluded, Mapping) else [None]
    if not all(isinstance(reason, str) for reason in given):
        raise CounterpoiseError(
            f"part {part.name}: excluded must give the reason for each client, as {{3: 'it lied'}}, "
            f"not {brief(round.excluded)}."
        )
    strange = [client for client in round.excluded if client not in round.cohort.ids]
    if strange:
        raise CounterpoiseError(
            f"part {part.name} excluded client {brief(strange[0])}, which is not in the cohort: "
            f"that is {brief(round.cohort.ids)}."
        )


def _check_kept(part: Part, seen: Round, round: Round) -> None:
    """Check that the part returned only state and records that it declared; any others would be lost."""
    for what, before, after, declared in (
        ("server_state", seen.state, round.state, part.server_state),
        ("client_record", seen.records, round.records, part.client_record),
        ("client_record", seen.left_out, round.left_out, part.client_record),
    ):
        if not isinstance(after, Mapping):
            raise CounterpoiseError(
                f"part {part.name}: its {what} must stay a dictionary of tensors and not become {type(after).__name__}."
            )
        if after and declared is None:
            raise CounterpoiseError(f"part {part.name} returned {', '.join(after)} but declares no {what}.")
        if after is not before and layout_of(before) != layout_of(after):
            raise CounterpoiseError(
                f"part {part.name}: its {what} must keep its names, shapes and types, {shapes_of(before)}, but apply "
                f"returned {shapes_of(after)}."
            )
