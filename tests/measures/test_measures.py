"""Every measure against scipy, scikit-learn or a case worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import auc, roc_auc_score, roc_curve
from worlds import FixedWorld, cohort, server

import counterpoise as cp
from counterpoise import measures as m
from counterpoise.errors import CounterpoiseError
from counterpoise.method import Verdict

NAN = math.nan


@dataclass
class Said:
    weights: dict | None = None
    notes: dict = field(default_factory=dict)
    verdicts: dict = field(default_factory=dict)
    facts: dict = field(default_factory=dict)


@dataclass
class Round:
    """As much of a record as measures ask for."""

    round: int
    metrics: dict = field(default_factory=dict)
    outcome: Said = field(default_factory=Said)
    clients: dict = field(default_factory=dict)
    seconds: float = 0.5
    bytes_up: int = 10
    bytes_down: int = 3
    memory: int = 0
    liars: tuple = ()


def rounds(values, **more):
    """One record a round; None is a round that was not evaluated."""
    return [Round(i, {} if v is None else {"accuracy": v}, **more) for i, v in enumerate(values, 1)]


# ---------------------------------------------------------------- curves

VALUES = [0.1, 0.3, None, 0.2, 0.6, 0.9, 0.5, 0.9, 0.8, 0.7, None, 0.6, 0.5]


def test_last_mean_of_last_and_best_are_three_different_things():
    curve = m.curve(rounds(VALUES))
    assert [r for r, _ in curve] == [1, 2, 4, 5, 6, 7, 8, 9, 10, 12, 13]
    assert m.last(curve) == 0.5
    assert m.mean_of_last(curve) == pytest.approx(np.mean([0.2, 0.6, 0.9, 0.5, 0.9, 0.8, 0.7, 0.6, 0.5]))  # rounds 4-13
    assert m.mean_of_last(curve, 2) == pytest.approx(0.55)
    assert m.best(curve) == (0.9, 6)
    assert m.best(curve, lower=True) == (0.1, 1)


def test_volatility_is_the_mean_step_from_one_measured_round_to_the_next():
    assert m.volatility([(1, 0.1), (2, 0.3), (5, 0.2)]) == pytest.approx(0.15)
    assert m.volatility([(1, 0.4), (2, 0.4)]) == 0


def test_rounds_and_bytes_to_a_target():
    records = rounds(VALUES)
    curve = m.curve(records)
    assert m.rounds_to(curve, 0.6) == 5
    assert m.rounds_to(curve, 0.95) is None
    assert m.rounds_to(curve, 0.1, lower=True) == 1
    assert m.bytes_to(records, 0.6) == 5 * 13
    assert m.bytes_to(records, 0.95) is None


def test_a_curve_without_points():
    assert [math.isnan(f([])) for f in (m.last, m.mean_of_last, m.volatility)] == [True] * 3
    assert m.best([]).round is None
    assert math.isnan(m.best([(1, NAN)]).value)
    assert m.rounds_to([], 0.5) is None


def test_spread_across_seeds_is_that_of_a_sample():
    assert m.across_seeds([1, 2, 4]) == pytest.approx((7 / 3, np.std([1, 2, 4], ddof=1)))
    assert m.across_seeds([1])[0] == 1
    assert math.isnan(m.across_seeds([1])[1])


# ---------------------------------------------------------------- fairness


def test_a_distribution_by_hand():
    found = m.distribution([*np.linspace(0.1, 1.0, 20), NAN])
    values = np.linspace(0.1, 1.0, 20)
    assert found.clients == 20
    assert found.mean == pytest.approx(0.55)
    assert found.deviation == pytest.approx(np.sqrt(np.mean((values - 0.55) ** 2)))
    assert found.worst_decile == pytest.approx(values[:2].mean())
    assert found.best_decile == pytest.approx(values[-2:].mean())
    assert found.gap == pytest.approx(values[-2:].mean() - values[:2].mean())
    assert (found.lowest, found.highest) == (0.1, 1.0)
    assert (found.lower_quartile, found.median, found.upper_quartile) == pytest.approx(
        tuple(stats.scoreatpercentile(values, [25, 50, 75]))
    )


def test_the_worst_decile_of_few_clients_is_the_worst_client():
    assert m.distribution([0.5, 0.1, 0.9])[-3:] == (0.1, 0.9, pytest.approx(0.8))
    assert m.distribution([0.4] * 11).worst_decile == pytest.approx(0.4)
    assert m.distribution([]).clients == 0


# ---------------------------------------------------------------- couplings


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=20))
def test_spearman_is_scipys(pairs):
    a, b = (dict(enumerate(map(float, column))) for column in zip(*pairs, strict=True))
    if len(set(a.values())) == 1 or len(set(b.values())) == 1:
        assert math.isnan(m.spearman(a, b))
    else:
        assert m.spearman(a, b) == pytest.approx(stats.spearmanr([*a.values()], [*b.values()]).statistic)


def test_a_coupling_is_over_the_clients_that_were_heard():
    accuracy = {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.9, 4: NAN}
    records = [
        Round(1, outcome=Said({0: 0.5, 1: 0.3, 2: 0.2}), clients={"accuracy": accuracy}),
        Round(2, outcome=Said({0: 0.1, 2: 0.2, 3: 0.7, 4: 0.0}), clients={"accuracy": accuracy}),
        Round(3, outcome=Said({0: 0.1, 2: 0.2, 3: 0.7})),  # clients were not evaluated
        Round(4, outcome=Said(None, {"reliability": {1: 1.0, 2: 3.0, 3: 2.0}}), clients={"accuracy": accuracy}),
        Round(5, outcome=Said({0: 0.5, 1: 0.5}), clients={"accuracy": accuracy}),  # two have no rank to speak of
    ]
    assert m.couplings(records)[:2] == [(1, pytest.approx(-1)), (2, pytest.approx(1))]
    assert [r for r, _ in m.couplings(records)] == [1, 2, 5]
    assert math.isnan(m.couplings(records)[2][1])
    assert m.couplings(records, "reliability") == [(4, pytest.approx(0.5))]


def test_a_contribution_is_a_clients_part_of_the_servers_step():
    """Updates (3, 0) and (0, 1) with weights 1/4 and 3/4 make the step (3/4, 3/4): parts 1/2 and 1/2."""
    found = server(cp.methods.fedavg(), 2).receive(cohort([4, 7], [[3.0, 0.0], [0.0, 1.0]], [1, 3]), FixedWorld(2))
    assert found.notes["contribution"] == pytest.approx({4: 0.5, 7: 0.5})
    one = server(cp.methods.fedavg(), 2).receive(cohort([4, 7], [[3.0, 1.0], [-1.0, 0.0]], [1, 1]), FixedWorld(2))
    step = np.array([1.0, 0.5])
    parts = np.array([[3.0, 1.0], [-1.0, 0.0]]) @ step / 2 / (step @ step)
    assert one.notes["contribution"] == pytest.approx({4: parts[0], 7: parts[1]})
    assert parts.sum() == pytest.approx(1)
    still = server(cp.methods.fedavg(), 2).receive(cohort([4, 7], np.zeros((2, 2))), FixedWorld(2))
    assert "contribution" not in still.notes


def test_the_effective_number_of_clients():
    assert m.effective_number([1 / 3] * 3) == pytest.approx(3)
    assert m.effective_number([2, 1, 1]) == pytest.approx(16 / 6)  # weights need not sum to one
    assert math.isnan(m.effective_number([0, 0]))
    assert m.effective_clients([Round(1, outcome=Said({0: 0.5, 1: 0.5})), Round(2)]) == [(1, pytest.approx(2))]


# ---------------------------------------------------------------- detection


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_auc_is_scikit_learns(pairs):
    scores, lies = ([*column] for column in zip(*pairs, strict=True))
    if len(set(lies)) == 1:
        assert math.isnan(m.auc(scores, lies))
    else:
        assert m.auc(scores, lies) == pytest.approx(roc_auc_score(lies, scores))


def test_recall_false_alarms_and_error_by_hand():
    flagged, lies = [True, False, True, False, False], [True, True, False, False, False]
    assert m.recall(flagged, lies) == 0.5
    assert m.false_alarms(flagged, lies) == pytest.approx(1 / 3)
    assert math.isnan(m.recall([True], [False]))
    assert m.count_error([110, 90, 300], [100, 100, 100]) == pytest.approx(0.1)
    assert m.count_error([NAN, 120], [100, 100]) == pytest.approx(0.2)
    assert math.isnan(m.count_error([], []))


def verdict(client, round, action, z=0.0, estimated=NAN):
    return {"client": client, "round": round, "action": action, "z": z, "estimated": estimated, "claimed": 1}


ROWS = [
    verdict(0, 1, "accepted", 0.1, 50),
    verdict(1, 1, "corrected", -5.0, 100),
    verdict(2, 1, "warned", 2.5, 40),
    verdict(0, 2, "accepted", 0.3),
    verdict(1, 2, "accepted", 1.0),
    verdict(3, 2, "excluded", 4.0, 11),
]


def test_verdicts_against_clients_that_always_lie():
    found = m.detection(ROWS, liars={1, 3}, counts={0: 50, 1: 80, 3: 10})
    assert found.claims == 6
    assert found.recall == pytest.approx(2 / 3)
    assert found.false_alarms == pytest.approx(1 / 3)
    assert found.auc == pytest.approx(roc_auc_score([0, 1, 0, 0, 1, 1], [0.1, 5, 2.5, 0.3, 1, 4]))
    assert (found.caught, found.accused) == (1.0, 0.5)
    assert found.count_error == pytest.approx(np.median([0, 0.25, 0.1]))


def test_verdicts_against_clients_that_lie_at_times():
    found = m.detection(ROWS, liars={(1, 1), (3, 2)})
    assert found.recall == 1.0
    assert found.false_alarms == pytest.approx(1 / 4)
    assert math.isnan(found.count_error)
    assert math.isnan(m.detection(ROWS, liars=set()).recall)


def test_clients_caught_and_accused_so_far():
    assert m.caught_by_round(reversed(ROWS), liars={1, 3}) == [(1, 1.0, 0.5), (2, 1.0, 0.5)]
    at_times = m.caught_by_round(ROWS, liars={(0, 2)})
    assert at_times[0] == (1, pytest.approx(NAN, nan_ok=True), pytest.approx(2 / 3))
    assert at_times[1] == (2, 0.0, 1.0)
    assert m.caught_by_round([], liars={1}) == []


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_the_detection_curve_is_scikit_learns(pairs):
    scores, lies = ([*column] for column in zip(*pairs, strict=True))
    found = m.roc(scores, lies)
    if len(set(lies)) == 1:
        assert found == []
        return
    alarms, recalls, thresholds = roc_curve(lies, scores, drop_intermediate=False)
    assert found == [pytest.approx(row) for row in zip(thresholds, alarms, recalls, strict=True)]
    assert auc([a for _, a, _ in found], [r for _, _, r in found]) == pytest.approx(m.auc(scores, lies))


# ---------------------------------------------------------------- significance


@pytest.mark.parametrize("seeds", [2, 3, 5, 6, 8])
def test_a_paired_comparison_is_scipys(seeds):
    rng = np.random.default_rng(seeds)
    a, b = rng.normal(0.8, 0.1, seeds), rng.normal(0.75, 0.1, seeds)
    found, test = m.paired(a, b), stats.ttest_rel(a, b)
    assert (found.seeds, found.difference) == (seeds, pytest.approx((a - b).mean()))
    assert found.p == pytest.approx(test.pvalue)
    for level in (0.95, 0.8):
        theirs = test.confidence_interval(level)
        assert m.paired(a, b, level)[2:4] == pytest.approx((theirs.low, theirs.high))
    assert found.least == pytest.approx(found.high - found.difference)
    if seeds < 6:
        assert math.isnan(found.wilcoxon)
    else:
        assert found.wilcoxon == pytest.approx(stats.wilcoxon(a, b).pvalue)


@pytest.mark.parametrize(("seeds", "quantile"), [(3, 4.302653), (5, 2.776445), (6, 2.570582), (10, 2.262157)])
def test_interval_and_p_are_one_test_by_printed_quantiles(seeds, quantile):
    """Differences whose t is just that of the table: the interval ends at 0, and p is 0.05."""
    deviates = np.arange(seeds) - (seeds - 1) / 2
    differences = deviates + quantile * deviates.std(ddof=1) / math.sqrt(seeds)
    found = m.paired(differences, [0.0] * seeds)
    assert found.low == pytest.approx(0, abs=1e-5)
    assert found.p == pytest.approx(0.05, abs=1e-6)
    assert m.paired(1.01 * differences - 0.01 * deviates, [0.0] * seeds).p < 0.05  # the same spread, a larger mean
    assert m.paired(0.99 * differences + 0.01 * deviates, [0.0] * seeds).p > 0.05


def test_three_seeds_that_agree_in_sign_may_still_be_chance():
    """1, 2, 3: the mean is 2, its error 1/sqrt(3), so t is sqrt(12), and with two degrees p = 1 - t/sqrt(2 + t^2)."""
    found = m.paired([1.0, 2.0, 3.0], [0.0] * 3)
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14))
    assert found.low < 0


def test_wilcoxon_by_enumeration():
    """All signs of six different sizes are equally likely: rank sums at least as far from the middle as ours."""
    differences = [0.1, 0.3, -0.2, 0.5, 0.4, 0.6]
    ours = 1 + 3 + 5 + 4 + 6
    sums = [sum(r for r, s in zip(range(1, 7), signs, strict=True) if s) for signs in product((0, 1), repeat=6)]
    exact = np.mean([abs(s - 10.5) >= abs(ours - 10.5) for s in sums])
    assert m.paired(differences, [0.0] * 6).wilcoxon == pytest.approx(exact)


def test_wilcoxon_is_told_from_the_seeds_on_with_which_it_can_be_small():
    sizes = np.arange(1.0, m.WILCOXON_FROM + 1)
    assert m.paired(sizes, 0 * sizes).wilcoxon == pytest.approx(2 / 2**6)
    assert stats.wilcoxon(sizes[:-1]).pvalue > 0.05
    assert math.isnan(m.paired(sizes[:-1], 0 * sizes[:-1]).wilcoxon)


def test_students_interval_of_two_values_is_cauchys():
    """With one degree of freedom t is Cauchy's, whose quantile is a tangent; the standard error of 0 and 1 is a half."""
    half = math.tan(math.pi * (0.975 - 0.5)) / 2
    assert m.student_interval([0.0, 1.0]) == pytest.approx((0.5 - half, 0.5 + half))
    assert m.student_interval([0.2, 0.2, 0.2]) == pytest.approx((0.2, 0.2))
    assert math.isnan(m.student_interval([1.0])[0])


