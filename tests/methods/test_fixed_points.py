"""What the baselines do on two quadratics: every cell of the table of fixed points, through the engine.

``F_i = h_i/2 (w - m_i)^2``, h = (1, 10), m = (4, -1), equal weights, K_i steps of lr 0.02; the optimum is -6/11.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import BACKENDS, H, M, Point, descend, double, half_square, points, push, quadratics

from counterpoise.engine import Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, adam, adamw, sgd
from counterpoise.methods import (
    adabest,
    avg,
    clusterfedvarp,
    counterpoise,
    ditto,
    fedavg,
    feddc,
    feddyn,
    fednova,
    fedvarp,
    mifa,
    moon,
    qffl,
    scaffold,
)

LR, OPTIMUM = 0.02, -6 / 11
h, m = np.array(H), np.array(M)


def pulls(steps, lr=LR):
    """How far each client goes from the server's model to its own optimum, as a fraction."""
    return 1 - (1 - lr * h) ** np.array(steps)


def fixed_point(steps, normalisers=1.0, lr=LR):
    s = pulls(steps, lr) / normalisers
    return float((s * m).sum() / s.sum())


AVERAGING = [
    (fednova(), (10, 10), -0.14961),
    (fednova(), (10, 2), -0.53874),
    (fednova(), (2, 10), -0.09226),
    (mifa(), (10, 10), -0.14961),
    *((method, (10, 2), 0.68464) for method in (mifa(), fedvarp(), clusterfedvarp(clusters=1))),
    *((method, (2, 10), -0.78761) for method in (fedvarp(), clusterfedvarp(clusters=2))),
]


@pytest.mark.parametrize(("method", "steps", "printed"), AVERAGING)
def test_with_all_clients_the_averaging_methods_settle_at_their_closed_form(method, steps, printed):
    expected = fixed_point(steps, np.array(steps) if method.name == "fednova" else 1.0)
    assert expected == pytest.approx(printed, abs=5e-6)
    assert points(descend(method, H, M, list(steps), start=3.0), 45)[-1] == pytest.approx(printed, abs=6e-6)
    assert points(descend(method, H, M, list(steps), start=expected), 2)[-1] == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("method", [fednova(), clusterfedvarp(clusters=1)])
def test_sampling_noise_stays_in_fednova_and_in_one_cluster(method):
    late = points(descend(method, H, M, [10, 10], start=fixed_point((10, 10)), cohort=1), 40)[20:]
    assert max(late) - min(late) > 0.3


@pytest.mark.parametrize(("method", "rounds"), [(mifa(), 60), (fedvarp(), 110)])
def test_memory_takes_the_sampling_noise_out_and_not_the_drift(method, rounds):
    late = points(descend(method, H, M, [10, 10], start=3.0, cohort=1), rounds)[-5:]
    assert late == pytest.approx([fixed_point((10, 10))] * 5, abs=6e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [mifa, fedvarp, clusterfedvarp])
def test_with_all_clients_memory_changes_nothing(make, backend):
    one, other = (points(descend(x, H, M, [3, 5], start=2.0, backend=backend), 4) for x in (make(), avg()))
    assert one == pytest.approx(other, abs=1e-13)


@pytest.mark.parametrize(("lr", "printed"), [(0.02, -0.53874), (0.002, -0.54502), (0.0002, -0.54541)])
def test_fednova_removes_the_bias_of_unequal_steps_to_first_order(lr, printed):
    expected = fixed_point((10, 2), np.array([10, 2]), lr)
    assert expected == pytest.approx(printed, abs=5e-6)
    there = descend(fednova(), H, M, [10, 2], start=expected, lr=lr)
    assert points(there, 2)[-1] == pytest.approx(expected, abs=1e-14)
    assert abs(points(descend(fednova(), H, M, [10, 2], start=expected + 0.01, lr=lr), 1)[0] - expected) < 0.01


