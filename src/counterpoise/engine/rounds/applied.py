"""What a part's `apply` returned, checked: a wrong field is told in a sentence that names the part."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

from torch import Tensor

from counterpoise.engine.clients.returned import layout_of, shape_of
from counterpoise.errors import CounterpoiseError, brief
from counterpoise.method import Cohort, Part, Round, Verdict

__all__ = ["check_applied"]


def check_applied(part: Part, seen: Round, round: Any) -> None:
    """Check the round that a part returned for the one it has seen."""
    if not isinstance(round, Round):
        raise CounterpoiseError(f"part {part.name}: apply must return the round, not {brief(round)}.")
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
        if not isinstance(noted, Tensor) or noted.shape[:1] != (len(round.cohort),):
            raise CounterpoiseError(
                f"part {part.name}: the note {name} must be a tensor with a number for each of the "
                f"{len(round.cohort)} clients, not {brief(noted)}."
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
    """Check that state and records are those the part declared: others would be lost."""
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
        if layout_of(before) != layout_of(after):
            raise CounterpoiseError(
                f"part {part.name} returned a {what} of other names, shapes or types than it declared."
            )
