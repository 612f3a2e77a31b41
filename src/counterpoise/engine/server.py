"""The server's half of a round: broadcast, admit, then each slot's parts in order.

The same in the simulator and on Flower; it knows the world only through `counterpoise.method.World`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from counterpoise.engine.admission import Limits, admit
from counterpoise.engine.client import Named
from counterpoise.engine.store import Store
from counterpoise.errors import Diverged
from counterpoise.method import Cohort, Method, Round, World

__all__ = ["Outcome", "Server"]


@dataclass(frozen=True)
class Outcome:
    """What happened in a round on the server, client by client."""

    claims: Mapping[int, int | float]
    weights: Mapping[int, float] | None
    """The effective weight of each client heard; None for a rule that has none."""
    excluded: Mapping[int, str] = field(default_factory=dict)
    skipped: str = ""
    """Why the model was left as it was; empty when it was not."""
    notes: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


class Server:
    """The model, every part's server state, and the records of the clients seen."""

    def __init__(self, method: Method, start: Tensor, limits: Limits) -> None:
        self.method, self.limits = method, limits
        self.model = start
        self.state: Named = {p.name: p.server_state(start) for p in method.parts if p.server_state is not None}
        self.records = {p.name: Store(p.client_record(start)) for p in method.parts if p.client_record is not None}

    def broadcast(self) -> Named:
        """What goes to every client beside the model."""
        return {
            part.name: part.broadcast(self.state.get(part.name, {}))
            for part in self.method.parts
            if part.broadcast is not None
        }

    def receive(self, cohort: Cohort, world: World, excluded: Mapping[int, str] | None = None) -> Outcome:
        """One round's replies to a new model. Nothing changes unless the whole round succeeds.

        `excluded` names clients that the runtime could not hear (no reply, a torn one).
        """
        claims = dict(zip(cohort.ids, _numbers(cohort.examples), strict=True))
        left_out = dict(excluded or {})
        cohort, refused = admit(cohort, self.limits)
        left_out |= refused
        if not len(cohort):
            return Outcome(claims, {}, left_out, skipped="no client could be heard")
        round = Round(cohort, self.model, world)
        state = dict(self.state)
        rows: dict[str, tuple[tuple[int, ...], Mapping[str, Tensor]]] = {}
        notes: dict[str, dict[int, float]] = {}
        for part in self.method.parts:
            if part.apply is None:
                continue
            store = self.records.get(part.name)
            ids = round.cohort.ids
            round = part.apply(
                round.but(
                    state=state.get(part.name, {}),
                    records={} if store is None else store.gather(ids),
                    reports=round.cohort.reports.get(part.name, {}),
                    shared={name: state.get(name, {}) for name in part.reads},
                    notes={},
                )
            )
            if part.server_state is not None:
                state[part.name] = dict(round.state)
            if store is not None:
                rows[part.name] = (ids, round.records)
            for name, noted in round.notes.items():
                notes[name] = dict(zip(ids, noted.tolist(), strict=True))
            if round.skipped:
                return Outcome(claims, {}, left_out, round.skipped, notes)
            if round.excluded:
                left_out |= round.excluded
                heard = torch.tensor([client not in round.excluded for client in ids], device=round.model.device)
                kept = None if round.weights is None else round.weights[heard]
                round = round.but(cohort=round.cohort.keep(heard), weights=kept, excluded={})
                if not len(round.cohort):
                    return Outcome(claims, {}, left_out, "no client could be trusted", notes)
        if not bool(round.model.isfinite().all()):
            raise Diverged(
                "Training diverged: the server's new model is not finite. Lower the server's or the clients' learning rate."
            )
        self.model, self.state = round.model, state
        for name, (ids, values) in rows.items():
            self.records[name].scatter(ids, values)
        return Outcome(claims, self._effective(round), left_out, "", notes)

    def _effective(self, round: Round) -> dict[int, float] | None:
        """One number per client: a weight per layer counts by the layer's size."""
        weights = round.weights
        if weights is None:
            return None
        if weights.ndim == 2:
            sizes = torch.bincount(round.world.layout.layers).to(weights)
            weights = weights @ (sizes / sizes.sum())
        return dict(zip(round.cohort.ids, weights.tolist(), strict=True))


def _numbers(values: Tensor) -> Iterable[int | float]:
    """Whole numbers as such, others as they are."""
    return [int(v) if float(v).is_integer() else v for v in values.tolist()]
