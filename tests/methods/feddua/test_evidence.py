"""FedDua's evidence and its sum over rounds, against NumPy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import FixedWorld, cohort

from counterpoise.flat import Layout
from counterpoise.local import Local, adam, exponential, sgd
from counterpoise.methods.feddua.constants import HORIZON
from counterpoise.methods.feddua.evidence import Points, check_consistency, check_displacement, check_report, measure
from counterpoise.methods.feddua.prior import Line, expect, fit_line, fit_network, solve
from counterpoise.methods.feddua.sequential import raise_limit, update_warnings, weigh_up
from counterpoise.parts.robust import line, regression, spread

PLAIN = Local(epochs=2, batch=8, optimizer=sgd(0.1))
HEAVY = Local(epochs=2, batch=8, optimizer=sgd(0.1, momentum=0.9))


def tensor(values) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float64)


# ---------------------------------------------------------------- the same in NumPy


def np_spread(errors):
    sizes = np.abs(errors)
    return max(1.4826 * np.median(sizes), 0.7803 * np.quantile(sizes, 0.8)) if len(sizes) else 0.0


def np_line(x, y, low, high):
    """Theil and Sen: the median of the slopes of all pairs further apart than 0.05."""
    pairs = [(x[j] - x[i], y[j] - y[i]) for i in range(len(x)) for j in range(i + 1, len(x))]
    slopes = [rise / run for run, rise in pairs if abs(run) > 0.05]
    b = 0.0
    if slopes:
        b = min(max(np.median(slopes), low), high) * min(1, len(slopes) / len(pairs) / 0.5)
    return np.median(y - b * x), b


def np_steps(n, local):
    return local.epochs * math.ceil(n / local.batch)


def np_reach(steps, local):
    m = local.optimizer.spec.options.get("momentum", 0)
    return sum((1 - m ** (k + 1)) / (1 - m) for k in range(int(steps)))


def np_expected(n, local):
    return math.log(np_reach(np_steps(n, local), local) / local.epochs / n)


def centred(values):
    return values - np.median(values)


def random_cohort(rng, C, local, world, moved=True):
    n = rng.integers(1, 200, C).astype(float)
    updates = rng.standard_normal((C, world.layout.size)) * np.exp(rng.standard_normal((C, 1)))
    told = {
        "gradient": tensor(np.exp(rng.standard_normal(C))),
        "alphas": tensor(np.exp(rng.standard_normal((C, local.epochs)))),
    }
    return cohort(range(C), updates, n, {"counts": told}), told


def two_layers(local, round=3) -> FixedWorld:
    world = FixedWorld(7, round=round, local=local)
    world.layout = Layout(("a.weight", "b.weight", "b.bias"), ((4,), (2,), (1,)))
    return world


seeds = st.integers(0, 2**32)
locals_ = pytest.mark.parametrize("local", [PLAIN, HEAVY], ids=["plain", "momentum"])


@given(seed=seeds, C=st.integers(1, 9), by_branch=st.booleans())
@locals_
def test_points_are_logarithms_of_what_was_sent(local, seed, C, by_branch) -> None:
    """Medians and the mean direction are those of the clients heard; every direction counts alike."""
    rng, world = np.random.default_rng(seed), two_layers(local)
    sent, told = random_cohort(rng, C, local, world)
    d, n = sent.updates.numpy(), sent.examples.numpy()
    heard = rng.random(C) < 0.7
    heard[rng.integers(C)] = True
    points = measure(sent, world, told, by_branch, torch.as_tensor(heard))
    length = np.linalg.norm(d, axis=1)
    rho = length / (0.1 * local.epochs * told["gradient"].numpy())
    alpha = np.log(told["alphas"].numpy()).mean(1) if by_branch else np.log(rho / n)
    middle = (d / length[:, None])[heard].mean(0)

    def beside(values):
        return values - np.median(values[heard])

    want = Points(
        np.log(n),
        np.log(rho),
        alpha,
        beside(np.log(n)),
        beside(np.log(length)),
        beside(d @ middle / length / np.linalg.norm(middle)),
        beside(np.log(np.linalg.norm(d[:, 4:], axis=1) / length)),
    )
    for name, mine, theirs in zip(Points._fields, points, want, strict=True):
        assert mine.dtype == torch.float64
        assert mine.numpy() == pytest.approx(theirs, abs=1e-9), name


def test_the_last_layers_share_is_that_of_the_layer_nearest_to_the_output() -> None:
    """Registered first, and used last."""
    rng, world = np.random.default_rng(0), two_layers(PLAIN)
    world.layout = replace(world.layout, output=0)
    sent, told = random_cohort(rng, 5, PLAIN, world)
    d = sent.updates.numpy()
    share = np.log(np.linalg.norm(d[:, :4], axis=1) / np.linalg.norm(d, axis=1))
    found = measure(sent, world, told, False, torch.ones(5, dtype=torch.bool)).last
    assert found.numpy() == pytest.approx(share - np.median(share))


def test_points_follow_the_rounds_learning_rate() -> None:
    local = Local(batch=8, optimizer=sgd(0.1), schedule=exponential(0.5))
    rng = np.random.default_rng(0)
    sent, told = random_cohort(rng, 4, local, two_layers(local))
    everyone = torch.ones(4, dtype=torch.bool)
    one, three = (measure(sent, two_layers(local, round), told, False, everyone).rho for round in (1, 3))
    assert (three - one).tolist() == pytest.approx([math.log(4)] * 4)


@given(seed=seeds, C=st.integers(1, 12), equal=st.booleans())
@locals_
def test_the_report_is_held_against_the_majoritys_line(local, seed, C, equal) -> None:
    rng = np.random.default_rng(seed)
    n = np.full(C, 40.0) if equal else rng.integers(1, 300, C).astype(float)
    expects = np.array([np_expected(v, local) for v in n])
    alpha = expects + 0.2 * rng.standard_normal(C) + 0.3 * rng.standard_normal() * np.log(n)
    alpha[rng.random(C) < 0.1] = np.nan
    nothing = torch.zeros(C, dtype=torch.float64)
    points = Points(tensor(n).log(), tensor(alpha) + tensor(n).log(), tensor(alpha), *[nothing] * 4)
    known = np.isfinite(alpha)
    a, b = np_line(np.log(n)[known], (alpha - expects)[known], -0.3, 0.3) if known.any() else (0.0, 0.0)
    ours = fit_line(points.n, points.alpha, local)
    assert float(ours[0]) == pytest.approx(a, abs=1e-9)
    assert float(ours[1]) == pytest.approx(b, abs=1e-9)
    error = expects + a + b * np.log(n) - alpha
    stream = check_report(points, points, ours, local)
    assert stream.error.numpy() == pytest.approx(error, abs=1e-9, nan_ok=True)
    assert float(stream.spread) == pytest.approx(np_spread(error[known]), abs=1e-9)
    least = 0.0 if local is PLAIN else 0.27
    assert stream.floor.numpy() == pytest.approx(np.maximum(8 / (2 * n), least))


def linear_bound(local) -> float:
    """The bound on the slope: a line far steeper is cut there."""
    n = tensor([10.0, 100, 1000, 10000, 20000, 50000]).log()
    return float(fit_line(n, expect(n, local) + 5 * n, local).b)


def test_the_slope_is_bounded() -> None:
    """What momentum does to alpha is in what is expected: only without an expectation may the line be steeper."""
    assert linear_bound(PLAIN) == linear_bound(HEAVY) == 0.3
    assert linear_bound(Local(batch=8, optimizer=adam(0.1))) == 0.9


@given(seed=seeds, C=st.integers(1, 12))
def test_the_claim_is_held_against_the_reported_factor(seed, C) -> None:
    rng = np.random.default_rng(seed)
    n, rho, alpha = np.log(rng.integers(1, 300, C)), rng.standard_normal(C), rng.standard_normal(C)
    nothing = torch.zeros(C, dtype=torch.float64)
    points = Points(tensor(n), tensor(rho), tensor(alpha), *[nothing] * 4)
    error = centred(n - (rho - alpha))
    stream = check_consistency(points, points, PLAIN)
    assert stream.error.numpy() == pytest.approx(error, abs=1e-12)
    assert float(stream.spread) == pytest.approx(np_spread(error), abs=1e-12)
    assert stream.floor.numpy() == pytest.approx(np.maximum(8 / (2 * np.exp(n)), 0.2))


def huber(x, y, prior, turns=10):
    c, weights = prior, np.ones(len(y))
    for _ in range(turns):
        left = sum((w * np.outer(row, row) for w, row in zip(weights, x, strict=True)), np.eye(x.shape[1]))
        right = sum((w * v * row for w, v, row in zip(weights, y, x, strict=True)), prior)
        c = np.linalg.solve(left, right)
        errors = y - x @ c
        limit = 1.5 * max(np_spread(errors), 0.05)
        weights = np.array([1.0 if abs(e) <= limit else limit / abs(e) for e in errors])
    return c


@given(seed=seeds, C=st.integers(1, 14))
def test_the_update_is_held_against_a_fit_on_its_shape(seed, C) -> None:
    """Points pull on the fit as if they lay within a factor of ten; errors are those of the points themselves."""
    rng = np.random.default_rng(seed)
    features = 1.5 * rng.standard_normal((C, 3))
    size = features @ [0.8, 0.3, -0.2] + 0.2 * rng.standard_normal(C)
    size[0] += 3
    missing = rng.random(C) < 0.15
    features[missing, 0] = np.nan
    nothing = torch.zeros(C, dtype=torch.float64)
    n = np.log(rng.integers(1, 300, C))
    points = Points(tensor(n), nothing, nothing, tensor(size), *map(tensor, features.T))
    c = huber(np.clip(features[~missing], -2.3, 2.3), np.clip(size[~missing], -2.3, 2.3), np.array([1.0, 0, 0]))
    error = size - features @ c
    stream = check_displacement(points, points, PLAIN)
    assert stream.error.numpy() == pytest.approx(error, abs=1e-8, nan_ok=True)
    assert float(stream.spread) == pytest.approx(np_spread(error[~missing]), abs=1e-8)
    assert stream.floor.numpy() == pytest.approx(np.maximum(8 / (2 * np.exp(n)), 0.2))


# ---------------------------------------------------------------- the count that fits


@locals_
@pytest.mark.parametrize("prior", [(0.0, 0.0), (0.1, 0.2), (-0.1, -0.2)], ids=str)
def test_the_estimate_undoes_the_expectation_within_a_batch(local, prior) -> None:
    n = torch.arange(1.0, 400.0, dtype=torch.float64)
    a, b = map(torch.tensor, prior)
    rho = expect(n.log(), local) + a + b * n.log() + n.log()
    found = solve(rho, Line(a.double(), b.double()), local).exp()
    off = 1.0 if prior == (0.0, 0.0) else 1 / (1 - abs(prior[1])) + 0.5
    assert float((found - n).abs().max()) <= off * local.batch + 1
    full = (torch.arange(1, 50) * local.batch - local.batch // 2).double()  # half a batch below the next step
    if prior == (0.0, 0.0):
        rho = expect(full.log(), local) + full.log()
        assert solve(rho, Line(a.double(), b.double()), local).exp().tolist() == pytest.approx(full.tolist(), rel=1e-9)


def test_a_partial_batch_is_a_step() -> None:
    n = tensor([1, 7, 8, 9, 16, 17])
    assert (expect(n.log(), PLAIN).exp() * n).tolist() == pytest.approx([1, 1, 1, 2, 2, 3])


def test_a_count_below_a_batch_is_not_told_from_the_steps() -> None:
    """A falling line multiplies counts below a batch no further: one step stays one step."""
    a, b = tensor(0.0), tensor(-0.3)
    steps = 0.5 + np.array([0.01, 0.5, 0.9])  # n / B + 1/2 of counts below a batch
    found = solve(tensor(np.log(steps) - 0.3 * math.log(8)), Line(a, b), PLAIN).exp()
    assert found.tolist() == pytest.approx([1.0, 4.0, 7.2], rel=1e-6)


def test_without_rho_there_is_no_estimate_and_extremes_stay_numbers() -> None:
    zero = torch.zeros((), dtype=torch.float64)
    found = solve(tensor([np.nan, -80.0, 500.0]), Line(zero, zero), PLAIN)
    assert bool(found[0].isnan())
    assert float(found[1]) == pytest.approx(0, abs=1e-9)
    assert float(found[2]) == pytest.approx(60)


# ---------------------------------------------------------------- a network in place of the line


def ladder(curve, local=PLAIN, count=8):
    n = torch.linspace(math.log(8), math.log(400), count, dtype=torch.float64)
    return n, expect(n, local) + curve(n)


def test_a_network_follows_what_no_line_does() -> None:
    """A bend in the middle."""
    n, alpha = ladder(lambda n: 0.25 * (n - 4).clamp(min=0))
    network, line_ = fit_network(n, alpha, PLAIN, key=7), fit_line(n, alpha, PLAIN)
    errors = [float((prior(n) + expect(n, PLAIN) - alpha).square().mean().sqrt()) for prior in (network, line_)]
    assert errors[0] < 0.5 * errors[1]


def test_a_network_of_a_line_is_that_line_between_its_ends() -> None:
    n, alpha = ladder(lambda n: 0.1 - 0.1 * n)
    network = fit_network(n, alpha, PLAIN, key=7)
    between = torch.linspace(float(n[0]), float(n[-1]), 50, dtype=torch.float64)
    assert network(between).tolist() == pytest.approx((0.1 - 0.1 * between).tolist(), abs=0.05)


@settings(max_examples=5)
@given(seed=seeds, steep=st.sampled_from([0.1, 3.0]))
def test_a_networks_slope_is_bounded_everywhere(seed, steep) -> None:
    """So a count is found from rho, also far outside the ladder: what is expected rises faster than the network falls."""
    rng = np.random.default_rng(seed)
    n, alpha = ladder(lambda n: tensor(steep * rng.standard_normal(8)))
    network = fit_network(n, alpha, PLAIN, key=seed)
    far = torch.linspace(-5, 40, 2000, dtype=torch.float64)
    slopes = network(far).diff() / far.diff()
    assert float(slopes.abs().max()) <= 0.3 + 1e-9
    counts = tensor([100.0, 1e3, 1e5, 1e7])
    rho = torch.log(counts / 8 + 0.5) + network(counts.log())
    assert solve(rho, network, PLAIN).exp().tolist() == pytest.approx(counts.tolist(), rel=1e-6)


def test_a_network_is_drawn_by_its_key_and_by_nothing_else() -> None:
    n, alpha = ladder(lambda n: 0.1 * torch.sin(2 * n))
    one = fit_network(n, alpha, PLAIN, key=7).weights
    torch.manual_seed(5)
    assert torch.equal(fit_network(n, alpha, PLAIN, key=7).weights, one)
    assert not torch.equal(fit_network(n, alpha, PLAIN, key=8).weights, one)


def test_a_network_leaves_out_what_is_missing() -> None:
    n, alpha = ladder(lambda n: 0.1 * torch.sin(2 * n))
    longer = torch.cat([alpha, tensor([np.nan])]), torch.cat([n, tensor([9.0])])
    assert torch.equal(fit_network(longer[1], longer[0], PLAIN, 7).weights, fit_network(n, alpha, PLAIN, 7).weights)
    assert bool(fit_network(n, alpha * torch.nan, PLAIN, 7)(n).isfinite().all())


# ---------------------------------------------------------------- robust fits


@given(seed=seeds, M=st.integers(0, 15))
def test_spread_line_and_regression_are_those_of_numpy(seed, M) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.choice([0.0, 0.02, 1.0, 2.5], M) + 0.01 * rng.random(M), rng.standard_normal(M)
    assert float(spread(tensor(y))) == pytest.approx(np_spread(y), abs=1e-12)
    want = np_line(x, y, -0.3, 0.3) if M else (0.0, 0.0)
    assert [float(v) for v in line(tensor(x), tensor(y), -0.3, 0.3)] == pytest.approx(want, abs=1e-12)
    rows = rng.standard_normal((M, 2))
    assert regression(tensor(rows), tensor(y), tensor([1.0, -1])).numpy() == pytest.approx(
        huber(rows, y, np.array([1.0, -1])), abs=1e-9
    )


def test_a_quarter_of_liars_does_not_move_the_line_nor_a_fifth_the_spread() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(2, 6, 200)
    y = 0.1 * x + 0.5 + 0.01 * rng.standard_normal(200)
    y[:50] -= 3.0
    a, b = line(tensor(x), tensor(y), -0.3, 0.3)
    assert abs(float(a + b * 4) - 0.9) < 0.05
    errors = rng.standard_normal(1000)
    errors[:150] = 1e6
    assert 1 < float(spread(tensor(errors))) < 2.5


def test_normal_errors_have_their_own_spread() -> None:
    errors = torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(spread(errors)) == pytest.approx(1, abs=0.02)


def test_few_who_differ_do_not_tilt_the_line() -> None:
    """Equal honest counts and one liar: all pairs apart are with the liar, and the line must not run through it."""
    x, y = np.full(100, 4.0), np.zeros(100)
    x[0], y[0] = 4.0 + math.log(3), -math.log(3)
    a, b = line(tensor(x), tensor(y), -0.3, 0.3)
    assert abs(float(b)) < 0.3 * 0.02 / 0.5 + 1e-12
    assert abs(float(a + b * x[0] - y[0])) > 1.0


def test_many_points_are_thinned_evenly() -> None:
    x = torch.linspace(0, 5, 3000, dtype=torch.float64)
    a, b = line(x, 0.2 * x + 1, -0.3, 0.3)
    assert [float(a), float(b)] == pytest.approx([1, 0.2])


# ---------------------------------------------------------------- over rounds


def test_all_looks_together_spend_the_first_ones_error_rate() -> None:
    p = math.erfc(3.0 / math.sqrt(2))
    rounds = torch.arange(1, 6, dtype=torch.float64)
    spent = [math.erfc(float(limit) / math.sqrt(2)) for limit in raise_limit(3.0, rounds)]
    assert spent == pytest.approx([p / (t * (t + 1)) for t in range(1, 6)], rel=1e-9)
    assert float(raise_limit(3.0, torch.tensor([1e6], dtype=torch.float64))) < 8


def np_weigh(error, total, floor, rounds, sums, drifts, threshold):
    """One client and kind at a time; each kind has its own number of rounds."""
    C, K = error.shape
    z, decided, new, drift = (np.zeros((C, K)) for _ in range(4))
    scale, alone, together = (np.zeros((C, K)) for _ in range(3))
    by_memory, kept = np.zeros((C, K), dtype=bool), np.zeros((C, K), dtype=bool)
    for k in range(K):
        for i in range(C):
            before = min(rounds[i, k] - 1, HORIZON)  # rounds that the average before stands for
            drift[i, k] = np.nan
            if before > 0:
                drift[i, k] = (error[i, k] - sums[i, k] / before) / math.sqrt(1 + 1 / before)
        seen = np.concatenate([drifts[:, k], drift[:, k]])
        within = min(np_spread(seen[np.isfinite(seen)]), total[k])
        for i in range(C):
            T = min(rounds[i, k], HORIZON)
            between = max(math.sqrt(total[k] ** 2 - within**2), floor[i, k])
            g = (1 + 1 / T) * (1 + math.log(1 + T) / threshold**2)
            together[i, k] = math.sqrt(between**2 + within**2 * g / T)
            p = math.erfc(threshold / math.sqrt(2)) / (rounds[i, k] * (rounds[i, k] + 1))
            limit = float(-torch.special.ndtri(torch.tensor(p / 2, dtype=torch.float64)))
            alone[i, k] = max(total[k], floor[i, k]) * limit / threshold
            if rounds[i, k] == 1:
                alone[i, k] = min(alone[i, k], together[i, k])
    for i in range(C):
        answered = any(error[i, k] > threshold * alone[i, k] for k in range(K))
        for k in range(K):
            kept[i, k] = not answered and error[i, k] >= -threshold * alone[i, k]
            new[i, k] = sums[i, k]
            if kept[i, k]:
                new[i, k] = sums[i, k] * (0.9 if rounds[i, k] > HORIZON else 1) + min(max(error[i, k], -3), 3)
            average = new[i, k] / min(rounds[i, k], HORIZON)
            by_memory[i, k] = (
                kept[i, k] and rounds[i, k] > 1 and abs(average / together[i, k]) > abs(error[i, k] / alone[i, k])
            )
            decided[i, k] = average if by_memory[i, k] else error[i, k]
            scale[i, k] = together[i, k] if by_memory[i, k] else alone[i, k]
            z[i, k] = 0 if np.isnan(error[i, k]) else decided[i, k] / scale[i, k]
    return z, decided, scale, by_memory, kept, new, drift


@given(seed=seeds, C=st.integers(1, 8), K=st.integers(1, 3), M=st.integers(0, 9))
def test_evidence_adds_up_as_written(seed, C, K, M) -> None:
    rng = np.random.default_rng(seed)
    error, total = 3 * rng.standard_normal((C, K)), rng.random(K) + 0.1
    missing = rng.random((C, K)) < 0.15
    error[missing] = np.nan
    floor, rounds = 0.5 * rng.random((C, K)), rng.integers(1, 25, (C, K)).astype(float)
    sums = rng.standard_normal((C, K)) * np.clip(rounds - 1, 0, HORIZON)
    drifts = rng.standard_normal((M, K)) * 0.5
    drifts[rng.random((M, K)) < 0.2] = np.nan
    ours = weigh_up(*map(tensor, (error, total, floor, rounds, sums, drifts)), 3.5)
    for mine, theirs in zip(ours, np_weigh(error, total, floor, rounds, sums, drifts, 3.5), strict=True):
        assert mine.numpy() == pytest.approx(theirs, abs=1e-9, nan_ok=True)


def sequence(errors, total=1.0, floor=0.01, threshold=3.5):
    """z of clients ``[T, C]`` over their rounds, drifts of the last rounds kept."""
    T, C = errors.shape
    sums, drifts, found = torch.zeros(C, 1, dtype=torch.float64), torch.zeros(0, 1, dtype=torch.float64), []
    for t in range(T):
        rounds = torch.full((C, 1), t + 1.0, dtype=torch.float64)
        weighed = weigh_up(
            tensor(errors[t])[:, None],
            tensor([total]),
            torch.full((C, 1), floor, dtype=torch.float64),
            rounds,
            sums,
            drifts,
            threshold,
        )
        sums, drifts = weighed.sums, torch.cat([drifts, weighed.drift])[-256:]
        found.append(weighed.z[:, 0].numpy())
    return np.array(found)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_the_chance_of_ever_accusing_an_honest_client_is_about_one_looks(share) -> None:
    """Errors are a constant of the client's own (a share of the variance) plus chance; 40 rounds, looked at after each."""
    rng, C, T, threshold = np.random.default_rng(1), 4000, 40, 2.5
    constant = math.sqrt(share) * rng.standard_normal(C)
    errors = constant + math.sqrt(1 - share) * rng.standard_normal((T, C))
    accused = (np.abs(sequence(errors, threshold=threshold)) > threshold).any(0).mean()
    one_look = math.erfc(threshold / math.sqrt(2))  # 1.24 %
    assert accused < 3 * one_look  # two tests, each with about that rate


