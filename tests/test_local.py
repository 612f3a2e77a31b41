"""Local settings: what they refuse, what they count, and the schedules over rounds."""

import math

import pytest
import torch
from helpers import BACKENDS, H, M, Point, blobs, descend, double, half_square, quadratics, run, small

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, constant, cosine, exponential, sgd, stairs
from counterpoise.methods import METHODS, avg, fedavg


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"epochs": 0}, "local: epochs must be a whole number from 1 to 1000000000, not 0"),
        ({"epochs": 1.5}, "local: epochs must be a whole number from 1 to 1000000000, not 1.5"),
        ({"epochs": True}, "local: epochs must be a whole number"),
        ({"epochs": 10**20}, "local: epochs must be a whole number from 1 to 1000000000, not 1" + 20 * "0"),
        ({"steps": [1, 10**10]}, "local: steps must be a whole number from 1 to 1000000000"),
        ({"batch": 0}, "local: batch must be a whole number from 1 to 1000000000, not 0"),
        ({"batch": "20"}, "local: batch must be a whole number from 1 to 1000000000, not '20'"),
        ({"steps": 0}, "local: steps must be a whole number from 1 to 1000000000, or one such number per client"),
        ({"steps": []}, "local: steps must be"),
        ({"steps": [1, -2]}, "local: steps must be"),
        ({"steps": [1, 2.5]}, "local: steps must be"),
        ({"steps": 2.5}, "local: steps must be"),
        ({"steps": True}, "local: steps must be"),
        ({"optimizer": "sgd"}, r"local: optimizer must be made by cp\.sgd\(\.\.\.\) or cp\.adam"),
        ({"optimizer": torch.optim.SGD}, "local: optimizer must be made by"),
        ({"schedule": 0.9}, "local: schedule must be"),
        ({"augment": "flip"}, "local: augment must be"),
        ({"lr": 0.1}, r"no option 'lr' of Local\. Did you mean 'optimizer=cp\.sgd\(0\.1\)'"),
        ({"batch_size": 8}, "no option 'batch_size' of Local. Did you mean 'batch'"),
    ],
)
def test_bad_local_settings_are_refused_with_a_sentence(settings, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        Local(**settings)


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_for_too_few_clients_are_refused_with_a_sentence(backend):
    with pytest.raises(CounterpoiseError, match="steps"):
        run(descend(fedavg(), H, M, [10], backend=backend), 1)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (constant(), [1, 1, 1, 1, 1]),
        (exponential(0.5), [1, 0.5, 0.25, 0.125, 0.0625]),
        (stairs(2, decay=0.1), [1, 1, 0.1, 0.1, 0.01]),
        (cosine(4), [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0]),
        (cosine(2, floor=0.2), [1, 0.6, 0.2, 0.2, 0.2]),
    ],
)
def test_a_schedule_is_a_factor_per_round(schedule, factors):
    assert [schedule.factor(round) for round in range(1, 6)] == pytest.approx(factors, abs=1e-15)
    local = Local(optimizer=sgd(0.3), schedule=schedule)
    assert [local.lr(round) for round, f in enumerate(factors, 1) if f] == pytest.approx(
        [0.3 * f for f in factors if f], abs=1e-15
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_schedule_reaches_the_clients(backend):
    local = Local(optimizer=sgd(0.1), schedule=exponential(0.5))
    simulation = Simulation(
        avg(), quadratics([1.0], [4.0]), Point(0.0), loss=half_square, local=local, engine=double(backend=backend)
    )
    w = 0.0
    for round in range(4):
        simulation.advance()
        w += 0.1 * 0.5**round * (4 - w)
        assert float(simulation.server.model) == pytest.approx(w, abs=1e-14)


def test_steps_are_counted_by_batches_or_as_asked():
    clients, sizes = torch.tensor([2, 0, 1]), torch.tensor([1, 8, 9])
    assert Local(batch=4).steps_of(clients, sizes).tolist() == [1, 2, 3]
    assert Local(batch=4, steps=5).steps_of(clients, sizes).tolist() == [5, 5, 5]
    assert Local(batch=4, steps=[6, 7, 8]).steps_of(clients, sizes).tolist() == [8, 6, 7]
    assert Local(steps=5).steps_of(clients, torch.tensor([0, 1, 0])).tolist() == [0, 5, 0]
    assert (Local(epochs=3).passes, Local(epochs=3, steps=2).passes) == (3, 1)


def test_the_default_trains():
    before = small()
    simulation = Simulation(fedavg(), blobs([5, 6]), before)
    first = simulation.advance().metrics["train_loss"]
    for _ in range(20):
        last = simulation.advance().metrics["train_loss"]
    assert last < first
    assert cp.Local().optimizer.lr == 0.1


@pytest.mark.parametrize("method", ["fedavg", "qffl", "mifa", "scaffold"])
def test_a_schedule_that_comes_to_nothing_ends_the_run_with_one_sentence(method):
    local = Local(steps=1, schedule=cosine(2))
    simulation = Simulation(
        METHODS.make(method), quadratics(H, M), Point(), loss=half_square, local=local, engine=double()
    )
    run(simulation, 2)
    with pytest.raises(CounterpoiseError, match=r"learning rate of round 3 0; .* Give cosine a floor"):
        simulation.advance()
    assert simulation.round == 2


def test_the_steps_asked_for_follow_from_the_count() -> None:
    counts = torch.tensor([1.0, 16.0, 16.2, 33.0], dtype=torch.float64)
    assert Local(epochs=2, batch=16).asked((0, 1, 2, 3), counts).tolist() == [2, 2, 4, 6]
    assert Local(epochs=2, steps=5).asked((0, 1, 2, 3), counts).tolist() == [5, 5, 5, 5]
    assert Local(steps=[3, 1, 4, 1, 5]).asked((4, 0), counts[:2]).tolist() == [5, 3]
    assert Local(batch=16).asked((0,), torch.tensor([0.25])).tolist() == [1]
