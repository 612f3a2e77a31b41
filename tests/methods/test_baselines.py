"""The other rules of the baselines, against NumPy and torch."""

from __future__ import annotations

import copy
import inspect
import re
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import (
    ALL_METHODS,
    BACKENDS,
    ENGINES,
    H,
    M,
    Point,
    Spy,
    assert_close,
    blobs,
    data_of,
    descend,
    digits,
    double,
    flat,
    fresh,
    gradient,
    half_square,
    points,
    quadratics,
    required,
    run,
    small,
)
from torch import nn
from torch.nn import functional as F
from worlds import FixedWorld, cohort, server

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.flat import Layout
from counterpoise.local import Local, adam, adamw, exponential, sgd
from counterpoise.method import Part, Reply
from counterpoise.methods import (
    adabest,
    clusterfedvarp,
    ditto,
    fedadagrad,
    fedadam,
    fedatt,
    fedavg,
    feddc,
    feddyn,
    fedvarp,
    fedyogi,
    mifa,
    moon,
    qffl,
    scaffold,
)

D = 5


def rounds_of(method, rounds=6, population=7, size=3, world=None):
    """A server that hears random clients, and what it heard."""
    rng = np.random.default_rng(1)
    built = server(method, D)
    for number in range(1, rounds + 1):
        ids = sorted(rng.choice(population, size, replace=False).tolist())
        d, n = rng.standard_normal((size, D)), rng.integers(1, 9, size)
        built.receive(cohort(ids, d, n), (world or FixedWorld)(D, number, population))
        yield built, ids, d, n


@pytest.mark.parametrize("name", ["fedadagrad", "fedyogi", "fedadam"])
def test_adaptive_servers_are_algorithm_2(name):
    lr, beta1, beta2, tau = 0.3, 0.6, 0.8, 0.05
    method = {
        "fedadagrad": lambda: fedadagrad(lr, beta1, tau),
        "fedyogi": lambda: fedyogi(lr, beta1, beta2, tau),
        "fedadam": lambda: fedadam(lr, beta1, beta2, tau),
    }[name]()
    w, first, v = np.zeros(D), np.zeros(D), np.full(D, tau**2)
    for built, _, d, n in rounds_of(method):
        u = n @ d / n.sum()
        first = beta1 * first + (1 - beta1) * u
        v = {
            "fedadagrad": v + u**2,
            "fedyogi": v - (1 - beta2) * u**2 * np.sign(v - u**2),
            "fedadam": beta2 * v + (1 - beta2) * u**2,
        }[name]
        w = w + lr * first / (np.sqrt(v) + tau)
        assert built.model.numpy() == pytest.approx(w, abs=1e-13)


def falling(decay):
    """Worlds whose learning rate, at first 0.4, falls by a factor a round; and the rates."""
    local = Local(optimizer=sgd(0.4), schedule=exponential(decay))
    return partial(FixedWorld, local=local), (0.4 * decay**k for k in count())


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_fedvarp_is_algorithm_1(decay):
    """What is remembered is a displacement per learning rate, and counts at the new one."""
    w, y = np.zeros(D), np.zeros((7, D))
    world, rates = falling(decay)
    for (built, ids, d, _), eta in zip(rounds_of(fedvarp(lr=0.5), 12, world=world), rates, strict=False):
        w = w + 0.5 * eta * ((d / eta - y[ids]).mean(0) + y.mean(0))
        y[ids] = d / eta
        assert built.model.numpy() == pytest.approx(w, abs=1e-13)


def test_mifa_counts_every_client_at_the_rounds_learning_rate():
    w, g = np.zeros(D), np.zeros((7, D))
    world, rates = falling(0.5)
    for (built, ids, d, _), eta in zip(rounds_of(mifa(lr=0.9), world=world), rates, strict=False):
        g[ids] = d / eta
        w = w + 0.9 * eta * g.mean(0)
        assert built.model.numpy() == pytest.approx(w, abs=1e-13)


