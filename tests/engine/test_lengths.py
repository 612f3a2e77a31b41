"""The memory of lengths: cohorts with a hostile majority, and honest growth."""

import json
import math

import pytest
import torch
from helpers import Point, blobs, double, half_square, quadratics, small
from worlds import FixedWorld, cohort

import counterpoise as cp
from counterpoise.adversary import scaled
from counterpoise.engine import Limits, Simulation
from counterpoise.engine.rounds.admission import admit
from counterpoise.engine.rounds.lengths import Lengths
from counterpoise.engine.rounds.reasons import BROKEN
from counterpoise.engine.rounds.server import Server
from counterpoise.local import Local, Schedule, sgd
from counterpoise.method import Cohort
from counterpoise.methods import METHODS, fedavg
from counterpoise.runs.folder import Folder

UPDATE = "its update"
UNUSUAL = "its update is over 50 times as long as the median of the last rounds"


FAR = 1e6
"""So long is a model that no length here is too long beside it."""


def sampled(name, many, seed, rounds=16):
    """Thirty clients, a tenth of them hostile, so many a round."""
    simulation = Simulation(
        METHODS.make(name),
        quadratics([1.0] * 30, [1.0 + i / 30 for i in range(30)], counts=[1] * 30),
        Point(0.0),
        loss=half_square,
        local=Local(batch=100, steps=1, optimizer=sgd(0.1)),
        cohort=many,
        seed=seed,
        engine=double(),
        adversary=scaled(fraction=0.1, factor=1e20),
    )
    return simulation, [simulation.advance() for _ in range(rounds)]


@pytest.mark.parametrize("name", ["fedavg", "rfa", "median", "scaffold"])
@pytest.mark.parametrize(("many", "seed"), [(3, 56), (3, 67), (2, 56), (2, 107), (1, 0), (1, 13)])
def test_a_cohort_with_a_hostile_majority_is_known_by_its_length(name, many, seed):
    """The model goes from 0 to the clients' optima, which lie between 1 and 2, whoever was drawn together and when."""
    simulation, records = sampled(name, many, seed)
    assert max(len(record.liars) for record in records) > many / 2, "no round of this seed had a hostile majority"
    for record in records:
        assert record.outcome.excluded.keys() == set(record.liars)
        assert bool(record.outcome.skipped) == (len(record.liars) == many)
    assert 0.5 < float(simulation.server.model) < 2.0


def serve(*rounds, local=None, limits=None):
    """A server after cohorts given by each client's length, and who was left out of each, with the reason."""
    server = Server(fedavg(), torch.full((1,), FAR, dtype=torch.float64), limits or Limits())
    out = []
    for number, lengths in enumerate(rounds, 1):
        given = cohort(lengths, [[x] for x in lengths.values()])
        out.append(server.receive(given, FixedWorld(1, number, local=local)).excluded)
    return server, out


def test_each_clients_latest_length_is_remembered_whether_or_not_it_was_admitted():
    server, out = serve({0: 1.0, 1: 2.0, 2: 0.0}, {3: 5.0}, {1: 4.0, 4: 1e6, 2: math.nan})
    assert out == [{}, {}, {4: UNUSUAL, 2: BROKEN}]
    assert server.lengths == Lengths({UPDATE: ((0, 0.1, 1.0), (3, 0.1, 5.0), (1, 0.1, 4.0), (4, 0.1, 1e6))})


@pytest.mark.parametrize(("factor", "excluded"), [(49.99, {}), (50.01, {5: UNUSUAL})])
def test_the_bound_by_the_memory_lies_where_it_says(factor, excluded):
    """The upper median of 1, 2, 3, 4 and the newcomer is 3."""
    _, out = serve({0: 1.0, 1: 2.0}, {2: 3.0, 3: 4.0}, {5: 3 * factor})
    assert out == [{}, {}, excluded]


def test_the_upper_median_is_usual():
    past = Lengths({UPDATE: ((0, 0.1, 1.0), (1, 0.1, 2.0), (2, 0.1, 3.0))})
    assert past.usual(UPDATE, 0.1, {7: 9.0}) == 3.0
    assert past.usual(UPDATE, 0.1, {2: 9.0}) == 2.0  # the same client again
    assert past.usual("its report a/b", 0.1, {7: 9.0}) == 9.0
    assert Lengths().usual(UPDATE, 0.1, {}) == 0.0


def test_a_client_counts_once_however_often_it_is_drawn():
    """One hostile client is drawn in every round; its many replies do not make a second one's length usual."""
    _, out = serve(*[{i: 1.0} for i in range(3)], *[{9: 1e3 * i} for i in range(1, 9)], {8: 1e3})
    assert out[3:] == [{9: UNUSUAL}] * 8 + [{8: UNUSUAL}]


