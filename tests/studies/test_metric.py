"""Which number stands for a run."""

from __future__ import annotations

import math
from types import SimpleNamespace as Namespace
from typing import Any

import pytest

from counterpoise.errors import CounterpoiseError
from counterpoise.measures import best_by_clients
from counterpoise.studies.measuring import curve_of
from counterpoise.studies.metric import parse_metric
from counterpoise.verdict import Verdict

CURVE = [(2, 0.1), (4, 0.7), (6, 0.5), (8, 0.6), (9, 0.4)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("last", 40.0),
        ("best", 70.0),
        ("mean", 46.0),
        ("mean of the last 2", 50.0),  # evaluations, whichever rounds they are of
        ("mean of the last 4", 55.0),
        ("mean of the last 9", 46.0),
        ("mean of the first 2", 40.0),
        ("mean of the first 9", 46.0),
        ("volatility", 27.5),  # the changes are 60, -20, 10 and -20
        ("volatility of the last 3", 15.0),
        ("volatility of the first 3", 40.0),
        ("rounds to 60", 4.0),
    ],
)
def test_a_metric_of_a_curve_is_in_points(text: str, value: float) -> None:
    assert parse_metric(text).value(CURVE) == pytest.approx(value)


def test_a_loss_is_not_in_points_and_its_best_is_the_least() -> None:
    loss = parse_metric("best", "loss")
    assert (loss.value(CURVE), loss.lower, loss.in_points) == (0.1, True, False)
    assert parse_metric("rounds to 0", "loss").value([(1, 0.5), (3, 0.0)]) == 3.0


def test_what_is_not_reached_or_not_measured_has_no_value() -> None:
    assert math.isnan(parse_metric("rounds to 71").value(CURVE))
    assert not parse_metric("rounds to 71").in_points
    for text in ("last", "best", "mean", "mean of the last 3"):
        assert parse_metric(text).in_points
        assert not parse_metric(text).lower
        assert math.isnan(parse_metric(text).value([]))


def test_less_volatility_is_better_and_no_share() -> None:
    metric = parse_metric("volatility of the first 9")
    assert (metric.lower, metric.in_points, metric.words) == (
        True,
        False,
        "accuracy, volatility of the first 9 evaluations",
    )
    assert math.isnan(metric.value(CURVE[:1]))


def test_points_have_two_decimals_and_other_values_four_digits() -> None:
    assert parse_metric("last").shown(1.239) == "1.24"
    assert parse_metric("last").shown(1.239, "+") == "+1.24"
    assert parse_metric("last", "note alpha").shown(0.0312345, "+") == "+0.03123"
    assert parse_metric("rounds to 60").shown(120.0) == "120"


@pytest.mark.parametrize(
    "text",
    [
        "volatility of the first 0",
        "best of the last 3",
        "first",
        "mean of the last 0",
        "mean of the last",
        "rounds to",
        "rounds to -1",
        "",
    ],
)
def test_another_word_is_refused(text: str) -> None:
    with pytest.raises(CounterpoiseError, match="metric must be last, best, mean, volatility, mean of"):
        parse_metric(text)


def record(round: int, weights: dict[int, float], clients: dict[str, dict[int, float]], **more: Any) -> Any:
    outcome = {"weights": weights, "notes": {"reliability": {0: 2.0, 1: 1.0, 2: 0.0}}, "verdicts": {}}
    liars, cohort = more.pop("liars", ()), more.pop("cohort", ())
    return Namespace(
        round=round,
        metrics={"accuracy": round / 10, "brier": 0.3},
        clients=clients,
        outcome=Namespace(**outcome | more),
        liars=liars,
        cohort=cohort,
    )


def test_measures_on_the_test_set_of_personal_models_and_couplings() -> None:
    measured = {"accuracy": {0: 0.1, 1: 0.2, 2: 0.3}, "personal_accuracy": {0: 0.9, 1: 0.8, 2: 0.1}}
    records = [
        record(1, {0: 1.0, 1: 2.0, 2: 3.0}, {}),
        record(2, {0: 1.0, 1: 2.0, 2: 3.0}, measured),
        record(3, {0: 1.0, 1: 1.0, 2: 1.0}, measured),  # no rank correlation
    ]
    assert curve_of(records, "accuracy") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert curve_of(records, "brier") == [(1, 0.3), (2, 0.3), (3, 0.3)]
    assert curve_of(records, "personal accuracy") == [(2, pytest.approx(0.6)), (3, pytest.approx(0.6))]
    assert curve_of(records, "coupling of weight") == [(2, pytest.approx(1.0))]
    assert [value for _, value in curve_of(records, "coupling of reliability")] == pytest.approx([-1.0, -1.0])
    assert curve_of(records, "recall") == []
    assert curve_of(records, "effective clients") == [
        (1, pytest.approx(36 / 14)),
        (2, pytest.approx(36 / 14)),
        (3, 3.0),
    ]
    assert curve_of(records, "note reliability") == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert curve_of(records, "note alpha") == []
    assert (parse_metric("last", "note alpha").scale, parse_metric("last", "effective clients").scale) == (1.0, 1.0)


