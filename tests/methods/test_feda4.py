"""FedA4: the server's two phases against NumPy, the trajectory against its telescoped form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import BACKENDS, blobs, double, small
from hypothesis import given
from hypothesis import strategies as st
from worlds import FixedWorld, cohort, server

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, sgd
from counterpoise.methods import feda4, fedavg

D = 6
DEFAULTS = {"beta": 1.0, "eta": 0.01, "theta": 0.9, "tau_conc": 0.3, "tau_sim": 0.2}


def algorithm2(w, d, n, outputs, targets, epochs, beta, eta, theta, tau_conc, tau_sim, direction, modules):
    """Algorithm 2, line by line, in NumPy; `outputs` are logits [N, P, C]."""
    N, P, C = outputs.shape
    phi, acc, g = np.zeros(N), np.zeros(N), np.zeros_like(d)
    for i in range(N):  # lines 7-10
        p = np.exp(outputs[i]) / np.exp(outputs[i]).sum(1, keepdims=True)
        p = p.mean(0)
        phi[i] = 1 - sum(-q * np.log(q) for q in p if q > 0) / np.log(C)
        acc[i] = np.mean([outputs[i, j].argmax() == targets[j] for j in range(P)])
        g[i] = d[i] / epochs
    mu, middle = acc.mean(), g.mean(0)  # line 11
    if modules in ("both", "weights"):
        weights = (1 - phi) / (1 - phi).sum() if (1 - phi).sum() > 0 else np.full(N, 1 / N)  # line 14
    else:
        weights = np.array(n) / np.sum(n)
    half = sum(weights[i] * (w + d[i]) for i in range(N))  # line 15
    U = np.zeros_like(w)
    for i in range(N):
        lam = np.exp(-beta * (acc[i] - mu) ** 2)  # line 16
        lengths = np.linalg.norm(g[i]) * np.linalg.norm(middle)
        sim = g[i] @ middle / lengths if lengths > 0 else 0.0  # line 17
        aligned = (1 - theta) * g[i] + theta * middle
        D_i = 1 if phi[i] >= tau_conc or sim <= tau_sim else -1  # lines 18-20
        D_i = D_i if direction == "printed" else -D_i
        U += weights[i] * lam * D_i * aligned  # line 21
    return half + (eta * U if modules in ("both", "trajectory") else 0), weights  # line 23


@given(st.data())
@pytest.mark.parametrize("direction", ["printed", "text"])
@pytest.mark.parametrize("modules", ["both", "weights", "trajectory", "none"])
def test_the_server_is_algorithm_2(modules, direction, data) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    N, P, C, epochs = (
        data.draw(st.integers(1, 6)),
        data.draw(st.integers(1, 5)),
        data.draw(st.integers(2, 4)),
        data.draw(st.integers(1, 4)),
    )
    options = DEFAULTS | {
        "eta": 0.5,
        "theta": data.draw(st.sampled_from([0.0, 0.4, 0.9])),
        "beta": data.draw(st.sampled_from([0.0, 1.0, 3.0])),
        "tau_conc": rng.random(),
        "tau_sim": rng.uniform(-1, 1),
    }
    w, d, n = rng.standard_normal(D), rng.standard_normal((N, D)), rng.integers(1, 30, N)
    outputs, targets = rng.standard_normal((N, P, C)) * data.draw(st.sampled_from([0.1, 3.0])), rng.integers(0, C, P)
    seen = []
    world = FixedWorld(
        D,
        outputs=lambda models: (seen.append(models), torch.tensor(outputs))[1],
        targets=torch.tensor(targets),
        local=Local(epochs=epochs),
    )
    ours = server(feda4(**options, direction=direction, modules=modules), D, w)
    outcome = ours.receive(cohort(range(N), d, n), world)
    expected, weights = algorithm2(w, d, n, outputs, targets, epochs, **options, direction=direction, modules=modules)
    assert ours.model.numpy() == pytest.approx(expected, abs=1e-12)
    assert list(outcome.weights.values()) == pytest.approx(weights, abs=1e-12)
    if modules != "none":
        assert len(seen) == 1  # the probe is run once, on the clients' models
        assert seen[0].numpy() == pytest.approx(w + d, abs=1e-12)


def test_models_that_all_collapse_to_one_class_weigh_the_same() -> None:
    outputs = torch.full((3, 4, 2), -1e4, dtype=torch.float64)
    outputs[:, :, 0] = 1e4
    world = FixedWorld(2, outputs=lambda models: outputs, targets=torch.zeros(4, dtype=torch.int64))
    outcome = server(feda4(), 2).receive(cohort([0, 1, 2], np.eye(3, 2), [1, 5, 9]), world)
    assert list(outcome.weights.values()) == pytest.approx([1 / 3] * 3)


def test_a_collapsed_model_among_even_ones_has_no_weight() -> None:
    outputs = torch.zeros((2, 4, 3), dtype=torch.float64)
    outputs[0, :, 0] = 1e4
    world = FixedWorld(2, outputs=lambda models: outputs, targets=torch.zeros(4, dtype=torch.int64))
    outcome = server(feda4(), 2).receive(cohort([0, 1], np.eye(2)), world)
    assert list(outcome.weights.values()) == pytest.approx([0, 1], abs=1e-12)


def test_the_two_directions_step_to_opposite_sides() -> None:
    rng = np.random.default_rng(0)
    d, outputs = rng.standard_normal((4, D)), torch.tensor(rng.standard_normal((4, 5, 3)))
    ends = []
    for direction, modules in (("printed", "both"), ("text", "both"), ("printed", "weights")):
        world = FixedWorld(D, outputs=lambda models: outputs, targets=torch.arange(5) % 3)
        ours = server(feda4(eta=0.5, direction=direction, modules=modules), D)
        ours.receive(cohort(range(4), d), world)
        ends.append(ours.model)
    assert torch.allclose(ends[0] - ends[2], ends[2] - ends[1], atol=1e-13)
    assert (ends[0] - ends[2]).norm() > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_mean_of_the_epochs_displacements_is_the_update_over_the_epochs(backend) -> None:
    """The paper uploads the trajectory (Algorithm 1); its mean telescopes (Algorithm 2, line 8)."""

    def begin(client):
        return {"last": client.start, "path": torch.zeros_like(client.start)}

    def after_epoch(client, w):
        return {"last": w, "path": client.memo["path"] + (w - client.memo["last"])}

    def finish(client, reply):
        return cp.Reply(reply.update, {"mean": client.memo["path"] / client.local.passes}, reply.state)

    kept = []
    part = cp.Part("trajectory", begin=begin, after_epoch=after_epoch, finish=finish)
    simulation = Simulation(
        fedavg().adding(upload=part),
        blobs([5, 9, 14]),
        small(),
        local=Local(epochs=4, batch=4, optimizer=sgd(0.1, momentum=0.9)),
        engine=double(backend=backend),
        adversary=lambda r, c: (kept.append(c), c)[1],
    )
    simulation.advance()
    assert torch.allclose(kept[0].reports["trajectory"]["mean"], kept[0].updates / 4, rtol=0, atol=1e-13)


def test_only_the_update_is_sent() -> None:
    """Bytes up are FedAvg's."""
    up = []
    for method in (feda4(), fedavg()):
        simulation = Simulation(method, blobs([5, 6], probe=1, heldout=0), small(), local=Local(epochs=3))
        up.append(simulation.advance().bytes_up)
    assert up[0] == up[1]