@pytest.mark.parametrize("decay", [1.0, 0.9])
@pytest.mark.parametrize("clusters", [1, 3, 9])
def test_clusterfedvarp_is_algorithm_2(clusters, decay):
    """Seven clients, all of them counted, seen or not: of three clusters the first has one more than the others."""
    w, y = np.zeros(D), np.zeros((clusters, D))
    shares = np.bincount(np.arange(7) % clusters, minlength=clusters) / 7
    world, rates = falling(decay)
    method = clusterfedvarp(clusters, lr=0.5)
    for (built, ids, d, _), eta in zip(rounds_of(method, 12, world=world), rates, strict=False):
        owner = np.array(ids) % clusters
        w = w + 0.5 * eta * ((d / eta - y[owner]).mean(0) + shares @ y)
        for k in set(owner.tolist()):
            y[k] = d[owner == k].mean(0) / eta
        assert built.model.numpy() == pytest.approx(w, abs=1e-13)


def test_fedatt_weighs_each_layer_by_how_far_the_client_moved():
    world = FixedWorld(D)
    world.layout = Layout(("a.weight", "a.bias", "b.weight"), ((2,), (1,), (2,)))
    rng = np.random.default_rng(0)
    d = rng.standard_normal((4, D))
    built = server(fedatt(lr=1.2), D)
    outcome = built.receive(cohort(range(4), d), world)
    expected, weights = np.zeros(D), np.zeros(4)
    for part in (slice(0, 3), slice(3, 5)):
        s = np.exp(np.sqrt((d[:, part] ** 2).sum(1)))
        expected[part] = 1.2 * (s / s.sum()) @ d[:, part]
        weights += s / s.sum() * (part.stop - part.start) / D
    assert built.model.numpy() == pytest.approx(expected, abs=1e-13)
    assert list(outcome.weights.values()) == pytest.approx(weights)


# ---------------------------------------------------------------- the weights on record

LINEAR = ("fedavg", "avg", "fedprox", "scaffold", "fednova", "mifa", "fedvarp", "clusterfedvarp", "ditto", "moon")
SUMS = ("fedavg", "avg", "fednova", "qffl", "rfa", "krum", "multi-krum")
STEPS = [1, 7, 2, 5, 3, 4, 2, 6]


def weighed(name, changed=None):
    """Two rounds of five of eight clients with unequal counts and steps; in the second, one client sends 0.01 more."""
    seen = []

    def meddle(round, cohort):
        if round == 2 and changed is not None:
            cohort.updates[cohort.ids.index(changed)] += 0.01
        seen.append(cohort)
        return cohort

    simulation = Simulation(
        cp.methods.METHODS.make(name),
        blobs([3, 9, 5, 4, 12, 7, 6, 8]),
        small(),
        cohort=5,
        local=Local(batch=4, steps=STEPS, optimizer=sgd(0.1)),
        adversary=meddle,
        engine=double(),
    )
    before = run(simulation, 1)
    record = simulation.advance()
    return record.outcome, simulation.server.model - before, seen[-1]


@pytest.mark.parametrize("name", LINEAR)
def test_a_weight_on_record_is_the_factor_of_the_clients_update(name):
    outcome, step, cohort = weighed(name)
    for client in cohort.ids:
        moved = weighed(name, client)[1] - step
        assert moved.tolist() == pytest.approx([0.01 * outcome.weights[client]] * len(step), abs=1e-14)


@pytest.mark.parametrize("name", SUMS)
def test_the_weights_on_record_make_the_servers_step(name):
    outcome, step, cohort = weighed(name)
    weights = torch.tensor([outcome.weights[client] for client in cohort.ids], dtype=torch.float64)
    assert torch.allclose(weights @ cohort.updates, step, rtol=0, atol=1e-13)
    assert sum(outcome.notes["contribution"].values()) == pytest.approx(1, abs=1e-10)


def test_absent_clients_have_their_part_in_mifas_step():
    outcome, step, cohort = weighed("mifa")
    assert list(outcome.weights.values()) == pytest.approx([1 / 8] * 5)
    heard = cohort.updates.mean(0) * 5 / 8
    assert sum(outcome.notes["contribution"].values()) == pytest.approx(float(heard @ step / (step @ step)), abs=1e-10)


