"""Forged replies, through the engine on digits: what a liar says buys it no weight, and the run goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise import adversary
from counterpoise.engine import Engine, Simulation
from counterpoise.local import Local, sgd
from counterpoise.method import Cohort
from counterpoise.methods import feddua
from counterpoise.methods.feddua.constants import BRANCH_STEPS, LONGEST_STEP

CLIENTS, LIAR = 20, 3
LOCAL = Local(batch=8, optimizer=sgd(0.05))
Lie = Callable[[int, Cohort], Cohort]


@functools.cache
def digits() -> cp.Federation:
    return cp.load("digits", partition=cp.dirichlet(1.0, clients=CLIENTS), heldout=0, seed=0)


def sizes() -> np.ndarray:
    return digits().train.sizes(torch.arange(CLIENTS)).double().numpy()


def forging(claim=None, *, update=1.0, only: Any = range(1000), **reports: Callable[[torch.Tensor], Any]) -> Lie:
    """The liar's reply in the rounds `only`: `claim` of the round and its count; each report a function of the true one."""

    def lie(round: int, cohort: Cohort) -> Cohort:
        if round not in only:
            return cohort
        i, examples, updates = cohort.ids.index(LIAR), cohort.examples.clone(), cohort.updates.clone()
        if claim is not None:
            examples[i] = claim(round, float(examples[i]))
        updates[i] *= update
        told = {name: values.clone() for name, values in cohort.reports["counts"].items()}
        for name, forged in reports.items():
            told[name][i] = forged(told[name][i])
        return replace(cohort, examples=examples, updates=updates, reports={**cohort.reports, "counts": told})

    return lie


def rounds_of(lie: Any, rounds: int = 5, **options: Any):
    torch.manual_seed(0)
    simulation = Simulation(
        feddua(**options),
        digits(),
        cp.models.mlp(digits().shape, 10, hidden=16),
        local=LOCAL,
        seed=1,
        engine=Engine(device="cpu", threads=1),
        adversary=lie,
    )
    return simulation, [simulation.advance().outcome for _ in range(rounds)]


def goes_on(simulation, outcomes) -> None:
    """Nobody else is lost, nothing is skipped, and the model is one."""
    for outcome in outcomes:
        assert not outcome.skipped
        assert set(outcome.excluded) <= {LIAR}
        assert set(outcome.weights) | {LIAR} == set(range(CLIENTS))
        assert sum(outcome.weights.values()) == pytest.approx(1)
    others = [v.action != "accepted" for o in outcomes for client, v in o.verdicts.items() if client != LIAR]
    assert np.mean(others) < 0.03
    assert bool(simulation.server.model.isfinite().all())
    assert bool(simulation.server.state["counts"]["recent"].isnan().logical_not().all())


def gains(outcomes) -> list[float]:
    """The liar's weight in each round, in honest weights of its own; 0 where it is excluded."""
    honest = sizes()[LIAR] / sizes().sum()
    return [outcome.weights.get(LIAR, 0.0) / honest for outcome in outcomes]


LARGEST = 1.05
"""Weights as shares of what is left without the liar's own count are that much larger at most."""


def at_most_the_largest(outcomes) -> None:
    for outcome in outcomes:
        honest = max(weight for client, weight in outcome.weights.items() if client != LIAR)
        assert outcome.weights.get(LIAR, 0.0) <= honest * (1 + 1e-9)
        assert outcome.weights.get(LIAR, 0.0) <= LARGEST * sizes().max() / sizes().sum()


each_factor = pytest.mark.parametrize("factor", ["direct", "branch"])


# ---------------------------------------------------------------- the branch


@pytest.mark.parametrize("value", [50.0, 1e3, 1e30])
def test_branch_weights_sent_once_do_not_poison_the_rounds_after(value) -> None:
    lie = forging(only=[2], branch=lambda sent: torch.full_like(sent, value))
    simulation, outcomes = rounds_of(lie, rounds=6)
    goes_on(simulation, outcomes)
    assert max(gains(outcomes)) <= 1.01
    honest, _ = rounds_of(None, rounds=6)
    ours, theirs = (s.server.state["counts"]["branch"] for s in (simulation, honest))
    assert bool(ours.isfinite().all())
    # Its own part of one round: a share of the steps of the rate, and what honest clients then do about it.
    assert float((ours - theirs).norm()) < BRANCH_STEPS * 0.1 * LONGEST_STEP * 2 * sizes()[LIAR] / sizes().sum() + 0.1


# ---------------------------------------------------------------- forged gradients


@each_factor
@pytest.mark.parametrize("times", [10, 1e6])
def test_a_gradient_forged_beyond_the_claim_does_not_hide_it(factor, times) -> None:
    lie = forging(lambda _, n: times * n, gradient=lambda g: 1e-6 * g)
    simulation, outcomes = rounds_of(lie, factor=factor)
    goes_on(simulation, outcomes)
    at_most_the_largest(outcomes)
    assert all(outcome.verdicts[LIAR].action != "accepted" for outcome in outcomes)
    assert outcomes[-1].verdicts[LIAR].action == "excluded"