def test_a_round_in_which_everybody_is_too_long_is_skipped_and_says_why():
    server, _ = serve({0: 1.0, 1: 1.0, 2: 1.0})
    outcome = server.receive(cohort([3, 4], [[60.0], [70.0]]), FixedWorld(1, 2))
    assert outcome.skipped == f"no reply could be used: 2 of 2 because {UNUSUAL}"


def test_lengths_that_have_grown_for_half_of_the_clients_are_usual():
    """So nobody is locked out for ever."""
    _, out = serve({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}, {0: 1e3}, {1: 1e3}, {2: 1e3}, {0: 1e3})
    assert out == [{}, {0: UNUSUAL}, {}, {}, {}]


def test_of_two_clients_heard_in_turn_neither_is_locked_out():
    _, out = serve({0: 1.0}, {0: 1e-3}, {0: 1e-6}, {1: 1.0}, {0: 1e-9}, {1: 1.0})
    assert out == [{}] * 6


def test_the_last_hundred_clients_are_remembered():
    server, _ = serve(dict.fromkeys(range(60), 1.0), dict.fromkeys(range(50, 120), 1.0))
    assert [client for client, _, _ in server.lengths.latest[UPDATE]] == [*range(20, 120)]


def test_reports_as_large_as_the_model_have_a_memory_of_their_own():
    def told(length, *ids):
        report = torch.full((len(ids), 1), length, dtype=torch.float64)
        return cohort(ids, [[1.0]] * len(ids), reports={"part": {"change": report}})

    model = torch.ones(1, dtype=torch.float64)
    first = admit(told(3.0, 0, 1), Limits(), Local(), 1, Lengths(), model, 30)
    assert first.lengths.latest["its report part/change"] == ((0, 0.1, 3.0), (1, 0.1, 3.0))
    found = admit(told(151.0, 2), Limits(), Local(), 2, first.lengths, model, 30)
    assert found.refused == {2: "its report part/change is over 50 times as long as the median of the last rounds"}


def test_lengths_may_rise_with_the_learning_rate_and_need_not_fall_with_it():
    rates = [1e-4, 1.0, 1e-4, 1e-4]
    local = Local(optimizer=sgd(1.0), schedule=Schedule(lambda round: rates[round - 1]))
    three = {0: 1.0, 1: 1.0, 2: 1.0}
    _, out = serve(dict.fromkeys(three, 0.0001), {3: 1.0}, three, {4: 1.0, 5: 51.0}, local=local)
    assert out == [{}, {}, {}, {5: UNUSUAL}]
    past = Lengths({UPDATE: ((0, 1.0, 1.0), (1, 1.0, 1.0), (2, 1.0, 1.0))})
    assert [past.usual(UPDATE, lr, {7: 51.0}) for lr in (1e-4, 1.0, 10.0)] == [1.0, 1.0, 10.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [1e20, 1e38])
def test_lengths_are_right_where_squares_overflow(dtype, far):
    updates = torch.full((3, 4), far, dtype=dtype)
    ones = torch.ones(3, dtype=torch.float64)
    found = admit(Cohort((0, 1, 2), updates, ones, ones), Limits(), Local(), 1, Lengths(), updates[0], 30)
    assert found.refused == {}
    assert found.lengths.latest[UPDATE][0][2] == pytest.approx(2 * far, rel=1e-6)


def test_a_length_beyond_all_numbers_is_too_long_and_not_broken():
    _, out = serve({0: 1.0, 1: 1.0, 2: 1.7e308})
    assert out == [{2: "its update is over 50 times as long as the cohort's median"}]


def test_the_bound_by_the_memory_is_turned_off_with_the_other():
    _, out = serve({0: 1.0, 1: 1.0}, {2: 1e9}, limits=Limits(norm_ratio=math.inf))
    assert out == [{}, {}]


