"""FedDua's verdicts: what becomes of a claim, of its client, and of the weights."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from claims import BATCH, LOCAL, LR, TRUE, D, direct, judge, lying, replies, world
from helpers import blobs, double, small
from hypothesis import given
from hypothesis import strategies as st
from worlds import FixedWorld, server

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, adam, sgd
from counterpoise.methods import feddua
from counterpoise.methods.feddua import branch
from counterpoise.methods.feddua.options import Options
from counterpoise.methods.feddua.verdicts import average_branch, believe

# ---------------------------------------------------------------- one round


@pytest.mark.parametrize("evidence", ["report", "both"])
@pytest.mark.parametrize("prior_counts", ["unequal", "equal"])
def test_who_claims_three_times_its_data_gets_its_own_weight(evidence, prior_counts) -> None:
    true = TRUE if prior_counts == "unequal" else np.full(12, 44)
    claimed = true.astype(float)
    claimed[3] *= 3
    outcome = judge(claimed, server(direct(evidence=evidence), D), true=true)
    verdict = outcome.verdicts[3]
    assert verdict.action == "corrected"
    assert verdict.claimed == claimed[3]
    assert verdict.z > 3.5
    assert abs(verdict.estimated - true[3]) <= BATCH
    assert verdict.low < verdict.estimated <= verdict.high
    assert verdict.high - verdict.low == BATCH
    assert "suggests" in verdict.reason
    assert all(outcome.verdicts[i].action == "accepted" for i in range(12) if i != 3)
    counts = claimed.copy()
    counts[3] = round(verdict.estimated)
    assert list(outcome.weights.values()) == pytest.approx(counts / counts.sum())
    assert outcome.claims[3] == claimed[3]
    assert not outcome.excluded


def test_who_claims_a_third_is_accepted_with_what_it_claims() -> None:
    """Too little harms nobody, and a count raised on a report could be bought with a forged one."""
    claimed = lying(1 / 3, 10)
    outcome = judge(claimed)
    verdict = outcome.verdicts[10]
    assert verdict.action == "accepted"
    assert verdict.reason == (
        "it claims 33 samples, but what it reports about its training in this round suggests 100; "
        "a client may claim less than it holds"
    )
    assert verdict.z < -3.5
    assert abs(verdict.estimated - 100) <= BATCH
    assert list(outcome.weights.values()) == pytest.approx(claimed / claimed.sum())


@pytest.mark.parametrize(("liar", "count"), [(9, 92), (10, 92)])
def test_line_13_as_printed_raises_to_the_estimate_and_not_past_the_largest_standing_claim(liar, count) -> None:
    claimed = lying(1 / 3, liar)
    claimed[10 if liar == 9 else 9] = 100 if liar == 9 else 92
    outcome = judge(claimed, server(direct(estimate="report"), D))
    assert outcome.verdicts[liar].action == "corrected"
    assert outcome.verdicts[liar].estimated == pytest.approx(TRUE[liar], rel=1e-9)
    claimed[liar] = count
    assert list(outcome.weights.values()) == pytest.approx(claimed / claimed.sum())


def test_all_honest_are_accepted_without_a_reason() -> None:
    outcome = judge(None)
    assert {v.action for v in outcome.verdicts.values()} == {"accepted"}
    assert {v.reason for v in outcome.verdicts.values()} == {""}
    assert list(outcome.weights.values()) == pytest.approx(TRUE / TRUE.sum())


def test_every_clients_factor_is_on_record() -> None:
    """Eq. 12 at the count it claims; with the branch, what it reported."""
    claimed = lying()
    assert list(judge(claimed).notes["alpha"].values()) == pytest.approx(np.ceil(TRUE / BATCH) / claimed)
    phi = branch.start_branch(torch.zeros(D, dtype=torch.float64)).expand(12, -1)
    told = {"alphas": np.linspace(0.1, 0.2, 12)[:, None] * [0.5, 2.0]}
    by_branch = judge(None, server(feddua(), D), told=told, phi=phi)
    assert list(by_branch.notes["alpha"].values()) == pytest.approx(np.linspace(0.1, 0.2, 12))


def test_a_forged_report_buys_nothing() -> None:
    """A gradient 1000 times too short makes the count look 1000 times too large: a note, and the claim stands."""
    gradient = np.exp(0.1 * np.random.default_rng(1).standard_normal(12))
    gradient[2] /= 1000
    outcome = judge(None, told={"gradient": gradient})
    verdict = outcome.verdicts[2]
    assert verdict.action == "accepted"
    assert verdict.estimated > 10_000
    assert list(outcome.weights.values()) == pytest.approx(TRUE / TRUE.sum())


def test_a_rejected_claim_does_not_count_as_the_largest() -> None:
    """With line 13 as printed, the one with a forged gradient must not be raised to the other liar's claim."""
    gradient = np.exp(0.1 * np.random.default_rng(1).standard_normal(12))
    gradient[2] /= 1000
    outcome = judge(lying(30.0, 3), server(direct(estimate="report"), D), told={"gradient": gradient})
    assert {outcome.verdicts[i].action for i in (2, 3)} == {"corrected"}
    assert outcome.weights[2] == pytest.approx(outcome.weights[10])


