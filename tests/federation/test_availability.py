"""Who takes part: the right number, in the right proportion, the same for the same seed."""

import json

import numpy as np
import pytest
import torch
from helpers import blobs, double, small
from hypothesis import given
from hypothesis import strategies as st

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import AVAILABILITIES, Drawn, Table
from counterpoise.federation.absence import DROPPED
from counterpoise.federation.availability import availability

SIZES = (1, 2, 3, 10, 4)


def table(sizes=SIZES):
    owners = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return Table.of(owners, torch.arange(len(owners)), len(sizes))


def crowd(clients):
    return Drawn(clients, 100, 7, 5)


def asked(cohort, rounds=1, held=None, seed=0):
    held = held or table()
    return [list(availability(cohort).call(seed, round, held).asked) for round in range(1, rounds + 1)]


MANY = [
    7,
    0.07,
    cp.weighted(7),
    cp.weighted(7, weights=[1.0] * 50 + [3.0] * 50),
    cp.day_and_night(7),
    cp.day_and_night(0.07, period=4, zones=4, share=0.5),
    cp.stragglers(7, rate=0.4),
    cp.stragglers(cp.weighted(7), rate=0.4),
]


@pytest.mark.parametrize("cohort", MANY)
def test_the_same_seed_asks_the_same_distinct_clients_and_another_round_others(cohort):
    one, two, other = asked(cohort, 6, crowd(100)), asked(cohort, 6, crowd(100)), asked(cohort, 6, crowd(100), seed=1)
    assert one == two != other
    assert [len(set(ids)) for ids in one] == [len(ids) for ids in one] == [7] * 6
    assert all(0 <= i < 100 for ids in one for i in ids)
    assert len({tuple(ids) for ids in one}) == 6
    assert availability(cohort).size(crowd(100)) == 7


@pytest.mark.parametrize("cohort", [20, cp.weighted(20), cp.day_and_night(20), cp.stragglers(20)])
def test_a_million_clients(cohort):
    assert len(asked(cohort, 1, crowd(1_000_000))[0]) == 20


def test_each_client_joins_by_a_chance_of_its_own():
    """The number that join has a binomial's mean and variance, and two clients join independently."""
    clients, rate, rounds = 40, 0.3, 600
    joined = np.zeros((rounds, clients))
    for row, ids in zip(joined, asked(cp.bernoulli(rate), rounds, crowd(clients)), strict=True):
        assert sorted(set(ids)) == ids
        row[ids] = 1
    assert joined.mean(0) == pytest.approx(np.full(clients, rate), abs=4.5 * np.sqrt(rate * (1 - rate) / rounds))
    sizes = joined.sum(1)
    assert sizes.mean() == pytest.approx(clients * rate, rel=0.03)
    assert sizes.var() == pytest.approx(clients * rate * (1 - rate), rel=0.2)
    assert availability(cp.bernoulli(rate)).size(crowd(clients)) == 12
    assert asked(cp.bernoulli(1.0)) == [[0, 1, 2, 3, 4]]


def test_a_round_that_nobody_joins_is_drawn_again():
    """Of two clients at a rate of 0.2, given that one joins: one alone has 0.32 / 0.36, both have 0.04 / 0.36."""
    rounds = asked(cp.bernoulli(0.2), 900, table((1, 1)))
    assert all(rounds)
    assert np.mean([len(ids) == 2 for ids in rounds]) == pytest.approx(0.04 / 0.36, abs=0.04)
    assert np.mean([ids[0] == 0 for ids in rounds if len(ids) == 1]) == pytest.approx(0.5, abs=0.06)
    assert availability(cp.bernoulli(0.01)).size(table()) == 1


def test_all_a_count_and_a_fraction():
    assert asked(None) == [[0, 1, 2, 3, 4]]
    assert len(asked(1.0)[0]) == 5
    assert len(asked(1)[0]) == len(asked(0.01)[0]) == 1
    assert len(asked(0.5, held=crowd(9))[0]) == 4


def test_weights_are_the_chance_to_be_asked_first():
    """One client a round: the frequencies of 1,500 rounds against the weights, by a chi-squared bound."""
    for cohort, weights in ((cp.weighted(1), SIZES), (cp.weighted(1, weights=[5, 0, 1, 1, 3]), (5, 0, 1, 1, 3))):
        counts = np.bincount([ids[0] for ids in asked(cohort, 1500)], minlength=5)
        expected = 1500 * np.array(weights) / sum(weights)
        real = expected > 0
        assert (counts[~real] == 0).all()
        assert ((counts - expected)[real] ** 2 / expected[real]).sum() < 18.5  # 0.1 % of chi-squared with 4 degrees


