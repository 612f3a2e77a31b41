"""What the averaging methods do where it can be worked out by hand."""

import numpy as np
import pytest
import torch
from helpers import (
    ALL_METHODS,
    BACKENDS,
    Point,
    assert_close,
    blobs,
    by_torch,
    data_of,
    descend,
    digits,
    double,
    flat,
    points,
    push,
    quadratics,
    run,
    small,
)
from torch.nn import functional as F

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.federation import Federation
from counterpoise.local import Local, adam, adamw, exponential, sgd
from counterpoise.method import Cohort
from counterpoise.methods import METHODS, avg, fedavg, fedavgm, fedprox

H, M, LR = (1.0, 10.0), (4.0, -1.0), 0.02


def pulls(steps, mu=0.0):
    """How far each client goes from the server's model to its own optimum, as a fraction."""
    h = np.array(H)
    return (1 - (1 - LR * (h + mu)) ** np.array(steps)) * h / (h + mu)


def fixed_point(steps, mu=0.0, weights=(0.5, 0.5)):
    s = pulls(steps, mu) * np.array(weights)
    return float((s * M).sum() / s.sum())


TABLE = [
    (0.0, (10, 10), -0.14961),
    (0.0, (10, 2), 0.68464),
    (0.0, (2, 10), -0.78761),
    (1.0, (10, 10), -0.16283),
    (1.0, (10, 2), 0.60035),
    (1.0, (2, 10), -0.77536),
]


@pytest.mark.parametrize(
    ("mu", "steps", "printed", "backend"),
    [*((*row, "per-client") for row in TABLE), *((*row, "batched") for row in TABLE[1::3])],
)
def test_averaging_settles_at_its_closed_form(mu, steps, printed, backend):
    method = fedprox(mu=mu) if mu else fedavg()
    expected = fixed_point(steps, mu)
    assert expected == pytest.approx(printed, abs=5e-6)
    simulation = descend(method, H, M, list(steps), start=3.0, backend=backend)
    assert points(simulation, 50)[-1] == pytest.approx(printed, abs=6e-6)
    there = descend(method, H, M, list(steps), start=expected, backend=backend)
    assert points(there, 1)[0] == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_averaging_does_not_settle_with_one_of_two_sampled(mu):
    method = fedprox(mu=mu) if mu else fedavg()
    late = points(descend(method, H, M, [10, 10], start=fixed_point((10, 10), mu), cohort=1), 40)[20:]
    assert max(late) - min(late) > 0.3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("method", "weights"), [(fedavg(), (0.25, 0.75)), (avg(), (0.5, 0.5))])
def test_fedavg_weighs_by_data_and_avg_does_not(method, weights, backend):
    simulation = descend(method, H, M, [10, 10], counts=[2, 6], start=2.0, backend=backend)
    w = 2.0
    for _ in range(3):
        record = simulation.advance()
        w += float((np.array(weights) * pulls((10, 10)) * (np.array(M) - w)).sum())
        assert float(simulation.server.model) == pytest.approx(w, abs=1e-13)
        assert record.outcome.weights == pytest.approx(dict(enumerate(weights)))
        assert record.outcome.claims == {0: 2, 1: 6}
    there = descend(method, H, M, [10, 10], counts=[2, 6], start=fixed_point((10, 10), weights=weights))
    assert points(there, 1)[0] == pytest.approx(fixed_point((10, 10), weights=weights), abs=1e-14)


def test_fedavgm_is_heavy_ball_on_the_mean_update():
    beta, lr, w, v = 0.8, 0.5, 3.0, 0.0
    simulation = descend(fedavgm(beta=beta, lr=lr), H, M, [3, 5], counts=[1, 3], start=w)
    for _ in range(8):
        d = pulls((3, 5)) * (np.array(M) - w)
        v = beta * v + 0.25 * d[0] + 0.75 * d[1]
        w += lr * v
        simulation.advance()
        assert float(simulation.server.model) == pytest.approx(w, abs=1e-13)
        assert float(simulation.server.state["server-momentum"]["velocity"]) == pytest.approx(v, abs=1e-13)