def np_believed(claimed, estimated, z, rejected, known, raising):
    """One client at a time."""
    standing = [c for c, r, k in zip(claimed, rejected, known, strict=True) if k and not r]
    found = []
    for c, e, score, r, k in zip(claimed, estimated, z, rejected, known, strict=True):
        guess = max(round(e), 1) if math.isfinite(e) else c
        if r and score > 0:
            found.append(min(guess, c, max(standing, default=min(claimed))))
        elif r and raising:
            found.append(max(c, min(guess, max(standing, default=min(claimed)))))
        elif not r and not k and standing:
            found.append(min(c, max(standing)))
        else:
            found.append(c)
    return found


@given(seed=st.integers(0, 2**32), C=st.integers(1, 9), raising=st.booleans())
def test_counts_believed_are_as_written(seed, C, raising) -> None:
    rng = np.random.default_rng(seed)
    claimed = np.round(np.exp(3 * rng.standard_normal(C) + 3)) + 1
    estimated = np.exp(3 * rng.standard_normal(C) + 3)
    estimated[rng.random(C) < 0.2] = np.nan
    z, rejected, known = 5 * rng.standard_normal(C), rng.random(C) < 0.5, rng.random(C) < 0.7
    ours = believe(*map(torch.as_tensor, (claimed, estimated, z, rejected, known)), raising)
    assert ours.tolist() == np_believed(claimed, estimated, z, rejected, known, raising)
    if not raising:
        assert bool((ours.numpy() <= claimed).all())  # nobody is ever raised


@given(
    seed=st.integers(0, 2**32), C=st.integers(1, 6), passes=st.integers(1, 3), rate=st.sampled_from([0.01, 0.1, 1.0])
)
def test_nobody_moves_the_branch_further_than_honest_steps_could(seed, C, passes, rate) -> None:
    """5 steps of at most the rate after each epoch; the rest of a client's way is cut off."""
    rng = np.random.default_rng(seed)
    phi = rng.standard_normal(20)
    sent = phi + np.exp(4 * rng.standard_normal((C, 1))) * rng.standard_normal((C, 20)) / math.sqrt(20)
    counts = rng.integers(0, 50, C).astype(float)
    options = Options("branch", "cohort", "both", True, "prior", 3.5, 3, "fixed", rate)
    ours = average_branch(*map(torch.as_tensor, (phi, sent, counts)), options, passes).numpy()
    want = phi.copy()
    for way, count in zip(sent - phi, counts, strict=True):
        if count:
            want += count / counts.sum() * way * min(1, 5 * rate * passes / np.linalg.norm(way))
    assert ours == pytest.approx(want, abs=1e-9)
    assert np.linalg.norm(ours - phi) <= 5 * rate * passes * (1 + 1e-9)


