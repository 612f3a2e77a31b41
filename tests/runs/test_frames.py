"""Runs as tidy pandas frames."""

from __future__ import annotations

from dataclasses import fields

import pandas as pd
import pytest

import counterpoise as cp
from counterpoise.comparisons.collection import read_run
from counterpoise.method import Verdict


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> cp.Run:
    fed = cp.load("digits", partition=cp.iid(clients=8))
    return cp.simulate(
        "feddua:fedprox",
        fed,
        model=cp.models.linear,
        rounds=3,
        cohort=6,
        adversary=cp.adversary.claims(factor=3.0, clients=1),
        out=tmp_path_factory.mktemp("runs") / "x",
    )


def test_one_row_a_round(run: cp.Run) -> None:
    frame = run.frame()
    assert list(frame["round"]) == [1, 2, 3]
    assert set(frame["method"]) == {"feddua:fedprox"}
    assert list(frame["accuracy"]) == [value for _, value in run.curve()]
    assert frame["bytes_up"].sum() == run.bytes_up
    assert frame["skipped"].isna().all()


def test_facts_are_columns_and_skipped_rounds_are_told() -> None:
    def apply(round: cp.Round) -> cp.Round:
        told = round.but(facts={"accuracy": 0.5, "round": float(round.world.round)})
        return told if round.world.round < 3 else told.skip("too few")

    fed = cp.load("digits", partition=cp.iid(clients=4))
    method = cp.methods.fedavg().adding("telling", trust=cp.Part("told", apply=apply))
    run = cp.simulate(method, fed, model=cp.models.linear, rounds=4)
    frame = run.frame()
    assert list(frame["fact_round"]) == list(frame["round"]) == [1, 2, 3, 4]
    assert set(frame["fact_accuracy"]) == {0.5}
    assert list(frame["accuracy"]) == [value for _, value in run.curve()]
    assert repr(run).startswith("Run(telling, seed 0, 4 rounds (2 skipped), finished, accuracy 0.")
    assert "2 rounds, the last because too few" in run._repr_html_()


def test_one_row_a_client_and_round(run: cp.Run) -> None:
    frame = run.frame("clients")
    assert not frame.duplicated(["round", "client"]).any()
    heard = frame[frame["heard"]]
    assert [len(rows) for _, rows in heard.groupby("round")] == [6, 6, 6]
    for record in run.rounds:
        rows = heard[heard["round"] == record.round].set_index("client")
        assert rows["weight"].dropna().to_dict() == pytest.approx(record.outcome.weights)
        assert set(rows.index[rows["liar"]]) == set(record.liars)
        whole = frame[frame["round"] == record.round].set_index("client")["client_accuracy"]
        assert whole.to_dict() == pytest.approx(record.clients["accuracy"])


def test_one_row_a_verdict_and_the_same_from_disk(run: cp.Run) -> None:
    frame = run.frame("verdicts")
    assert frame.drop(columns=["method", "seed", "liar"]).to_dict("records") == run.verdicts
    kept = read_run(run.folder)
    for of in ("rounds", "clients", "verdicts"):
        pd.testing.assert_frame_equal(kept.frame(of), run.frame(of), check_exact=False, rtol=1e-4)


def test_an_unknown_frame_and_an_empty_one() -> None:
    empty = cp.Run("fedavg", 0, cp.models.linear((1, 8, 8), 10))
    verdicts = ["client", "liar", *(field.name for field in fields(Verdict))]
    assert list(empty.frame("verdicts").columns) == ["method", "seed", "round", *verdicts]
    with pytest.raises(cp.CounterpoiseError, match=r"There is no frame 'round' of a run. Did you mean 'rounds'"):
        empty.frame("round")