@pytest.mark.parametrize(
    "name", [e.name for e in cp.methods.METHODS if "lr" in inspect.signature(e.factory).parameters]
)
def test_half_the_servers_learning_rate_is_half_of_the_first_step(name):
    steps = []
    for lr in (1.0, 0.5):
        settings = {"local": Local(batch=4, optimizer=sgd(0.1)), "engine": double()}
        simulation = Simulation(cp.methods.METHODS.make(name, lr=lr), blobs([5] * 8), small(), **settings)
        steps.append(run(simulation, 1) - flat(small()))
    assert_close(steps[0], 2 * steps[1], steps[0], 1e-12)


# ---------------------------------------------------------------- MOON


def moon_loss(model, server, last, inputs, targets, mu, tau):
    z, a, b = (net.features(inputs) for net in (model, server, last))
    s = torch.stack([F.cosine_similarity(z, a.detach()), F.cosine_similarity(z, b.detach())], 1) / tau
    return F.cross_entropy(model(inputs), targets) + mu * F.cross_entropy(s, torch.zeros(len(z), dtype=torch.int64))


@pytest.mark.parametrize("backend", BACKENDS)
def test_moon_trains_on_the_papers_loss(backend):
    """Two rounds of one client: in the first there is no contrast, in the second there is."""
    federation, mu, tau, lr = blobs([6]), 3.0, 0.5, 0.2
    inputs, targets = data_of(federation, 0)
    local = Local(batch=6, steps=3, optimizer=sgd(lr))
    simulation = Simulation(moon(mu, tau, lr=0.5), federation, small(), local=local, engine=double(backend=backend))
    w, last = flat(small()), None
    for _ in range(2):
        server, model = small(), small()
        nn.utils.vector_to_parameters(w.clone(), server.parameters())
        nn.utils.vector_to_parameters(w.clone(), model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr)
        for _ in range(3):
            optimizer.zero_grad()
            moon_loss(model, server, last or server, inputs, targets, mu, tau).backward()
            optimizer.step()
        w, last = w + 0.5 * (flat(model) - w), model
        simulation.advance()
        assert_close(simulation.server.model, w, w - flat(small()), 1e-11)
    plain = run(Simulation(fedavg(0.5), federation, small(), local=local, engine=double()))
    assert not torch.allclose(plain, w, atol=1e-6)


