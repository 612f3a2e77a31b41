"""The memory of lengths: cohorts with a hostile majority, honest growth, and how a wrong memory is given up."""

import json
import math

import pytest
import torch
from helpers import Point, blobs, double, half_square, quadratics, small
from worlds import FixedWorld, cohort

import counterpoise as cp
from counterpoise.adversary import scaled
from counterpoise.engine import Limits, Simulation
from counterpoise.engine.admission import admit
from counterpoise.engine.lengths import Lengths
from counterpoise.engine.server import Server
from counterpoise.local import Local, Schedule, sgd
from counterpoise.method import Cohort
from counterpoise.methods import METHODS, fedavg
from counterpoise.runs.folder import Folder

UPDATE = "its update"
OUTGROWN = "its update is over 50 times as long as in the last rounds"


def sampled(name, many, seed, rounds=16):
    """Thirty clients, a tenth of them hostile, so many a round; the first cohorts are honest."""
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
@pytest.mark.parametrize(("many", "seed"), [(3, 56), (2, 56), (1, 0)])
def test_a_cohort_with_a_hostile_majority_is_held_against_earlier_rounds(name, many, seed):
    """The model goes from 0 to the clients' optima, which lie between 1 and 2, whoever was drawn together."""
    simulation, records = sampled(name, many, seed)
    hostile = [len(record.liars) for record in records]
    assert max(hostile) > many / 2, "no round of this seed had a hostile majority"
    assert not hostile[0]
    for record in records:
        assert record.outcome.excluded.keys() == set(record.liars)
        assert bool(record.outcome.skipped) == (len(record.liars) == many)
    assert 0.5 < float(simulation.server.model) < 2.0


def serve(*rounds, method=None, local=None, population=5, limits=None):
    """A server after cohorts given by their clients' lengths, and who was left out of each, with the reason."""
    server = Server(method or fedavg(), torch.zeros(1, dtype=torch.float64), limits or Limits())
    out = []
    for number, lengths in enumerate(rounds, 1):
        given = cohort(range(len(lengths)), [[x] for x in lengths])
        out.append(server.receive(given, FixedWorld(1, number, population, local=local)).excluded)
    return server, out


def test_the_memory_is_the_median_of_the_cohorts_middles():
    server, out = serve([1.0, 2.0, 3.0], [4.0, 0.0, 0.0], [0.0, 0.0], [10.0, 11.0, 12.0, 1000.0])
    assert out == [{}, {}, {}, {3: "its update is over 50 times as long as the cohort's median"}]
    assert server.lengths == Lengths({UPDATE: ((0.1, 2.0), (0.1, 4.0), (0.1, 11.0))})
    assert server.lengths.usual(UPDATE, 0.1) == 4.0
    assert Lengths().usual(UPDATE, 0.1) == math.inf


@pytest.mark.parametrize(("factor", "excluded"), [(49.99, {}), (50.01, {0: OUTGROWN, 1: OUTGROWN})])
def test_the_bound_by_the_memory_lies_where_it_says(factor, excluded):
    """The upper median of 1, 2, 3 and 4 is 3."""
    _, out = serve([1.0] * 2, [2.0] * 2, [3.0] * 2, [4.0] * 2, [3 * factor] * 2)
    assert out == [{}] * 4 + [excluded]


def test_a_round_in_which_everybody_is_too_long_is_skipped_and_says_why():
    server, _ = serve([1.0, 1.0])
    outcome = server.receive(cohort([0, 1], [[60.0], [70.0]]), FixedWorld(1, 2))
    assert outcome.skipped == f"no reply could be used: 2 of 2 because {OUTGROWN}"
    assert server.lengths == Lengths({UPDATE: ((0.1, 1.0),)})


def test_the_memory_is_of_the_last_eleven_rounds():
    server, _ = serve(*([float(i)] for i in range(1, 15)))
    assert [length for _, length in server.lengths.rounds[UPDATE]] == [float(i) for i in range(4, 15)]


def test_reports_as_large_as_the_model_have_a_memory_of_their_own():
    def told(length):
        report = torch.tensor([[length], [length]], dtype=torch.float64)
        return cohort([0, 1], [[1.0], [1.0]], reports={"part": {"change": report}})

    first = admit(told(3.0), Limits(), Local(), 1, Lengths())
    assert first.lengths.rounds["its report part/change"] == ((0.1, 3.0),)
    found = admit(told(151.0), Limits(), Local(), 2, first.lengths)
    assert set(found.excluded.values()) == {"its report part/change is over 50 times as long as in the last rounds"}