def test_without_modules_it_is_fedavg_bit_for_bit() -> None:
    federation = cp.load("digits", partition=cp.dirichlet(0.3, clients=8), probe=1)
    runs = [
        cp.simulate(method, federation, model=cp.models.mlp, rounds=4, cohort=5)
        for method in (feda4(modules="none"), fedavg())
    ]
    assert all(torch.equal(a, b) for a, b in zip(*(r.model.parameters() for r in runs), strict=True))


def test_it_asks_for_a_probe_set() -> None:
    with pytest.raises(CounterpoiseError, match="needs a probe set on the server; load the federation with probe=1"):
        Simulation(feda4(), blobs([4, 5]), small())


def test_the_probe_is_apart_from_every_client() -> None:
    federation = cp.load("digits", partition=cp.iid(clients=5), probe=1)
    held = torch.cat([federation.train.flat, federation.heldout.flat])
    inputs = federation.base.inputs[held].flatten(1)
    assert federation.probe.targets.tolist() == list(range(10))
    for sample in federation.probe.inputs.flatten(1):
        here = int((inputs == sample).all(1).sum())
        everywhere = int((federation.base.inputs.flatten(1) == sample).all(1).sum())
        assert here < everywhere


def probe(outputs, targets=None):
    outputs = torch.as_tensor(outputs)
    targets = torch.zeros(outputs.shape[1], dtype=torch.int64) if targets is None else targets
    return FixedWorld(2, outputs=lambda models: outputs.to(models.dtype), targets=targets)


