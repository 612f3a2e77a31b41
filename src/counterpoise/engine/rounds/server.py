"""The server's half of a round: broadcast, write letters, admit replies, then run each slot's parts in order.

The simulator and Flower use the same server, because it knows the world only through `counterpoise.method.World`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor

from counterpoise.engine.clients.program import Named
from counterpoise.engine.clients.returned import check_named, check_vector
from counterpoise.engine.rounds.admission import Limits, admit
from counterpoise.engine.rounds.applied import call_apply, call_on_server
from counterpoise.engine.rounds.divergence import Streak
from counterpoise.engine.rounds.lengths import Lengths
from counterpoise.engine.rounds.reasons import broken
from counterpoise.engine.rounds.records import Outcome
from counterpoise.engine.rounds.store import Store
from counterpoise.engine.rounds.trail import Trail
from counterpoise.errors import CounterpoiseError, Diverged
from counterpoise.method import Cohort, Method, Part, Round, World
from counterpoise.trees import cat

__all__ = ["Decision", "Server"]

Rows = dict[str, tuple[tuple[int, ...], Mapping[str, Tensor]]]
"""By part: clients and their new records."""
Accepted = dict[str, tuple[int, ...]]
"""By part: the clients whose replies it accepted."""


class Decision(NamedTuple):
    """All that a round changes on the server, before it is written."""

    round: int
    outcome: Outcome
    model: Tensor
    state: Named
    records: Rows
    accepted: Accepted
    streak: Streak
    lengths: Lengths


class Weighed(NamedTuple):
    """How much each client counts in the server's step."""

    weights: dict[int, float] | None
    """Effective weights; None if the rule has none."""
    contributions: dict[int, float]
    lost: bool
    """Whether the new model is NaN or infinite."""


_DIVERGED = "Training diverged: the server's new model is not finite. Lower the server's or the clients' learning rate."