def test_seeds_that_do_not_differ_at_all():
    assert m.paired([0.5, 0.6], [0.5, 0.6])[:5] == (2, 0.0, 0.0, 0.0, 1.0)
    assert m.paired([0.5] * 6, [0.5] * 6) == (6, 0.0, 0.0, 0.0, 1.0, 1.0)


def test_noise_of_floats_makes_no_difference_and_breaks_no_tie():
    """0.3 is not 0.1 + 0.2 in floats; and six sizes of which each three tie have ranks 2 and 5, whatever the last bit."""
    assert m.paired([0.1 + 0.2] * 6, [0.3] * 6) == (6, 0.0, 0.0, 0.0, 1.0, 1.0)
    assert m.paired([0.1 + 0.2], [0.3]).difference == 0
    ones, twos = ([0.3, 0.7, 0.2], [0.2, 0.8, 0.1]), ([0.3, 0.2, 0.9], [0.1, 0.4, 0.7])
    a, b = (np.concatenate(pair) for pair in zip(ones, twos, strict=True))
    assert len({*np.abs(a - b)}) > 2
    assert m.paired(a, b).wilcoxon == stats.wilcoxon([1, -1, 1, 2, -2, 2]).pvalue
    assert m.paired(1e-100 * a, 1e-100 * b).p == pytest.approx(m.paired(a, b).p)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([0.5], [0.4]),
        ([0.5, 0.6], [0.4, 0.5]),
        ([0.3, 0.9, 0.7], [0.2, 0.8, 0.6]),
        ([0.5] * 7, [0.4] * 7),
        ([0.5999999999999499, 0.59999999999995], [0.5, 0.5]),  # on either side of where rounding goes up
    ],
)
def test_without_spread_there_is_no_test(a, b):
    """One seed, or the same difference in all of them but for rounding: nothing says what chance could do."""
    found = m.paired(a, b)
    assert (found.seeds, found.difference) == (len(a), pytest.approx(0.1))
    assert all(map(math.isnan, found[2:]))


