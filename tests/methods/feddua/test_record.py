"""What FedDua writes down is what decided; who lied can come back; who claims too little is left alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from claims import BATCH, LR, TRUE, D, direct, judge, lying, world
from hypothesis import given
from hypothesis import strategies as st
from worlds import cohort, server

from counterpoise.local import Local, sgd
from counterpoise.method import Part
from counterpoise.methods import avg, fedbac, feddua
from counterpoise.methods.feddua import branch

# ---------------------------------------------------------------- the record and the verdict agree


def strange(rng, factor, local, C=12):
    """A round of anything: honest clients, liars, forgers, silent ones, with long tails."""
    n = rng.integers(1, 300, C).astype(float)
    steps = local.epochs * np.ceil(n / local.batch)
    reach = steps if local.optimizer.reach is None else local.optimizer.reach(torch.as_tensor(steps)).numpy()
    off = np.exp(rng.choice([0.05, 0.5, 3.0]) * rng.standard_normal((4, C)))
    size = off[0] * (rng.random(C) > 0.05)
    d = rng.standard_normal(D) + rng.choice([0.2, 2.0]) * rng.standard_normal((C, D))
    d *= (LR * reach * size / np.linalg.norm(d, axis=1))[:, None]
    told: dict[str, Any] = {
        "gradient": size * np.where(rng.random(C) < 0.2, off[1], 1),
        "alphas": (reach / n / local.epochs * np.where(rng.random(C) < 0.2, off[2], 1))[:, None]
        * np.ones(local.epochs),
    }
    if factor == "branch":
        told["branch"] = 0.01 * rng.standard_normal((C, branch.LAYOUT.size))
    claimed = np.maximum(np.round(n * np.where(rng.random(C) < 0.2, off[3], 1)), 1)
    ids = np.sort(rng.choice(20, C, replace=False))
    reports = {k: torch.as_tensor(v, dtype=torch.float64) for k, v in told.items()}
    return cohort(ids, d, claimed, {"counts": reports})


@given(
    seed=st.integers(0, 2**32),
    factor=st.sampled_from(["direct", "branch"]),
    threshold=st.sampled_from([0.5, 2.0, 3.5]),
    estimate=st.sampled_from(["prior", "report"]),
    evidence=st.sampled_from(["report", "displacement", "both"]),
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("epochs", [1, 3])
def test_no_claim_is_rejected_inside_the_interval_on_record(
    epochs, momentum, seed, factor, threshold, estimate, evidence
) -> None:
    rng = np.random.default_rng(seed)
    local = Local(epochs=epochs, batch=BATCH, optimizer=sgd(LR, momentum=momentum))
    ours = server(
        feddua(factor=factor, threshold=threshold, estimate=estimate, evidence=evidence, patience=int(seed % 3)), D
    )
    for round in range(1, 9):
        for verdict in ours.receive(strange(rng, factor, local), world(round, local)).verdicts.values():
            claimed, low, high, z = verdict.claimed, verdict.low, verdict.high, verdict.z
            if low is None or high is None or z is None:
                assert verdict.action in ("accepted", "excluded") or verdict.reason.startswith("it did not move")
                continue
            inside = low < claimed <= high
            if verdict.action != "accepted":
                assert not inside
                assert "suggests" in verdict.reason
                assert abs(z) > threshold
                assert (claimed > high) == (z > 0)
            if z > threshold and claimed > 1:
                assert verdict.action != "accepted" or "fewer than 5" in verdict.reason
            if estimate == "prior":
                assert low <= verdict.estimated * (1 + 1e-9)
                assert verdict.estimated <= max(high, 1) * (1 + 1e-9)
            if evidence == "displacement" and claimed > 1:  # such an interval holds exactly what stands
                assert inside == (abs(z) <= threshold)
            if "together" in verdict.reason and estimate == "prior" and verdict.estimated > 1:
                assert verdict.estimated == pytest.approx(math.sqrt(low * high))


def test_the_reason_names_the_rounds_together_where_they_decide() -> None:
    """Displacement alone, one who claims five times its data among noisy updates: no round tells, several do."""
    ours = server(direct(evidence="displacement", patience=1000), D)
    found = []
    for round in range(1, 31):
        noise = np.exp(0.5 * np.random.default_rng(50 + round).standard_normal((12, 1)))
        found.append(judge(lying(5.0), ours, round, updates=lambda d, noise=noise: d * noise).verdicts[3])
    rejected = [v for v in found if v.action != "accepted"]
    assert any("the update it sent over its last rounds together (at most 10) suggests" in v.reason for v in rejected)
    for verdict in rejected:
        assert verdict.high < verdict.claimed
        assert verdict.estimated == pytest.approx(math.sqrt(verdict.low * verdict.high))


def test_a_factor_that_rho_denies_is_recorded_with_its_own_interval() -> None:
    """The steps speak for the claim, the factor for a tenth: the interval on record is the factor's."""
    alphas = (np.ceil(TRUE / BATCH) / TRUE)[:, None]
    alphas[5] /= 10
    ours = server(feddua(evidence="report"), D)
    verdict = judge(None, ours, told={"alphas": alphas}, phi=np.zeros((12, branch.LAYOUT.size))).verdicts[5]
    assert verdict.action == "corrected"
    assert verdict.high < verdict.claimed
    assert verdict.low < verdict.estimated < verdict.high


