"""FedOAED: each denoiser against a plain one-client loop, the span of the snapshots, the memory, the uploads."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import (
    BACKENDS,
    Point,
    Spy,
    assert_close,
    blobs,
    data_of,
    digits,
    double,
    flat,
    half_square,
    quadratics,
    run,
    small,
    tracing,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from worlds import FixedWorld

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.engine.clients.batches import client_keys
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, adam, sgd
from counterpoise.methods import fedavg, fedoaed
from counterpoise.methods.fedoaed import (
    Autoencoder,
    Setting,
    coefficients,
    combination,
    dense,
    dense_bytes,
    gram,
    initial,
    layers,
    projection,
    reconstruct,
    rounded_square,
    slope,
    subspace,
    trained,
    triangle,
)

both = pytest.mark.parametrize("backend", BACKENDS)
KINDS = ("subspace", "dense", "projection")
KEY = torch.tensor(12345)
SETTING = Setting(6, 4, 12, adam(0.01))
SIZES, MOST = [5, 9, 14, 3, 11], 12
LOCAL = Local(batch=4, epochs=3, optimizer=sgd(0.3, momentum=0.5))  # 6, 9, 12, 3 and 9 steps
OPTIONS = {"mix": 0.4, "minimum": 2, "epochs": 15, "hidden": 7, "latent": 3, "rank": 2, "rate": 0.01}


def count(n: int) -> torch.Tensor:
    return torch.tensor(n)


def random_rows(snapshots: int, size: int, seed: int = 0, dtype=torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Snapshots of a random walk, and where it ended, three steps later."""
    generator = torch.Generator().manual_seed(seed)
    walk = torch.randn(snapshots + 3, size, generator=generator, dtype=torch.float64).cumsum(0)
    return walk[:snapshots].to(dtype), walk[-1].to(dtype)


# ---------------------------------------------------------------- Algorithm 4 by torch's own modules


def autoencoder(inputs: int, hidden: int, latent: int, key: torch.Tensor) -> nn.Module:
    """Algorithm 4, with our initial weights."""
    net = nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, latent),
        nn.Linear(latent, hidden),
        nn.ReLU(),
        nn.Linear(hidden, inputs),
    ).double()
    fans = (inputs, hidden, latent, hidden)
    nn.utils.vector_to_parameters(initial(layers(inputs, hidden, latent), fans, key, torch.float64), net.parameters())
    return net


def denoise(net: nn.Module, snapshots, final, epochs: int, optimizer) -> torch.Tensor:
    """Train on the snapshots as one batch at unit root mean square, and reconstruct the final delta."""
    rows = torch.stack(snapshots)
    scale = rows.square().mean().sqrt()
    for _ in range(epochs):
        optimizer.zero_grad()
        ((net(rows / scale) - rows / scale) ** 2).sum().backward()
        optimizer.step()
    with torch.no_grad():
        return net(final / scale) * scale


def algorithm2(deltas, key, every, mix, minimum, epochs, hidden, latent, rate, **_) -> torch.Tensor:
    """Algorithm 2, lines 6-18, given ``w - w^(k+1)`` for every step k of one client; what is uploaded."""
    snapshots = [delta for k, delta in enumerate(deltas) if k % every == 0]
    final = deltas[-1]
    if len(snapshots) < minimum:
        return -final
    net = autoencoder(len(final), hidden, latent, key)
    clean = denoise(net, snapshots, final, epochs, torch.optim.Adam(net.parameters(), rate))
    return -((1 - mix) * final + mix * clean)


def way(federation, client: int, steps: int, lr: float, momentum: float) -> list[torch.Tensor]:
    """``w - w^(k+1)`` of a client that takes so many steps, each on all of its data, by torch alone."""
    model, (x, y) = small(), data_of(federation, client)
    start, optimizer, deltas = flat(model), torch.optim.SGD(model.parameters(), lr, momentum), []
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        deltas.append(start - flat(model))
    return deltas


@pytest.mark.parametrize("engine", [{"backend": "batched", "chunk": 3}, {"backend": "per-client"}], ids=str)
@pytest.mark.parametrize("every", [1, 3])
def test_dense_is_a_plain_loop_of_algorithms_2_and_4(every, engine) -> None:
    federation, steps, spy = blobs(SIZES), [9, 4, 7, 1, 12], Spy()
    Simulation(
        fedoaed("dense", every=every, **OPTIONS),
        federation,
        small(),
        local=Local(batch=99, steps=steps, optimizer=sgd(0.3, momentum=0.9)),
        engine=double(**engine),
        adversary=spy,
    ).advance()
    keys = client_keys(0, 1, torch.arange(len(SIZES)))
    for client, update in enumerate(spy.cohorts[0].updates):
        deltas = way(federation, client, steps[client], 0.3, 0.9)
        expected = algorithm2(deltas, keys[client], every, **OPTIONS)
        assert_close(update, expected, expected, 1e-8)
        if steps[client] > every:  # at least two snapshots: the autoencoder has changed it
            assert (update + deltas[-1]).norm() > 1e-2 * update.norm()
        else:
            assert_close(update, -deltas[-1], update, 1e-12)


