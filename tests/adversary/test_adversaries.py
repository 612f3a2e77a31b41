"""Adversaries: who they are, when they act, and that each changes what it says and nothing else."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import BACKENDS, Spy, blobs, double, small

import counterpoise as cp
from counterpoise.adversary import ADVERSARIES, Adversary, claims, repeated_data
from counterpoise.engine import Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Table
from counterpoise.local import Local, sgd
from counterpoise.methods import fedavg, feddua

SIZES = [5, 9, 14, 3, 11, 7]
LOCAL = Local(batch=4, epochs=2, optimizer=sgd(0.1))
REPLYING = ["claims", "forged-factor", "forged-gradient", "forged-branch", "scaled-update", "silent-claim"]


def sent(adversary, method=None, **settings):
    """The replies of one round as the server gets them."""
    spy = Spy()
    given = [spy] if adversary is None else [adversary, spy]
    simulation = Simulation(
        method or feddua(), blobs(SIZES), small(), local=LOCAL, engine=double(), adversary=given, **settings
    )
    return spy, simulation.advance(), simulation


# ---------------------------------------------------------------- who and when


def test_the_clients_are_those_named() -> None:
    assert claims(clients=[4, 1, 4]).who(0, 6).tolist() == [1, 4]
    assert claims(clients=[]).who(0, 6).tolist() == []


def test_as_many_as_asked_for_are_drawn_by_the_seed() -> None:
    drawn = [claims(clients=5).who(seed, 100).tolist() for seed in range(20)]
    assert all(len(set(who)) == 5 and who == sorted(who) for who in drawn)
    assert all(0 <= client < 100 for who in drawn for client in who)
    assert len({tuple(who) for who in drawn}) == 20
    assert claims(clients=5).who(3, 100).tolist() == drawn[3]
    assert claims(clients=0).who(0, 6).tolist() == []


def test_two_kinds_of_adversary_are_not_the_same_clients() -> None:
    who = {name: tuple(ADVERSARIES.make(name, clients=5).who(0, 1000).tolist()) for name in REPLYING}
    assert len(set(who.values())) == len(REPLYING)


def test_a_share_of_the_clients() -> None:
    assert len(claims(fraction=0.3).who(0, 10)) == 3
    assert len(claims(clients=0, fraction=0.25).who(0, 100)) == 25
    assert len(claims().who(0, 100)) == 1
    assert len(claims(fraction=0.0).who(0, 10)) == 0
    assert len(claims(fraction=1.0).who(0, 10)) == 10


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: claims(clients=[6]).who(0, 6), r"adversary claims: clients must be numbers from 0 to 5, not \[6\]"),
        (lambda: claims(clients=[-1]).who(0, 6), "must be numbers from 0 to 5"),
        (lambda: claims(clients=[0.5]).who(0, 6), "must be numbers from 0 to 5"),
        (lambda: claims(clients=[True]).who(0, 6), "must be numbers from 0 to 5"),
        (lambda: claims(clients=7).who(0, 6), "adversary claims: there are only 6 clients, so 7 of them cannot act"),
        (lambda: claims(factor=0), "option factor must be a number above 0, not 0"),
        (lambda: claims(fraction=1.5), "option fraction must be a number at least 0 and at most 1"),
        (lambda: claims(often=-0.1), "option often must be a number at least 0 and at most 1"),
        (lambda: claims(clients=-1), "option clients"),
        (
            lambda: claims(clients=[1, 2], fraction=0.5),
            r"not clients = \[1, 2\] and fraction = 0\.5\. Leave out all but",
        ),
        (lambda: ADVERSARIES.make("nan", clients=1, fraction=0.5), "not clients = 1 and fraction = 0.5"),
        (lambda: claims(clients=[], fraction=0.5), r"not clients = \[\] and fraction = 0.5"),
        (lambda: claims(clients=3, a_round=2), "not clients = 3 and a_round = 2"),
        (lambda: claims(clients=3, fraction=0.0, a_round=0), "not clients = 3 and fraction = 0.0 and a_round = 0"),
        (lambda: Adversary(2, 0.5), "not clients = 2 and fraction = 0.5"),
        (lambda: repeated_data(0), "option times must be a whole number at least 1, not 0"),
        (lambda: ADVERSARIES.make("claim"), "There is no adversary 'claim'. Did you mean 'claims'"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(make, sentence) -> None:
    with pytest.raises(CounterpoiseError, match=sentence):
        make()


def test_how_often_they_act() -> None:
    who, ids = torch.arange(50), list(range(100))
    half = claims(often=0.5)
    acting = torch.stack([half.acting(0, round, ids, who) for round in range(200)])
    assert not bool(acting[:, 50:].any())
    assert float(acting[:, :50].double().mean()) == pytest.approx(0.5, abs=0.02)
    assert float(acting[:, :50].double().mean(0).std()) < 0.06
    assert torch.equal(acting[7], half.acting(0, 7, ids, who))
    assert torch.equal(acting[7][10:20], half.acting(0, 7, ids[10:20], who))  # whoever else is there
    assert not torch.equal(acting[7], half.acting(1, 7, ids, who))
    assert not bool(claims(often=0.0).acting(0, 1, ids, who).any())
    assert claims().acting(0, 1, ids, who).tolist() == [True] * 50 + [False] * 50


def test_two_adversaries_of_one_client_act_each_on_its_own() -> None:
    both = [ADVERSARIES.make(name, clients=[0], often=0.5) for name in ("sign-flip", "noisy")]
    acts = torch.stack([torch.cat([a.acting(0, r, [0], torch.tensor([0])) for a in both]) for r in range(2000)])
    assert abs(float(torch.corrcoef(acts.double().T)[0, 1])) < 0.08


# ---------------------------------------------------------------- what they do

CHANGES = {
    "claims": {"examples": 4.0},
    "forged-factor": {"examples": 4.0, "alphas": 0.25},
    "forged-gradient": {"examples": 4.0, "gradient": 0.25},
    "forged-branch": {"examples": 4.0, "branch": 1000.0},
    "scaled-update": {"examples": 4.0, "updates": 4.0},
    "silent-claim": {"examples": 4.0, "updates": 0.0, "gradient": 0.0},
}


@pytest.mark.parametrize("name", REPLYING)
def test_each_changes_exactly_what_it_says_of_its_own_replies(name) -> None:
    honest = sent(None)[0].cohorts[0]
    spy, record, _ = sent(ADVERSARIES.make(name, factor=4.0, clients=[1, 4]))
    forged = spy.cohorts[0]
    assert record.liars == (1, 4)

    def fields(cohort):
        return {
            "updates": cohort.updates,
            "examples": cohort.examples,
            "steps": cohort.steps,
            **cohort.reports["counts"],
        }

    assert forged.ids == honest.ids
    for field, before in fields(honest).items():
        after, times = fields(forged)[field], CHANGES[name].get(field, 1.0)
        for i in range(len(SIZES)):
            assert torch.equal(after[i], before[i] * times if i in (1, 4) else before[i]), (field, i)


def test_a_gradient_is_forged_beyond_the_claim_where_that_is_asked_for() -> None:
    honest, forged = (
        sent(a)[0].cohorts[0] for a in (None, ADVERSARIES.make("forged-gradient", clients=[1], gradient=0.5))
    )
    for i, times in ((0, 1), (1, 0.5)):
        assert float(forged.reports["counts"]["gradient"][i]) == times * float(honest.reports["counts"]["gradient"][i])
    assert forged.examples.tolist() == [5, 27, 14, 3, 11, 7]


def test_low_then_high_is_two_claims_with_rounds_of_their_own() -> None:
    spy = Spy()
    lies = [claims(0.2, clients=[4], last=2), claims(10.0, clients=[4], first=4, last=5), spy]
    simulation = Simulation(fedavg(), blobs(SIZES), small(), local=LOCAL, adversary=lies)
    liars = [simulation.advance().liars for _ in range(6)]
    assert [int(cohort.examples[4]) for cohort in spy.cohorts] == [2, 2, 11, 110, 110, 11]
    assert liars == [(4,), (4,), (), (4,), (4,), ()]


def test_claims_are_whole_and_at_least_one() -> None:
    spy, record, _ = sent(claims(0.1, clients=[3, 2]))
    assert spy.cohorts[0].examples.tolist() == [5, 9, 1, 1, 11, 7]  # 1.4 and 0.3
    assert record.outcome.claims == {0: 5, 1: 9, 2: 1, 3: 1, 4: 11, 5: 7}


def test_a_third_is_exact_in_float64() -> None:
    honest, forged = (
        sent(a)[0].cohorts[0].reports["counts"]["gradient"]
        for a in (None, ADVERSARIES.make("forged-gradient", clients=[1]))
    )
    assert float(forged[1]) == pytest.approx(float(honest[1]) / 3, rel=1e-14)


def test_a_forger_of_reports_lies_to_a_method_without_them_too() -> None:
    spy, record, _ = sent(ADVERSARIES.make("forged-gradient", clients=[1]), fedavg())
    assert spy.cohorts[0].examples.tolist() == [5, 27, 14, 3, 11, 7]
    assert record.outcome.weights[1] == pytest.approx(27 / 67)
    assert record.outcome.verdicts == {}


def test_adversaries_act_one_after_the_other() -> None:
    both = Spy()
    simulation = Simulation(
        fedavg(),
        blobs(SIZES),
        small(),
        local=LOCAL,
        adversary=[claims(2.0, clients=[0]), claims(3.0, clients=[0, 2]), both],
    )
    assert simulation.advance().liars == (0, 2)
    assert both.cohorts[0].examples.tolist() == [30, 9, 42, 3, 11, 7]


def test_only_liars_of_the_cohort_are_recorded() -> None:
    simulation = Simulation(
        fedavg(), blobs(SIZES), small(), local=LOCAL, cohort=2, adversary=claims(clients=[0, 2, 4], often=0.5)
    )
    records = [simulation.advance() for _ in range(40)]
    assert all(set(r.liars) <= set(r.cohort) & {0, 2, 4} for r in records)
    sizes = dict(enumerate(SIZES))
    for r in records:
        assert r.outcome.claims == {c: sizes[c] * (3 if c in r.liars else 1) for c in r.cohort}
    lied = sum(len(r.liars) for r in records)
    assert 0 < lied < sum(c in (0, 2, 4) for r in records for c in r.cohort)


@pytest.mark.parametrize("options", [{"clients": [0, 2]}, {"a_round": 2}])
def test_who_claims_one_times_its_data_is_no_liar(options) -> None:
    spy, record, _ = sent(claims(1.0, **options))
    assert record.liars == ()
    assert spy.cohorts[0].examples.tolist() == SIZES


# ---------------------------------------------------------------- data


@pytest.mark.parametrize("backend", BACKENDS)
def test_repeated_data_is_training_on_more_of_the_same(backend) -> None:
    plain = blobs(SIZES)
    each = [plain.train.rows(torch.tensor([i]))[0, :n].repeat(3 if i in (1, 3) else 1) for i, n in enumerate(SIZES)]
    owners = torch.cat([torch.full((len(rows),), i) for i, rows in enumerate(each)])
    by_hand = replace(plain, train=Table.of(owners, torch.cat(each), len(SIZES)))
    spies = Spy(), Spy()
    for federation, given in ((plain, [repeated_data(3, clients=[1, 3]), spies[0]]), (by_hand, [spies[1]])):
        simulation = Simulation(
            feddua(), federation, small(), local=LOCAL, engine=double(backend=backend), adversary=given
        )
        record = simulation.advance()
        assert record.liars == ((1, 3) if federation is plain else ())
    one, other = spies[0].cohorts[0], spies[1].cohorts[0]
    assert one.examples.tolist() == other.examples.tolist() == [5, 27, 14, 9, 11, 7]
    assert one.steps.tolist() == other.steps.tolist()
    assert torch.allclose(one.updates, other.updates, rtol=0, atol=1e-12)
    assert plain.train.sizes(torch.arange(6)).tolist() == SIZES  # the federation given is left alone


def test_repeated_rows_are_the_same_rows_again() -> None:
    federation = blobs(SIZES)
    again = repeated_data(2, clients=[3]).data(federation, torch.tensor([3])).train
    ids = torch.tensor([3, 0])
    assert again.clients == 6
    assert again.sizes(ids).tolist() == [6, 5]
    own = federation.train.rows(torch.tensor([3]))[0][:3].tolist()
    assert again.rows(ids)[0].tolist() == own + own
    assert again.rows(ids)[1][:5].tolist() == federation.train.rows(torch.tensor([0]))[0][:5].tolist()
    assert again.rows(torch.empty(0, dtype=torch.int64)).shape[0] == 0
    kept, held = again.split(0.34, 0)
    assert int(held.sizes(torch.tensor([3]))) + int(kept.sizes(torch.tensor([3]))) // 2 == 3


# ---------------------------------------------------------------- in a run's folder


def test_an_adversary_is_written_down_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    federation = cp.load("digits", partition=cp.quantity_dirichlet(1.0, clients=10, minimum=20))
    liars = [claims(5.0, clients=[2], often=0.7), repeated_data(2, fraction=0.2)]
    settings = {"model": cp.models.linear, "rounds": 8, "cohort": 7, "local": Local(batch=16), "adversary": liars}
    whole = cp.simulate("feddua", federation, out=tmp_path / "whole", **settings)
    cp.simulate("feddua", federation, out=tmp_path / "part", on_round=lambda r: r.round == 3, **settings)
    config = tomllib.loads((tmp_path / "whole" / "config.toml").read_text())
    assert config["adversary"] == [
        {"name": "claims", "factor": 5.0, "clients": [2], "often": 0.7, "first": 1},
        {"name": "repeated-data", "times": 2, "fraction": 0.2},
    ]
    resumed = cp.resume(tmp_path / "part")
    assert [r.outcome for r in resumed.rounds] == [r.outcome for r in whole.rounds]
    assert [r.liars for r in resumed.rounds] == [r.liars for r in whole.rounds]
    assert all(torch.equal(a, b) for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True))
    assert resumed.verdicts == whole.verdicts
    lines = [json.loads(line) for line in (tmp_path / "whole" / "clients.jsonl").read_text().splitlines()[1:]]
    assert [tuple(line.get("liars", ())) for line in lines] == [r.liars for r in whole.rounds]
    assert any(line.get("liars") for line in lines)


def test_an_adversary_of_ones_own_is_given_again(tmp_path: Path) -> None:
    federation = cp.load("digits", partition=cp.iid(clients=5))
    own = Adversary([1], reply=lambda cohort, acting: cohort)
    settings = {"model": cp.models.linear, "rounds": 2, "adversary": [own, claims(clients=[0])]}
    cp.simulate("fedavg", federation, out=tmp_path / "run", on_round=lambda r: r.round == 1, **settings)
    with pytest.raises(CounterpoiseError, match=r"made with an adversary of your own\. Give it again"):
        cp.resume(tmp_path / "run")
    resumed = cp.resume(tmp_path / "run", adversary=[own, claims(clients=[0])])
    assert [r.liars for r in resumed.rounds] == [(0, 1)] * 2


def test_every_adversary_has_a_sentence_and_makes_itself_again() -> None:
    for entry in ADVERSARIES:
        assert entry.summary.endswith(".")
        made = ADVERSARIES.make(entry.name)
        plain = made.spec.plain()
        again = ADVERSARIES.make(plain.pop("name"), **plain)
        assert again.spec == made.spec
        assert np.array_equal(again.who(5, 50), made.who(5, 50))