def test_lengths_may_rise_with_the_learning_rate_and_need_not_fall_with_it():
    rates = [1e-4, 1.0, 1e-4, 1e-4]
    local = Local(optimizer=sgd(1.0), schedule=Schedule(lambda round: rates[round - 1]))
    _, out = serve([1e-4, 1e-4], [1.0, 1.0], [1.0, 1.0], [51.0, 51.0], local=local)
    assert out == [{}, {}, {}, dict.fromkeys((0, 1), OUTGROWN)]


@pytest.mark.parametrize(("population", "blocked"), [(5, 3), (4, 3), (6, 30), (100, 30)])
def test_a_memory_that_most_clients_outgrew_is_given_up(population, blocked):
    """Three clients of five outgrow it together; of more clients the same three are no majority, and wait."""
    long = [1000.0, 1000.0, 1000.0]
    server, out = serve([1.0] * 3, *[long] * (blocked + 1), population=population)
    assert [bool(excluded) for excluded in out] == [False] + [True] * blocked + [False]
    assert server.lengths == Lengths({UPDATE: ((0.1, 1000.0),)})


def test_clients_that_stay_short_keep_the_memory():
    """A minority that outgrows it is left out for ever, and so is a majority that is interrupted."""
    _, out = serve([1.0] * 5, *[[1000.0, 1.0, 1.0, 1.0, 1000.0]] * 40)
    assert all(excluded.keys() == {0, 4} for excluded in out[1:])
    long, short = [1000.0, 1000.0, 1.0], [1.0, 1.0, 1.0]
    server, _ = serve(short, *[long, long, short] * 12, population=3)
    assert server.lengths.usual(UPDATE, 0.1) == 1.0


def test_what_the_cohort_itself_finds_too_long_does_not_outgrow_the_memory():
    server, _ = serve([1.0] * 3, *[[1e6, 1e3, 1.0]] * 9, population=3)
    assert server.lengths.usual(UPDATE, 0.1) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [1e20, 1e38])
def test_lengths_are_right_where_squares_overflow(dtype, far):
    updates = torch.full((3, 4), far, dtype=dtype)
    ones = torch.ones(3, dtype=torch.float64)
    found = admit(Cohort((0, 1, 2), updates, ones, ones), Limits(), Local(), 1, Lengths())
    assert found.excluded == {}
    assert found.lengths.rounds[UPDATE][0][1] == pytest.approx(2 * far, rel=1e-6)


def test_a_length_beyond_all_numbers_is_too_long_and_not_broken():
    _, out = serve([1.0] * 3, [1.0, 1.0, 1.7e308])
    assert out[1] == {2: "its update is over 50 times as long as the cohort's median"}


def test_the_bound_by_the_memory_is_turned_off_with_the_other():
    _, out = serve([1.0], [1e9], limits=Limits(norm_ratio=math.inf))
    assert out == [{}, {}]


def test_a_resumed_run_remembers_lengths_and_rounds_that_outgrew_them(tmp_path):
    """Everybody is too long in rounds 2 to 4, after which the memory is given up: stop in the middle of that."""

    def adversary(round, cohort):
        return Cohort(cohort.ids, cohort.updates * (1.0 if round == 1 else 1e3), cohort.examples, cohort.steps)

    given = {"federation": blobs([4, 6, 5]), "model": small, "adversary": adversary}
    whole = cp.simulate("fedavg", rounds=5, **given)
    cp.simulate("fedavg", rounds=5, out=tmp_path / "run", on_round=lambda record: record.round == 3, **given)
    resumed = cp.resume(tmp_path / "run", **given)
    assert [bool(r.outcome.skipped) for r in whole.rounds] == [False, True, True, True, False]
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
    folder.restore(made[1], writes=False)
    assert made[0].server.lengths.usual(UPDATE, 0.1) == made[1].server.lengths.usual(UPDATE, 0.1) < math.inf
    path = tmp_path / "run/checkpoint/checkpoint.json"
    index = json.loads(path.read_text())
    assert len(index.pop("lengths")[UPDATE]) == 2
    path.write_text(json.dumps(index))
    assert cp.resume(tmp_path / "run", **given).status == "finished"