def test_two_drawn_by_weight_have_the_probability_of_drawing_one_after_the_other():
    weights = [1.0, 2.0, 3.0]
    pairs = [frozenset(ids) for ids in asked(cp.weighted(2, weights=weights), 1500, table((1, 1, 1)))]
    p = np.array(weights) / 6
    for i, j in ((0, 1), (0, 2), (1, 2)):
        exact = p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j])
        assert np.mean([pair == {i, j} for pair in pairs]) == pytest.approx(exact, abs=0.05)


def test_clients_without_weight_are_not_asked_even_to_fill_the_cohort():
    assert sorted(asked(cp.weighted(4, weights=[0, 1, 0, 2, 0]))[0]) == [1, 3]


def test_by_night_only_those_for_whom_it_is_night_are_asked_and_each_has_its_turn():
    cohort = cp.day_and_night(0.9, period=8, zones=4, share=0.25)
    rounds = asked(cohort, 16, crowd(400))
    for first, again in zip(rounds[:8], rounds[8:], strict=True):
        assert set(first) == set(again)  # everybody who is awake, a day later the same
    assert all(50 < len(r) < 150 for r in rounds)  # a quarter of 400, by zone
    assert set().union(*rounds[:8]) == set(range(400))
    assert not set(rounds[0]) & set(rounds[4])  # half a day apart


@given(st.floats(0, 1), st.integers(0, 3))
def test_a_straggler_was_asked_and_drops_out_at_its_rate(rate, seed):
    cohort = cp.stragglers(cp.stragglers(None, rate=0), rate=rate)
    calls = [cohort.call(seed, round, crowd(200)) for round in range(1, 11)]
    assert all(set(call.dropped) <= set(call.asked) for call in calls)
    assert np.mean([len(call.dropped) / 200 for call in calls]) == pytest.approx(rate, abs=0.05)


def test_slow_clients_are_always_the_same_ones():
    cohort = cp.stragglers(None, rate=0.5, slow=0.3)
    dropped = [set(cohort.call(0, round, crowd(200)).dropped) for round in range(1, 41)]
    ever = set().union(*dropped)
    assert len(ever) / 200 == pytest.approx(0.3, abs=0.1)
    assert all(sum(client in d for d in dropped) > 5 for client in ever)


def test_dropping_out_can_come_twice():
    cohort = cp.stragglers(cp.stragglers(None, rate=0.5), rate=0.0)
    call = cohort.call(0, 1, crowd(100))
    assert 20 < len(call.dropped) < 80


# ---------------------------------------------------------------- in a run


def simulation(cohort, method=None, **settings):
    federation = blobs([4, 4, 4, 0, 4, 4])
    return Simulation(method or cp.methods.fedavg(), federation, small(), cohort=cohort, engine=double(), **settings)


def test_a_straggler_is_on_record_as_such_and_counts_for_nothing():
    made = simulation(cp.stragglers(None, rate=0.5), seed=3)
    whole = simulation(None, seed=3)
    record, all_of_them = made.advance(), whole.advance()
    dropped = {client for client, reason in record.outcome.excluded.items() if reason == DROPPED}
    assert dropped
    assert record.cohort == (0, 1, 2, 3, 4, 5)
    assert record.outcome.excluded[3] == "it has no data"
    assert set(record.outcome.weights) == {0, 1, 2, 4, 5} - dropped
    assert record.bytes_down == all_of_them.bytes_down  # it had been sent the model
    assert record.bytes_up < all_of_them.bytes_up


def test_a_round_in_which_all_drop_out_is_skipped():
    made = simulation(cp.stragglers(None, rate=1.0))
    before = made.server.model.clone()
    record = made.advance()
    assert record.outcome.skipped
    assert torch.equal(made.server.model, before)


@pytest.mark.parametrize("backend", ["batched", "per-client"])
def test_a_cohort_may_be_larger_than_expected(backend):
    """Rounds of `bernoulli` may be: here one client is expected, and all six come."""
    made, all_of_them = (
        Simulation(
            cp.methods.fedavg(),
            blobs([4, 4, 4, 0, 4, 4]),
            small(),
            cohort=cohort,
            engine=cp.Engine(backend=backend, dtype="float64"),
        )
        for cohort in (cp.Availability(lambda seed, round, held: (range(6), ()), lambda held: 1), None)
    )
    assert made.advance().cohort == all_of_them.advance().cohort
    assert torch.allclose(made.server.model, all_of_them.server.model, rtol=1e-12)