class Server:
    """The model, every part's server state, and the records of the clients seen."""

    def __init__(self, method: Method, start: Tensor, limits: Limits, memory: float = float("inf")) -> None:
        self.method, self.limits = method, limits
        self.model = start
        self.state: Named = {
            p.name: check_named(p, "server_state", call_on_server(p, "server_state", start))
            for p in method.parts
            if p.server_state is not None
        }
        self.records = {
            p.name: Store(check_named(p, "client_record", call_on_server(p, "client_record", start)), memory)
            for p in method.parts
            if p.client_record is not None
        }
        self.lengths = Lengths()
        self.streak = Streak()
        self.accepted = {p.name: Store({"round": torch.tensor(0)}) for p in method.parts if p.client_state is not None}
        """For each part with client state and each client: the last round whose reply the part accepted; 0 for none."""
        self.whole = True
        """False while a round is being written; such a state must not be saved."""

    def accepted_rounds(self, part: str, clients: Sequence[int], decision: Decision | None = None) -> list[int]:
        """For each client, the round of the state that it continues from: the last one that this part accepted.

        With `decision`, the rounds as they will be once it is committed.
        """
        rounds: list[int] = self.accepted[part].gather(clients)["round"].tolist()
        accepted = {*decision.accepted.get(part, ())} if decision else set()
        return [
            decision.round if decision and c in accepted else since for c, since in zip(clients, rounds, strict=True)
        ]

    def broadcast(self) -> Named:
        """What goes to every client besides the model."""
        return {
            part.name: check_named(part, "broadcast", call_on_server(part, "broadcast", self.state.get(part.name, {})))
            for part in self.method.parts
            if part.broadcast is not None
        }

    def letters(self, clients: Sequence[int]) -> Named:
        """What the server sends to each of these clients alone: a row for each of them, in their order."""
        return {
            part.name: _check_letters(part, self._letters_of(part, clients), len(clients))
            for part in self.method.parts
            if part.letters is not None and clients
        }

    def _letters_of(self, part: Part, clients: Sequence[int]) -> Any:
        return call_on_server(part, "letters", self.state.get(part.name, {}), self.records[part.name].gather(clients))

    def receive(self, cohort: Cohort, world: World, absent: Mapping[int, str] | None = None) -> Outcome:
        """Decide on a round's replies and commit the decision."""
        decision = self.decide(cohort, world, absent)
        self.commit(decision)
        return decision.outcome

    def decide(self, cohort: Cohort, world: World, absent: Mapping[int, str] | None = None) -> Decision:
        """Turn one round's replies into a new model and all that goes with it; nothing changes yet.

        `absent` says why no reply of some clients is in the cohort (none came, or a damaged one).
        """
        if cohort.updates.shape != (len(cohort.ids), len(self.model)):
            raise CounterpoiseError(
                f"The cohort's updates have shape {tuple(cohort.updates.shape)}; {len(cohort.ids)} clients and a model "
                f"of {len(self.model)} parameters need {(len(cohort.ids), len(self.model))}."
            )
        if len(set(cohort.ids)) < len(cohort.ids):
            raise CounterpoiseError("The cohort holds a client twice; a runtime must take one reply of each identity.")
        cohort, refused, claims, lengths = admit(
            cohort, self.limits, world.local, world.round, self.lengths, self.model, world.population
        )
        streak = self.streak.after(claims, broken(refused))
        if diverged := streak.sentence(world.population):
            raise Diverged(diverged)
        by_counts = any(map(self._weighs_by_counts, self.method.parts))
        ratio = self.limits.norm_ratio
        round = Round(cohort, self.model, world, claims=claims, by_counts=by_counts, norm_ratio=ratio)
        return self._apply_parts(round, claims, {**(absent or {}), **refused})._replace(streak=streak, lengths=lengths)

    def _weighs_by_counts(self, part: Part) -> bool:
        if part.by_counts is None:
            return part.apply is not None and part in self.method.weigh
        if isinstance(part.by_counts, bool):
            return part.by_counts
        return bool(call_on_server(part, "by_counts", {name: self.state.get(name, {}) for name in part.reads}))

    def commit(self, decision: Decision) -> None:
        """Write a decision. The caller sets `whole` again once it has written its own part of the round."""
        self.whole = False
        self.model, self.state = decision.model, decision.state
        self.streak, self.lengths = decision.streak, decision.lengths
        for name, (ids, values) in decision.records.items():
            self.records[name].scatter(ids, values)
        for name, store in self.accepted.items():
            if ids := decision.accepted.get(name, ()):
                store.scatter(ids, {"round": torch.full((len(ids),), decision.round)})

    def scored(self, now: Decision | Server) -> Tensor:
        """The model to measure: the new one, or what the parts' `scored` hooks make of it."""
        model = now.model
        for part in self.method.parts:
            if part.scored is not None:
                made = call_on_server(part, "scored", model, now.state.get(part.name, {}))
                model = check_vector(part, "scored", made, model)
        return model

    def recall(self, rounds: Iterable[Outcome]) -> None:
        """Restore from the last rounds of a resumed run what its checkpoint does not hold."""
        for outcome in rounds:
            self.streak = self.streak.after(outcome.claims, broken(outcome.excluded))

    def _apply_parts(self, round: Round, claims: Mapping[int, int | float], excluded: dict[int, str]) -> Decision:
        """Pass the admitted replies through every part. `excluded` are the clients absent or refused so far."""
        if not len(round.cohort):
            return self._make_decision(round, Outcome(claims, {}, excluded, skipped=_why_unheard(claims, excluded)))
        state = dict(self.state)
        rows: Rows = {}
        accepted: Accepted = {}
        notes: dict[str, dict[int, float]] = {}
        gone: tuple[int, ...] = ()
        trail = Trail.of(self.method)
        for part in self.method.parts:
            if part.apply is None:
                continue
            ids = round.cohort.ids
            seen = self._view(part, round, state, gone)
            round = call_apply(part, seen)
            trail = trail.after(part, seen, round)
            if part.server_state is not None:
                state[part.name] = dict(round.state)
            if part.name in self.records:
                rows[part.name] = (ids, round.records)
                if gone and round.left_out is not seen.left_out:
                    rows[part.name] = ((*ids, *gone), cat([dict(round.records), dict(round.left_out)]))
            for name, noted in round.notes.items() if round.notes is not seen.notes else ():
                notes[name] = notes.get(name, {}) | dict(zip(ids, noted.tolist(), strict=True))
            accepted[part.name] = ids
            if round.excluded:
                accepted[part.name] = tuple(client for client in ids if client not in round.excluded)
                excluded |= round.excluded
                gone += tuple(client for client in ids if client in round.excluded)
                round = _leave_out(round, round.excluded)
            if not round.skipped and not len(round.cohort):
                round = round.skip("no client could be trusted")
            if round.skipped:
                break
        weighed = Weighed({}, {}, lost=False) if round.skipped else self._weigh(round)
        why = round.skipped or _why_useless(round, weighed)
        why = trail.broken() or why if why else ""
        if weighed.lost and not why:
            raise Diverged(_DIVERGED)
        if why:
            # Keep what the server learned about its clients, but not what it made of their updates.
            learned = {p.name for p in (*self.method.local, *self.method.upload, *self.method.trust)}
            outcome = Outcome(claims, {}, excluded, why, notes, round.verdicts, round.facts)
            accepted = {name: ids for name, ids in accepted.items() if name in learned}
            return self._make_decision(round, outcome, self.model, state, rows, accepted, learned)
        if weighed.contributions:
            notes["contribution"] = weighed.contributions
        everyone = {part.name: round.cohort.ids for part in self.method.parts}
        outcome = Outcome(claims, weighed.weights, excluded, "", notes, round.verdicts, round.facts)
        return self._make_decision(round, outcome, round.model, state, rows, everyone | accepted, everyone.keys())

    def _view(self, part: Part, round: Round, state: Named, gone: Sequence[int]) -> Round:
        """The round as a part's `apply` sees it. `gone` are the clients that earlier parts excluded."""
        store = self.records.get(part.name)
        return round.but(
            state=state.get(part.name, {}),
            records={} if store is None else store.gather(round.cohort.ids),
            left_out={} if store is None else store.gather(gone),
            reports=round.cohort.reports.get(part.name, {}),
            shared={name: state.get(name, {}) for name in part.reads},
        )

    def _make_decision(
        self,
        round: Round,
        outcome: Outcome,
        model: Tensor | None = None,
        state: Named | None = None,
        rows: Rows | None = None,
        accepted: Accepted | None = None,
        parts: Set[str] = frozenset(),
    ) -> Decision:
        """A decision with the new state and records of the given `parts`; other parts keep what they had.

        `accepted` says by part whose replies it accepted: those clients continue from their new state, all others from
        the state that they began the round with. A part accepts the clients that its `apply` was given and did not
        exclude, if its work is kept. A part without `apply` accepts the clients whose updates the new model is made of.
        """
        kept = self.state
        if state is not None:
            kept = {name: own if name in parts else self.state[name] for name, own in state.items()}
        records = {name: written for name, written in (rows or {}).items() if name in parts}
        model = self.model if model is None else model
        return Decision(round.world.round, outcome, model, kept, records, accepted or {}, self.streak, self.lengths)

    def _weigh(self, round: Round) -> Weighed:
        """Each client's effective weight and its contribution ``<w_i d_i, s> / |s|^2`` to the server's step s.

        Weights per layer are averaged by the layers' sizes. Contributions to a plain mean sum to 1; otherwise, the
        difference to 1 comes from a memory, a momentum or a learning rate.
        """
        step, weights, ids = round.model - self.model, round.weights, round.cohort.ids
        along = each = step[:0]
        if weights is not None and weights.ndim == 2:
            sizes = torch.bincount(round.world.layout.layers).to(weights)
            each = weights @ (sizes / sizes.sum())
        elif weights is not None:
            each, along = weights, round.cohort.updates @ step
        # Joined, so that the CPU waits for a GPU only once.
        length, *numbers = torch.cat([(step @ step).view(1), each, along]).tolist()
        lost = not isfinite(length) and not bool(round.model.isfinite().all())
        effective = dict(zip(ids, numbers[: len(each)], strict=False))
        products = dict(zip(ids, numbers[len(each) :], strict=False)) if length else {}
        shares = {client: effective[client] * product / length for client, product in products.items()}
        return Weighed(effective if weights is not None else None, shares, lost)