def test_a_resumed_run_remembers_lengths(tmp_path):
    """One client a round, and those after the second round send far longer updates, as a whole run shows."""

    def adversary(round, cohort):
        return Cohort(cohort.ids, cohort.updates * (1.0 if round < 3 else 1e3), cohort.examples, cohort.steps)

    given = {"federation": blobs([4, 6, 5]), "model": small, "adversary": adversary}
    given["cohort"] = lambda seed, round, clients: torch.tensor([(round - 1) % 3])
    whole = cp.simulate("fedavg", rounds=5, **given)
    cp.simulate("fedavg", rounds=5, out=tmp_path / "run", on_round=lambda record: record.round == 2, **given)
    resumed = cp.resume(tmp_path / "run", **given)
    assert [bool(r.outcome.skipped) for r in whole.rounds] == [False, False, True, False, False]
    assert [r.outcome.excluded for r in resumed.rounds] == [r.outcome.excluded for r in whole.rounds]
    for mine, its in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_a_checkpoint_holds_the_lengths_exactly_and_goes_on_without_them(tmp_path):
    """Earlier versions kept none."""
    given = {"federation": blobs([4, 6, 5]), "model": small}
    cp.simulate("fedavg", rounds=4, out=tmp_path / "run", on_round=lambda record: record.round == 2, **given)
    folder = Folder.open(tmp_path / "run")
    made = [Simulation(fedavg(), blobs([4, 6, 5]), small()) for _ in range(2)]
    made[0].advance()
    made[0].advance()
    folder.restore(made[1].loop, writes=False)
    assert [list(told) for told in made[0].server.lengths.latest[UPDATE]] == made[1].server.lengths.latest[UPDATE]
    path = tmp_path / "run/checkpoint/checkpoint.json"
    index = json.loads(path.read_text())
    assert [client for client, _, _ in index.pop("lengths")[UPDATE]] == [0, 1, 2]
    path.write_text(json.dumps(index))
    assert cp.resume(tmp_path / "run", **given).status == "finished"


ENORMOUS = "its update is over 50 times as long as the model"


@pytest.mark.parametrize(("model", "bound"), [([0.0] * 4, 100.0), ([1.0] * 4, 100.0), ([0.0, 3.0, 4.0, 0.0], 250.0)])
def test_the_bound_by_the_model_lies_where_it_says(model, bound):
    """A model of four weights counts at least as long as one whose weights are all 1."""
    model = torch.tensor(model, dtype=torch.float64)
    for factor, excluded in ((0.999, {}), (1.001, {0: ENORMOUS, 1: ENORMOUS})):
        given = cohort([0, 1], [[bound * factor, 0.0, 0.0, 0.0]] * 2)
        assert admit(given, Limits(), Local(), 1, Lengths(), model, 30).refused == excluded


@pytest.mark.parametrize(("lr", "bound"), [(0.1, 500.0), (1.0, 50.0), (2.0, 50.0)])
def test_a_report_may_be_longer_than_the_model_by_one_over_the_learning_rate(lr, bound):
    """A variate is a mean gradient: an update divided by the learning rate."""
    reason = "its report part/change is over 50 times as long as the model"
    for factor, excluded in ((0.999, {}), (1.001, {0: reason})):
        report = {"part": {"change": torch.tensor([[bound * factor]], dtype=torch.float64)}}
        given = cohort([0], [[1.0]], reports=report)
        found = admit(given, Limits(), Local(optimizer=sgd(lr)), 1, Lengths(), torch.zeros(1, dtype=torch.float64), 30)
        assert found.refused == excluded


@pytest.mark.parametrize("factor", [1e20, 3e38])
@pytest.mark.parametrize("many", [1, 2, 3])
def test_a_hostile_first_cohort_does_not_cost_the_model(factor, many):
    """All of the first cohort is hostile, in float32; the others are honest."""

    def adversary(round, cohort):
        far = torch.full_like(cohort.updates, factor)
        return Cohort(cohort.ids, far if round == 1 else cohort.updates, cohort.examples, cohort.steps)

    run = cp.simulate("fedavg", blobs([9] * 6), model=small, rounds=8, cohort=many, adversary=adversary)
    assert run.rounds[0].outcome.skipped
    assert not any(record.outcome.excluded for record in run.rounds[1:])
    assert run.rounds[-1].metrics["train_loss"] < run.rounds[1].metrics["train_loss"]


@pytest.mark.parametrize(("heard", "population", "excluded"), [(4, 30, 4), (5, 30, 0), (3, 4, 3), (3, 3, 0)])
def test_the_bound_by_the_model_holds_until_enough_clients_are_known(heard, population, excluded):
    """An honest regression on targets in the thousands begins with updates far longer than its model."""
    given, model = cohort(range(heard), [[1e3]] * heard), torch.zeros(1, dtype=torch.float64)
    assert len(admit(given, Limits(), Local(), 1, Lengths(), model, population).refused) == excluded


def test_an_honest_regression_of_large_numbers_trains():
    inputs = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    federation = cp.Federation.from_arrays(inputs, inputs @ torch.full((2, 1), 1e3), partition=cp.iid(8))
    local = Local(batch=1000, optimizer=sgd(0.5))
    run = cp.simulate(
        "fedavg",
        federation,
        model=torch.nn.Linear(2, 1, bias=False),
        loss=lambda outputs, targets: (outputs - targets).square().mean(1),
        rounds=6,
        local=local,
        cohort=2,
    )
    assert run.rounds[-1].metrics["train_loss"] < 1e-2 * run.rounds[0].metrics.get("train_loss", 1e6)
