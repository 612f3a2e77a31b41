"""FedDua around other methods, and in a run's record."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import double
from safetensors.torch import load_file, save_file

import counterpoise as cp
from counterpoise.local import Local, sgd
from counterpoise.methods import METHODS, avg, feda4, fedavg, fedbac, fedbac_soft, feddua, fedoaed, scaffold

INNER = [entry.name for entry in METHODS if not entry.wraps]
LOCAL = Local(batch=8, optimizer=sgd(0.05))


@pytest.fixture(scope="module")
def federation() -> cp.Federation:
    partition = cp.quantity_dirichlet(2.0, clients=20, minimum=16)
    return cp.load("digits", partition=partition, probe=1, proxy=120, heldout=0.1)


def simulate(method, federation, rounds=3, **settings: Any) -> cp.Run:
    return cp.simulate(
        method, federation, **{"model": cp.models.linear, "rounds": rounds, "cohort": 9, "local": LOCAL} | settings
    )


@pytest.mark.parametrize("name", INNER)
def test_it_goes_around_every_method(name, federation) -> None:
    """A cohort that changes every round; with nobody lying, the method does what it does alone."""
    run, alone = (simulate(n, federation) for n in (f"feddua:{name}", name))
    assert run.status == "finished"
    assert len({r.cohort for r in run.rounds}) == 3
    assert all(set(r.outcome.verdicts) == set(r.cohort) for r in run.rounds)
    assert {v["action"] for v in run.verdicts} == {"accepted"}
    assert run.weights == alone.weights
    assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), alone.model.parameters(), strict=True))


@pytest.mark.parametrize(
    "make",
    [
        lambda **o: feddua(feda4(), **o),
        lambda **o: feddua(fedbac_soft(), **o),
        lambda **o: feddua(fedoaed(every=1, minimum=2), **o),
        lambda **o: feddua(fedavg(), **o),
        lambda **o: feddua(avg(), factor="direct", prior="proxy", **o),
        lambda **o: feddua(fedavg(), paper=True, **o),
    ],
    ids=["feda4", "fedbac-soft", "fedoaed", "fedavg", "avg-proxy", "paper"],
)
def test_a_liar_in_a_changing_cohort_ends_outside(make, federation) -> None:
    method = make(patience=1)
    run = simulate(method, federation, rounds=8, adversary=cp.adversary.claims(6.0, clients=[3]))
    mine = [v["action"] for v in run.verdicts if v["client"] == 3]
    assert len(mine) >= 3  # it was there so often
    by_counts = any(part.by_counts for part in method.parts)
    assert mine == ["corrected" if by_counts else "warned"] + ["excluded"] * (len(mine) - 1)
    assert {v["action"] for v in run.verdicts if v["client"] != 3} == {"accepted"}
    for record in run.rounds:
        gone = [c for c, v in record.outcome.verdicts.items() if v.action == "excluded"]
        assert set(record.outcome.weights) == set(record.cohort) - set(gone)
        assert set(record.outcome.excluded) == set(gone)


def test_the_upload_is_judged_as_it_was_sent(federation) -> None:
    """A denoiser changes the update: rho is no longer exactly the steps, and honest clients are still believed."""
    run = simulate(feddua(fedoaed(mix=0.8, every=1, minimum=2), evidence="report"), federation, rounds=6)
    assert {v["action"] for v in run.verdicts} == {"accepted"}


def test_nested_both_judge_and_neither_forgets_the_others_verdict(federation) -> None:
    liar = cp.adversary.claims(6.0, clients=[3])
    run = simulate(feddua(feddua("avg", patience=1), patience=1), federation, rounds=8, adversary=liar)
    once = simulate(feddua("avg", patience=1), federation, rounds=8, adversary=liar)
    assert run.method == "feddua:feddua:avg"
    mine, single = ([v for v in r.verdicts if v["client"] == 3] for r in (run, once))
    assert [v["action"] for v in mine] == [v["action"] for v in single]
    assert [v["claimed"] for v in mine] == [v["claimed"] for v in single]
    assert {v["action"] for v in mine} == {"warned", "excluded"}


def test_a_method_that_ignores_counts_gets_verdicts_and_exclusion_only(federation) -> None:
    run = simulate(feddua(avg(), patience=1), federation, rounds=4, adversary=cp.adversary.claims(6.0, clients=[3]))
    for record in run.rounds:
        weights = set(record.outcome.weights.values())
        assert len(weights) == 1
    assert {v["action"] for v in run.verdicts} <= {"accepted", "warned", "excluded"}
    assert "warned" in {v["action"] for v in run.verdicts if v["client"] == 3}


def tenfold(round, cohort):
    """Every second client claims ten times its data, and is not caught."""
    return replace(cohort, examples=torch.where(torch.arange(len(cohort)) % 2 == 0, 10, 1) * cohort.examples)


@pytest.mark.parametrize(
    "method",
    [*map(METHODS.make, INNER), scaffold(weights="data"), fedbac(momentum="data")],
    ids=[*INNER, "scaffold-data", "fedbac-data"],
)
def test_a_method_weighs_by_counts_if_it_says_so(method, federation) -> None:
    honest, lied = (simulate(method, federation, rounds=2, adversary=liar) for liar in (None, tenfold))
    same = all(torch.equal(a, b) for a, b in zip(honest.model.parameters(), lied.model.parameters(), strict=True))
    assert same == (not any(part.by_counts for part in method.parts))


# ---------------------------------------------------------------- the record


def test_verdicts_are_read_back_as_they_were_and_a_run_goes_on_bit_for_bit(federation, tmp_path: Path) -> None:
    liars = cp.adversary.claims(6.0, clients=3)
    settings: dict[str, Any] = {"rounds": 9, "adversary": liars, "cohort": 12}
    method = feddua(fedavg(), patience=1, embedding="learnable")
    whole = simulate(method, federation, out=tmp_path / "whole", **settings)
    simulate(method, federation, out=tmp_path / "part", on_round=lambda r: r.round == 4, **settings)
    resumed = cp.resume(tmp_path / "part")
    assert resumed.verdicts == whole.verdicts
    assert [r.outcome for r in resumed.rounds] == [r.outcome for r in whole.rounds]
    assert all(torch.equal(a, b) for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True))
    assert {v["action"] for v in whole.verdicts} >= {"accepted", "corrected", "excluded"}
    for row in whole.verdicts:
        assert list(row) == ["round", "client", "claimed", "estimated", "low", "high", "z", "action", "reason"]
        assert row["client"] in whole.rounds[row["round"] - 1].cohort
    lines = [json.loads(line) for line in (tmp_path / "whole" / "clients.jsonl").read_text().splitlines()[1:]]
    written = [{"round": line["round"], "client": int(c)} | v for line in lines for c, v in line["verdicts"].items()]
    assert written == whole.verdicts
    rejected = sum(v["action"] != "accepted" for v in whole.verdicts)
    assert whole.summary()["rejected"] == rejected > 0


def test_a_checkpoint_from_before_the_network_goes_on(federation, tmp_path: Path) -> None:
    """What a part keeps beside what it used to begins as in a new run: the server rehearses at once."""
    out, method = tmp_path / "run", feddua(paper=True)
    simulate(method, federation, rounds=3, out=out, on_round=lambda r: r.round == 2)
    path = out / "checkpoint" / "state-2.safetensors"
    state = load_file(path)
    del state["counts/network"]
    save_file(state, path)
    index = json.loads((out / "checkpoint" / "checkpoint.json").read_text())
    index["state"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (out / "checkpoint" / "checkpoint.json").write_text(json.dumps(index))
    assert len(cp.resume(out).rounds) == 3


def test_a_run_without_verdicts_says_nothing_of_them(federation, tmp_path: Path) -> None:
    run = simulate(fedavg(), federation, rounds=1, out=tmp_path / "run")
    assert run.verdicts == []
    assert "rejected" not in run.summary()
    assert "verdicts" not in (tmp_path / "run" / "clients.jsonl").read_text()


def test_an_honest_run_rejects_none_and_says_so(federation) -> None:
    assert simulate(feddua(), federation).summary()["rejected"] == 0


def test_strange_reports_can_still_be_written_down(federation, tmp_path: Path) -> None:
    """A gradient of 0 that moved a model: every number of the verdict stays one, JSON has no others."""

    def strange(round, cohort):
        gradient = cohort.reports["counts"]["gradient"].clone()
        gradient[0] = 0
        reports = {"counts": {**cohort.reports["counts"], "gradient": gradient}}
        return cp.Cohort(cohort.ids, cohort.updates, cohort.examples, cohort.steps, reports)

    run = simulate(feddua(), federation, rounds=2, adversary=strange, out=tmp_path / "run", engine=double())
    verdict = run.rounds[0].outcome.verdicts[run.rounds[0].cohort[0]]
    assert verdict.action == "accepted"
    assert "may claim less" in verdict.reason
    assert cp.resume(tmp_path / "run", adversary=strange).verdicts == run.verdicts