def test_an_overclaim_is_never_raised() -> None:
    """The update speaks against a claim, a forged report for a larger one still: the claim stands at most."""
    gradient = np.exp(0.1 * np.random.default_rng(1).standard_normal(12))
    gradient[3] = 0
    outcome = judge(lying(1.0), told={"gradient": gradient}, updates=lambda d: d)
    assert outcome.weights[3] <= outcome.weights[10] + 1e-12
    claimed = lying(8.0)
    outcome = judge(claimed, server(direct(evidence="displacement"), D), told={"gradient": gradient})
    verdict = outcome.verdicts[3]
    assert verdict.z > 3.5
    assert verdict.estimated < claimed[3]
    assert "the update it sent" in verdict.reason
    assert verdict.low < verdict.estimated < verdict.high


def test_a_report_forged_past_the_claim_does_not_hide_the_update() -> None:
    """The report speaks for more than the claim, loudly; the update for less. The claim is not let stand."""
    gradient = np.exp(0.1 * np.random.default_rng(1).standard_normal(12))
    gradient[3] /= 1000
    outcome = judge(lying(10.0), told={"gradient": gradient})
    verdict = outcome.verdicts[3]
    assert verdict.z > 3.5
    assert verdict.action == "corrected"
    assert verdict.estimated < 0.5 * verdict.claimed
    assert "the update it sent" in verdict.reason


def test_the_papers_estimate_uses_the_factor_it_rejected() -> None:
    """Line 13: ``|d| / (lr |g_bar| alpha)``; an honest alpha gives the true count, a forged one the claim.

    Even then it is believed no more than the largest claim that stands.
    """
    alphas = (np.ceil(TRUE / BATCH) / TRUE)[:, None]
    ours = server(direct(estimate="report"), D)
    assert judge(lying(), ours, told={"alphas": alphas}).verdicts[3].estimated == pytest.approx(44, rel=1e-9)
    alphas[3] /= 3
    ours = server(direct(estimate="report"), D)
    outcome = judge(lying(), ours, told={"alphas": alphas})
    assert outcome.verdicts[3].estimated == pytest.approx(132, rel=1e-9)
    assert outcome.weights[3] == pytest.approx(outcome.weights[10])


# ---------------------------------------------------------------- degenerate cohorts


@pytest.mark.parametrize("count", [1, 2, 4])
def test_with_fewer_than_five_clients_seen_all_are_accepted_and_it_is_said(count) -> None:
    claimed = TRUE[:count].astype(float)
    claimed[0] *= 10
    outcome = judge(claimed, server(direct(threshold=0.5), D), true=TRUE[:count])
    assert {v.action for v in outcome.verdicts.values()} == {"accepted"}
    assert {v.reason for v in outcome.verdicts.values()} == {"fewer than 5 clients have been seen"}
    assert {v.z for v in outcome.verdicts.values()} == {None}
    assert list(outcome.weights.values()) == pytest.approx(claimed / claimed.sum())


def test_clients_of_earlier_rounds_have_been_seen() -> None:
    ours = server(direct(evidence="report"), D)
    for round, ids in enumerate(([0, 1, 2], [3, 4]), 1):
        outcome = ours.receive(replies(TRUE[ids], ids=ids, seed=round), world(round))
    assert {v.reason for v in outcome.verdicts.values()} == {""}
    claimed = TRUE[[5, 6]] * [3.0, 1.0]
    outcome = ours.receive(replies(TRUE[[5, 6]], claimed, ids=[5, 6], seed=3), world(3))
    assert [outcome.verdicts[i].action for i in (5, 6)] == ["corrected", "accepted"]


@pytest.mark.parametrize("factor", ["direct", "branch"])
def test_nobody_moves_and_nobody_is_accused(factor) -> None:
    still: dict[str, Any] = {"told": {"gradient": np.zeros(12)}, "updates": np.zeros_like}
    if factor == "branch":
        still["phi"] = np.zeros((12, branch.LAYOUT.size))
        still["told"]["alphas"] = np.full((12, 1), 1 / BATCH)
    ours = server(feddua(factor=factor, evidence="both"), D)
    outcome = judge(lying(), ours, **still)
    # Nothing is known of anybody, whatever the branch says: no estimate, no score, and no claim to hold others to.
    assert {(v.action, v.estimated, v.z) for v in outcome.verdicts.values()} == {("accepted", None, None)}
    assert {v.reason for v in outcome.verdicts.values()} == {"it did not move"}
    assert list(outcome.weights.values()) == pytest.approx(lying() / lying().sum())