def test_personal_models_by_data_are_those_of_all_held_out_samples() -> None:
    measured = {"accuracy": {0: 0.1, 1: 0.2, 2: 0.3}, "personal_accuracy": {0: 0.9, 1: 0.8}, "loss": {0: 2.0}}
    records = [
        record(1, {}, {}, claims={0: 10, 1: 30}),
        record(2, {}, measured, claims={0: 10, 1: 30}),
        record(3, {}, measured, claims={1: 30, 2: 90, 5: 7}),  # the last was not measured
    ]
    expected = [(2, pytest.approx((9 + 24) / 40)), (3, pytest.approx((24 + 27) / 120))]
    assert curve_of(records, "personal accuracy by data") == expected
    assert curve_of(records, "personal loss by data") == [(2, 2.0)]
    assert parse_metric("best", "personal accuracy by data").scale == 100.0
    assert parse_metric("best", "personal loss by data").scale == 1.0
    assert parse_metric("best", "personal loss by data").lower


def test_a_round_chosen_by_clients_is_the_first_so_far_that_is_best_on_their_data() -> None:
    means = {1: None, 2: 0.3, 3: 0.5, 4: 0.5, 5: 0.4, 6: 0.6}
    records = [
        record(round, {}, {} if mean is None else {"accuracy": {0: mean - 0.1, 1: mean + 0.1}})
        for round, mean in means.items()
    ]
    assert curve_of(records, "accuracy chosen by clients") == [(2, 0.2), (3, 0.3), (4, 0.3), (5, 0.3), (6, 0.6)]
    assert best_by_clients(records[:5]).value == 0.3
    assert curve_of(records, "loss chosen by clients") == []


def verdict(claimed: float, estimated: float | None, action: Any) -> Verdict:
    return Verdict(claimed, estimated, None, None, None, action)


def test_verdicts_are_held_against_the_lies_of_their_round() -> None:
    first = {
        0: verdict(30, 10, "corrected"),  # a lie that is caught
        1: verdict(30, 30, "accepted"),  # one that is not
        2: verdict(100, 110, "accepted"),
        3: verdict(100, 50, "excluded"),  # a false alarm
        4: verdict(100, 80, "accepted"),
        5: verdict(100, None, "accepted"),
    }
    honest = {2: verdict(100, 100, "accepted")}
    records = [
        record(1, {}, {}, verdicts=first, liars=(0, 1)),
        record(2, {}, {}, verdicts=honest),
        record(3, {}, {}),  # a method without verdicts
    ]
    assert curve_of(records, "detection recall") == [(1, 0.5)]
    assert curve_of(records, "detection false alarms") == [(1, 0.25), (2, 0.0)]
    assert curve_of(records, "count error") == [(1, pytest.approx(0.2)), (2, 0.0)]
    lower = {
        name: parse_metric("mean", name).lower for name in ("detection recall", "detection false alarms", "count error")
    }
    assert lower == {"detection recall": False, "detection false alarms": True, "count error": True}


def test_shares_of_honest_and_of_hostile_replies_that_are_left_out() -> None:
    records = [
        record(1, {}, {}, claims=dict.fromkeys(range(6), 1), liars=(0, 1), excluded={0: "why", 5: "why"}),
        record(2, {}, {}, cohort=(2, 3, 4), claims={2: 1, 3: 1}, excluded={4: "it dropped out"}),
    ]
    assert curve_of(records, "honest replies left out") == [(1, 0.25), (2, 0.0)]
    assert curve_of(records, "hostile replies left out") == [(1, 0.5)]
    assert parse_metric("mean", "honest replies left out").lower
    assert not parse_metric("mean", "hostile replies left out").lower


def test_the_share_of_honest_clients_that_are_left_out_in_more_than_one_round() -> None:
    everyone = {"claims": dict.fromkeys(range(4), 1), "liars": (0,)}
    records = [
        record(1, {}, {}, claims={}, excluded={}),
        record(2, {}, {}, **everyone, excluded={0: "why", 1: "why"}),
        record(3, {}, {}, **everyone, excluded={0: "why", 1: "why", 2: "why"}),
        record(4, {}, {}, claims={4: 1}, excluded={2: "it dropped out"}),
    ]
    found = curve_of(records, "honest clients left out twice")
    assert found == [(2, 0), (3, pytest.approx(1 / 3)), (4, 0.25)]
    assert parse_metric("last", "honest clients left out twice").lower
