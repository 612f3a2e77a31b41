"""What methods compute under a schedule and weight decay, against NumPy: some rounds on quadratics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import BACKENDS, H, M, Point, Spy, descend, double, half_square, points, quadratics

from counterpoise.engine import Simulation
from counterpoise.local import Local, exponential, sgd
from counterpoise.methods import adabest, clusterfedvarp, feddc, fednova, fedvarp, qffl, scaffold

LR, DECAY, STEPS, COUNTS, START = 0.04, 0.3, (3, 5), (1, 3), 2.0
h, m = np.array(H), np.array(M)


def simulated(method, backend) -> list[float]:
    local = Local(batch=1000, steps=list(STEPS), optimizer=sgd(LR, weight_decay=DECAY), schedule=exponential(0.5))
    federation = quadratics(H, M, list(COUNTS))
    engine = double(backend=backend)
    return points(Simulation(method, federation, Point(START), loss=half_square, local=local, engine=engine), 3)


def trained(w, eta, term=lambda w: 0.0):
    """Both clients' updates; `term` is added to the gradients."""
    ends = np.full(2, w)
    for k in range(max(STEPS)):
        step = eta * (h * (ends - m) + DECAY * ends + term(ends))
        ends = np.where(k < np.array(STEPS), ends - step, ends)
    return ends - w


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rule", ["I", "II", "feddc"])
def test_variates_under_a_schedule_and_decay(rule, backend):
    """The decay is part of what SCAFFOLD's option II and FedDC take for the gradient, and not of option I's."""
    alpha = 0.5 if rule == "feddc" else 0.0
    w, own, drift, path = START, np.zeros(2), np.zeros(2), []
    for round in range(3):
        eta, c = LR * 0.5**round, own.mean()
        d = trained(w, eta, lambda x, k=c - own, a=w - drift: k + alpha * (x - a))
        own = h * (w - m) if rule == "I" else own - c - d / (np.array(STEPS) * eta)
        drift = drift + d
        w = w + d.mean() + (drift.mean() if alpha else 0.0)
        path.append(w)
    method = feddc(alpha) if alpha else scaffold(rule)
    assert simulated(method, backend) == pytest.approx(path, abs=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_q_ffl_under_a_schedule_and_decay(backend):
    w, q, path = START, 1.5, []
    for round in range(3):
        eta = LR * 0.5**round
        d, losses = trained(w, eta), h / 2 * (w - m) ** 2
        w += (losses**q * d / eta).sum() / (q * losses ** (q - 1) * (d / eta) ** 2 + losses**q / eta).sum()
        path.append(w)
    assert simulated(qffl(q), backend) == pytest.approx(path, abs=1e-8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fednova_with_a_proximal_term_under_a_schedule_and_decay(backend):
    w, mu, share, path = START, 4.0, np.array(COUNTS) / sum(COUNTS), []
    for round in range(3):
        eta = LR * 0.5**round
        d = trained(w, eta, lambda x, w=w: mu * (x - w))
        reach = np.array([sum((1 - eta * mu) ** k for k in range(steps)) for steps in STEPS])
        w += (share @ reach) * (share @ (d / reach))
        path.append(w)
    assert simulated(fednova(mu), backend) == pytest.approx(path, abs=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_adabests_bias_bears_a_round_that_nobody_was_heard_in(backend):
    """The server counts no such round, and to its clients it did not happen either."""
    mu, lr = 0.5, 0.02

    def deaf(round, cohort):
        return cohort.keep(torch.full((2,), round != 1))

    simulation = descend(adabest(mu, 0.0), H, M, 1, start=START, lr=lr, backend=backend, adversary=deaf)
    assert points(simulation, 1) == [START]
    assert points(simulation, 1)[0] == pytest.approx(START - lr * (h * (START - m)).mean(), abs=1e-14)
    store = simulation.client_state["bias-estimates"]
    expected = mu * lr * h * (START - m)
    assert [float(store[i]["h"]) for i in range(2)] == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize(("method", "rows"), [(fedvarp(), 6), (clusterfedvarp(4), 4)])
def test_what_a_server_remembers_counts_at_the_rounds_learning_rate(method, rows):
    """Two of six clients a round; of four clusters, two have two members and two have one."""
    h, m, spy = np.array([1.0, 10, 3, 5, 2, 7]), np.array([4.0, -1, 2, 0, -3, 1]), Spy()
    local = Local(batch=1000, steps=10, optimizer=sgd(0.02), schedule=exponential(0.9))
    settings = {"loss": half_square, "cohort": 2, "local": local, "adversary": spy, "engine": double()}
    reached = points(Simulation(method, quadratics(h, m), Point(3.0), **settings), 12)
    w, y, shares, path = 3.0, np.zeros(rows), np.bincount(np.arange(6) % rows) / 6, []
    for round, cohort in enumerate(spy.cohorts):
        ids, eta = np.array(cohort.ids), 0.02 * 0.9**round
        owner, g = ids % rows, (1 - (1 - eta * h[ids]) ** 10) * (m[ids] - w) / eta
        w = w + eta * ((g - y[owner]).mean() + shares @ y)
        y[owner] = [g[owner == k].mean() for k in owner]
        path.append(w)
    assert reached == pytest.approx(path, abs=1e-13)
