"""Local settings: what they refuse, what they count, and the schedules over rounds."""

import math
from dataclasses import replace

import pytest
import torch
from helpers import BACKENDS, H, M, Point, blobs, descend, double, half_square, quadratics, run, small

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, Optimizer, constant, cosine, exponential, listed, sgd, stairs
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
        (
            {"optimizer": "sgd"},
            r"local: optimizer must be made by cp\.sgd\(\.\.\.\), .* or cp\.Optimizer\(\.\.\.\), not 'sgd'",
        ),
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
        (listed([2, 4], [0.5, 3]), [1, 0.5, 0.5, 3, 3]),
        (listed([2, 4], [0.5, 3], hold=False), [1, 0.5, 1, 3, 1]),
        (listed([1], [0.5]), [0.5] * 5),
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
    with pytest.raises(CounterpoiseError, match=r"learning rate of round 3 to 0; .* Give cosine a floor"):
        simulation.advance()
    assert simulation.round == 2


def test_the_steps_asked_for_follow_from_the_count() -> None:
    counts = torch.tensor([1.0, 16.0, 16.2, 33.0], dtype=torch.float64)
    assert Local(epochs=2, batch=16).asked((0, 1, 2, 3), counts).tolist() == [2, 2, 4, 6]
    assert Local(epochs=2, steps=5).asked((0, 1, 2, 3), counts).tolist() == [5, 5, 5, 5]
    assert Local(steps=[3, 1, 4, 1, 5]).asked((4, 0), counts[:2]).tolist() == [5, 3]
    assert Local(batch=16).asked((0,), torch.tensor([0.25])).tolist() == [1]


# ---------------------------------------------------------------- optimisers of a user's own


def nothing(w):
    return {}


def halfway(w, g, state, lr):
    """Moves the weights, and not only against the gradient: half of them are lost in each step."""
    return w / 2 - lr * g, state


def plain(g, state, lr):
    return lr * g, state


def one_client(optimizer, backend="per-client"):
    """The loss (w - 4)^2 / 2 from w = 3, in two steps."""
    local = Local(steps=2, optimizer=optimizer)
    data, engine = quadratics([1.0], [4.0]), double(backend=backend)
    return Simulation(avg(), data, Point(3.0), loss=half_square, local=local, engine=engine)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_sees_the_model_and_the_gradient_with_its_decay(backend):
    optimizer, w = Optimizer(0.1, nothing, halfway, weight_decay=0.5), 3.0
    for _ in range(2):
        w = w / 2 - 0.1 * ((w - 4) + 0.5 * w)
    assert float(run(one_client(optimizer, backend), 1)) == pytest.approx(w, abs=1e-14)


@pytest.mark.parametrize("given", [{"update": plain}, {"step": plain}], ids=["by name", "by place"])
def test_an_update_still_works_and_says_that_it_goes(given):
    with pytest.warns(
        DeprecationWarning, match=r"update\(g, state, lr\) is dropped .* Give it step\(w, g, state, lr\)"
    ) as told:
        optimizer = Optimizer(0.1, nothing, **given, weight_decay=0.5)
    assert [warning.filename for warning in told] == [__file__]
    assert torch.equal(run(one_client(optimizer), 1), run(one_client(sgd(0.1, weight_decay=0.5)), 1))
    assert replace(optimizer, lr=0.2).lr == 0.2  # without a second warning


@pytest.mark.parametrize("given", [{}, {"step": 3}, {"step": halfway, "update": plain}])
def test_an_optimiser_has_one_step(given):
    with pytest.raises(CounterpoiseError, match=r"Optimizer: give it one function step\(w, g, state, lr\)"):
        Optimizer(0.1, nothing, **given)


@pytest.mark.parametrize(
    ("step", "returned"),
    [
        (lambda w, g, state, lr: w - lr * g, "It returned Tensor"),
        (lambda w, g, state, lr: (w.sum(), state), r"It returned w float64\[\]; mean float64\[1\]"),
        (lambda w, g, state, lr: (w.float(), state), r"It returned w float32\[1\]; mean float64\[1\]"),
        (lambda w, g, state, lr: (w, {}), r"It returned w float64\[1\]; nothing"),
        (lambda w, g, state, lr: (w, {"mean": 1.0}), r"It returned w float64\[1\]; mean float"),
    ],
)
def test_a_step_that_returns_something_else_is_told_in_a_sentence(step, returned):
    wanted = r"step must return \(w, state\) .* given: w float64\[1\]; mean float64\[1\]\. "
    with pytest.raises(CounterpoiseError, match=wanted + returned):
        one_client(Optimizer(0.1, lambda w: {"mean": torch.zeros_like(w)}, step)).advance()
