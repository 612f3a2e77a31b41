"""Which pieces a worker is given at once."""

import io
import queue
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from counterpoise.comparisons.batches import batches
from counterpoise.comparisons.collection import read_run
from counterpoise.comparisons.plan import Piece
from counterpoise.comparisons.worker import _listen, begin
from counterpoise.runs.companions import noted_batches
from counterpoise.runs.together import drive_together

VALUES: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "partition": {"name": "iid", "clients": 4}},
    "model": {"name": "mlp"},
    "method": {"name": "fedavg"},
}


def piece(label: str, seed: int = 0, **values: Any) -> Piece:
    return Piece(label, seed, f"{label}/seed-{seed}", VALUES | {"seed": seed, "method": {"name": label}} | values)


def given(pieces: list[Piece], workers: int = 1, together: int | None = None) -> list[list[str]]:
    return [[piece.place for piece in some] for some in batches(pieces, workers, together)]


def test_an_order_that_was_cut_off_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"pieces": []}\n{"pieces": [{"folder": "ru'))
    orders: queue.Queue[dict[str, Any] | None] = queue.Queue()
    _listen(orders, threading.Event())
    assert [orders.get_nowait(), orders.get_nowait()] == [{"pieces": []}, None]


def test_what_servers_do_keeps_no_runs_apart() -> None:
    pieces = [piece(name, seed) for seed in (0, 1) for name in ("fedavg", "fedavgm", "median", "fedvarp", "feda4")]
    assert given(pieces) == [[one.place for one in pieces]]


def test_methods_with_more_to_do_on_clients_come_first() -> None:
    pieces = [piece(name, seed) for name in ("fedavg", "fedprox", "scaffold", "fedoaed") for seed in (0, 1)]
    assert [places[0] for places in given(pieces)] == [
        "scaffold/seed-0",
        "fedoaed/seed-0",
        "fedprox/seed-0",
        "fedavg/seed-0",
    ]


@pytest.mark.parametrize(
    ("values", "joins"),
    [
        ({"local": {"optimizer": {"name": "sgd", "lr": 0.5}}}, True),
        ({"local": {"schedule": {"name": "cosine", "rounds": 9}}}, True),
        ({"cohort": 2, "adversary": [{"name": "claims", "clients": 1}], "limits": {"norm_ratio": 5.0}}, True),
        ({"engine": {"store_gib": 1.0}, "evaluation": {"every": 2}}, True),
        ({"stop": {"metric": "accuracy", "above": 0.9}}, True),
        ({"local": {"batch": 8}}, False),
        ({"local": {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.5}}}, False),
        ({"model": {"name": "linear"}}, False),
        ({"data": {"name": "synthetic", "partition": {"name": "iid", "clients": 4}}}, False),
        ({"engine": {"dtype": "float64"}}, False),
        ({"method": {"name": "fedprox", "mu": 0.5}}, False),
    ],
)
def test_what_keeps_runs_apart(values: dict[str, Any], joins: bool) -> None:
    assert len(given([piece("fedavg"), piece("other", **{"method": {"name": "fedavg"}} | values)])) == 1 + (not joins)


def test_hooks_that_differ_in_a_number_stay_together() -> None:
    assert len(given([piece("fedprox"), piece("other", method={"name": "fedprox", "mu": 0.5})])) == 1


def test_a_group_is_cut_evenly_and_only_if_that_ends_the_work_earlier() -> None:
    nine, two = [piece("fedavg", seed) for seed in range(9)], [piece("fedavg", seed, rounds=3) for seed in range(2)]
    two = [replace(one, values=one.values | {"local": {"batch": 8}}) for one in two]
    assert sorted(map(len, given(nine + two, workers=2))) == [2, 4, 5]  # 7 against 9
    assert sorted(map(len, given(nine[:4] + two, workers=2))) == [2, 4]  # 4 in either case
    assert sorted(map(len, given(nine + two, workers=1))) == [2, 9]
    assert [len(some) for some in given(nine, workers=3)] == [3, 3, 3]
    assert given([], workers=2) == []
    assert sorted(map(len, given(nine + two, workers=1, together=4))) == [2, 3, 3, 3]
    assert given(nine, together=1) == [[one.place] for one in nine]


def test_resumed_runs_train_together_again(tmp_path: Path) -> None:
    """Their configurations hold the choices of each run alone; the batch makes its own, as it did before."""
    pieces = [piece("fedavg", seed, rounds=4, cohort=3) for seed in (0, 1)]
    places = [tmp_path / one.place for one in pieces]

    def notes(ends: int) -> list[str]:
        courses = [
            begin(place, one.values, lambda record: record.round == ends)
            for place, one in zip(places, pieces, strict=True)
        ]
        drive_together(courses, lambda place, what: None)
        return [(place / "batch.json").read_text() for place in places]

    first = notes(ends=2)
    assert [len(noted_batches(place)) for place in places] == [1, 1]
    assert notes(ends=4) == first  # the same batch is not noted twice
    assert [read_run(place).status for place in places] == ["finished", "finished"]