def test_many_weak_rounds_convict_where_one_does_not() -> None:
    rng, C = np.random.default_rng(2), 200
    errors = rng.standard_normal((25, C))
    errors[:, 0] = 2.0 + 0.2 * rng.standard_normal(25)
    z = sequence(errors)
    assert abs(z[0, 0]) < 3.5
    assert z[-1, 0] > 3.5
    assert (np.abs(z[:, 1:]) > 3.5).mean() < 0.002


def test_one_who_mends_its_ways_is_heard_again() -> None:
    errors = np.random.default_rng(3).standard_normal((60, 200))
    errors[:10, 0] = 4.0
    errors[10:, 0] = 0.0
    z = sequence(errors)
    assert z[9, 0] > 3.5
    assert abs(z[-1, 0]) < 0.5


def weighed_once(error, rounds, sums, total=1.0):
    """One client, one kind, after earlier rounds that came to `sums`."""
    return weigh_up(
        tensor([[error]]),
        tensor([total]),
        tensor([[0.1]]),
        tensor([[rounds]]),
        tensor([[sums]]),
        torch.zeros(0, 1, dtype=torch.float64),
        3.5,
    )


@pytest.mark.parametrize(("error", "kept"), [(5.0, 3.0), (-5.0, -3.0), (2.0, 2.0)])
def test_one_strange_round_is_clipped(error, kept) -> None:
    """A factor of twenty, where clients differ so much that it stands: one round must not weigh for ten."""
    assert float(weighed_once(error, 4.0, 0.0, total=10.0).sums) == kept