ALL = [(10, 10), (10, 2), (2, 10)]


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("steps", ALL)
def test_scaffold_reaches_the_optimum(option, steps):
    assert points(descend(scaffold(option), H, M, list(steps), start=3.0), 50)[-1] == pytest.approx(OPTIMUM, abs=5e-6)


@pytest.mark.parametrize(("option", "rounds"), [("I", 200), ("II", 60)])
def test_scaffold_reaches_the_optimum_with_one_of_two_sampled(option, rounds):
    late = points(descend(scaffold(option), H, M, [10, 10], start=3.0, cohort=1), rounds)[-3:]
    assert late == pytest.approx([OPTIMUM] * 3, abs=5e-6)


def stays(method, steps, client, server, cohort=None, start=OPTIMUM):
    """A simulation whose state is put by hand stays where it is."""
    simulation = descend(method, H, M, list(steps), start=start, cohort=cohort)
    (store,) = simulation.client_state.values()
    for i in range(2):
        store.put(i, store.initial | {k: torch.tensor([v[i]], dtype=torch.float64) for k, v in client.items()})
    (part,) = simulation.server.state
    simulation.server.state[part] |= {k: torch.tensor([v], dtype=torch.float64) for k, v in server.items()}
    assert points(simulation, 4) == pytest.approx([start] * 4, abs=1e-12)


@pytest.mark.parametrize("steps", ALL)
@pytest.mark.parametrize("cohort", [None, 1])
def test_the_optimum_is_where_the_corrected_methods_rest(steps, cohort):
    slopes = h * (OPTIMUM - m)
    stays(scaffold("I"), steps, {"c": slopes}, {}, cohort)
    stays(scaffold("II"), steps, {"c": slopes}, {}, cohort)
    for alpha in (0.1, 1.0):
        stays(feddyn(alpha), steps, {"g": slopes}, {}, cohort)
        stays(feddc(alpha), steps, {"c": slopes}, {}, cohort)
        stays(feddc(alpha, variate="paper"), steps, {"h": -slopes / alpha}, {}, cohort)


@pytest.mark.parametrize(("steps", "rounds"), [((10, 10), 70), ((10, 2), 95), ((2, 10), 265)])
def test_feddyn_reaches_the_optimum(steps, rounds):
    assert points(descend(feddyn(1.0), H, M, list(steps), start=3.0), rounds)[-1] == pytest.approx(OPTIMUM, abs=6e-6)


def test_feddyn_takes_as_many_rounds_as_it_was_found_to():
    """Alpha 1, from 3: 77 rounds to 1e-6 with all clients, and roughly 160 to 210, by draw, with one of two."""
    path = np.abs(np.array(points(descend(feddyn(1.0), H, M, [10, 10], start=3.0), 77)) - OPTIMUM)
    assert path[76] < 1e-6 < path[70:76].max()
    sampled = points(descend(feddyn(1.0), H, M, [10, 10], start=3.0, cohort=1), 215)
    assert sampled[-3:] == pytest.approx([OPTIMUM] * 3, abs=1e-6)


def test_feddyn_with_a_small_alpha_goes_there_too():
    path = np.array(points(descend(feddyn(0.1), H, M, [10, 10], start=3.0), 160)) - OPTIMUM
    assert path[[80, 120, 159]] / path[[40, 80, 120]] == pytest.approx(
        [0.51] * 3, abs=0.03
    )  # it halves every 40 rounds


@pytest.mark.parametrize(("steps", "cohort", "rounds"), [((10, 10), None, 40), ((2, 10), None, 40), ((10, 10), 1, 65)])
def test_feddc_reaches_the_optimum(steps, cohort, rounds):
    late = points(descend(feddc(1.0), H, M, list(steps), start=3.0, cohort=cohort), rounds)
    assert late[-1] == pytest.approx(OPTIMUM, abs=6e-6)


def test_feddc_reaches_the_optimum_slowly_with_unequal_steps_and_not_with_a_small_alpha():
    assert points(descend(feddc(1.0), H, M, [10, 2], start=3.0), 195)[-1] == pytest.approx(OPTIMUM, abs=6e-6)
    path = np.abs(np.array(points(descend(feddc(0.1), H, M, [10, 2], start=3.0), 80)) - OPTIMUM)
    assert path[60:].max() > path[40:60].max() > path[20:40].max() > 4