def test_one_who_did_not_move_is_no_evidence() -> None:
    """So it is neither accused nor believed beyond the largest claim that stands."""
    gradient = np.ones(12)
    gradient[5] = 0
    still: dict[str, Any] = {"told": {"gradient": gradient}, "updates": lambda d: d * gradient[:, None]}
    outcome = judge(None, server(direct(evidence="report"), D), **still)
    assert outcome.verdicts[5].action == "accepted"
    assert list(outcome.weights.values()) == pytest.approx(TRUE / TRUE.sum())
    outcome = judge(lying(1e6, 5), server(direct(evidence="report"), D), **still)
    assert outcome.verdicts[5].action == "corrected"
    assert outcome.verdicts[5].reason == "it did not move; the largest claim that stands is 100"
    assert outcome.weights[5] == pytest.approx(outcome.weights[10])


@pytest.mark.parametrize("wrong", [0.0, -1.0])
def test_a_gradient_that_cannot_be_buys_nothing(wrong) -> None:
    gradient = np.exp(0.1 * np.random.default_rng(1).standard_normal(12))
    gradient[5] = wrong
    ours = server(direct(), D)
    outcome = judge(None, ours, told={"gradient": gradient})
    verdict = outcome.verdicts[5]
    assert verdict.action == "accepted"  # it speaks for more than was claimed, and nobody is raised
    assert verdict.z < -3.5
    assert math.isfinite(verdict.estimated)
    assert math.isfinite(verdict.high)
    assert list(outcome.weights.values()) == pytest.approx(TRUE / TRUE.sum())
    assert [i for i, v in outcome.verdicts.items() if v.action != "accepted" or v.reason] == [5]
    assert 5 not in ours.state["counts"]["ids"]


def test_a_factor_of_zero_is_a_lie() -> None:
    alphas = (np.ceil(TRUE / BATCH) / TRUE)[:, None]
    alphas[5] = 0
    outcome = judge(None, server(feddua(), D), told={"alphas": alphas}, phi=np.zeros((12, branch.LAYOUT.size)))
    assert outcome.verdicts[5].action == "corrected"
    assert outcome.verdicts[5].estimated == 1  # rho does not speak for less; the factor speaks for none at all
    assert outcome.weights[5] == pytest.approx(1 / (TRUE.sum() - TRUE[5] + 1))
    assert sum(outcome.weights.values()) == pytest.approx(1)


def test_counts_below_the_batch_all_look_the_same_and_are_accepted() -> None:
    true = np.array([1, 2, 3, 4, 5, 6, 7, 8])
    claimed = true.astype(float)
    claimed[1] = 6
    outcome = judge(claimed, server(direct(evidence="report"), D), true=true)
    assert {v.action for v in outcome.verdicts.values()} == {"accepted"}
    claimed[1] = 10  # a step too many: log 2 in error, but claims of ten are off by half a batch, .4
    outcome = judge(claimed, server(direct(evidence="report"), D), true=true)
    assert {v.action for v in outcome.verdicts.values()} == {"accepted"}
    assert outcome.verdicts[1].z == pytest.approx(math.log(2) / (BATCH / 20))
    claimed[1] = 60
    outcome = judge(claimed, server(direct(evidence="report"), D), true=true)
    assert outcome.verdicts[1].action == "corrected"
    assert outcome.verdicts[1].estimated <= BATCH


# ---------------------------------------------------------------- over rounds


