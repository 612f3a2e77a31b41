"""FedDua on the client: what it reports of its training, against a plain loop; the branch against autograd."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers import BACKENDS, ENGINES, Point, Spy, blobs, data_of, double, flat, push, small
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from counterpoise.engine import Simulation
from counterpoise.engine.clients.batches import client_keys, plan
from counterpoise.federation import Federation
from counterpoise.local import Local, sgd
from counterpoise.methods import avg, fedavg, feddua, fedprox
from counterpoise.methods.feddua import branch
from counterpoise.methods.feddua.constants import BRANCH_STEPS, EMBEDDING_SIZE
from counterpoise.methods.feddua.prior import expect

SIZES = [3, 4, 9, 14, 26]
BATCH = 4


def steps_of(n: int) -> int:
    return math.ceil(n / BATCH)


def reports(method, federation=None, *, model=None, loss=None, rounds=1, engine=None, local=None, **settings):
    """What the clients sent in the last round, and their updates."""
    spy = Spy()
    simulation = Simulation(
        method,
        blobs(SIZES) if federation is None else federation,
        model or small(),
        loss=loss,
        local=local,
        engine=engine or double(),
        adversary=spy,
        **settings,
    )
    for _ in range(rounds):
        simulation.advance()
    return spy.cohorts[-1].reports["counts"], spy.cohorts[-1].updates, simulation


def followed(federation, client: int, epochs: int, lr: float, mu: float = 0, decay: float = 0, momentum: float = 0):
    """A client's local training by torch alone: per epoch, the gradients that entered the optimiser and the way made."""
    model, (x, y) = small(), data_of(federation, client)
    start = flat(model)
    w, buffer, passes = start.clone(), torch.zeros_like(start), []
    key, size = client_keys(0, 1, torch.tensor([client])), torch.tensor([len(y)])
    for epoch in range(epochs):
        batches = plan(key, size, (size + BATCH - 1) // BATCH, BATCH, epoch)
        begun, entered = w.clone(), []
        for places, real in zip(batches.places[0], batches.real[0], strict=True):
            torch.nn.utils.vector_to_parameters(w, model.parameters())
            model.zero_grad()
            F.cross_entropy(model(x[places[real]]), y[places[real]]).backward()
            g = torch.cat([p.grad.flatten() for p in model.parameters()]) + mu * (w - start) + decay * w
            entered.append(g)
            buffer = momentum * buffer + g
            w = w - lr * buffer
        passes.append((torch.stack(entered), w - begun))
    return passes


# ---------------------------------------------------------------- the report


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_with_plain_sgd_rho_is_the_number_of_steps(engine) -> None:
    local = Local(epochs=3, batch=BATCH, optimizer=sgd(0.3))
    told, updates, _ = reports(feddua(factor="direct"), local=local, engine=double(**engine))
    for i, n in enumerate(SIZES):
        rho = updates[i].norm() / (0.3 * told["gradient"][i])
        assert float(rho) == pytest.approx(3 * steps_of(n), rel=1e-11)
        assert told["alphas"][i].tolist() == pytest.approx([steps_of(n) / n] * 3, rel=1e-11)
    assert set(told) == {"gradient", "alphas"}


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_report_is_the_norm_of_the_mean_of_what_entered_the_optimiser(backend, momentum) -> None:
    local = Local(epochs=2, batch=BATCH, optimizer=sgd(0.2, momentum=momentum, weight_decay=0.03))
    told, updates, _ = reports(feddua(fedprox(mu=0.7), factor="direct"), local=local, engine=double(backend=backend))
    for i, n in enumerate(SIZES):
        passes = followed(blobs(SIZES), i, 2, 0.2, mu=0.7, decay=0.03, momentum=momentum)
        assert torch.allclose(updates[i], sum(way for _, way in passes), rtol=0, atol=1e-11)
        entered = torch.cat([gradients for gradients, _ in passes])
        assert float(told["gradient"][i]) == pytest.approx(float(entered.mean(0).norm()), rel=1e-9)
        assert float(told["gradient"][i]) < 0.999 * float(entered.norm(dim=1).mean()) or len(entered) == 1
        alphas = [float(way.norm() / (0.2 * gradients.mean(0).norm()) / n) for gradients, way in passes]
        assert told["alphas"][i].tolist() == pytest.approx(alphas, rel=1e-9)


@pytest.mark.parametrize(
    "optimizer",
    [sgd(0.2, momentum=0.9), sgd(0.2, momentum=0.6, nesterov=True), sgd(0.2)],
    ids=["momentum", "nesterov", "plain"],
)
@pytest.mark.parametrize("epochs", [1, 3])
def test_with_equal_gradients_rho_is_the_optimisers_reach(optimizer, epochs) -> None:
    """A loss whose gradient is -1 everywhere; the prior expects exactly this."""
    federation = Federation.from_clients([(np.zeros((n, 1)), np.zeros(n)) for n in SIZES], heldout=0)
    local = Local(epochs=epochs, batch=BATCH, optimizer=optimizer)
    told, updates, _ = reports(feddua(avg(), factor="direct"), federation, model=Point(), loss=push, local=local)
    assert told["gradient"].tolist() == pytest.approx([1.0] * len(SIZES))
    m, nesterov = optimizer.spec.options["momentum"], optimizer.spec.options["nesterov"]
    for i, n in enumerate(SIZES):
        buffer = moved = 0.0
        for _ in range(epochs * steps_of(n)):
            buffer = m * buffer + 1
            moved += 1 + m * buffer if nesterov else buffer
        assert float(updates[i].norm()) / 0.2 == pytest.approx(moved, rel=1e-12)
        log_alpha = expect(torch.tensor([n], dtype=torch.float64).log(), local)
        assert float(log_alpha.exp()) == pytest.approx(moved / epochs / n, rel=1e-12)
        if epochs == 1:
            assert told["alphas"][i].tolist() == pytest.approx([moved / n], rel=1e-12)


@pytest.mark.parametrize("embedding", ["fixed", "learnable"])
def test_backends_agree_about_the_branch_on_ragged_clients(embedding) -> None:
    local = Local(epochs=2, batch=BATCH, optimizer=sgd(0.2, momentum=0.5))
    told = [
        reports(feddua(embedding=embedding, branch_rate=0.3), local=local, rounds=2, engine=double(**engine))[0]
        for engine in ENGINES
    ]
    for other in told[1:]:
        assert set(other) == {"gradient", "alphas", "branch"}
        assert all(torch.allclose(other[name], told[0][name], rtol=0, atol=1e-9) for name in other)


def test_who_does_not_move_reports_zeros_and_nothing_that_is_not_a_number() -> None:
    federation = Federation.from_clients([(np.zeros((n, 1)), np.zeros(n)) for n in SIZES], heldout=0)
    for factor in ("direct", "branch"):
        told, updates, simulation = reports(
            feddua(avg(), factor=factor),
            federation,
            model=Point(),
            loss=lambda outputs, targets: 0 * outputs,
            local=Local(batch=BATCH),
            rounds=2,
        )
        assert not updates.any()
        assert not told["gradient"].any()
        assert all(bool(values.isfinite().all()) for values in told.values())
        assert bool(simulation.server.model.isfinite().all())


# ---------------------------------------------------------------- the branch, eq. 7-11


@given(st.data())
def test_a_step_of_the_branch_is_gradient_descent_on_equation_8(data) -> None:
    seed = data.draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    phi = 0.2 * torch.randn(branch.LAYOUT.size, generator=generator, dtype=torch.float64)
    own = torch.randn(EMBEDDING_SIZE, generator=generator, dtype=torch.float64)
    n = torch.tensor(float(data.draw(st.integers(1, 10_000))), dtype=torch.float64)
    batch = data.draw(st.sampled_from([1, 8, 64]))
    # Off by up to e times: a factor further off is clipped, tested below.
    rho = n * branch.predict_factor(phi, own, batch) * math.exp(data.draw(st.floats(-1, 0.3)))
    rate, learnable = data.draw(st.sampled_from([0.01, 0.3])), data.draw(st.booleans())

    a, e = phi.clone().requires_grad_(), own.clone().requires_grad_()
    inner, bias, outer, last = branch.LAYOUT.unflatten(a)
    alpha = torch.exp(outer @ torch.tanh(inner @ e + bias) + last[0]) / batch
    (0.5 * (rho / (alpha * n) - 1) ** 2).backward()
    length = float(torch.cat([a.grad, e.grad] if learnable else [a.grad]).norm())
    clip = min(1, 1 / length) if length else 1.0
    new_phi, new_own = branch.learn(phi, own, rho, n, batch, rate, 1, learnable)
    assert torch.allclose(new_phi, phi - rate * clip * a.grad, rtol=0, atol=1e-12)
    assert torch.allclose(new_own, own - rate * clip * e.grad if learnable else own, rtol=0, atol=1e-12)
    further = branch.learn(phi, own, rho, n, batch, rate, 3, learnable)
    again = branch.learn(new_phi, new_own, rho, n, batch, rate, 2, learnable)
    assert all(torch.allclose(one, other, rtol=0, atol=1e-12) for one, other in zip(further, again, strict=True))


def test_equation_9_is_the_printed_one_over_n_squared() -> None:
    """Finite differences of ``1/2 |rho / alpha - n|^2`` by alpha, through the last bias: d alpha / d bias = alpha."""
    phi, own = branch.start_branch(torch.zeros(1, dtype=torch.float64)), torch.ones(EMBEDDING_SIZE, dtype=torch.float64)
    n, rho, batch, eps = torch.tensor(40.0, dtype=torch.float64), torch.tensor(6.0, dtype=torch.float64), 8, 1e-6
    alpha = float(branch.predict_factor(phi, own, batch))

    def loss(a: float) -> float:
        return 0.5 * (float(rho) / a - float(n)) ** 2

    by_alpha = (loss(alpha + eps) - loss(alpha - eps)) / (2 * eps)
    moved = branch.learn(phi, own, rho, n, batch, 1e-3, 1, False)[0]
    assert float(moved[-1] - phi[-1]) == pytest.approx(-1e-3 * by_alpha * alpha / float(n) ** 2, rel=1e-6)


def test_equation_8_as_printed_is_n_squared_as_steep_and_cut_to_the_same_length() -> None:
    """With a factor that all but fits, so that neither step is cut; and with one that does not."""
    phi, own = branch.start_branch(torch.zeros(1, dtype=torch.float64)), torch.ones(EMBEDDING_SIZE, dtype=torch.float64)
    n, batch = torch.tensor(40.0, dtype=torch.float64), 8
    for off, cut in ((1 + 1e-6, False), (1.5, True)):
        rho = off * n * branch.predict_factor(phi, own, batch)
        relative, printed = (branch.learn(phi, own, rho, n, batch, 0.1, 1, False, p)[0] - phi for p in (False, True))
        if cut:
            assert float(printed.norm()) == pytest.approx(0.1)
        else:
            assert torch.allclose(printed, 1600 * relative, rtol=1e-5, atol=1e-12)
        assert float(printed @ relative) > 0


def test_a_method_with_the_printed_loss_learns_by_it() -> None:
    """Their steps differ in length alone; the factor's last bias shows which was taken."""
    local = Local(batch=BATCH, optimizer=sgd(0.2))
    told = {loss: reports(feddua(branch_loss=loss), local=local)[0]["branch"] for loss in ("relative", "printed")}
    phi = branch.start_branch(torch.zeros(1, dtype=torch.float64))
    for i, n in enumerate(SIZES):
        rho = torch.tensor(float(steps_of(n)), dtype=torch.float64)
        own, count = branch.embed(torch.tensor(i), torch.float64), torch.tensor(float(n), dtype=torch.float64)
        for loss, sent in told.items():
            want, _ = branch.learn(phi, own, rho, count, BATCH, 0.1, BRANCH_STEPS, False, loss == "printed")
            assert torch.allclose(sent[i], want, rtol=0, atol=1e-9)
    assert not torch.allclose(told["relative"], told["printed"], atol=1e-3)


def test_paper_takes_the_printed_loss() -> None:
    local, federation = Local(batch=BATCH, optimizer=sgd(0.2)), blobs(SIZES, proxy=12)
    printed, paper, usual = (
        reports(feddua(**options), federation, local=local)[0]["branch"]
        for options in ({"branch_loss": "printed"}, {"paper": True}, {})
    )
    assert torch.equal(printed, paper)
    assert not torch.equal(printed, usual)


@pytest.mark.parametrize("rho", [1e-9, 1e9, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_factor_far_off_takes_a_step_of_the_rate_at_most(rho, dtype) -> None:
    phi, own = branch.start_branch(torch.zeros(1, dtype=dtype)), torch.ones(EMBEDDING_SIZE, dtype=dtype)
    n = torch.tensor(50.0, dtype=dtype)
    new_phi, new_own = branch.learn(phi, own, torch.tensor(rho, dtype=dtype), n, 8, 0.1, 1, True)
    step = torch.cat([new_phi - phi, new_own - own]).norm()
    assert float(step) <= 0.1 + 1e-6
    if rho > 1:
        assert float(step) == pytest.approx(0.1, rel=1e-5)
        assert float(branch.predict_factor(new_phi, new_own, 8)) > float(branch.predict_factor(phi, own, 8))
    assert float(branch.predict_factor(new_phi, new_own, 8)) > 0


def test_factors_begin_near_one_over_the_batch_and_embeddings_differ() -> None:
    phi = branch.start_branch(torch.zeros(1, dtype=torch.float64))
    own = torch.stack([branch.embed(torch.tensor(i), torch.float64) for i in range(200)])
    factors = torch.stack([branch.predict_factor(phi, e, 16) for e in own])
    assert bool((factors > 0).all())
    assert float(factors.log().add(math.log(16)).abs().max()) < 1
    assert abs(float(own.mean())) < 0.1
    assert float(own.std()) == pytest.approx(1, abs=0.1)
    assert len({tuple(e.tolist()) for e in own}) == 200
    assert torch.equal(branch.embed(torch.tensor(3), torch.float64), own[3])


def by_hand(federation, client: int, phi, own, epochs: int, rate: float, learnable: bool, lr=0.2):
    """A client's branch after a round of plain SGD, where rho is the number of steps; autograd."""
    n = len(data_of(federation, client)[1])
    rho, alphas = steps_of(n), []
    for _ in range(epochs):
        for _ in range(BRANCH_STEPS):
            a, e = phi.clone().requires_grad_(), own.clone().requires_grad_()
            (0.5 * (rho / (branch.predict_factor(a, e, BATCH) * n) - 1) ** 2).backward()
            slope = torch.cat([a.grad, e.grad] if learnable else [a.grad])
            clip = rate * min(1.0, 1 / float(slope.norm()))
            phi, own = phi - clip * a.grad, own - clip * e.grad if learnable else own
        alphas.append(float(branch.predict_factor(phi, own, BATCH)))
    return phi, own, alphas


@pytest.mark.parametrize("embedding", ["fixed", "learnable"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_clients_branch_is_a_plain_loop_over_two_rounds(backend, embedding) -> None:
    """Learnable embeddings stay with the client; the server averages the branch with the counts."""
    federation, learnable = blobs(SIZES), embedding == "learnable"
    local = Local(epochs=2, batch=BATCH, optimizer=sgd(0.2))
    spy = Spy()
    simulation = Simulation(
        feddua(embedding=embedding, branch_rate=0.3),
        federation,
        small(),
        local=local,
        engine=double(backend=backend),
        adversary=spy,
    )
    phi = branch.start_branch(simulation.server.model)
    owns = [branch.embed(torch.tensor(i), torch.float64) for i in range(len(SIZES))]
    first = [e.clone() for e in owns]
    for turn in range(2):
        assert torch.allclose(simulation.server.state["counts"]["branch"], phi, rtol=0, atol=1e-9)
        simulation.advance()
        told, phis = spy.cohorts[turn].reports["counts"], []
        for i in range(len(SIZES)):
            mine, owns[i], alphas = by_hand(federation, i, phi, owns[i], 2, 0.3, learnable)
            phis.append(mine)
            assert torch.allclose(told["branch"][i], mine, rtol=0, atol=1e-9)
            assert told["alphas"][i].tolist() == pytest.approx(alphas, rel=1e-8)
        shares = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
        phi = sum(share * mine for share, mine in zip(shares, phis, strict=True))
    kept: Any = simulation.client_state.get("counts")
    if learnable:
        assert all(
            torch.allclose(kept[i]["embedding"], owns[i] - first[i], rtol=0, atol=1e-9) for i in range(len(SIZES))
        )
        assert max(float((owns[i] - first[i]).norm()) for i in range(len(SIZES))) > 1e-3
    else:
        assert kept is None


def test_the_branch_learns_the_count_over_rounds() -> None:
    """``rho / alpha`` approaches n; alpha of the first round is off by the branch's random start."""
    sizes = [16, 24, 40, 64, 100, 36]
    spy = Spy()
    simulation = Simulation(
        feddua(), blobs(sizes), small(), local=Local(batch=8, optimizer=sgd(0.1)), engine=double(), adversary=spy
    )
    errors = []
    for _ in range(30):
        simulation.advance()
        alpha = spy.cohorts[-1].reports["counts"]["alphas"][:, 0]
        found = torch.tensor([math.ceil(n / 8) for n in sizes]) / alpha
        errors.append(float((found / torch.tensor(sizes)).log().abs().max()))
    assert errors[-1] < 0.02
    assert errors[-1] < errors[0] / 3


def test_bytes_of_the_branch_are_counted() -> None:
    up, down = {}, {}
    for name, method in {"none": fedavg(), "direct": feddua(factor="direct"), "branch": feddua()}.items():
        record = Simulation(method, blobs(SIZES), small(), local=Local(epochs=2, batch=BATCH)).advance()
        up[name], down[name] = record.bytes_up, record.bytes_down
    assert down["direct"] == down["none"]
    assert up["direct"] >= up["none"] + 4 * 3 * len(SIZES)
    assert up["branch"] >= up["direct"] + 4 * branch.LAYOUT.size * len(SIZES)
    assert down["branch"] >= down["none"] + 4 * branch.LAYOUT.size * len(SIZES)