@pytest.mark.parametrize("variate", ["code", "paper"])
def test_what_feddc_keeps_after_a_round(variate):
    simulation = descend(feddc(1.0, variate), H, M, [1, 1], start=2.0)
    own, drift, c = np.zeros(2), np.zeros(2), 0.0
    for _ in range(3):
        w = float(simulation.server.model)
        moves = -LR * (h * (w - m) - own + c + drift)
        new = -moves / LR
        own = own - c + new if variate == "code" else new
        drift = drift + moves
        c = own.mean()
        simulation.advance()
        kept = simulation.client_state["drift-correction"]
        assert [float(kept[i]["c"]) for i in range(2)] == pytest.approx(own, abs=1e-11)
        assert [float(kept[i]["h"]) for i in range(2)] == pytest.approx(drift, abs=1e-12)
        assert float(simulation.server.model) == pytest.approx(w + moves.mean() + drift.mean(), abs=1e-12)


@pytest.mark.parametrize("steps", ALL)
def test_adabest_rests_where_its_biases_say(steps):
    """``mean grad = mu (1 - beta)(w0 - w*)``: -0.54288 for mu 0.02, beta 0.8 from w0 = 3."""
    c = 0.02 * (1 - 0.8)
    expected = (3 * c - 3) / (5.5 + c)
    assert expected == pytest.approx(-0.54288, abs=5e-6)
    assert (h * (expected - m)).mean() == pytest.approx(c * (3 - expected), abs=1e-12)
    stays(adabest(), steps, {"h": h * (expected - m)}, {"middle": expected}, start=expected)


@pytest.mark.parametrize("steps", ALL)
def test_adabest_keeps_the_sum_that_decides_where_it_rests(steps):
    """``mean h = mu ((w0 - m_t) - beta (w0 - m_(t-1)))`` in every round, m_t the clients' mean model."""
    mu, beta, before, w = 0.05, 0.6, 3.0, 3.0
    simulation = descend(adabest(mu, beta), H, M, list(steps), start=3.0)
    for _ in range(6):
        simulation.advance()
        middle = float(simulation.server.state["bias-estimates"]["middle"])
        kept = np.mean([float(simulation.client_state["bias-estimates"][i]["h"]) for i in range(2)])
        assert kept == pytest.approx(mu * ((3 - middle) - beta * (3 - before)), abs=1e-13)
        w = middle + beta * (middle - before)
        assert float(simulation.server.model) == pytest.approx(w, abs=1e-13)
        before = middle


def test_adabest_goes_to_its_point_and_does_not_settle_when_sampled():
    mu, beta = 0.5, 0.8
    c = mu * (1 - beta)
    path = points(descend(adabest(mu, beta), H, M, [10, 10], start=3.0), 220)
    assert path[-1] == pytest.approx((3 * c - 3) / (5.5 + c), abs=1e-4)
    late = points(descend(adabest(), H, M, [10, 10], start=OPTIMUM, cohort=1), 40)[20:]
    assert max(late) - min(late) > 0.3


def test_adabest_forgets_by_the_rounds_a_client_was_away():
    """Round 1: h = -mu d. After two rounds away the next is h/3 - mu d."""
    calls = [[0], [1], [1], [0]]
    mu = 0.3
    simulation = descend(
        adabest(mu, 0.0), [1.0, 1.0], [1.0, 1.0], 1, cohort=lambda seed, round, n: torch.tensor(calls[round - 1])
    )
    own = simulation.client_state["bias-estimates"]
    points(simulation, 1)
    first = float(own[0]["h"])
    assert first == pytest.approx(-mu * LR, abs=1e-15)  # from 0, one step of 0.02 to 1
    before = points(simulation, 2)[-1]
    after = points(simulation, 1)[0]
    assert float(own[0]["h"]) == pytest.approx(first / 3 - mu * (after - before), abs=1e-15)