@pytest.mark.parametrize("patience", [0, 1, 3])
def test_who_goes_on_is_excluded_after_its_warnings_until_ten_claims_fit(patience) -> None:
    ours = server(direct(patience=patience), D)
    actions = []
    for round in range(1, patience + 13):
        lies = round <= patience + 1
        outcome = judge(lying() if lies else None, ours, round)
        verdict = outcome.verdicts[3]
        actions.append(verdict.action)
        assert (3 in outcome.weights) == (actions[-1] != "excluded")
        assert sum(outcome.weights.values()) == pytest.approx(1)
        if actions[-1] == "excluded":
            assert outcome.excluded == {3: verdict.reason}
            if lies:
                assert verdict.reason.startswith("it claims 132 samples, but what it reports about its training")
                assert verdict.reason.endswith(
                    f"in this round suggests 44; with {patience + 1} warnings it is excluded"
                )
                assert verdict.high < 132
            else:
                left = patience + 11 - round
                claims = "1 more claim that fits" if left == 1 else f"{left} more claims in a row that fit"
                assert verdict.reason == (
                    f"earlier rounds left it with {patience + 1} warnings; it is heard again after {claims}"
                )
                assert (verdict.low, verdict.high, verdict.z) == (None, None, None)
    assert actions == ["corrected"] * patience + ["excluded"] * 10 + ["accepted"] * 2
    assert outcome.weights[3] == pytest.approx(44 / TRUE.sum())


def test_warnings_follow_a_client_over_rounds_without_it() -> None:
    ours, others = server(direct(patience=2), D), [i for i in range(12) if i != 3]
    actions = []
    for round in range(1, 9):
        ids = list(range(12)) if round % 2 else others
        outcome = ours.receive(replies(TRUE[ids], lying()[ids], ids=ids, seed=round), world(round))
        actions += [outcome.verdicts[3].action] if 3 in ids else []
    assert actions == ["corrected", "corrected", "excluded", "excluded"]
    record = ours.records["counts"][3]
    assert record["rounds"].tolist() == [0, 0]  # of the report, of the update: claims that were answered
    assert float(record["warnings"]) == 3  # one excluded is warned no more
    assert ours.records["counts"][0]["rounds"].tolist() == [8, 8]


def test_memory_makes_a_steady_verdict_of_unsteady_rounds() -> None:
    """Displacement alone: clients differ by chance in every round, one claims 1.8 times its data."""
    found = {}
    for memory in (True, False):
        ours, found[memory] = server(direct(evidence="displacement", memory=memory), D), []
        for round in range(1, 41):
            noise = np.exp(0.4 * np.random.default_rng(1000 + round).standard_normal((12, 1)))
            outcome = judge(lying(1.8), ours, round, updates=lambda d, noise=noise: d * noise)
            found[memory].append(outcome.verdicts[3].z)
    assert np.std(found[True][15:]) < 0.6 * np.std(found[False][15:])
    assert np.mean(found[True][15:]) > 1.3 * np.mean(found[False][15:]) > 0
    record = ours.records["counts"][3]
    assert not bool(record["rounds"].any())
    assert not bool(record["sums"].any())


def test_each_kind_of_evidence_counts_its_own_rounds() -> None:
    """A round without evidence is none: client 5 does not move in every second one, and its update then answers its claim."""
    ours = server(direct(), D)
    for round in range(1, 5):
        gradient = np.exp(0.1 * np.random.default_rng(round).standard_normal(12))
        gradient[5] *= round % 2
        moved = np.where(np.arange(12) == 5, round % 2, 1)[:, None]
        judge(None, ours, round, told={"gradient": gradient}, updates=lambda d, moved=moved: d * moved)
    assert ours.records["counts"][5]["rounds"].tolist() == [2, 2]
    assert ours.records["counts"][4]["rounds"].tolist() == [4, 4]


def test_with_everybody_excluded_the_round_is_skipped_and_remembered() -> None:
    ours = server(feddua(patience=0, evidence="report"), D)
    rng = np.random.default_rng(0)
    phi = rng.standard_normal((12, branch.LAYOUT.size))
    judge(None, ours, 1, phi=phi)
    before, model = ours.state["counts"]["branch"].clone(), ours.model.clone()
    ids = [20, 21, 22]
    outcome = ours.receive(replies([40, 48, 56], [4000, 4800, 5600], ids=ids, phi=phi[:3], seed=5), world(2))
    assert outcome.skipped == "no client could be trusted"
    assert set(outcome.excluded) == set(ids)
    assert torch.equal(ours.model, model)
    assert torch.equal(ours.state["counts"]["branch"], before)
    assert float(ours.records["counts"][20]["warnings"]) == 1


