"""The rules of a study's verdicts, against closed forms."""

from __future__ import annotations

import math

import pytest

from counterpoise.studies.verdicts import FEWEST, alike, claim, half_width, judge, tolerance

T4 = 2.7764451051977987
"""Student's 97.5 % quantile with 4 degrees of freedom, from a table."""


def around(mean: float, deviation: float = 1.0) -> list[float]:
    """Five values with exactly this mean and sample deviation."""
    step = deviation / math.sqrt(2.5)  # the sample variance of -2, -1, 0, 1, 2 is 10 / 4
    return [mean + step * place for place in (-2, -1, 0, 1, 2)]


def test_the_tolerance_is_the_lesser_of_a_point_and_a_fifth_of_the_error() -> None:
    assert [tolerance(error) for error in (50, 5, 2, 0)] == pytest.approx([1, 1, 0.4, 0])


@pytest.mark.parametrize(("theirs", "factor"), [(1, math.sqrt(6 / 5)), (3, math.sqrt(8 / 15)), (5, math.sqrt(2 / 5))])
def test_the_half_width_by_hand(theirs: int, factor: float) -> None:
    assert half_width(2.0, 5, theirs) == pytest.approx(T4 * 2 * factor)
    assert judge(around(50, 2.0), 50, theirs).half == pytest.approx(T4 * 2 * factor)


def test_the_number_of_published_seeds_is_one_unless_it_is_known() -> None:
    assert judge(around(50), 50) == judge(around(50), 50, 1)


@pytest.mark.parametrize(
    ("mean", "deviation", "verdict"),
    [
        # h = 3.0414 s with one published seed; delta is 1 at 50 points.
        (53.05, 1.0, "higher"),
        (46.95, 1.0, "lower"),
        (53.03, 1.0, "undecided"),  # within h, which is more than 3 delta
        (51.01, 0.1, "higher"),
        (50.99, 0.1, "agrees"),  # beyond h, within delta
        (52.9, 0.98, "agrees"),  # beyond delta, within h, which is 2.98: at most 3 delta
        (50.99, 5.0, "agrees"),  # within delta, however wide h is
        (51.01, 5.0, "undecided"),
        (48.99, 5.0, "undecided"),
    ],
)
def test_verdicts_at_the_edges_of_their_rules(mean: float, deviation: float, verdict: str) -> None:
    found = judge(around(mean, deviation), 50.0)
    assert found.verdict == verdict
    assert found.difference == pytest.approx(mean - 50)
    assert found.half == pytest.approx(T4 * math.sqrt(1.2) * deviation)
    assert found.tolerance == 1


def test_near_a_perfect_score_the_tolerance_is_a_fifth_of_what_is_missing() -> None:
    assert judge(around(99.5, 0.1), 99.0).verdict == "higher"  # d = 0.5, h = 0.30, delta = 0.2
    assert judge(around(99.15, 0.01), 99.0).verdict == "agrees"


@pytest.mark.parametrize(
    ("mean", "difference", "verdict"),
    [
        (44, -6, "lower"),
        (46.9, -3.1, "lower"),
        (50, 0, "agrees"),
        (54, 0, "agrees"),
        (58, 0, "agrees"),
        (62, 4, "higher"),
    ],
)
def test_a_range_is_as_far_away_as_its_nearest_end(mean: float, difference: float, verdict: str) -> None:
    found = judge(around(mean), 50.0, to=58.0)
    assert (found.difference, found.verdict) == (pytest.approx(difference), verdict)
    assert judge(around(99.5), 50.0, to=99.0).tolerance == pytest.approx(0.2)


def test_fewer_than_five_seeds_have_a_difference_and_a_width_and_no_verdict() -> None:
    assert FEWEST == 5
    four = judge([60.0, 61.0, 62.0, 63.0], 50.0)
    assert four[:3] == pytest.approx((11.5, 3.182446305284263 * math.sqrt(5 / 3) * math.sqrt(5 / 4), 1.0))
    assert four.verdict == ""
    one = judge([60.0], 50.0)
    assert (one.difference, math.isnan(one.half), one.verdict) == (10.0, True, "")


@pytest.mark.parametrize(
    ("shift", "verdict"), [(1.9, "agrees"), (-1.9, "contradicted"), (0.9, "not shown"), (-0.9, "not shown")]
)
def test_a_claim_is_judged_seed_by_seed(shift: float, verdict: str) -> None:
    """The differences have deviation 1, so that their mean's interval reaches T4 / sqrt 5 = 1.24 either side."""
    than = {seed: 10.0 * seed for seed in range(5)}  # seeds differ by far more than methods
    better = {seed: than[seed] + value for seed, value in enumerate(around(shift))}
    found = claim(better, than)
    assert found.verdict == verdict
    assert (found.paired.low, found.paired.high) == pytest.approx(
        (shift - T4 / math.sqrt(5), shift + T4 / math.sqrt(5))
    )


def test_a_claim_counts_the_seeds_that_both_have() -> None:
    better = dict(enumerate(around(10.0)))
    found = claim(better | {9: 500.0}, dict.fromkeys(range(5), 0.0) | {8: -500.0})
    assert (found.paired.seeds, found.verdict) == (5, "agrees")
    assert claim(better, dict.fromkeys(range(4), 0.0)).verdict == ""


def test_seeds_that_do_not_vary_show_nothing() -> None:
    assert claim(dict.fromkeys(range(5), 2.0), dict.fromkeys(range(5), 1.0)).verdict == "not shown"
    assert claim(dict.fromkeys(range(5), 1.0), dict.fromkeys(range(5), 1.0)).verdict == "not shown"


@pytest.mark.parametrize(
    ("shift", "verdict"),
    [
        (0.5, "agrees"),
        (-0.5, "agrees"),
        (1.5, "not shown"),
        (-1.5, "not shown"),
        (3.5, "contradicted"),
        (-3.5, "contradicted"),
    ],
)
def test_methods_are_alike_if_the_interval_lies_within(shift: float, verdict: str) -> None:
    """The interval reaches 1.24 either side, and the methods may differ by 2."""
    other = {seed: 10.0 * seed for seed in range(5)}
    one = {seed: other[seed] + value for seed, value in enumerate(around(shift))}
    found = alike(one, other, 2.0)
    assert (found.verdict, found.paired.difference) == (verdict, pytest.approx(shift))
    assert alike(dict(list(one.items())[:4]), other, 2.0).verdict == ""


def test_equal_values_are_alike() -> None:
    assert alike(dict.fromkeys(range(5), 2.0), dict.fromkeys(range(5), 2.0), 0.1).verdict == "agrees"