@pytest.mark.parametrize("given", ["targets", "mask"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_moon_does_not_count_the_padding_of_texts(backend, given):
    """Against the paper's loss of every text by itself, without padding."""
    rng, lengths, mu, tau, lr = np.random.default_rng(0), [5, 2, 3, 1], 3.0, 0.5, 0.5
    texts = [rng.integers(0, 7, length + 1) for length in lengths]
    ids = torch.zeros(4, 6, dtype=torch.int64)
    following = torch.full((4, 6), -100)
    for row, text in enumerate(texts):
        ids[row, : len(text) - 1], following[row, : len(text) - 1] = torch.tensor(text[:-1]), torch.tensor(text[1:])
    model = fresh(cp.models.lstm(vocabulary=7, embedding=3, hidden=4, layers=1))
    inputs, targets, loss = ids, following, None
    if given == "mask":  # one class for each text
        inputs, targets = {"input_ids": ids, "attention_mask": (following >= 0).long()}, torch.arange(4) % 3

        def loss(outputs, targets):
            return nn.functional.cross_entropy(outputs[:, 0], targets, reduction="none")

    federation = cp.Federation.from_clients([(inputs, targets)], heldout=0)
    settings = {"local": Local(batch=4, steps=2, optimizer=sgd(lr)), "loss": loss, "metrics": {}}
    simulation = Simulation(moon(mu, tau, lr=0.5), federation, model, engine=double(backend=backend), **settings)

    def objective(one, server, last):
        total = 0
        for row, text in enumerate(texts):
            x = torch.tensor(text[None, :-1])
            z, s, o = (m.features(x).flatten() for m in (one, server, last))
            s, o = (torch.cosine_similarity(z, other.detach(), 0) / tau for other in (s, o))
            task = nn.functional.cross_entropy(one(x)[0], torch.tensor(text[1:]))
            if given == "mask":
                task = nn.functional.cross_entropy(one(x)[0, 0], targets[row])
            total = total + task - mu * torch.log(s.exp() / (s.exp() + o.exp()))
        return total / len(texts)

    w, last = flat(model), None
    for _ in range(2):
        server, one = copy.deepcopy(model), copy.deepcopy(model)
        for made in (server, one):
            nn.utils.vector_to_parameters(w.clone(), made.parameters())
        for _ in range(2):
            one.zero_grad()
            objective(one, server, last or server).backward()
            torch.optim.SGD(one.parameters(), lr).step()
        w, last = w + 0.5 * (flat(one) - w), one
        simulation.advance()
        assert_close(simulation.server.model, w, w - flat(model), 1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_client_that_comes_later_has_no_contrast_in_its_first_round(backend):
    """What it would hold itself away from is not the model that the run began with."""
    ends = []
    for method in (moon(3.0), fedavg()):
        settings = {"cohort": lambda seed, round, clients: [round - 1], "engine": double(backend=backend)}
        local = Local(batch=4, optimizer=sgd(0.3))
        ends.append(run(Simulation(method, blobs([6, 6]), small(), local=local, **settings), 2))
    assert_close(*ends, ends[1] - flat(small()), 1e-12)


def test_moon_asks_for_a_representation():
    with pytest.raises(CounterpoiseError, match=r"MOON compares representations: give the model a method features"):
        Simulation(moon(), blobs([3, 3]), nn.Linear(6, 3))


def test_a_representation_of_zeros_gives_no_contrast_and_no_nan():
    assert points(descend(moon(), [1.0, 1.0], [1.0, 1.0], 3), 3) == points(
        descend(fedavg(), [1.0, 1.0], [1.0, 1.0], 3), 3
    )


@pytest.mark.parametrize(
    "entry", [e for e in cp.models.MODELS if "vocabulary" not in e.parameters], ids=lambda entry: entry.name
)
def test_every_model_has_a_representation_before_its_last_layer(entry):
    model = entry.factory(shape=(1, 32, 32), classes=4, **required(entry)).eval()
    x = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model[-1](model.features(x)), model(x))


# ---------------------------------------------------------------- hooks and engines


@pytest.mark.parametrize("backend", BACKENDS)
def test_scaffolds_option_one_takes_the_gradient_of_all_of_a_clients_data(backend):
    federation = blobs([2, 9, 5])
    simulation = Simulation(scaffold("I"), federation, small(), local=Local(batch=4), engine=double(backend=backend))
    simulation.advance()
    for client in range(3):
        own = simulation.client_state["control-variates"][client]["c"]
        assert torch.allclose(own, gradient(small(), *data_of(federation, client)), rtol=0, atol=1e-13)


@pytest.mark.parametrize("make", [lambda: scaffold("I"), scaffold, feddyn, feddc, ditto, moon, qffl])
def test_all_engines_agree_on_what_methods_do_on_clients(make):
    def after(engine):
        local = Local(epochs=2, batch=4, optimizer=sgd(0.2, momentum=0.5))
        simulation = Simulation(make(), blobs([1, 9, 4, 13, 6]), small(), local=local, seed=3, engine=double(**engine))
        model = run(simulation, 3)
        kept = [v.flatten() for store in simulation.client_state.values() for i in store for v in store[i].values()]
        return torch.cat([model, *kept])

    engines = [ENGINES[0], ENGINES[2], ENGINES[4], ENGINES[-1]]
    first, *others = [after(engine) for engine in engines]
    start = torch.zeros_like(first)
    start[: len(flat(small()))] = flat(small())
    for other in others:
        assert_close(first, other, first - start)


@pytest.mark.parametrize("engine", [ENGINES[1], ENGINES[-1]])
@pytest.mark.parametrize("steps", [None, [1, 2, 9]])
def test_a_survey_sees_every_sample_once_at_the_servers_model(engine, steps):
    """The full gradient and loss, whatever the batches, the padding and the number of steps."""

    def survey(client, step):
        share = step.examples / client.examples
        memo = client.memo
        return {
            "g": memo["g"] + share * step.gradient_at(step.w),
            "loss": memo["loss"] + share * step.loss_at(client.start),
            "n": memo["n"] + step.examples,
        }

    part = Part(
        "survey",
        begin=lambda client: {
            "g": torch.zeros_like(client.start),
            "loss": client.start.new_zeros(()),
            "n": client.start.new_zeros(()),
        },
        survey=survey,
        finish=lambda client, reply: Reply(reply.update, client.memo),
    )
    seen = []
    federation = blobs([2, 9, 5])
    simulation = Simulation(
        fedavg().adding(local=part),
        federation,
        small(),
        local=Local(batch=4, steps=steps, epochs=2),
        adversary=lambda round, cohort: (seen.append(cohort), cohort)[1],
        engine=double(**engine),
    )
    plain = Simulation(fedavg(), federation, small(), local=Local(batch=4, steps=steps, epochs=2), engine=double())
    assert_close(run(simulation, 1), run(plain, 1), plain.server.model - flat(small()), 1e-12)
    for client in range(3):
        inputs, targets = data_of(federation, client)
        model = small()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        reports = {name: values[client] for name, values in seen[0].reports["survey"].items()}
        assert float(reports["n"]) == len(targets)
        assert float(reports["loss"]) == pytest.approx(float(loss.detach()), abs=1e-13)
        assert torch.allclose(reports["g"], torch.cat([p.grad.flatten() for p in model.parameters()]), atol=1e-13)


def test_a_survey_needs_a_memo():
    with pytest.raises(CounterpoiseError, match="has survey, after_step or after_epoch"):
        fedavg().adding(local=Part("x", survey=lambda client, step: {}))


@pytest.mark.parametrize("make", [scaffold, feddyn, feddc, adabest, moon, ditto])
def test_what_is_done_to_an_upload_does_not_change_what_a_client_keeps(make):
    """`Reply.trained` is what training did: a client that sends half of it still knows where it stood."""
    half = Part("half", finish=lambda client, reply: Reply(0.5 * reply.update))
    kept = []
    method = make()
    for changed in (method, method.adding(upload=half), method.replacing(local=(half, *method.local))):
        simulation = descend(changed, [1.0, 10.0], [4.0, -1.0], [3, 3], start=2.0)
        points(simulation, 1)
        (store,) = simulation.client_state.values()
        kept.append([float(v.sum()) for i in store for v in store[i].values()])
    assert kept[0] == kept[1] == kept[2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_q_ffl_hears_the_loss_over_all_of_a_clients_data(backend):
    """Batches of four samples and a rest, which counts by what it holds; at the server's model."""
    federation, spy = blobs([2, 9, 5]), Spy()
    settings = {"local": Local(batch=4), "adversary": spy, "engine": double(backend=backend)}
    Simulation(qffl(), federation, small(), **settings).advance()
    expected = [float(F.cross_entropy(small()(x), y).detach()) for x, y in (data_of(federation, i) for i in range(3))]
    assert spy.cohorts[0].reports["fair-mean"]["loss"].tolist() == pytest.approx(expected, abs=1e-13)


def test_q_ffls_step_is_algorithm_2_on_whole_vectors():
    rng, q, eta = np.random.default_rng(4), 1.5, Local().lr(1)
    d, losses = rng.standard_normal((3, D)), rng.random(3)
    built = server(qffl(q), D)
    told = {"fair-mean": {"loss": torch.tensor(losses)}}
    built.receive(cohort(range(3), d, reports=told), FixedWorld(D))
    g = d / eta
    h = q * losses ** (q - 1) * (g**2).sum(1) + losses**q / eta
    assert built.model.numpy() == pytest.approx((losses**q) @ g / h.sum(), abs=1e-8)


def test_a_client_without_a_loss_does_not_divide_q_ffl_by_zero():
    """The first client rests at its optimum; 1e-10 is added to a loss, so that the square root of it divides."""
    w, q, eta = 2.0, 0.5, 0.02
    losses, d = np.array([0.0, 2.0]) + 1e-10, np.array([0.0, eta * 2.0])
    expected = w + (losses**q * d / eta).sum() / (q * losses ** (q - 1) * (d / eta) ** 2 + losses**q / eta).sum()
    assert points(descend(qffl(q), [1.0, 1.0], [2.0, 4.0], 1, start=w), 1)[0] == pytest.approx(expected, abs=1e-12)


def test_personal_models_are_evaluated_beside_the_servers():
    federation = digits(4, heldout=0.3)
    settings = {"model": cp.models.linear, "rounds": 2, "local": Local(batch=16), "engine": double()}
    done = cp.simulate(ditto(strength=0.1), federation, **settings)
    clients = done.rounds[-1].clients
    assert set(clients["personal_accuracy"]) == set(clients["accuracy"]) == set(range(4))
    assert done.summary()["personal_accuracy"] == pytest.approx(np.mean(list(clients["personal_accuracy"].values())))
    assert cp.simulate("fedavg", federation, **settings).summary()["personal_accuracy"] is None


def test_personal_models_are_evaluated_on_what_their_clients_hold_out():
    federation = Federation.from_clients(
        [(np.zeros((4, 1)), np.tile([a, b], (4, 1))) for a, b in zip(H, M, strict=True)], heldout=0.5
    )
    local = Local(batch=1000, steps=3, optimizer=sgd(0.02))
    simulation = Simulation(ditto(0.5), federation, Point(3.0), loss=half_square, local=local, engine=double())
    for _ in range(2):
        record = simulation.advance(last=True)
    store, w = simulation.client_state["personal-model"], float(simulation.server.model)
    for i in range(2):
        v = float(store[i]["v"])
        assert record.clients["personal_loss"][i] == pytest.approx(H[i] / 2 * (v - M[i]) ** 2, rel=1e-12)
        assert record.clients["loss"][i] == pytest.approx(H[i] / 2 * (w - M[i]) ** 2, rel=1e-12)
        assert abs(v - w) > 0.01


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (sgd(0.05, weight_decay=0.1), lambda p, lr: torch.optim.SGD(p, lr, weight_decay=0.1)),
        (sgd(0.05, momentum=0.8), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.8)),
        (adam(0.05, weight_decay=0.1), lambda p, lr: torch.optim.Adam(p, lr, weight_decay=0.1)),
        (adamw(0.05, weight_decay=0.1), lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.1)),
    ],
    ids=["sgd", "momentum", "adam", "adamw"],
)
def test_dittos_personal_model_is_torchs_own_optimiser_on_the_pulled_loss(ours, torchs, backend):
    """Two rounds under a schedule; the optimiser starts anew in each, as the local one does."""
    local = Local(batch=1000, steps=4, optimizer=ours, schedule=exponential(0.5))
    engine, strength = double(backend=backend), 0.5
    simulation = Simulation(ditto(strength), quadratics(H, M), Point(3.0), loss=half_square, local=local, engine=engine)
    own = torch.full((2,), 3.0, dtype=torch.float64).requires_grad_()
    for round in range(2):
        w, optimizer = simulation.server.model.clone(), torchs([own], 0.05 * 0.5**round)
        for _ in range(4):
            optimizer.zero_grad()
            loss = torch.tensor(H) / 2 * (own - torch.tensor(M)) ** 2 + strength / 2 * (own - w) ** 2
            loss.sum().backward()
            optimizer.step()
        simulation.advance()
        store = simulation.client_state["personal-model"]
        assert [float(store[i]["v"]) for i in range(2)] == pytest.approx(own.tolist(), abs=1e-12)