def test_the_branch_is_averaged_over_believed_clients() -> None:
    """Neither one rejected in this round (1) nor one excluded (2, 3) moves it; one of whom nothing is known, as verified."""
    ours = server(feddua(patience=1, evidence="report"), D)
    rng = np.random.default_rng(3)
    silent = np.arange(12) == 5
    for round in (1, 2, 3):
        before = ours.state["counts"]["branch"].numpy().copy()
        phi = before + 0.01 * rng.standard_normal((12, branch.LAYOUT.size))  # within reach: 0.24 of 0.5
        outcome = judge(
            np.where(silent, 1e6, lying() if round < 3 else TRUE),
            ours,
            round,
            phi=phi,
            told={"gradient": np.where(silent, 0, np.exp(0.1 * np.random.default_rng(round).standard_normal(12)))},
            updates=lambda d: d * ~silent[:, None],
        )
        assert outcome.verdicts[3].action == ("corrected" if round == 1 else "excluded")
        assert all(outcome.verdicts[i].action == "accepted" for i in range(12) if i not in (3, 5))
        weights = np.where(silent, 100, np.where(np.arange(12) == 3, 0, TRUE))
        assert ours.state["counts"]["branch"].numpy() == pytest.approx(weights @ phi / weights.sum(), abs=1e-12)


def test_only_believed_points_are_remembered_and_at_most_128() -> None:
    ours = server(direct(patience=100), D)
    for round in range(1, 15):
        judge(lying(), ours, round)
        ids = ours.state["counts"]["ids"]
        assert 3 not in ids.tolist()
        assert int((ids >= 0).sum()) == min(11 * round, 128)
    assert ours.state["counts"]["recent"].shape[0] == 128
    assert not bool(ours.state["counts"]["recent"].isnan().any())


# ---------------------------------------------------------------- optimisers, refusals, the proxy


def test_under_adam_there_are_verdicts_and_nothing_follows(caplog) -> None:
    local = Local(batch=BATCH, optimizer=adam(0.01))
    ours = server(direct(patience=0), D)
    seen = set()
    for round in (1, 2):
        outcome = ours.receive(replies(TRUE, lying(100.0), seed=round), world(round, local))
        seen |= {v.action for v in outcome.verdicts.values()}
        assert outcome.verdicts[3].action == "warned"
        assert list(outcome.weights.values()) == pytest.approx(lying(100.0) / lying(100.0).sum())
        assert not outcome.excluded
    assert seen <= {"accepted", "warned"}
    with caplog.at_level(logging.WARNING):
        Simulation(direct(), blobs([9] * 5), small(), local=local)
    assert "Verdicts are recorded, but no claim is corrected and no client is excluded" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        Simulation(direct(), blobs([9] * 5), small(), local=Local(optimizer=sgd(0.1, momentum=0.9)))
    assert not caplog.text


def test_what_it_cannot_do_is_refused_in_a_sentence() -> None:
    with pytest.raises(
        CounterpoiseError, match=r"with local\.steps they say nothing about the data\. Set local\.epochs"
    ):
        Simulation(direct(), blobs([9] * 5), small(), local=Local(steps=3))
    with pytest.raises(
        CounterpoiseError, match=r"needs a proxy set of at least 16 samples \(two batches\) .* it has 0"
    ):
        Simulation(direct(prior="proxy"), blobs([9] * 5), small(), local=LOCAL)
    with pytest.raises(CounterpoiseError, match="it has 15"):
        Simulation(direct(prior="proxy"), blobs([30] * 5, proxy=15), small(), local=LOCAL)
    Simulation(
        direct(prior="proxy", evidence="displacement"), blobs([9] * 5), small(), local=LOCAL
    )  # has no use for it


class Rehearsing(FixedWorld):
    """A world with a proxy set, on which training looks as it does."""

    proxy_size = 200

    def __init__(self, round) -> None:
        super().__init__(D, round=round, local=LOCAL)
        self.asked: list[list[int]] = []

    def rehearse(self, sizes):
        self.asked.append(list(sizes))
        return replies(sizes)