def _why_useless(round: Round, weighed: Weighed) -> str:
    """Why the method's result for a round cannot be used; empty if it can, or if training diverged."""
    weights, lost = weighed.weights, weighed.lost
    if lost and weights is None and round.combined is not None and not bool(round.combined.isfinite().all()):
        return "what the method made of the updates is NaN or infinite, although each of them is finite"
    if not weights:
        return ""
    if not all(map(isfinite, weights.values())):
        return "the method gave clients weights that are NaN or infinite"
    return "" if lost or any(weights.values()) else "the method gave every client the weight 0"


def _why_unheard(claims: Collection[int], excluded: Mapping[int, str]) -> str:
    """Why a round has no reply to use."""
    if not claims:
        return "no client could be heard"
    reasons = Counter(excluded[client] for client in claims)
    told = ", ".join(f"{count} of {len(claims)} because {reason}" for reason, count in reasons.most_common())
    return f"no reply could be used: {told}"


def _leave_out(round: Round, excluded: Mapping[int, str]) -> Round:
    """The round without some clients."""
    heard = torch.tensor([client not in excluded for client in round.cohort.ids], device=round.model.device)
    return round.but(
        cohort=round.cohort.keep(heard),
        weights=None if round.weights is None else round.weights[heard],
        notes={name: values[heard] for name, values in round.notes.items()},
        excluded={},
    )


def _check_letters(part: Part, made: Any, clients: int) -> dict[str, Tensor]:
    """What a part's `letters` returned, checked to have a row for each client."""
    letters = check_named(part, "letters", made)
    for name, rows in letters.items():
        if rows.shape[:1] != (clients,):
            raise CounterpoiseError(
                f"part {part.name}: its hook letters must return a row for each of the {clients} clients, "
                f"but {name} has the shape {tuple(rows.shape)}."
            )
    return letters