# ---------------------------------------------------------------- q-FFL, Ditto, MOON


def test_qffl_with_q_zero_is_the_plain_mean():
    settings = {"counts": [1, 5], "start": 2.0}
    one, other = (points(descend(x, H, M, [3, 5], **settings), 3) for x in (qffl(q=0.0), avg()))
    assert one == pytest.approx(other, abs=1e-12)


def test_qffl_minimises_the_sum_of_powers_of_losses():
    """K = 1, q = 1: the sum of F^2 is least at -0.11372."""
    best = (4 - 100 ** (1 / 3)) / (1 + 100 ** (1 / 3))  # of (w - 4)^4/4 + 25 (w + 1)^4
    assert round(best, 5) == -0.11372
    assert points(descend(qffl(q=1.0), H, M, 1, start=3.0), 80)[-1] == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("q", [0.5, 1.0, 2.0])
def test_a_step_of_qffl_is_its_formula(q, backend):
    w, steps = 2.0, (3, 5)
    losses, moves = h / 2 * (w - m) ** 2, pulls(steps) * (m - w)
    lipschitz = 1 / LR
    change = (losses**q * lipschitz * moves).sum() / (
        q * losses ** (q - 1) * (lipschitz * moves) ** 2 + lipschitz * losses**q
    ).sum()
    simulation = descend(qffl(q), H, M, list(steps), counts=[3, 7], start=w, backend=backend)
    assert points(simulation, 1)[0] == pytest.approx(w + change, abs=1e-8)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_dittos_personal_models_rest_between_their_own_optimum_and_the_servers(strength, backend):
    w = fixed_point((10, 10))
    simulation = descend(ditto(strength), H, M, [10, 10], start=w, backend=backend)
    assert points(simulation, 45)[-1] == pytest.approx(w, abs=1e-12)  # the global model is FedAvg's
    store = simulation.client_state["personal-model"]
    for i in range(2):
        assert float(store[i]["v"]) == pytest.approx((H[i] * M[i] + strength * w) / (H[i] + strength), abs=1e-4)


def test_a_new_client_of_ditto_starts_from_the_servers_model():
    calls = [[0], [0], [1]]
    simulation = descend(ditto(1.0), H, M, 1, start=3.0, cohort=lambda seed, round, n: torch.tensor(calls[round - 1]))
    w = points(simulation, 3)[1]
    expected = w - LR * H[1] * (w - M[1])  # one step from w, where the pull is nothing
    assert float(simulation.client_state["personal-model"][1]["v"]) == pytest.approx(expected, abs=1e-14)


def test_moon_without_its_loss_is_fedavg():
    one, other = (points(descend(x, H, M, [3, 5]), 3) for x in (moon(mu=0.0), fedavg()))
    assert one == other


# ---------------------------------------------------------------- ten of a hundred, and nobody


def pushed(method, steps=1, backend="per-client", start=0.0, counts=range(1, 8)):
    """Ten of a hundred clients that each move by +1 (a slope of -1, a step of 1)."""
    return Simulation(
        method,
        quadratics([1.0] * 100, [0.0] * 100, counts=[counts[i % len(counts)] for i in range(100)]),
        Point(start),
        loss=push,
        local=Local(batch=10, steps=steps, optimizer=sgd(1.0 / steps)),
        cohort=10,
        engine=double(backend=backend),
    )


MOVES = [
    (scaffold(), 1.0),
    (scaffold("I"), 1.0),
    (scaffold(weights="data"), 1.0),
    (fednova(), 1.0),
    (fedvarp(), 1.0),
    (clusterfedvarp(), 1.0),
    (mifa(), 0.1),
    (feddyn(), 1.1),
    (feddc(), 1.1),
    (adabest(beta=0.7), 1.7),
    (ditto(), 1.0),
    (moon(), 1.0),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("method", "moved"), MOVES)