def coordinates(deltas, delta) -> tuple[torch.Tensor, torch.Tensor]:
    """An orthonormal basis [r, D] by NumPy's QR, the final delta first, and coordinates of final delta and snapshots."""
    rows = np.vstack([delta[None].numpy(), deltas.numpy()])
    q, r = np.linalg.qr(rows.T)
    signs = np.sign(np.diag(r))
    return torch.tensor((q * signs).T), torch.tensor((r * signs[:, None]).T)


def test_subspace_is_dense_with_sgd_a_summed_loss_and_a_decoder_in_the_span() -> None:
    """The encoder may look outside the span: nothing is there to see."""
    S, D, hidden, latent, epochs, lr = 7, 40, 6, 3, 30, 1e-3
    deltas, delta = random_rows(S, D)
    basis, z = coordinates(deltas, delta)
    scale = (z[1:].square().sum() / (S * (S + 1))).sqrt()
    small_net = layers(S + 1, hidden, latent)
    start = initial(small_net, (S + 1, hidden, latent, hidden), KEY, torch.float64)
    a, a0, b, b0, c, c0, d, d0 = small_net.unflatten(start)
    outside = torch.randn(hidden, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    outside = outside - outside @ basis.T @ basis
    whole = layers(D, hidden, latent)
    weights = whole.flatten([a @ basis + outside, a0, b, b0, c, c0, basis.T @ d, basis.T @ d0])
    setting = Setting(hidden, latent, epochs, sgd(lr))
    found = subspace(deltas, delta, count(S), KEY, setting)

    ends = trained(Autoencoder(whole), weights, deltas / scale, torch.ones(S).double(), epochs, sgd(lr))
    ours = reconstruct(Autoencoder(whole), ends, (delta / scale)[None])[0] * scale
    assert_close(found, ours, ours, 1e-12)

    net = autoencoder(D, hidden, latent, KEY)
    nn.utils.vector_to_parameters(weights, net.parameters())
    optimizer = torch.optim.SGD(net.parameters(), lr)
    for _ in range(epochs):
        optimizer.zero_grad()
        ((net(deltas / scale) - deltas / scale) ** 2).sum().backward()
        optimizer.step()
    with torch.no_grad():
        theirs = net(delta / scale) * scale
    assert_close(found, theirs, theirs, 1e-12)
    untrained = subspace(deltas, delta, count(S), KEY, setting._replace(epochs=0))
    assert (found - untrained).norm() > 0.05 * found.norm()


def reference(kind, deltas, delta, key, options) -> torch.Tensor:
    """What a client with these snapshots should send, by NumPy and torch's modules."""
    if len(deltas) < options["minimum"]:
        return delta
    if kind == "dense":
        net = autoencoder(len(delta), options["hidden"], options["latent"], key)
        optimizer = torch.optim.Adam(net.parameters(), options["rate"])
        clean = -denoise(net, list(-deltas), -delta, options["epochs"], optimizer)
    elif kind == "projection":
        _, _, directions = np.linalg.svd(deltas.numpy(), full_matrices=False)
        leading = torch.tensor(directions[: options["rank"]])
        clean = leading.T @ (leading @ delta)
    else:
        final = bool((delta == deltas[-1]).all())  # then the last snapshot is no new direction
        basis, z = coordinates(deltas[:-1] if final else deltas, delta)
        z = torch.cat([z, z[:1]]) if final else z
        rank = len(basis)
        net = autoencoder(rank, options["hidden"], min(options["latent"], max(1, rank // 2)), key)
        optimizer = torch.optim.Adam(net.parameters(), options["rate"])
        clean = denoise(net, list(z[1:]), z[0], options["epochs"], optimizer) @ basis
    return (1 - options["mix"]) * delta + options["mix"] * clean


@pytest.mark.parametrize("engine", [{"backend": "batched", "chunk": 3}, {"backend": "per-client"}], ids=str)
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_is_the_mix_with_a_plain_loops_reconstruction(kind, every, engine) -> None:
    """Batches, momentum, ragged clients, two rounds; the snapshots are those that the engine shows."""
    spy = Spy()
    method = fedoaed(kind, every=every, **OPTIONS).adding(local=tracing(every, MOST))
    simulation = Simulation(method, blobs(SIZES), small(), local=LOCAL, engine=double(**engine), adversary=spy)
    for number in (1, 2):
        record = simulation.advance()
        keys = client_keys(0, number, torch.arange(len(SIZES)))
        cohort = spy.cohorts[-1]
        told = cohort.reports["tracing"]
        for client, update in enumerate(cohort.updates):
            snapshots = told["trace"][client, : int(told["traced"][client])]
            expected = reference(kind, snapshots, told["raw"][client], keys[client], OPTIONS)
            assert_close(update, expected, expected, 1e-8)
        assert not record.outcome.excluded
        total = sum(SIZES)
        assert record.outcome.weights == pytest.approx({i: n / total for i, n in enumerate(SIZES)})  # FedAvg's


# ---------------------------------------------------------------- the autoencoder


@given(st.data())
@pytest.mark.parametrize("masked", [False, True])
def test_the_slope_is_autograds(masked, data) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    inputs, hidden, latent, rows = (data.draw(st.integers(1, 6)) for _ in range(4))
    layout = layers(inputs, hidden, latent)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    real, code, out = (torch.arange(n) <= n // 2 for n in (rows, latent, inputs))
    net = Autoencoder(layout, code.double(), out.double()) if masked else Autoencoder(layout)
    weights, x = draw(layout.size).requires_grad_(), draw(rows, inputs)
    loss = (real[:, None] * (reconstruct(net, weights, x) - x) ** 2).sum()
    (expected,) = torch.autograd.grad(loss, weights)
    assert torch.allclose(slope(net, weights.detach(), x, real.double()), expected, rtol=1e-12, atol=1e-11)


def test_weights_begin_as_those_of_torchs_linear_layers() -> None:
    """Uniform within 1/sqrt(fan-in), by key and place."""
    layout, fans = layers(50, 40, 30), (50, 40, 30, 40)
    weights = initial(layout, fans, KEY, torch.float64)
    for number, part in enumerate(layout.unflatten(weights)):
        bound = fans[number // 2] ** -0.5
        assert part.abs().max() <= bound
        assert part.abs().max() > 0.85 * bound
        assert part.min() < 0 < part.max()
        if part.ndim == 2:
            assert float(part.square().mean()) == pytest.approx(bound**2 / 3, rel=0.1)
            assert abs(float(part.mean())) < 0.1 * bound
    assert len(weights.unique()) > 0.99 * len(weights)
    assert not torch.allclose(weights, initial(layout, fans, KEY + 1, torch.float64))
    larger = layers(60, 40, 33).unflatten(initial(layers(60, 40, 33), fans, KEY, torch.float64))
    for ours, theirs in zip(layout.unflatten(weights), larger, strict=True):
        assert torch.equal(ours, theirs[tuple(slice(n) for n in ours.shape)])


def test_clients_and_rounds_begin_with_weights_of_their_own() -> None:
    """Two clients with the same data and one more round: no two reconstruct alike."""
    spy = Spy()
    simulation = Simulation(
        fedoaed(mix=1.0, minimum=1),
        quadratics([1.0, 1.0], [4.0, 4.0]),
        Point(0.0),
        loss=half_square,
        local=Local(steps=5, optimizer=sgd(1e-9)),
        engine=double(),
        adversary=spy,
    )
    run(simulation, 2)
    assert len({float(u) for cohort in spy.cohorts for u in cohort.updates}) == 4


def test_the_sizes_are_the_papers() -> None:
    assert layers(61_706, 512, 32).size == 1025 * 61_706 + 33_824 == 63_282_474  # LeNet-5
    assert layers(11_173_962, 512, 32).size == 1025 * 11_173_962 + 33_824  # ResNet-18
    assert dense_bytes(11_173_962, 512, 32) / 2**30 == pytest.approx(170.7, abs=0.05)


# ---------------------------------------------------------------- the span of the snapshots


@given(st.data())
def test_coordinates_reproduce_the_gram_matrix_and_lead_back(data) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    S, D = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 12))
    rows = rng.standard_normal((S + 1, D)) * 10.0 ** data.draw(st.sampled_from([-12, -3, 0, 6]))
    for _ in range(data.draw(st.integers(0, 4))):  # zero, repeated, opposite and combined rows
        i, j = rng.integers(0, S + 1, 2)
        rows[i] = [0 * rows[j], rows[j], -rows[j], rows[j] + 2 * rows[0]][rng.integers(4)]
    deltas, delta = torch.tensor(rows[1:]), torch.tensor(rows[0])
    products = gram(deltas, delta)
    assert products.numpy() == pytest.approx(rows @ rows.T, rel=1e-12, abs=1e-12 * np.abs(rows @ rows.T).max())
    lower = triangle(products, 1e-12 * products.diagonal())
    assert torch.equal(lower, lower.tril())
    assert (lower @ lower.T).numpy() == pytest.approx(rows @ rows.T, abs=1e-8 * max(np.abs(rows @ rows.T).max(), 1e-99))
    rank = np.linalg.matrix_rank(rows, tol=1e-5 * np.linalg.norm(rows)) if rows.any() else 0
    assert int((lower.diagonal() > 0).sum()) >= rank
    assert int((lower.diagonal() > 0).sum()) <= min(S + 1, D)
    for i in range(S + 1):  # each vector from its own coordinates
        back = combination(deltas, delta, coefficients(lower, lower[i]))
        assert back.numpy() == pytest.approx(rows[i], abs=1e-5 * max(np.abs(rows).max(), 1e-99))


def test_the_span_is_found_in_float64_whatever_the_snapshots_are_in() -> None:
    deltas, delta = random_rows(5, 300, dtype=torch.float32)
    wide = torch.cat([delta[None], deltas]).double()
    assert torch.equal(gram(deltas, delta), wide @ wide.T)
    assert gram(deltas, delta).dtype == torch.float64


def straight(dtype, length: float = 3000.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Snapshots of 12 ever shorter steps one way from a far start: only rounding leads off the line. And the start."""
    generator = torch.Generator().manual_seed(2)
    start, step = (torch.randn(400, generator=generator, dtype=torch.float64) for _ in range(2))
    start, step = (length * start / start.norm()).to(dtype), (0.01 * step / step.norm()).to(dtype)
    w, way = start, []
    for k in range(12):
        w = w + 0.9**k * step
        way.append(w - start)
    return torch.stack(way[::2]), way[-1], start


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_no_direction_in_either_type(dtype) -> None:
    deltas, delta, start = straight(dtype)
    rounding = rounded_square(start, count(12))
    assert float(rounding) == pytest.approx(
        12 * (3000 * 2.0 ** (-24 if dtype == torch.float32 else -53)) ** 2, rel=1e-6
    )
    one = subspace(deltas, delta, count(6), KEY, SETTING, rounding)
    assert_close(one, delta * (one @ delta) / (delta @ delta), one, 1e-6)
    kept = projection(deltas, delta, 3, rounding)
    main = projection(deltas, delta, 1)
    assert_close(kept, main, main, 1e-6)
    if dtype == torch.float32:  # there would be directions, and a wider code
        assert int((triangle(gram(deltas, delta), torch.zeros(7)).diagonal() > 0).sum()) > 4
        assert (subspace(deltas, delta, count(6), KEY, SETTING) - one).norm() > 0.05 * one.norm()
        assert (projection(deltas, delta, 3) - main).norm() > 1e-4 * main.norm()


@pytest.mark.parametrize("lr", [0.01, 0.001])
def test_nearly_dependent_snapshots_give_the_same_step_in_both_types(lr) -> None:
    """Full batches on a convex loss: the way is so straight that float32 cannot tell most of its directions."""
    federation, settings = digits(10), {"local": Local(epochs=12, batch=1000, optimizer=sgd(lr)), "cohort": 3}
    torch.manual_seed(0)
    model, steps = cp.models.linear((1, 8, 8), 10), []
    for dtype in ("float32", "float64"):
        simulation = Simulation(fedoaed(), federation, model, engine=double(dtype=dtype), **settings)
        before = simulation.server.model.double()
        steps.append(run(simulation, 1).double() - before)
    assert_close(*steps, steps[1], 1e-3)


def test_vectors_longer_than_a_block_are_read_in_pieces(monkeypatch) -> None:
    deltas, delta = random_rows(5, 103)

    def all_of_them():
        return [gram(deltas, delta), subspace(deltas, delta, count(5), KEY, SETTING), projection(deltas, delta, 2)]

    whole = all_of_them()
    monkeypatch.setattr(sys.modules[gram.__module__], "_BLOCK", 10)
    for a, b in zip(whole, all_of_them(), strict=True):
        assert a.shape == b.shape
        assert_close(a, b, a, 1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padding_changes_nothing(dtype) -> None:
    deltas, delta = random_rows(6, 30, dtype=dtype)
    deltas[3] = deltas[1]  # a place without a direction, in the middle
    longer = torch.cat([deltas, torch.zeros(5, 30, dtype=dtype)])
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    for denoiser in (
        lambda rows: subspace(rows, delta, count(6), KEY, SETTING),
        lambda rows: dense(rows, delta, count(6), KEY, SETTING),
        lambda rows: projection(rows, delta, 3),
    ):
        assert_close(denoiser(longer), denoiser(deltas), denoiser(deltas), tolerance)


def test_a_snapshot_in_the_span_of_others_is_learned_from_and_adds_no_direction() -> None:
    """One that repeats another, and three that combine some: their distance to the span is rounding."""
    deltas, delta = random_rows(5, 30)
    shares = torch.randn(3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.cat([deltas, deltas[2:3], shares @ torch.cat([delta[None], deltas])])
    basis, z = coordinates(deltas, delta)
    z = torch.cat([z, z[3:4], shares @ z])
    products = gram(rows, delta)
    assert int((triangle(products, 1e-12 * products.diagonal()).diagonal() > 0).sum()) == 6
    net = autoencoder(6, 6, 3, KEY)
    clean = denoise(net, list(z[1:]), z[0], 12, torch.optim.Adam(net.parameters(), 0.01)) @ basis
    assert_close(subspace(rows, delta, count(9), KEY, SETTING), clean, clean, 1e-9)


@pytest.mark.parametrize("latent", [1, 2, 3, 32])
@pytest.mark.parametrize("snapshots", [1, 2, 5, 8])
def test_the_code_is_at_most_half_the_span(snapshots, latent) -> None:
    """Whatever the option says and however many longer clients are beside it, and at least 1."""
    deltas, delta = random_rows(snapshots, 30)
    setting = SETTING._replace(latent=latent)
    basis, z = coordinates(deltas, delta)
    net = autoencoder(snapshots + 1, 6, min(latent, max(1, (snapshots + 1) // 2)), KEY)
    clean = denoise(net, list(z[1:]), z[0], 12, torch.optim.Adam(net.parameters(), 0.01)) @ basis
    for padding in (0, 9):
        rows = torch.cat([deltas, deltas.new_zeros(padding, 30)])
        assert_close(subspace(rows, delta, count(snapshots), KEY, setting), clean, clean, 1e-8)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows, last: (rows[:1].expand(6, -1).clone(), rows[0]),
        lambda rows, last: (rows[:1].expand(6, -1).clone(), last),
        lambda rows, last: (rows[:1], rows[0]),
        lambda rows, last: (torch.cat([torch.zeros_like(rows[:2]), rows[2:]]), last),
        lambda rows, last: (rows, rows[-1]),
        lambda rows, last: (rows, torch.zeros_like(last)),
        lambda rows, last: (rows * 1e-15, last * 1e-15),
        lambda rows, last: (rows * 1e15, last * 1e15),
        lambda rows, last: (rows[:, :2], last[:2]),
    ],
    ids=[
        "all the same",
        "the same, then on",
        "one",
        "zero first",
        "ends at the last",
        "ends at 0",
        "tiny",
        "huge",
        "flat",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_degenerate_snapshots_give_finite_updates_in_their_span(change, dtype) -> None:
    deltas, delta = change(*random_rows(6, 30, dtype=dtype))
    size = torch.cat([deltas, delta[None]]).norm()
    basis = np.linalg.svd(torch.cat([deltas, delta[None]]).double().numpy() / float(size), full_matrices=False)
    inside = torch.tensor(basis[2][basis[1] > 1e-6])
    for clean in (
        subspace(deltas, delta, count(len(deltas)), KEY, SETTING),
        projection(deltas, delta, 2),
        dense(deltas, delta, count(len(deltas)), KEY, SETTING),
    ):
        assert clean.dtype == dtype
        assert clean.isfinite().all()
        assert clean.norm() < 10 * size
    for clean in (subspace(deltas, delta, count(len(deltas)), KEY, SETTING), projection(deltas, delta, 2)):
        wide = clean.double()
        assert (wide - wide @ inside.T @ inside).norm() <= 1e-4 * size


@pytest.mark.parametrize("denoiser", [subspace, dense])
def test_the_scale_of_the_deltas_does_not_matter(denoiser) -> None:
    """They are scaled to unit root mean square and back: a thousandth in gives a thousandth out."""
    deltas, delta = random_rows(6, 30)
    clean = denoiser(deltas, delta, count(6), KEY, SETTING)
    scaled = denoiser(deltas / 1024, delta / 1024, count(6), KEY, SETTING)
    assert_close(scaled * 1024, clean, clean, 1e-10)


def test_enough_training_brings_the_snapshots_back() -> None:
    """Rows on a line through one code: the reconstruction of the last comes near it, and an untrained one does not."""
    direction = torch.linspace(-1, 1, 50, dtype=torch.float64)
    deltas = torch.linspace(0.2, 1, 8, dtype=torch.float64)[:, None] * direction
    noise = 0.01 * torch.randn(8, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    deltas = deltas + noise
    errors = [
        float((subspace(deltas, deltas[-1], count(8), KEY, Setting(64, 4, epochs, adam(0.003))) - deltas[-1]).norm())
        for epochs in (0, 300)
    ]
    assert errors[1] < 0.1 * deltas[-1].norm() < errors[0]


# ---------------------------------------------------------------- projection


@given(st.data())
def test_a_projection_is_numpys_svd(data) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    S, D, rank = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 20)), data.draw(st.integers(1, 9))
    rows, last = rng.standard_normal((S, D)) * rng.uniform(0.2, 5, (S, 1)), rng.standard_normal(D)
    _, _, directions = np.linalg.svd(rows, full_matrices=False)
    leading = directions[:rank]
    found = projection(torch.tensor(rows), torch.tensor(last), rank)
    assert found.numpy() == pytest.approx(leading.T @ (leading @ last), abs=1e-7)
    if rank >= S:  # all of the span: least squares
        best = rows.T @ np.linalg.lstsq(rows.T, last, rcond=None)[0]
        assert found.numpy() == pytest.approx(best, abs=1e-7)


def test_a_final_delta_among_the_snapshots_survives_a_full_projection() -> None:
    deltas, _ = random_rows(6, 30)
    assert_close(projection(deltas, deltas[-1], 6), deltas[-1], deltas[-1], 1e-12)
    assert_close(projection(deltas, deltas[-1], 100), deltas[-1], deltas[-1], 1e-12)
    assert (projection(deltas, deltas[-1], 1) - deltas[-1]).norm() > 0.01 * deltas[-1].norm()


def test_the_projection_keeps_the_leading_directions() -> None:
    deltas = torch.diag(torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64))
    delta = torch.ones(3, dtype=torch.float64)
    assert projection(deltas, delta, 1).tolist() == pytest.approx([0, 1, 0])
    assert projection(deltas, delta, 2).tolist() == pytest.approx([0, 1, 1])


def test_squares_that_overflow_give_no_number_and_no_error() -> None:
    """The update alone may still be finite; the server must see that the reconstruction is not."""
    deltas, delta = random_rows(4, 10)
    deltas[1] *= 1e200
    assert projection(deltas, delta, 2).isnan().all()
    assert not subspace(deltas, delta, count(4), KEY, SETTING).isfinite().all()


# ---------------------------------------------------------------- what is sent


def updates(method, engine, rounds: int = 1, local: Local = LOCAL, **settings) -> list[torch.Tensor]:
    spy = Spy()
    simulation = Simulation(
        method, blobs(SIZES), small(), local=local, engine=double(**engine), adversary=spy, **settings
    )
    run(simulation, rounds)
    return [cohort.updates for cohort in spy.cohorts]


@pytest.mark.parametrize("kind", KINDS)
def test_backends_chunks_and_threads_agree(kind) -> None:
    """Ragged clients, some below the minimum, a period of 2, two rounds."""
    method = fedoaed(kind, every=2, **OPTIONS | {"minimum": 3})
    first, *others = (
        updates(method, engine, rounds=2)
        for engine in (
            {"backend": "per-client"},
            {"backend": "per-client", "threads": 2},
            *({"backend": "batched", "chunk": chunk} for chunk in (1, 2, 3, 5)),
        )
    )
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert_close(a, b, a, 1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_float64_to_some_digits(kind) -> None:
    method = fedoaed(kind, **OPTIONS)
    for backend in BACKENDS:
        single, wide = (updates(method, {"backend": backend, "dtype": dtype})[0] for dtype in ("float32", "float64"))
        assert single.dtype == torch.float32
        assert_close(single.double(), wide, wide, 1e-3)


@both
@pytest.mark.parametrize("kind", KINDS)
def test_too_few_snapshots_leave_the_update_bit_for_bit(kind, backend) -> None:
    """Clients have 6, 9, 12, 3 and 9 steps, so 3, 5, 6, 2 and 5 snapshots of every second."""
    engine = {"backend": backend, "chunk": 5}
    (plain,) = updates(fedavg(), engine)
    (mixed,) = updates(fedoaed(kind, every=2, **OPTIONS | {"minimum": 5}), engine)
    same = [torch.equal(a, b) for a, b in zip(plain, mixed, strict=True)]
    assert same == [True, False, False, True, False]
    (untouched,) = updates(fedoaed(kind, every=2, **OPTIONS | {"minimum": 7}), engine)
    assert torch.equal(untouched, plain)


@both
@pytest.mark.parametrize("kind", [*KINDS, "auto"])
def test_without_a_share_it_is_fedavg_bit_for_bit(kind, backend) -> None:
    engine = {"backend": backend}
    for a, b in zip(updates(fedoaed(kind, mix=0.0), engine, 3), updates(fedavg(), engine, 3), strict=True):
        assert torch.equal(a, b)


@both
@pytest.mark.parametrize("kind", KINDS)
def test_the_share_goes_from_the_raw_update_to_the_denoised(kind, backend) -> None:
    none, some, all_of_it = (
        updates(fedoaed(kind, **OPTIONS | {"mix": mix, "minimum": 1}), {"backend": backend})[0]
        for mix in (0.0, 0.25, 1.0)
    )
    assert_close(some, 0.75 * none + 0.25 * all_of_it, some, 1e-12)
    assert (all_of_it - none).norm() > 1e-3 * none.norm()


@both
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_does_not_move_sends_exactly_nothing(kind, backend) -> None:
    """Client 0 is at its optimum; beside it one that moves."""
    spy = Spy()
    Simulation(
        fedoaed(kind, minimum=1),
        quadratics([1.0, 1.0], [2.0, -1.0]),
        Point(2.0),
        loss=half_square,
        local=Local(steps=[4, 6], optimizer=sgd(0.1)),
        engine=double(backend=backend),
        adversary=spy,
    ).advance()
    assert float(spy.cohorts[0].updates[0]) == 0
    assert abs(float(spy.cohorts[0].updates[1])) > 0


@both
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_diverges_is_left_out_and_the_others_go_on(kind, backend) -> None:
    simulation = Simulation(
        fedoaed(kind, minimum=1),
        quadratics([1.0, 1e200], [4.0, -1.0]),
        Point(1.0),
        loss=half_square,
        local=Local(steps=6, optimizer=sgd(0.1)),
        engine=double(backend=backend),
    )
    record = simulation.advance()
    assert record.outcome.excluded == {1: "its update holds NaN or infinity"}
    assert record.outcome.weights == {0: 1.0}


@both
def test_one_step_is_a_snapshot_that_is_the_final_delta(backend) -> None:
    local = Local(steps=1, optimizer=sgd(0.1))
    (plain,) = updates(fedavg(), {"backend": backend}, local=local)
    (projected,) = updates(fedoaed("projection", minimum=1, rank=1), {"backend": backend}, local=local)
    assert_close(projected, plain, plain, 1e-12)
    for kind in ("subspace", "dense"):
        (found,) = updates(fedoaed(kind, minimum=1, hidden=8), {"backend": backend}, local=local)
        assert found.isfinite().all()
    (found,) = updates(fedoaed("subspace", minimum=1, hidden=8), {"backend": backend}, local=local)
    cosines = F.cosine_similarity(found, plain)
    assert cosines.abs().tolist() == pytest.approx([1.0] * len(SIZES))  # a span of one dimension


def test_nothing_but_the_update_is_sent() -> None:
    up, down = zip(
        *(
            (record.bytes_up, record.bytes_down)
            for record in (
                Simulation(method, blobs(SIZES), small(), local=LOCAL).advance() for method in (fedoaed(), fedavg())
            )
        ),
        strict=True,
    )
    assert up[0] == up[1]
    assert down[0] == down[1]


# ---------------------------------------------------------------- the memory


def test_auto_is_dense_where_the_budget_allows_it_and_subspace_elsewhere() -> None:
    engine, size = {"backend": "per-client"}, len(flat(small()))
    needed = dense_bytes(size, OPTIONS["hidden"], OPTIONS["latent"], torch.float64) / 2**30
    made = {kind: updates(fedoaed(kind, **OPTIONS), engine)[0] for kind in ("dense", "subspace")}
    assert not torch.equal(made["dense"], made["subspace"])
    for budget, kind in ((needed, "dense"), (needed * (1 - 1e-9), "subspace")):
        assert torch.equal(updates(fedoaed("auto", budget=budget, **OPTIONS), engine)[0], made[kind])


@both
def test_auto_goes_by_each_clients_own_memory(backend) -> None:
    """Two have room for the dense autoencoder, whatever the budget says of others."""
    engine, size = {"backend": backend}, len(flat(small()))
    needed = dense_bytes(size, OPTIONS["hidden"], OPTIONS["latent"], torch.float64) / 2**30
    memory = [needed if client in (0, 3) else needed / 2 for client in range(len(SIZES))]
    made = {kind: updates(fedoaed(kind, budget=1, **OPTIONS), engine)[0] for kind in ("dense", "subspace")}
    method = fedoaed("auto", budget=needed / 2, **OPTIONS)
    (mixed,) = updates(method, engine, local=replace(LOCAL, memory=memory))
    for client, update in enumerate(mixed):
        kind, other = ("dense", "subspace") if client in (0, 3) else ("subspace", "dense")
        assert_close(update, made[kind][client], update, 1e-12)
        if not torch.equal(made[kind][client], made[other][client]):
            assert (update - made[other][client]).norm() > 1e-6 * update.norm()
    assert not torch.equal(made["dense"][0], made["subspace"][0])
    for all_alike, kind in ((needed, "dense"), (needed / 2, "subspace")):
        (found,) = updates(method, engine, local=replace(LOCAL, memory=all_alike))
        assert torch.equal(found, made[kind])


def test_memory_is_one_positive_number_or_one_per_client() -> None:
    for bad in (0, -1.0, [], [1.0, 0.0], "2"):
        with pytest.raises(CounterpoiseError, match="local: memory must be a number of GiB above 0"):
            Local(memory=bad)
    with pytest.raises(CounterpoiseError, match=f"local: memory gives 2 numbers for {len(SIZES)} clients"):
        updates(fedoaed("auto"), {}, local=replace(LOCAL, memory=[1.0, 2.0]))
    with pytest.raises(CounterpoiseError, match=r"more than its budget of 0\.001 GiB"):
        fedoaed("dense").part("denoiser").check(FixedWorld(61_706, local=Local(memory=[4.0, 0.001])))


def test_dense_is_refused_where_it_cannot_fit_with_what_it_needs_and_the_other_choice() -> None:
    federation = blobs([2, 2], shape=(3, 32, 32), classes=10)
    with pytest.raises(CounterpoiseError) as refused:
        Simulation(fedoaed("dense"), federation, cp.models.resnet18())
    sentence = str(refused.value)
    for words in (
        "11,173,962 parameters",
        "11,453,344,874 weights",
        "170.7 GiB on each client",
        "more than its budget of 2 GiB",
        "denoiser='subspace'",
    ):
        assert words in sentence
    for method in (fedoaed("dense", budget=171), fedoaed(), fedoaed("auto"), fedoaed("projection")):
        method.part("denoiser").check(FixedWorld(11_173_962))
    with pytest.raises(CounterpoiseError):
        fedoaed("dense", budget=170.6).part("denoiser").check(FixedWorld(11_173_962))
    fedoaed("dense").part("denoiser").check(FixedWorld(61_706))  # LeNet-5 takes 0.94 GiB


RESNET = """
import torch
from counterpoise.local import Local
from counterpoise.method import Client, Reply
from counterpoise.methods import fedoaed

def most():
    # In KiB, of this program alone: getrusage's peak begins at that of the process it was started from.
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])

D, S = 11_173_962, 20
torch.set_num_threads(2)
trace = torch.empty(S, D).normal_(generator=torch.Generator().manual_seed(0))
update = trace[-1].clone()
number = torch.tensor(S)
client = Client(
    update, {}, {}, {}, {}, number, number, number, torch.tensor(7), update, Local(), trace=trace, traced=number
)
finish = fedoaed().part("denoiser").finish
before = most()
reply = finish(client, Reply(update))
after = most()
assert reply.update.shape == (D,) and bool(reply.update.isfinite().all()) and not torch.equal(reply.update, update)
assert before * 1024 > S * D * 4, before
print((after - before) / 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_resnet_18_client_of_20_snapshots_takes_less_than_a_gibibyte_beside_them() -> None:
    done = subprocess.run([sys.executable, "-c", RESNET], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < 1


# ---------------------------------------------------------------- with another method's weights


@both
def test_its_upload_composes_with_fedbacs_weighing_under_a_changing_cohort(backend) -> None:
    """FedBaC's rule in NumPy, on the denoised updates: cosines with the momentum, variances of a client's last five."""
    spy, rounds, beta = Spy(), 8, 0.9
    method = cp.methods.fedbac_soft(beta=beta).adding(
        "fedbac-soft with fedoaed", upload=fedoaed(mix=0.8, minimum=3, hidden=16, every=2).part("denoiser")
    )
    simulation = Simulation(
        method.adding(local=tracing(2, MOST)),
        blobs(SIZES),
        small(),
        local=LOCAL,
        cohort=3,
        engine=double(backend=backend),
        adversary=spy,
    )
    v, w, history = np.zeros(len(flat(small()))), flat(small()).numpy(), {}
    for _ in range(rounds):
        record = simulation.advance()
        cohort = spy.cohorts[-1]
        d, n = cohort.updates.numpy(), cohort.examples.numpy()
        scores = []
        for client, own in zip(cohort.ids, d, strict=True):
            cosine = own @ v / np.linalg.norm(own) / np.linalg.norm(v) if v.any() else 0.0
            if v.any():
                history.setdefault(client, []).append(cosine)
            scores.append((1 + cosine) / 2 * np.exp(-np.var(history.get(client, [0])[-5:])))
        weights = np.array(scores) / np.sum(scores) if v.any() else n / n.sum()
        assert not record.outcome.excluded
        assert sum(record.outcome.weights.values()) == pytest.approx(1, abs=1e-12)
        assert list(record.outcome.weights.values()) == pytest.approx(weights, abs=1e-10)
        w, v = w + weights @ d, beta * v + (1 - beta) * (n / n.sum()) @ d
        assert simulation.server.model.numpy() == pytest.approx(w, abs=1e-10)
        told = cohort.reports["tracing"]
        for place in range(len(cohort)):
            raw = torch.equal(told["raw"][place], cohort.updates[place])
            assert raw == (int(told["traced"][place]) < 3)
    assert len({cohort.ids for cohort in spy.cohorts}) > 1
    assert max(len(cosines) for cosines in history.values()) > 2