def test_fedavgm_without_momentum_is_fedavg():
    assert points(descend(fedavgm(beta=0.0), H, M, [3, 5]), 4) == points(descend(fedavg(), H, M, [3, 5]), 4)


@pytest.mark.parametrize("make", [fedavg, avg, fedprox])
def test_the_server_learning_rate_scales_the_step(make):
    whole, third = (points(descend(make(lr=lr), H, M, [4, 4], start=2.0), 1)[0] - 2.0 for lr in (1.0, 0.3))
    assert abs(whole) > 0.1
    assert third == pytest.approx(0.3 * whole, abs=1e-14)


def test_fedprox_without_a_pull_is_fedavg():
    assert points(descend(fedprox(mu=0.0), H, M, [3, 5]), 4) == points(descend(fedavg(), H, M, [3, 5]), 4)


# ---------------------------------------------------------------- against torch.optim


OPTIMIZERS = [
    (sgd(0.05), lambda p, lr: torch.optim.SGD(p, lr)),
    (sgd(0.05, momentum=0.9), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)),
    (
        sgd(0.05, momentum=0.8, nesterov=True, weight_decay=0.01),
        lambda p, lr: torch.optim.SGD(p, lr, momentum=0.8, nesterov=True, weight_decay=0.01),
    ),
    (sgd(0.05, weight_decay=0.1), lambda p, lr: torch.optim.SGD(p, lr, weight_decay=0.1)),
    (adam(0.01), lambda p, lr: torch.optim.Adam(p, lr)),
    (
        adam(0.01, beta1=0.8, beta2=0.99, eps=1e-6, weight_decay=0.02),
        lambda p, lr: torch.optim.Adam(p, lr, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.02),
    ),
    (adamw(0.01), lambda p, lr: torch.optim.AdamW(p, lr)),
    (
        adamw(0.01, beta1=0.8, beta2=0.99, eps=1e-6, weight_decay=0.5),
        lambda p, lr: torch.optim.AdamW(p, lr, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.5),
    ),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("ours", "theirs"), OPTIMIZERS)
def test_one_client_is_plain_training_step_for_step(ours, theirs, backend):
    federation = digits(clients=20)
    one = Federation.from_clients([(x.numpy(), y.numpy()) for x, y in [data_of(federation, 3)]], heldout=0)
    torch.manual_seed(0)
    model = cp.models.mlp(one.shape, 10, hidden=8).double()
    local = Local(epochs=2, batch=16, optimizer=ours, schedule=exponential(0.5))
    simulation = Simulation(fedavg(), one, model, local=local, seed=5, engine=double(backend=backend))
    start = flat(model)
    for round in range(1, 4):
        before = flat(model)
        by_torch(model, one, 0, theirs, local, round, seed=5)  # a new optimiser each round
        simulation.advance()
        assert_close(simulation.server.model, flat(model), flat(model) - before, 1e-11)
    assert not torch.equal(flat(model), start)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_round_of_fedavg_is_the_weighted_mean_of_plain_training(backend):
    federation, sizes = blobs([1, 4, 7, 10]), np.array([1, 4, 7, 10])
    local = Local(epochs=2, batch=4, optimizer=sgd(0.3, momentum=0.5))
    start = flat(small())
    mean = torch.zeros_like(start)
    for client, n in enumerate(sizes):
        model = small()
        by_torch(model, federation, client, lambda p, lr: torch.optim.SGD(p, lr, momentum=0.5), local, 1, seed=2)
        mean += float(n / sizes.sum()) * flat(model)
    simulation = Simulation(fedavg(), federation, small(), local=local, seed=2, engine=double(backend=backend))
    assert_close(run(simulation, 1), mean, mean - start, 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_epoch_shows_every_sample_once(backend):
    """With the loss -w per sample and one step a batch, the mean gradient is -1 whatever the padding."""
    federation = quadratics([1.0] * 3, [0.0] * 3, counts=[1, 5, 8])
    simulation = Simulation(
        avg(),
        federation,
        Point(),
        loss=push,
        local=Local(batch=3, epochs=2, optimizer=sgd(1.0)),
        engine=double(backend=backend),
    )
    simulation.advance()
    assert float(simulation.server.model) == pytest.approx(np.mean([2 * 1, 2 * 2, 2 * 3]), abs=1e-13)


# ---------------------------------------------------------------- for every method


@pytest.mark.parametrize("name", ALL_METHODS)
def test_unmoved_clients_leave_a_fresh_server_unmoved(name):
    federation = digits(probe=1, proxy=100)
    model = cp.models.linear(federation.shape, 10).double()
    simulation = Simulation(
        METHODS.make(name),
        federation,
        model,
        loss=lambda outputs, targets: 0 * F.cross_entropy(outputs, targets, reduction="none"),
        local=Local(batch=100),
        engine=double(),
    )
    assert torch.equal(run(simulation, 2), flat(model))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [fedavg, fedprox, avg])