def test_a_model_whose_outputs_are_not_numbers_spoils_nobody_elses_weight() -> None:
    outputs = torch.zeros(3, 4, 2, dtype=torch.float64)
    outputs[1] = float("nan")
    outcome = server(feda4(), 2).receive(cohort([0, 1, 2], [[1, 0], [0, 1], [1, 1]]), probe(outputs))
    assert list(outcome.weights.values()) == pytest.approx([0.5, 0, 0.5])


def test_one_class_and_equal_accuracies_and_no_movement_are_finite() -> None:
    for outputs, d in ((torch.zeros(2, 3, 1), np.eye(2)), (torch.zeros(2, 3, 2), np.zeros((2, 2)))):
        ours = server(feda4(), 2)
        outcome = ours.receive(cohort([0, 1], d), probe(outputs.double()))
        assert list(outcome.weights.values()) == pytest.approx([0.5, 0.5])
        assert bool(ours.model.isfinite().all())
        assert all(np.isfinite(list(values.values())).all() for values in outcome.notes.values())


def test_nearly_collapsed_models_keep_their_weights_in_float32() -> None:
    margins = torch.tensor([16.0, 20.0, 24.0])
    outputs = torch.stack([torch.tensor([m, 0.0, 0.0]).expand(3, 3) for m in margins])
    found = {}
    for dtype in (torch.float32, torch.float64):
        world = probe(outputs.to(dtype))
        built = server(feda4(), 2)
        built.model = built.model.to(dtype)
        replies = cohort([0, 1, 2], np.ones((3, 2)))
        replies = replies.__class__(replies.ids, replies.updates.to(dtype), replies.examples, replies.steps)
        found[dtype] = list(built.receive(replies, world).weights.values())
    assert found[torch.float32] == pytest.approx(found[torch.float64], rel=1e-3)
    assert min(found[torch.float64]) > 0


def test_a_client_at_a_threshold_is_biased() -> None:
    """`phi >= tau_conc` or `similarity <= tau_sim`: equality counts."""
    outputs = torch.zeros(2, 3, 2, dtype=torch.float64)  # phi = 0
    for options, expected in (
        ({"tau_conc": 0.0, "tau_sim": -1.0}, 1.0),
        ({"tau_conc": 0.1, "tau_sim": 1.0}, 1.0),
        ({"tau_conc": 0.1, "tau_sim": 0.9}, 0.0),
    ):
        outcome = server(feda4(**options), 2).receive(cohort([0, 1], [[1.0, 0.0], [1.0, 0.0]]), probe(outputs))
        assert set(outcome.notes["biased"].values()) == {expected}


def test_without_modules_no_probe_is_asked_for() -> None:
    Simulation(feda4(modules="none"), blobs([4, 5]), small(), engine=double()).advance()


def test_its_parts_say_what_they_need() -> None:
    method = feda4().replacing(weigh=(cp.parts.uniform(),))
    with pytest.raises(CounterpoiseError, match="need its part probing"):
        Simulation(method, blobs([5, 6], probe=1), small(), engine=double()).advance()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", [feda4, cp.methods.fedbac, cp.methods.fedbac_soft])
def test_it_composes_with_other_parts_under_a_changing_cohort(make, dtype) -> None:
    """With a proximal term, a client that trust excludes, and two of four clients a round; on both backends."""
    judge = cp.Part("judge", apply=lambda round: round.but(excluded={i: "no" for i in round.cohort.ids if i == 2}))
    method = make().adding(local=cp.parts.proximal(0.1)).adding(trust=judge)
    ends = []
    for backend in BACKENDS:
        simulation = Simulation(
            method,
            blobs([5, 9, 7, 6], probe=1),
            small(),
            cohort=3,
            local=Local(batch=4, epochs=2, optimizer=sgd(0.1)),
            engine=double(backend=backend, dtype=dtype),
        )
        records = [simulation.advance() for _ in range(6)]
        assert all(sum(r.outcome.weights.values()) == pytest.approx(1, abs=1e-6) for r in records)
        assert any(2 in r.outcome.excluded for r in records)
        ends.append(simulation.server.model)
    assert torch.allclose(*ends, rtol=0, atol=1e-4 if dtype == "float32" else 1e-11)