@pytest.mark.parametrize("error", [2.3, -2.3, 1e6, -1e6])
def test_a_round_that_is_answered_or_gives_credit_does_not_enter_the_average(error) -> None:
    """One claim of ten times the data, and the next round's honest claim is judged as if it had not been."""
    weighed = weighed_once(error, 2.0, 0.1, total=0.2)
    assert abs(float(weighed.z)) > 3.5
    assert not bool(weighed.by_memory)
    assert not bool(weighed.kept)
    assert float(weighed.sums) == 0.1


def test_an_answered_claim_enters_no_kind_and_a_report_forged_the_other_way_hides_none() -> None:
    """A report of too small a claim would else keep the update's evidence of too large a one out of its average."""

    def kept(*errors):
        none = torch.zeros(0, 2, dtype=torch.float64)
        two = torch.full((1, 2), 3.0, dtype=torch.float64)
        spreads = tensor([0.2, 0.2])
        return weigh_up(tensor([errors]), spreads, tensor([[0.1, 0.1]]), two, 0 * two, none, 3.5).kept.tolist()

    assert kept(2.0, 0.3) == [[False, False]]
    assert kept(-2.0, 0.3) == [[False, True]]
    assert kept(0.1, 0.3) == [[True, True]]


def test_this_round_decides_before_the_average() -> None:
    """Three rounds of the largest underclaim weigh more; the overclaim of this one is what decides."""
    for error in (-3.0, 2.3, -2.3):
        weighed = weighed_once(error, 4.0, -9.0, 0.2)
        assert float(weighed.z) * error > 0
        assert not bool(weighed.by_memory)
    weighed = weighed_once(0.2, 4.0, 2.7, 0.2)  # nothing by itself: the rounds together decide
    assert float(weighed.z) > 3.5
    assert bool(weighed.by_memory)
    assert float(weighed.error) == pytest.approx(2.9 / 4)


@pytest.mark.parametrize("patience", [0, 3])
def test_ten_claims_in_a_row_that_fit_forgive_a_warning(patience) -> None:
    """A warning in between begins the count anew, and nobody is warned more often than it takes to be excluded."""

    def after(warnings, story):
        left = tensor([warnings])
        for what in story:
            left = update_warnings(left, torch.tensor([what == "o"]), torch.tensor([what == "f"]), patience)
        return float(left)

    assert after(0.0, "o" * 20) == patience + 1
    full = patience + 1.0
    assert math.ceil(after(full, "f" * 9)) == full
    assert after(full, "f" * 10) == full - 1
    assert after(full, "f" * 9 + "o" + "f" * 9) > patience
    assert after(0.0, "oo" + "f" * 5 + "o") == min(3, full)  # what was served of the second is lost
    assert after(full, "fffffuuuuufffff") == full - 1  # one that fits neither way, or shows nothing, does not count
    assert after(full, "f" * 10 * (patience + 2)) == 0


def test_a_round_without_evidence_changes_nothing() -> None:
    weighed = weighed_once(float("nan"), 3.0, 1.2)
    assert float(weighed.z) == 0
    assert float(weighed.sums) == 1.2
