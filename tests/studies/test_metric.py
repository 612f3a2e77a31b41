"""Which number stands for a run."""

from __future__ import annotations

import math
from types import SimpleNamespace as Namespace
from typing import Any

import pytest

from counterpoise.errors import CounterpoiseError
from counterpoise.studies.metric import curve_of, parse_metric

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
        assert math.isnan(parse_metric(text).value([]))


@pytest.mark.parametrize("text", ["first", "mean of the last 0", "mean of the last", "rounds to", "rounds to -1", ""])
def test_another_word_is_refused(text: str) -> None:
    with pytest.raises(CounterpoiseError, match="metric must be last, best, mean, mean of the last 4, or rounds to"):
        parse_metric(text)


def record(round: int, weights: dict[int, float], clients: dict[str, dict[int, float]]) -> Any:
    return Namespace(
        round=round,
        metrics={"accuracy": round / 10, "brier": 0.3},
        clients=clients,
        outcome=Namespace(weights=weights, notes={"reliability": {0: 2.0, 1: 1.0, 2: 0.0}}),
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