@pytest.mark.parametrize(
    ("a", "b", "sentence"),
    [
        ([1], [1, 2], "needs one value of each method per seed; there are 1 and 2"),
        ([], [], "there are 0 and 0"),
        ([NAN, 1], [1, 2], "needs finite values; a run that diverged has none"),
    ],
)
def test_what_cannot_be_paired_is_told(a, b, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        m.paired(a, b)


def test_the_round_that_clients_held_out_data_choose():
    """The means over clients are .3, .6, .6 and .5; round 2 is the first of the best, and its test accuracy not the best."""
    test = (0.4, 0.5, 0.7, 0.9, 0.95)
    each = ({0: 0.1, 1: 0.5}, {0: 0.7, 1: 0.5}, {0: 0.6, 1: 0.6}, {0: 0.95, 1: 0.05}, None)
    records = [
        Round(i, {"accuracy": t}, clients={} if c is None else {"accuracy": c})
        for i, (t, c) in enumerate(zip(test, each, strict=True), 1)
    ]
    untested = Round(6, {}, clients={"accuracy": {0: 1.0, 1: 1.0}})
    assert m.best_by_clients([*records, untested]) == (0.5, 2)
    assert m.best_by_clients(records, lower=True) == (0.4, 1)
    found = m.summary([*records, untested])
    assert found["accuracy (round best on clients' held-out data)"] == 0.5
    assert found["best round by clients' held-out accuracy"] == 2
    assert found["accuracy (best round)"] == 0.95
    assert m.best_by_clients(rounds(VALUES)).round is None
    assert not any("held-out" in name for name in m.summary(rounds(VALUES)))


# ---------------------------------------------------------------- cost, and a whole run


def test_cost_by_hand():
    records = [Round(1, memory=5), Round(2, memory=9)]
    assert m.cost(records) == (2, 1.0, 20, 6, 9)
    assert m.cost([]) == (0, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def run():
    federation = cp.load("digits", partition=cp.dirichlet(0.3, clients=8), seed=0)
    evaluation = cp.Evaluation(every=1, clients_every=1)
    return cp.simulate(
        "fedbac-soft", federation, model=cp.models.linear, rounds=12, cohort=6, evaluation=evaluation, seed=0
    )


def test_a_summary_names_every_measure(run):
    found = m.summary(run.rounds, target=0.3)
    accuracy = [r.metrics["accuracy"] for r in run.rounds]
    assert found["accuracy (last round)"] == run.accuracy == accuracy[-1]
    assert found["accuracy (mean of last 10 rounds)"] == pytest.approx(np.mean(accuracy[-10:]))
    assert found["accuracy (best round)"] == max(accuracy)
    assert found["loss (best round)"] == min(r.metrics["loss"] for r in run.rounds)
    assert found["accuracy volatility"] == pytest.approx(np.mean([abs(b - a) for a, b in pairwise(accuracy)]))
    assert found["rounds to accuracy 0.3"] == next(r.round for r in run.rounds if r.metrics["accuracy"] >= 0.3)
    assert found["client accuracy clients"] == len(run.rounds[-1].clients["accuracy"])
    assert 0 <= found["client accuracy gap"] <= 1
    assert -1 <= found["coupling of weight with client accuracy (mean over rounds)"] <= 1
    assert -1 <= found["coupling of contribution with client accuracy (mean over rounds)"] <= 1
    assert 1 <= found["effective clients (mean over rounds)"] <= 6
    assert found["bytes up"] == run.bytes_up
    assert found["peak memory"] > 1e7


def test_a_summary_holds_verdicts_against_the_truth():
    """Client 1 lies in round 2 alone and is seen; client 2 is accused once of two honest claims."""

    def said(**actions):
        claims = {int(c[1:]): Verdict(30.0, 10.0, None, None, z, a) for c, (a, z) in actions.items()}
        return Said(verdicts=claims)

    records = [
        Round(1, outcome=said(c1=("accepted", 0.1), c2=("warned", -5.0))),
        Round(2, outcome=said(c1=("corrected", 6.0), c2=("accepted", 0.2)), liars=(1,)),
    ]
    found = m.summary(records, counts={1: 8, 2: 10})
    assert (found["detection recall"], found["detection false alarms"], found["detection auc"]) == (1, 1 / 3, 1)
    assert (found["detection claims"], found["detection caught"]) == (4, 1)
    assert found["detection count error"] == pytest.approx(0.125)  # the median of 1/4, 1/4, 0 and 0
    assert "detection count error" not in m.summary(records)
    assert "detection recall" not in m.summary(records[:1])
    unknown = {name: value for name, value in m.summary(records, truth=False).items() if "detection" in name}
    assert unknown == {"detection claims": 4}


def test_a_summary_has_the_last_value_of_every_fact_that_a_method_recorded():
    records = [
        Round(1, outcome=Said(facts={"epsilon": 1.0, "pace": 3.0})),
        Round(2, outcome=Said(facts={"epsilon": 2.0})),
    ]
    found = m.summary(records)
    assert {key: value for key, value in found.items() if key.startswith("fact ")} == {
        "fact epsilon (last round)": 2.0,
        "fact pace (last round)": 3.0,
    }


def test_what_was_not_measured_is_left_out():
    found = m.summary([Round(1), Round(2)])
    assert found.keys() == {"rounds", "seconds", "bytes up", "bytes down", "peak memory"}


def test_a_run_from_its_folder_measures_the_same(run, tmp_path):
    run.save(tmp_path / "run")
    again = cp.resume(tmp_path / "run")
    assert m.summary(again.rounds) == pytest.approx(m.summary(run.rounds), rel=1e-3, nan_ok=True)


def test_a_metric_of_ones_own_has_every_measure():
    """Regression: the absolute error, in three lines."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 3))
    y = x @ np.array([1.0, -2.0, 0.5])
    federation = cp.Federation.from_arrays(x, y[:, None], partition=cp.iid(4), test=(x, y[:, None]))
    run = cp.simulate(
        "fedavg",
        federation,
        model=torch.nn.Linear(3, 1),
        rounds=5,
        loss=lambda outputs, targets: ((outputs - targets) ** 2).squeeze(1),
        metrics={"error": lambda outputs, targets: (outputs - targets).abs().squeeze(1)},
        evaluation=cp.Evaluation(every=1, clients_every=1),
    )
    found = m.summary(run.rounds, "error", target=0.5, lower=True)
    assert found["error (best round)"] == min(r.metrics["error"] for r in run.rounds)
    assert found["rounds to error 0.5"] is not None
    assert found["client error worst decile"] > found["client error mean"] > found["client error best decile"]
    assert found["client error gap"] > 0