def test_a_run_is_replayed_with_its_dropouts(tmp_path):
    federation = cp.load("digits", partition=cp.iid(8))
    settings = {"model": cp.models.linear, "rounds": 3}
    first = cp.simulate("fedavg", federation, cohort=cp.stragglers(5, rate=0.4), out=tmp_path / "run", **settings)
    again = cp.simulate("fedavg", federation, cohort=cp.replay(str(tmp_path / "run")), **settings)
    assert [r.cohort for r in again.rounds] == [r.cohort for r in first.rounds]
    assert [r.outcome.excluded for r in again.rounds] == [r.outcome.excluded for r in first.rounds]
    assert any(r.outcome.excluded for r in first.rounds)
    assert again.accuracy == first.accuracy
    with pytest.raises(CounterpoiseError, match=r"3 rounds were recorded, but this is round 4[.] Run fewer rounds"):
        cp.simulate("fedavg", federation, cohort=cp.replay(str(tmp_path / "run")), **(settings | {"rounds": 4}))


def test_lists_and_json_files_are_replayed(tmp_path):
    rounds = [[0, 2], [1], []]
    (tmp_path / "a.json").write_text(json.dumps(rounds))
    for source in (rounds, str(tmp_path / "a.json")):
        assert asked(cp.replay(source), 3) == rounds
        assert asked(cp.replay(source, repeat=True), 7) == rounds + rounds + rounds[:1]


def test_every_availability_is_kept_and_resumed(tmp_path):
    federation = cp.load("digits", partition=cp.mixed(cp.iid(4), cp.dirichlet(0.5, clients=4)), features=cp.noise(3))
    cohorts = {
        "all": AVAILABILITIES.make("all"),
        "uniform": AVAILABILITIES.make("uniform", clients=0.5),
        "bernoulli": cp.bernoulli(0.4),
        "weighted": cp.weighted(3, weights=[1, 2, 3, 4, 5, 6, 7, 8]),
        "day-and-night": cp.day_and_night(2, zones=3),
        "stragglers": cp.stragglers(cp.stragglers(cp.weighted(4), rate=0.2), rate=0.3, slow=0.5),
        "replay": cp.replay([[0], [1, 2], [3], [4]]),
    }
    assert cohorts.keys() == {entry.name for entry in AVAILABILITIES}
    for name, cohort in cohorts.items():
        settings = {"model": cp.models.linear, "cohort": cohort}
        whole = cp.simulate("fedavg", federation, rounds=4, **settings)
        cp.simulate("fedavg", federation, rounds=2, out=tmp_path / name, **settings)
        resumed = cp.resume(tmp_path / name, rounds=4)
        assert [r.cohort for r in resumed.rounds] == [r.cohort for r in whole.rounds]
        assert resumed.accuracy == whole.accuracy


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: asked(cp.weighted(6)), "cohort must be from 0 .nobody. to the 5 clients there are, not 6"),
        (lambda: asked(cp.day_and_night(1.5)), "cohort as a fraction must be above 0 and at most 1, not 1.5"),
        (lambda: asked(cp.weighted(2, weights=[1, 2])), "2 weights were given for 5 clients; give one for each"),
        (lambda: cp.weighted(2, weights=[1, -2]), "every weight must be a number at least 0"),
        (lambda: cp.weighted(2, weights=[1, float("nan")]), "every weight must be a number at least 0"),
        (lambda: asked(cp.bernoulli(1e-9)), "none of 5 clients took part at a rate of 1e-09. Use a higher rate"),
        (lambda: cp.bernoulli(0), "option rate must be a number above 0 and at most 1, not 0"),
        (lambda: cp.weighted("two"), "option clients must be a whole number or a number, not 'two'"),
        (lambda: cp.stragglers(rate=1.5), "option rate must be a number at least 0 and at most 1, not 1.5"),
        (lambda: cp.day_and_night(2, period=1), "option period must be a whole number at least 2, not 1"),
        (lambda: cp.replay([]), "the recording holds no rounds"),
        (lambda: cp.replay([[0], "x"]), "each round must be a list of client numbers, not x"),
        (lambda: cp.replay([[0.5]]), "each round must be a list of client numbers"),
        (lambda: cp.replay("nowhere.json"), "nowhere.json cannot be read: No such file"),
        (lambda: AVAILABILITIES.make("weigted"), "There is no availability 'weigted'. Did you mean 'weighted'"),
    ],
)
def test_a_bad_availability_is_refused_with_a_sentence(make, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        make()


@pytest.mark.parametrize("text", ["{", '{"a": 1}'])
def test_a_file_that_records_nothing_is_told(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(CounterpoiseError, match=r"a.json (is not valid JSON|must hold a list)"):
        cp.replay(str(tmp_path / "a.json"))