def test_ten_of_a_hundred_clients_that_move_by_one(method, moved, backend):
    if method.name in ("feddyn", "feddc"):  # in the first step the pull is nothing
        simulation = pushed(method, backend=backend)
    else:
        simulation = pushed(method, 2 if method.name != "adabest" else 1, backend)
    assert points(simulation, 1)[0] == pytest.approx(moved, abs=1e-12)


# ---------------------------------------------------------------- SCAFFOLD's variates


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffolds_variates_after_one_round_and_two(option, backend):
    """All begin at zero; c moves by |S|/N of the mean change, and c_i is written back."""
    # Counts whose shares are exact, so that the variates are on every machine.
    simulation = pushed(scaffold(option), backend=backend, start=2.0, counts=[1, 2, 4, 8])
    own = simulation.client_state["control-variates"]
    assert float(simulation.server.state["control-variates"]["c"]) == 0.0
    assert float(own[0]["c"]) == 0.0
    record = simulation.advance()
    assert {float(own[i]["c"]) for i in record.cohort} == {-1.0}
    assert set(own) == set(record.cohort)
    assert float(simulation.server.state["control-variates"]["c"]) == pytest.approx(-0.1, abs=1e-15)
    for _ in range(3):
        simulation.advance()  # some clients for the second time: their variate does not change any more
    assert [float(own[i]["c"]) for i in own] == pytest.approx([-1.0] * len(own), abs=1e-14)
    assert float(simulation.server.state["control-variates"]["c"]) == pytest.approx(-len(own) / 100, abs=1e-14)


def test_scaffold_by_data_weighs_the_update_and_the_variate():
    simulation = descend(scaffold(weights="data"), H, M, [4, 4], counts=[1, 3], start=2.0)
    simulation.advance()
    share, moves = np.array([0.25, 0.75]), pulls((4, 4)) * (m - 2.0)
    assert float(simulation.server.model) == pytest.approx(2.0 + share @ moves, abs=1e-14)
    variates = -moves / (4 * LR)
    assert float(simulation.server.state["control-variates"]["c"]) == pytest.approx(share @ variates, abs=1e-12)
    optimum = (share * h * m).sum() / (share * h).sum()
    late = points(descend(scaffold(weights="data"), H, M, [4, 4], counts=[1, 3], start=2.0), 80)
    assert late[-1] == pytest.approx(optimum, abs=1e-6)


@pytest.mark.parametrize(
    ("method", "rounds", "lost"),
    [
        (scaffold(), 25, 3),
        (scaffold("I"), 25, 3),
        (scaffold(weights="data"), 25, 3),
        (feddyn(1.0), 85, 3),
        (feddc(1.0), 50, 3),
        (counterpoise(), 100, 3),
        (counterpoise(), 60, 1),
    ],
    ids=["II", "I", "data", "feddyn", "feddc", "counterpoise", "counterpoise, one lost"],
)
def test_after_lost_replies_the_corrected_methods_still_reach_the_optimum(method, rounds, lost):
    """Some lost replies of one client, and then none: without going back they rest between -0.72 and -1."""

    def losing(round, cohort):
        return cohort.keep(torch.tensor([round > lost or client != 0 for client in cohort.ids]))

    late = points(descend(method, H, M, [10, 10], start=3.0, adversary=losing), rounds)
    assert late[-1] == pytest.approx(OPTIMUM, abs=6e-6)


def test_fednova_refuses_a_pull_that_goes_past_the_servers_model():
    with pytest.raises(CounterpoiseError, match=r"mu is 51 and the local learning rate 0\.02; their product"):
        descend(fednova(51.0), H, M, [2, 2])
    points(descend(fednova(50.0), H, M, [2, 2]), 1)


COUNTS = (1, 3, 10, 2)
FOUR = ((1.0, 10.0, 3.0, 5.0), (4.0, -1.0, 2.0, -3.0))


def weighted_optimum(counts):
    slopes = np.array(counts) * np.array(FOUR[0])
    return float(slopes @ np.array(FOUR[1]) / slopes.sum())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("option", "rounds"), [("I", 220), ("II", 160)])