def test_a_memory_composes_with_an_adaptive_server():
    method = fedvarp().replacing(update=fedadam(lr=0.1).update)
    model = run(Simulation(method, blobs([4, 5, 6, 7]), small(), cohort=2, engine=double()), 4)
    assert bool(model.isfinite().all())
    assert not torch.equal(model, flat(small()))


# ---------------------------------------------------------------- what methods cost


COSTS = {
    # method: vectors up, vectors down, on the server, per client seen on the server, per client seen on clients
    **dict.fromkeys(("fedavg", "avg", "fedprox", "fedatt", "feda4", "fedoaed"), (1, 1, 0, 0, 0)),
    **dict.fromkeys(("rfa", "median", "trimmed-mean", "krum", "multi-krum", "bulyan"), (1, 1, 0, 0, 0)),
    "fedbac": (1, 2, 1, 0, 0),
    "fedbac-soft": (1, 1, 1, 0, 0),
    "scaffold": (2, 2, 1, 0, 1),
    "fednova": (1, 1, 0, 0, 0),
    "mifa": (1, 1, 1, 1, 0),
    "fedvarp": (1, 1, 1, 1, 0),
    "clusterfedvarp": (1, 1, 10, 0, 0),
    "ditto": (1, 1, 0, 0, 1),
    "feddyn": (1, 1, 1, 0, 1),
    "moon": (1, 1, 0, 0, 1),
    "fedavgm": (1, 1, 1, 0, 0),
    **dict.fromkeys(("fedadam", "fedyogi", "fedadagrad"), (1, 1, 2, 0, 0)),
    "qffl": (1, 1, 0, 0, 0),
    "feddc": (2, 2, 2, 0, 2),
    "adabest": (1, 1, 1, 0, 1),
    "counterpoise": (1, 2, 4, 1, 0),
    "memory": (1, 2, 1, 1, 0),
    "pace": (1, 1, 3, 0, 0),
    "steady": (1, 1, 2, 0, 0),
    "averaged": (1, 1, 2, 0, 0),
    **dict.fromkeys(("bounded", "capped", "consensus-trust"), (1, 1, 0, 0, 0)),
}
PAGES = Path(__file__).parents[2] / "docs" / "methods"