# ---------------------------------------------------------------- coming back


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("times", [3.0, 10.0])
@pytest.mark.parametrize("when", [1, 2, 6])
def test_one_miscount_does_not_touch_the_honest_claims_after_it(when, times, momentum) -> None:
    local = Local(batch=BATCH, optimizer=sgd(LR, momentum=momentum))
    ours = server(direct(), D)
    for round in range(1, 16):
        outcome = judge(lying(times) if round == when else None, ours, round, local)
        if round == when:
            assert outcome.verdicts[3].action == "corrected"
        else:
            assert {v.action for v in outcome.verdicts.values()} == {"accepted"}
            assert outcome.weights[3] == pytest.approx(44 / TRUE.sum())


def shares(strategy, rounds=66, **options):
    """The mean weight, over rounds, of a client that claims as its strategy says; 0 where it is excluded."""
    ours, found, last = server(direct(**options), D), [], None
    for round in range(1, rounds + 1):
        outcome = judge(lying(strategy(round, last)), ours, round)
        last = outcome.verdicts[3]
        found.append(outcome.weights.get(3, 0.0))
    return float(np.mean(found))


STRATEGIES = {
    "always": lambda round, last: 10.0,
    "in turn": lambda round, last: 10.0 if round % 2 else 1.0,
    "each eleventh": lambda round, last: 10.0 if round % 11 == 0 else 1.0,
    "until warned, then once forgiven": lambda round, last: 10.0 if round % 11 in (0, 1) else 1.0,
    "until excluded, then contrite": lambda round, last: 1.0 if last and last.action == "excluded" else 10.0,
    "small lies after credit": lambda round, last: 0.1 if round % 3 else 10.0,
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lies_and_truth_by_turns_gain_nothing(strategy) -> None:
    """A lie that is seen counts as what was found: forgiveness lets a liar be heard again, and never for more."""
    honest = shares(lambda round, last: 1.0)
    assert shares(STRATEGIES[strategy], patience=1) <= honest * 1.02


def test_who_lies_in_the_last_of_ten_rounds_stays_outside() -> None:
    ours = server(direct(patience=0), D)
    actions = [judge(lying(3.0 if round % 10 == 1 else 1.0), ours, round).verdicts[3].action for round in range(1, 42)]
    assert set(actions) == {"excluded"}


# ---------------------------------------------------------------- who claims too little


def test_who_claims_too_little_is_neither_warned_nor_excluded_nor_a_measure_of_others() -> None:
    claimed = lying(1 / 3, 10)
    claimed[9] = 31
    ours = server(direct(patience=0), D)
    for round in range(1, 13):
        outcome = judge(claimed, ours, round)
        assert {v.action for v in outcome.verdicts.values()} == {"accepted"}
        assert list(outcome.weights.values()) == pytest.approx(claimed / claimed.sum())
        assert [i for i, v in outcome.verdicts.items() if v.reason] == [9, 10]
        assert not {9, 10} & set(ours.state["counts"]["ids"].tolist())
        assert max(abs(outcome.verdicts[i].z) for i in range(9)) < 2
    assert float(ours.records["counts"][10]["warnings"]) == 0


def test_a_claim_of_too_little_neither_serves_a_warning_nor_begins_it_anew() -> None:
    ours = server(direct(patience=0), D)
    stories = ["lie"] + ["true"] * 5 + ["little"] * 12 + ["true"] * 6
    times = {"lie": 3.0, "true": 1.0, "little": 1 / 3}
    actions = [judge(lying(times[what], 10), ours, r).verdicts[10].action for r, what in enumerate(stories, 1)]
    assert actions == ["excluded"] * 22 + ["accepted"] * 2


# ---------------------------------------------------------------- rules that ignore counts


def test_around_a_rule_that_ignores_counts_nothing_reads_corrected() -> None:
    outcome = judge(lying(), server(feddua(avg(), factor="direct"), D))
    verdict = outcome.verdicts[3]
    assert verdict.action == "warned"
    assert "suggests 44" in verdict.reason
    assert f"{verdict.claimed:g}" in verdict.reason
    assert verdict.told(3).count(f"{verdict.claimed:g} samples") == 1
    assert len(set(outcome.weights.values())) == 1
    silent: dict[str, Any] = {
        "told": {"gradient": np.where(np.arange(12) == 5, 0.0, 1.0)},
        "updates": lambda d: d * (np.arange(12) != 5)[:, None],
    }
    method = feddua(avg(), factor="direct", evidence="report")
    assert judge(lying(1e6, 5), server(method, D), **silent).verdicts[5].action == "accepted"


@pytest.mark.parametrize(("said", "action"), [({}, "corrected"), ({"by_counts": False}, "warned")])
def test_a_weighting_rule_that_does_not_say_is_taken_to_weigh_by_counts(said: Any, action: str) -> None:
    """A rule that forgets to say so would otherwise weigh by corrected counts while the record says that none was."""
    root = Part("root", apply=lambda round: round.but(weights=round.cohort.examples.sqrt()), **said)
    outcome = judge(lying(), server(feddua(avg().replacing(weigh=root), factor="direct"), D))
    assert outcome.verdicts[3].action == action
    assert outcome.weights[3] / outcome.weights[4] == pytest.approx((44 / lying()[4]) ** 0.5)


@pytest.mark.parametrize(("momentum", "later"), [("weighted", "warned"), ("data", "corrected")])
def test_around_fedbac_a_count_is_corrected_only_in_rounds_in_which_it_weighs(momentum: Any, later: str) -> None:
    ours = server(feddua(fedbac(momentum=momentum), factor="direct"), D)
    first, *rest = (judge(lying(), ours, round) for round in (1, 2, 3))
    assert first.verdicts[3].action == "corrected"  # there is no momentum yet, so weights are by data
    assert first.weights[3] / first.weights[4] == pytest.approx(44 / lying()[4])
    assert [outcome.verdicts[3].action for outcome in rest] == [later] * 2