def test_scaffold_by_data_rests_at_the_weighted_optimum_with_two_of_four_sampled(option, rounds, seed):
    method = scaffold(option, weights="data")
    late = points(descend(method, *FOUR, 5, counts=list(COUNTS), start=3.0, cohort=2, seed=seed), rounds)[-3:]
    assert late == pytest.approx([weighted_optimum(COUNTS)] * 3, abs=1e-6)


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffolds_variate_by_data_is_a_function_of_the_clients_whatever_they_claim_later(option):
    def wavering(round, cohort):
        return replace(cohort, examples=cohort.examples + (round > 6) * (7 * round % 5))

    settings = {"counts": list(COUNTS), "start": 3.0, "cohort": 2, "adversary": wavering}
    simulation = descend(scaffold(option, weights="data"), *FOUR, 5, **settings)
    own = simulation.client_state["control-variates"]
    for _ in range(12):
        simulation.advance()
        seen = np.array([COUNTS[i] for i in own])
        expected = seen @ np.array([float(own[i]["c"]) for i in own]) / (4 * seen.mean())
        assert float(simulation.server.state["control-variates"]["c"]) == pytest.approx(expected, abs=1e-11)
    assert len(own) == 4


def test_scaffold_by_equal_data_is_scaffold():
    one, other = (
        points(descend(scaffold(weights=x), *FOUR, 5, counts=[3] * 4, start=3.0, cohort=2), 20)
        for x in ("uniform", "data")
    )
    assert one == pytest.approx(other, abs=1e-12)


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_sends_the_change_of_its_variate(option):
    seen = []
    simulation = descend(
        scaffold(option), H, M, [3, 3], start=2.0, adversary=lambda round, cohort: (seen.append(cohort), cohort)[1]
    )
    own = simulation.client_state["control-variates"]
    total = np.zeros(2)
    for _ in range(3):
        simulation.advance()
        total += seen[-1].reports["control-variates"]["change"][:, 0].numpy()
        assert [float(own[i]["c"]) for i in range(2)] == pytest.approx(total, abs=1e-11)
        assert float(simulation.server.state["control-variates"]["c"]) == pytest.approx(total.mean(), abs=1e-11)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_scaffold_is_algorithm_1(option, backend):
    """Every step and every variate of some rounds, one of two clients at a time and both, by hand."""
    calls, steps, lr = [[0], [1], [0, 1], [0], [0, 1]], (3, 5), 0.7
    simulation = descend(
        scaffold(option, lr=lr),
        H,
        M,
        list(steps),
        start=2.0,
        backend=backend,
        cohort=lambda seed, round, n: torch.tensor(calls[round - 1]),
    )
    x, c, own = 2.0, 0.0, np.zeros(2)
    for cohort in calls:
        moves, changes = [], []
        for i in cohort:
            y = x
            for _ in range(steps[i]):
                y -= LR * (h[i] * (y - m[i]) - own[i] + c)
            new = h[i] * (x - m[i]) if option == "I" else own[i] - c + (x - y) / (steps[i] * LR)
            moves.append(y - x)
            changes.append(new - own[i])
            own[i] = new
        x += lr * np.mean(moves)
        c += len(cohort) / 2 * np.mean(changes)
        simulation.advance()
        kept = simulation.client_state["control-variates"]
        assert float(simulation.server.model) == pytest.approx(x, abs=1e-12)
        assert float(simulation.server.state["control-variates"]["c"]) == pytest.approx(c, abs=1e-10)
        assert [float(kept[i]["c"]) for i in range(2)] == pytest.approx(own, abs=1e-10)


def trained(method, optimizer, rounds, steps=10, start=3.0, backend="per-client"):
    local = Local(batch=1000, steps=steps, optimizer=optimizer)
    simulation = Simulation(
        method, quadratics(H, M), Point(start), loss=half_square, local=local, engine=double(backend=backend)
    )
    return points(simulation, rounds)[-1]


