"""How methods stand to each other over seeds."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from counterpoise.measures import best_two, has_personal, on_shared_seeds, own, own_curve, standings


def run(*accuracies: float, clients: tuple[float, ...] = (), bytes: int = 10, seconds: float = 2.0) -> list:
    return [
        SimpleNamespace(
            round=number,
            metrics={"accuracy": value, "loss": 1 - value},
            clients={"accuracy": dict(enumerate(clients))} if clients else {},
            bytes_up=bytes,
            bytes_down=2 * bytes,
            seconds=seconds,
        )
        for number, value in enumerate(accuracies, 1)
    ]


RUNS = {
    "base": {0: run(0.1, 0.5), 1: run(0.1, 0.7), 2: run(0.1, 0.6)},
    "other": {0: run(0.2, 0.8, clients=(0.2, 0.9), bytes=7), 2: run(0.1, 0.7, clients=(0.5, 0.7), seconds=4.0)},
    "none": {},
}


def test_means_and_differences_are_over_the_seeds_that_there_are() -> None:
    base, other, none = standings(RUNS, "base")
    assert base.values == {0: 0.5, 1: 0.7, 2: 0.6}
    assert (base.mean, base.deviation) == (pytest.approx(0.6), pytest.approx(0.1))
    assert base.paired is None
    assert other.paired is not None
    assert other.paired.seeds == 2
    assert other.paired.difference == pytest.approx(np.mean([0.8 - 0.5, 0.7 - 0.6]))
    half = math.tan(math.pi * (0.975 - 0.5)) * 0.1  # Cauchy's quantile by the standard error of 0.1 and 0.3
    assert (other.paired.low, other.paired.high) == (pytest.approx(0.2 - half), pytest.approx(0.2 + half))
    low, high = stats.t.interval(0.95, 2, 0.6, 0.1 / math.sqrt(3))
    assert (base.low, base.high) == (pytest.approx(low), pytest.approx(high))
    assert other.volatility == pytest.approx(0.6)
    assert other.gap == pytest.approx(np.mean([0.7, 0.2]))
    assert other.worst == pytest.approx(0.35)
    assert other.bytes == pytest.approx(np.mean([2 * 21, 2 * 30]))
    assert other.seconds == pytest.approx(np.mean([4, 8]))
    assert math.isnan(none.mean)
    assert none.paired is None
    assert math.isnan(base.gap)


def test_a_value_that_is_not_finite_counts_nowhere() -> None:
    runs = RUNS | {"other": {**RUNS["other"], 2: run(0.1, math.nan)}}
    _, other, _ = standings(runs, "base")
    assert (other.mean, other.paired.seeds) == (0.8, 1)
    assert math.isnan(other.paired.low)


def test_personal_models_are_held_against_the_servers_on_the_same_clients() -> None:
    """Client 2 was never reached, so that it uses the server's model under either method."""
    served = {"accuracy": {0: 0.5, 1: 0.7, 2: 0.6}}
    plain, ditto = ([run(0.1, value)[-1] for value in (0.5, 0.6)] for _ in range(2))
    for record in (*plain, *ditto):
        record.clients = dict(served)
    for record, own_models in zip(ditto, ({0: 0.8, 1: 1.0}, {0: 0.8, 1: 0.7}), strict=True):
        record.clients["personal_accuracy"] = own_models
    runs = {name: {s: [r] for s, r in enumerate(rs)} for name, rs in (("fedavg", plain), ("ditto", ditto))}
    base, other = standings(runs, "fedavg", personal=True)
    assert base.values == {0: pytest.approx(0.6), 1: pytest.approx(0.6)}
    assert other.values == {0: pytest.approx(0.8), 1: pytest.approx(0.7)}
    assert other.paired.difference == pytest.approx(0.15)
    assert (other.worst, other.gap) == (pytest.approx(0.6), pytest.approx((0.4 + 0.2) / 2))
    assert standings(runs, "fedavg")[1].paired.difference == 0  # the server's models are one and the same
    assert own(ditto[0]) == {0: 0.8, 1: 1.0, 2: 0.6}
    assert own_curve(ditto) == [(2, pytest.approx(0.8)), (2, pytest.approx(0.7))]
    assert has_personal(ditto)
    assert not has_personal(plain)


def test_the_best_two_and_their_difference() -> None:
    first, second, beside = best_two(standings(RUNS))
    assert (first.label, second.label) == ("other", "base")
    assert beside.difference == pytest.approx(0.2)
    first, second, beside = best_two(standings(RUNS, metric="loss", lower=True), lower=True)
    assert (first.label, second.label, beside.difference) == ("other", "base", pytest.approx(-0.2))
    assert best_two(standings({"none": {}})) is None
    assert best_two(standings({"base": RUNS["base"]}))[1:] == (None, None)


def test_all_are_ranked_over_the_seeds_that_all_share() -> None:
    """Seed 1, which only one has, would make it the best."""
    runs = {
        "some": {0: run(0.5), 2: run(0.7), 3: run(math.nan)},
        "all": {0: run(0.4), 1: run(1.0), 2: run(0.6), 3: run(1.0)},
    }
    found = standings({**runs, "none": {}}, "some")
    assert found[1].mean > found[0].mean
    first, second, beside = best_two(found)
    assert (first.label, first.values, second.values) == ("some", {0: 0.5, 2: 0.7}, {0: 0.4, 2: 0.6})
    assert (second.mean, second.deviation) == (pytest.approx(0.5), pytest.approx(0.1 * math.sqrt(2)))
    low, high = stats.t.interval(0.95, 1, 0.5, 0.1)
    assert (second.low, second.high) == (pytest.approx(low), pytest.approx(high))
    assert (beside.seeds, beside.difference) == (2, pytest.approx(0.1))
    apart = standings({**runs, "other": {5: run(0.1)}})
    assert on_shared_seeds(apart) == apart