@each_factor
def test_a_million_claimed_is_not_believed(factor) -> None:
    lie = forging(lambda *_: 1e6, gradient=lambda g: 1e-6 * g)
    simulation, outcomes = rounds_of(lie, factor=factor)
    goes_on(simulation, outcomes)
    at_most_the_largest(outcomes)


@each_factor
def test_a_round_of_the_contrary_pays_for_no_overclaim(factor) -> None:
    """Claim 1 with a forged gradient makes a credit, were it not clipped and did not this round's overclaim stand."""
    lies = [
        forging(lambda round, n: 1 if round == 1 else 10 * n),
        forging(only=[1], gradient=lambda g: 1e-6 * g),
    ]
    simulation, outcomes = rounds_of(lambda r, c: lies[1](r, lies[0](r, c)), rounds=6, factor=factor)
    goes_on(simulation, outcomes)
    assert max(gains(outcomes)) <= 1.5
    assert all(outcome.verdicts[LIAR].z > 3.5 for outcome in outcomes[1:4])


@each_factor
def test_claiming_one_with_a_forged_gradient_gains_nothing(factor) -> None:
    lie = forging(lambda *_: 1, gradient=lambda g: 1e-6 * g)
    simulation, outcomes = rounds_of(lie, factor=factor)
    goes_on(simulation, outcomes)
    for outcome in outcomes:
        assert outcome.weights.get(LIAR, 0.0) == pytest.approx(
            0 if LIAR in outcome.excluded else 1 / (sizes().sum() - sizes()[LIAR] + 1), rel=1e-5
        )


# ---------------------------------------------------------------- no evidence at all


@each_factor
@pytest.mark.parametrize("evidence", ["report", "both"])
def test_who_neither_moves_nor_reports_is_held_to_the_largest_claim(factor, evidence) -> None:
    lie = forging(lambda *_: 1e9, update=0.0, gradient=torch.zeros_like)
    simulation, outcomes = rounds_of(lie, factor=factor, evidence=evidence)
    goes_on(simulation, outcomes)
    at_most_the_largest(outcomes)


@pytest.mark.parametrize(("evidence", "believed"), [("report", None), ("displacement", 1), ("both", 1)])
def test_a_silent_client_counts_as_the_largest_by_its_report_and_as_one_sample_by_its_update(
    evidence, believed
) -> None:
    simulation, outcomes = rounds_of(adversary.silent_claim(1000.0, clients=[LIAR]), 2, evidence=evidence)
    goes_on(simulation, outcomes)
    others = sizes().sum() - sizes()[LIAR]
    count = believed or max(n for i, n in enumerate(sizes()) if i != LIAR)
    for outcome in outcomes:
        assert outcome.weights[LIAR] == pytest.approx(count / (others + count), rel=1e-5)


@pytest.mark.parametrize("factor", ["direct", "branch"])
def test_several_silent_clients_do_not_hide_one_another(factor) -> None:
    silent = [LIAR, LIAR + 1, LIAR + 2, LIAR + 3]
    _, outcomes = rounds_of(adversary.silent_claim(3.0, clients=silent), 2, factor=factor)
    for outcome in outcomes:
        assert all(outcome.verdicts[client].estimated == 1 for client in silent)
        assert {c for c, verdict in outcome.verdicts.items() if verdict.action != "accepted"} == {*silent}


@pytest.mark.parametrize(
    ("lies", "gain"),
    [
        ([adversary.forged_branch(10.0, clients=[LIAR])], 1.1),
        ([adversary.forged_gradient(10.0, clients=[LIAR], gradient=1e-6)], 10.0),  # but at most the largest
        ([adversary.claims(0.1, clients=[LIAR], last=2), adversary.claims(10.0, clients=[LIAR], first=3)], 1.1),
    ],
    ids=["forged-branch", "over-forged-gradient", "low-then-high"],
)
def test_the_adversaries_that_forge_it_are_rejected(lies, gain) -> None:
    simulation, outcomes = rounds_of(lies)
    goes_on(simulation, outcomes)
    at_most_the_largest(outcomes)
    assert all(outcome.verdicts[LIAR].action != "accepted" for outcome in outcomes[2:])
    assert max(gains(outcomes)) <= gain


# ---------------------------------------------------------------- the update alone


@pytest.mark.parametrize("times", [10, 1000])
def test_a_claim_far_out_does_not_turn_the_fit_to_itself(times) -> None:
    simulation, outcomes = rounds_of(
        forging(lambda _, n: times * n), rounds=6, evidence="displacement", patience=1000, factor="direct"
    )
    goes_on(simulation, outcomes)
    at_most_the_largest(outcomes)
    assert all(outcome.verdicts[LIAR].z > 3.5 for outcome in outcomes)