@pytest.mark.parametrize("nesterov", [False, True])
def test_scaffold_converges_with_local_momentum(nesterov):
    optimizer = sgd(0.002, momentum=0.9, nesterov=nesterov)
    assert trained(scaffold(), optimizer, 80) == pytest.approx(OPTIMUM, abs=1e-4)


@pytest.mark.parametrize("optimizer", [adam(0.01), adamw(0.01)], ids=["adam", "adamw"])
def test_scaffold_and_adam_need_option_one(optimizer):
    with pytest.raises(CounterpoiseError, match=r'Use scaffold\(option="I"\) with this one, or --set method.option=I'):
        trained(scaffold(), optimizer, 1)
    assert trained(scaffold("I"), optimizer, 2) != 3.0
    for method in (fednova(), feddc()):
        with pytest.raises(CounterpoiseError, match="needs a local optimiser that is linear in the gradients"):
            trained(method, optimizer, 1)


# ---------------------------------------------------------------- how far an optimiser reaches


@pytest.mark.parametrize("optimizer", [sgd(0.3), sgd(0.3, momentum=0.9), sgd(0.3, momentum=0.7, nesterov=True)])
def test_the_reach_of_an_optimiser_is_how_far_a_slope_of_one_carries_it(optimizer):
    x = torch.zeros(1, dtype=torch.float64)
    state = optimizer.init(x)
    for k in range(1, 9):
        x, state = optimizer.step(x, -torch.ones_like(x), state, torch.tensor(0.3, dtype=torch.float64))
        assert 0.3 * float(optimizer.reach(torch.tensor(float(k), dtype=torch.float64))) == pytest.approx(float(x))


@pytest.mark.parametrize(
    ("mu", "optimizer"),
    [(0.0, sgd(0.1)), (0.0, sgd(0.1, momentum=0.9)), (0.0, sgd(0.1, momentum=0.5, nesterov=True)), (2.0, sgd(0.1))],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_for_fednova_steps_are_no_weight(mu, optimizer, backend):
    """Clients on slopes +1 and -1: whatever their steps, the shorter one's direction is not drowned."""
    counts, steps = [1, 3], [9, 2]
    local = Local(batch=10, steps=steps, optimizer=optimizer)
    simulation = Simulation(
        fednova(mu=mu),
        quadratics([1.0, -1.0], [0.0, 0.0], counts=counts),
        Point(),
        loss=lambda outputs, targets: -targets[:, 0] * outputs,
        local=local,
        engine=double(backend=backend),
    )
    record = simulation.advance()
    reach = np.array(list(record.outcome.notes["normaliser"].values()))
    assert float(simulation.server.model) == pytest.approx(
        (0.25 * reach[0] + 0.75 * reach[1]) * 0.1 * (0.25 - 0.75), abs=1e-14
    )


def test_fednovas_proximal_form_is_for_plain_sgd():
    with pytest.raises(CounterpoiseError, match="proximal form is for plain sgd"):
        trained(fednova(mu=0.1), sgd(0.1, momentum=0.9), 1)


ALIKE = [avg, scaffold, feddyn, feddc, adabest, mifa, fedvarp, clusterfedvarp, qffl]


@pytest.mark.parametrize("make", ALIKE)
def test_whose_papers_count_clients_alike_do_so(make):
    """Three times the same data is the same loss, and weighs no more."""
    one, other = (points(descend(make(), H, M, [3, 5], counts=counts, start=2.0), 3) for counts in ([1, 1], [1, 3]))
    assert one == pytest.approx(other, abs=1e-13)
    plain = points(descend(fedavg(), H, M, [3, 5], counts=[1, 3], start=2.0), 1)
    assert abs(plain[0] - other[0]) > 1e-3


@pytest.mark.parametrize("method", [fedvarp(), clusterfedvarp(clusters=2), mifa()])
def test_a_rule_with_weights_of_its_own_has_them_on_record(method):
    record = descend(method, (1.0,) * 4, (1.0, 2.0, 3.0, 4.0), 1).advance()
    assert record.outcome.weights == dict.fromkeys(range(4), 0.25)