def test_ten_of_a_hundred_clients_that_move_by_one_move_the_server_by_one(make, backend):
    federation = quadratics([1.0] * 100, [0.0] * 100, counts=[1 + i % 7 for i in range(100)])
    local = Local(batch=10, steps=1, optimizer=sgd(1.0))
    simulation = Simulation(
        make(), federation, Point(), loss=push, local=local, cohort=10, engine=double(backend=backend)
    )
    record = simulation.advance()
    assert float(simulation.server.model) == pytest.approx(1.0, abs=1e-14)
    assert len(record.cohort) == len(record.outcome.weights) == 10


@pytest.mark.parametrize("name", ALL_METHODS)
def test_renaming_clients_changes_nothing(name):
    sizes, new = [2, 5, 9, 4, 7], [3, 0, 4, 2, 1]
    federation = blobs(sizes, probe=1, proxy=6)
    owners = federation.train.owners
    renamed = Federation(
        federation.base,
        type(federation.train).of(torch.tensor(new)[owners], federation.train.flat, 5),
        federation.heldout,
        probe=federation.probe,
        proxy=federation.proxy,
        classes=3,
    )
    local = Local(batch=20, epochs=3, optimizer=sgd(0.3, momentum=0.5))  # one batch holds a client's all
    runs = [Simulation(METHODS.make(name), fed, small(), local=local, engine=double()) for fed in (federation, renamed)]
    for _ in range(3):
        weights = [simulation.advance().outcome.weights for simulation in runs]
        if weights[0] is None or weights[1] is None:  # a rule without weights
            assert weights[0] is weights[1]
            continue
        assert {new[client]: weight for client, weight in weights[0].items()} == pytest.approx(weights[1], rel=1e-9)
    assert_close(runs[0].server.model, runs[1].server.model, runs[0].server.model - flat(small()), 1e-11)


# FedNova takes a client's steps from the count that the server believes.
@pytest.mark.parametrize("name", [name for name in ALL_METHODS if name != "fednova"])
def test_scaling_every_claim_changes_nothing(name):
    def sevenfold(round, cohort):
        return Cohort(cohort.ids, cohort.updates, 7 * cohort.examples, cohort.steps, cohort.reports)

    models = []
    for adversary in (None, sevenfold):
        federation = blobs([2, 5, 9, 4, 7], probe=1, proxy=6)
        local = Local(batch=4, optimizer=sgd(0.3))
        models.append(
            run(
                Simulation(METHODS.make(name), federation, small(), local=local, adversary=adversary, engine=double()),
                3,
            )
        )
    assert_close(models[0], models[1], models[0] - flat(small()), 1e-12)