def test_the_server_rehearses_a_ladder_of_sizes_every_ten_rounds() -> None:
    ours, asked = server(direct(prior="proxy", evidence="report", patience=100), D), {}
    for round in range(1, 23):
        world_ = Rehearsing(round)
        outcome = ours.receive(replies(TRUE, np.where(np.arange(12) < 2, 3 * TRUE, TRUE), seed=round), world_)
        assert [v.action for v in outcome.verdicts.values()] == ["corrected"] * 2 + ["accepted"] * 10
        if world_.asked:
            asked[round] = world_.asked[0]
    assert set(asked) == {1, 11, 21}
    ladder = asked[1]
    assert len(ladder) == 8
    assert (ladder[0], ladder[-1]) == (BATCH, 200)
    assert np.diff(np.log(ladder)) == pytest.approx([math.log(200 / BATCH) / 7] * 7, abs=0.1)


@pytest.mark.parametrize(("count", "liars"), [(1, 1), (2, 1), (4, 1), (4, 2)])
def test_below_five_clients_the_servers_own_training_judges_reports(count, liars) -> None:
    """Its eight rehearsals are honest, whoever lies."""
    true, lies = TRUE[6 : 6 + count], np.arange(count) < liars
    outcome = server(direct(prior="proxy"), D).receive(replies(true, np.where(lies, 3 * true, true)), Rehearsing(1))
    assert [v.action for v in outcome.verdicts.values()] == ["corrected" if lie else "accepted" for lie in lies]
    assert [v.estimated for v in outcome.verdicts.values()] == pytest.approx(true, abs=BATCH)


def test_three_liars_of_four_hide_one_another_beside_the_rehearsals() -> None:
    """A limit: of four clients and eight rehearsals they are a quarter."""
    claimed = np.where(np.arange(4) < 3, 3 * TRUE[6:10], TRUE[6:10])
    outcome = server(direct(prior="proxy"), D).receive(replies(TRUE[6:10], claimed), Rehearsing(1))
    assert {v.action for v in outcome.verdicts.values()} == {"accepted"}


def test_below_five_clients_the_update_is_held_against_nothing() -> None:
    """A gradient forged to fit the claim passes the report; three others are no measure of an update."""
    true, lie = np.array([40, 48, 56, 64]), np.array([20.0, 1.0, 1.0, 1.0])
    told = {"gradient": replies(true).reports["counts"]["gradient"].numpy() / lie}
    actions = {}
    for evidence in ("both", "displacement"):
        ours = server(direct(prior="proxy", evidence=evidence, threshold=1.0), D)
        outcome = ours.receive(replies(true, true * lie, told=told), Rehearsing(1))
        actions[evidence] = {(v.action, v.reason) for v in outcome.verdicts.values()}
    few = "fewer than 5 clients have been seen"
    assert actions == {"both": {("accepted", "")}, "displacement": {("accepted", few)}}


def test_below_five_clients_the_branch_is_judged_by_nobody() -> None:
    phi = np.zeros((4, branch.LAYOUT.size))

    class Branched(Rehearsing):
        def rehearse(self, sizes):
            return replies(sizes, phi=np.zeros((len(sizes), branch.LAYOUT.size)))

    ours = server(feddua(prior="proxy"), D)
    outcome = ours.receive(replies(TRUE[:4], TRUE[:4] * [10.0, 1.0, 1.0, 1.0], phi=phi), Branched(1))
    assert {v.action for v in outcome.verdicts.values()} == {"accepted"}
    assert {v.reason for v in outcome.verdicts.values()} == {"fewer than 5 clients have been seen"}


@pytest.mark.parametrize(("prior", "liars", "seen"), [("cohort", 4, False), ("proxy", 4, True), ("proxy", 6, False)])
def test_many_liars_hide_in_the_spread(prior, liars, seen) -> None:
    """A limit of both priors: a fifth of those who say what is usual may lie. Rehearsals are honest ones among them."""
    ours, lies = server(direct(prior=prior, evidence="report"), D), np.arange(12) < liars
    outcome = ours.receive(replies(TRUE, np.where(lies, 3 * TRUE, TRUE)), Rehearsing(1))
    actions = [v.action for v in outcome.verdicts.values()]
    assert actions == ["corrected" if lie and seen else "accepted" for lie in lies]