def test_every_method_says_what_it_costs():
    """In a row of the baselines' table or on a page of its own; FedDua's cost is not in vectors of the model's length."""
    assert {*COSTS, "feddua"} == set(ALL_METHODS)
    rows = {
        name: line
        for page in ("baselines.md", "counterpoise.md")
        for line in (PAGES / page).read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([^`]+)`", line.split("|")[1])
    }
    for name in ALL_METHODS:
        if name in rows:
            assert re.search(r"none|pass|up|server|record|client", rows[name].split("|")[-3]), name
        else:
            assert "\n## Cost\n" in (PAGES / f"{name.partition('-')[0]}.md").read_text(encoding="utf-8"), name


@pytest.mark.parametrize("name", COSTS)
def test_the_run_records_what_a_method_costs(name):
    """In vectors of the model's length; scalars add a few bytes."""
    up, down, server, seen, own = COSTS[name]
    federation = blobs([4] * 6, probe=1)
    local = Local(batch=4)
    model = cp.models.mlp(federation.shape, 3, hidden=40)  # of 400 weights, beside which a few numbers are little
    simulation = Simulation(cp.methods.METHODS.make(name), federation, model, cohort=4, local=local, engine=double())
    record = simulation.advance()
    vector = 8 * simulation.trainer.layout.size

    def vectors(count):
        return pytest.approx(count * vector, abs=0.5 * vector)

    assert record.bytes_up == vectors(4 * up)
    assert record.bytes_down == vectors(4 * down)
    assert record.bytes_server == vectors(server + 4 * seen)
    assert record.bytes_clients == vectors(4 * own)


def test_a_model_with_a_head_of_its_own_works_with_moon():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk, self.head = nn.Linear(6, 4), nn.Linear(4, 3)

        def features(self, inputs):
            return torch.tanh(self.trunk(inputs))

        def forward(self, inputs):
            return self.head(self.features(inputs))

    for backend in BACKENDS:
        simulation = Simulation(
            moon(mu=1.0), blobs([5, 7]), fresh(Mine()), local=Local(batch=4), engine=double(backend=backend)
        )
        assert bool(run(simulation, 3).isfinite().all())