def test_the_networks_prior_is_what_reports_are_held_against() -> None:
    """Lifted by 1 between two rounds, it makes every claim seem e times too large."""
    ours = server(direct(prior="network", evidence="report"), D)
    first = ours.receive(replies(TRUE), Rehearsing(1))
    assert max(abs(v.z) for v in first.verdicts.values()) < 1
    ours.state["counts"]["network"][2] += 1
    second = ours.receive(replies(TRUE, seed=2), Rehearsing(2))
    assert min(v.z for v in second.verdicts.values()) > 0.5


def test_a_server_that_begins_late_rehearses_at_once() -> None:
    world_ = Rehearsing(5)
    server(direct(prior="proxy", evidence="report"), D).receive(replies(TRUE), world_)
    assert len(world_.asked) == 1


# ---------------------------------------------------------------- in a simulation


def skewed(seed=0, clients=20, proxy=0, samples=700):
    """Clients of unequal size on separable samples."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, samples + proxy)
    x = (2 * np.eye(3, 6)[y] + rng.standard_normal((len(y), 6))).astype("float32")
    partition = cp.quantity_dirichlet(2.0, clients=clients, minimum=8)
    return cp.Federation.from_arrays(x, y, partition=partition, heldout=0, probe=1, proxy=proxy)


@pytest.mark.parametrize(
    "options",
    [{}, {"paper": True}, {"prior": "proxy", "factor": "direct"}, {"prior": "network", "factor": "direct"}],
    ids=str,
)
def test_a_liar_ends_excluded_and_the_rest_train_on(options) -> None:
    federation = skewed(proxy=200)
    run = cp.simulate(
        feddua(patience=2, **options),
        federation,
        model=small(),
        rounds=6,
        local=LOCAL,
        adversary=cp.adversary.claims(5.0, clients=[4]),
        engine=double(),
    )
    assert [v["action"] for v in run.verdicts if v["client"] == 4] == ["corrected"] * 2 + ["excluded"] * 4
    assert {v["action"] for v in run.verdicts if v["client"] != 4} == {"accepted"}
    assert [r.liars for r in run.rounds] == [(4,)] * 6
    assert run.summary()["rejected"] == 6
    assert run.summary()["excluded"] == 4
    assert all(4 not in weights for weights in run.weights[2:])


def test_paper_is_the_papers_own_combination() -> None:
    ours = feddua(paper=True)
    part = ours.part("counts")
    state = part.server_state(torch.zeros(3))
    assert "branch" in state  # factor
    assert state["recent"].shape[1] == 7 + 2  # report and consistency: no displacement
    assert "network" in state  # prior
    with pytest.raises(CounterpoiseError, match="needs a proxy set"):
        Simulation(ours, blobs([9] * 5), small(), local=LOCAL)
    with pytest.raises(CounterpoiseError, match="paper means factor 'branch', not 'direct'"):
        feddua(factor="direct", paper=True)
    with pytest.raises(CounterpoiseError, match="paper means evidence 'report', not 'displacement'"):
        feddua(evidence="displacement", paper=True)
    with pytest.raises(CounterpoiseError, match="paper means prior 'network', not 'proxy'"):
        feddua(prior="proxy", paper=True)


def test_replies_are_judged_the_same_in_any_order_of_magnitude() -> None:
    """The verdicts do not change when the model's scale does."""
    one, other = judge(lying()), judge(lying(), local=Local(batch=BATCH, optimizer=sgd(LR)))
    sent = replies(TRUE, lying(), seed=1)
    told = {"counts": dict(sent.reports["counts"]) | {"gradient": 1000 * sent.reports["counts"]["gradient"]}}
    scaled = server(direct(), D).receive(replace(sent, updates=1000 * sent.updates, reports=told), world())
    assert one == other
    assert [v.z for v in scaled.verdicts.values()] == pytest.approx([v.z for v in one.verdicts.values()], abs=1e-6)
