"""Medians, Krum and Bulyan: against brute force, their bounds, and what one far client can do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from helpers import Point, descend, double, points, push, quadratics
from hypothesis import assume, given
from hypothesis import strategies as st
from worlds import FixedWorld, cohort, server

from counterpoise.engine import Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, sgd
from counterpoise.methods import bulyan, krum, median, multi_krum, rfa, trimmed_mean
from counterpoise.methods.krum import repeated_krum
from counterpoise.parts import square_distances
from counterpoise.parts.geometry import by_columns

D = 6


def combined(method, updates, counts=None):
    """What a fresh server makes of some updates, and the weights on record."""
    built = server(method, len(updates[0]))
    outcome = built.receive(cohort(range(len(updates)), updates, counts), FixedWorld(len(updates[0])))
    assert outcome.skipped == ""
    return built.model.numpy(), outcome.weights


def clients(data, least=1, most=9):
    n, seed = data.draw(st.integers(least, most)), data.draw(st.integers(0, 2**32))
    return np.random.default_rng(seed).standard_normal((n, D)) * 10 ** data.draw(st.floats(-3, 3))


# ---------------------------------------------------------------- coordinate by coordinate


@given(st.data())
def test_the_median_is_numpys(data):
    d = clients(data)
    found, weights = combined(median(), d)
    assert weights is None
    assert found == pytest.approx(np.median(d, axis=0), rel=1e-12, abs=1e-15)


@given(st.data())
def test_the_trimmed_mean_leaves_out_as_many_at_either_end(data):
    d = clients(data)
    trim = data.draw(st.sampled_from([0.0, 0.1, 0.2, 0.29, 0.34, 0.49]))
    cut = int(np.floor(np.round(trim * len(d), 9)))
    assume(cut or not trim)
    expected = [np.mean(sorted(column)[cut : len(d) - cut]) for column in d.T]
    assert combined(trimmed_mean(trim), d)[0] == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_a_share_of_clients_is_counted_without_rounding_errors():
    d = np.arange(100.0)[:, None] ** 2
    assert combined(trimmed_mean(0.29), d)[0] == pytest.approx(d[29:71].mean(), rel=1e-14)


def test_pieces_change_nothing(monkeypatch):
    monkeypatch.setattr("counterpoise.parts.geometry._NUMBERS", 12)
    rows = torch.randn(4, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(by_columns(lambda piece: piece.sort(dim=0).values[1], rows), rows.sort(dim=0).values[1])
    expected = (rows[:, None] - rows).square().sum(2)
    assert torch.allclose(square_distances(rows), expected, rtol=1e-13, atol=0)


# ---------------------------------------------------------------- Krum and Bulyan


def brute_krum(d, f):
    """The place of the client with the least sum over every choice of n - f - 2 others."""
    n = len(d)
    best = []
    for i in range(n):
        others = [((d[i] - d[j]) ** 2).sum() for j in range(n) if j != i]
        best.append(min(sum(some) for some in itertools.combinations(others, min(max(n - f - 2, 1), n - 1))))
    return best


@given(st.data())
def test_krum_is_the_least_sum_over_all_choices_of_neighbours(data):
    d = clients(data, 3, 8)
    f = data.draw(st.integers(0, (len(d) - 3) // 2))
    i = int(np.argmin(brute_krum(d, f)))
    found, weights = combined(krum(f), d)
    assert found == pytest.approx(d[i], rel=1e-12)
    assert weights == {j: float(j == i) for j in range(len(d))}


@given(st.data())
def test_multi_krum_averages_the_best(data):
    d = clients(data, 5, 8)
    f = data.draw(st.integers(0, (len(d) - 3) // 2))
    keep = data.draw(st.sampled_from([None, 1, 2]))
    best = np.argsort(brute_krum(d, f), kind="stable")[: keep or len(d) - f - 2]
    found, weights = combined(multi_krum(f, keep), d)
    assert found == pytest.approx(d[best].mean(0), rel=1e-11, abs=1e-15)
    assert {i for i, weight in weights.items() if weight} == set(best.tolist())


def brute_bulyan(d, f):
    left, chosen = list(range(len(d))), []
    for _ in range(len(d) - 2 * f):
        chosen.append(left.pop(int(np.argmin(brute_krum(d[left], f)))))
    taken = d[chosen]
    size = len(taken) - 2 * f
    values = []
    for column in taken.T:
        middle = np.median(column)
        values.append(
            min(
                (sum(abs(x - middle) for x in some), np.mean(some))
                for some in itertools.combinations(column.tolist(), size)
            )[1]
        )
    return np.array(values)


@given(st.data())
def test_bulyan_is_its_definition(data):
    f = data.draw(st.integers(0, 1))
    d = clients(data, 4 * f + 3, 8)
    found, weights = combined(bulyan(f), d)
    assert weights is None
    assert found == pytest.approx(brute_bulyan(d, f), rel=1e-10, abs=1e-14)


def test_bulyan_takes_nobody_twice_where_distances_are_infinite():
    squares = torch.full((11, 11), torch.inf).fill_diagonal_(0)
    squares[:3, :3] = 0
    assert len(set(repeated_krum(squares, 2).tolist())) == 7


@pytest.mark.parametrize(("make", "n", "f"), [(krum, 9, 3), (multi_krum, 9, 3), (bulyan, 11, 2), (bulyan, 11, None)])
def test_faulty_clients_as_many_as_it_bears_do_not_get_through(make, n, f):
    rng = np.random.default_rng(3)
    honest = rng.standard_normal((n - (f or 2), D))
    found, _ = combined(make(f), np.vstack([honest, 1e6 + rng.standard_normal((f or 2, D))]))
    assert (np.abs(found) <= np.abs(honest).max(0) + 1e-12).all()


@pytest.mark.parametrize(
    ("method", "least"), [(krum(1), 5), (krum(), 3), (multi_krum(2), 7), (bulyan(1), 7), (bulyan(2), 11)]
)
def test_too_few_clients_are_refused_when_configured_and_skipped_in_a_round(method, least):
    with pytest.raises(CounterpoiseError, match=f"needs at least {least} clients a round .* the cohort is {least - 1}"):
        descend(method, [1.0] * 12, [0.0] * 12, 1, cohort=least - 1)
    calls = [range(least), range(least - 1)]
    simulation = Simulation(
        method,
        quadratics([1.0] * 12, [0.0] * 12),
        Point(),
        loss=push,
        local=Local(steps=1, optimizer=sgd(1.0)),
        cohort=lambda seed, round, n: torch.tensor(list(calls[round - 1])),
        engine=double(),
    )
    assert points(simulation, 1) == [1.0]
    record = simulation.advance()
    assert f"needs {least} clients" in record.outcome.skipped
    assert f"but only {least - 1} were heard" in record.outcome.skipped
    assert float(simulation.server.model) == 1.0


def test_a_trim_that_leaves_nobody_out_is_refused_when_configured_and_skipped_in_a_round():
    with pytest.raises(CounterpoiseError, match=r"trim 0\.1 leaves out none of 9 clients a round"):
        descend(trimmed_mean(0.1), [1.0] * 12, [0.0] * 12, 1, cohort=9)
    descend(trimmed_mean(0.0), [1.0] * 12, [0.0] * 12, 1, cohort=9)  # who asks for a plain mean has one
    simulation = descend(trimmed_mean(0.1), [1.0] * 12, [4.0] * 12, 1, cohort=10)
    (first,) = points(simulation, 1)
    assert first > 0
    simulation.adversaries = [(lambda round, cohort: cohort.keep(torch.arange(10) > 0), None)]
    assert simulation.advance().outcome.skipped == "trimmed-mean leaves out none of 9 clients at trim 0.1"
    assert float(simulation.server.model) == first


@pytest.mark.parametrize(("make", "factor"), [(krum, 2), (multi_krum, 2), (bulyan, 4)])
@pytest.mark.parametrize("n", range(3, 13))
def test_without_a_number_as_many_may_be_faulty_as_the_bound_allows(make, factor, n):
    """``n >= factor f + 3``: of an even number of clients the same as of one client fewer."""
    d = np.random.default_rng(n).standard_normal((n, 4))
    one, other = (server(make(faulty), 4) for faulty in (None, (n - 3) // factor))
    outcomes = [built.receive(cohort(range(n), d), FixedWorld(4)) for built in (one, other)]
    assert torch.equal(one.model, other.model)
    assert outcomes[0].weights == outcomes[1].weights
    if make is multi_krum:
        assert sum(weight > 0 for weight in outcomes[0].weights.values()) == n - (n - 3) // 2 - 2


@pytest.mark.parametrize(("faulty", "most"), [(0, 7), (2, 5), (None, 4)])
def test_multi_krum_keeps_no_more_than_its_score_counts(faulty, most):
    with pytest.raises(CounterpoiseError, match=f"at most {most} of 9 clients a round .* keep is {most + 1}"):
        descend(multi_krum(faulty, most + 1), [1.0] * 12, [0.0] * 12, 1, cohort=9)
    descend(multi_krum(faulty, most), [1.0] * 12, [0.0] * 12, 1, cohort=9)


def test_multi_krum_keeps_fewer_in_a_round_of_few():
    d = np.random.default_rng(0).standard_normal((7, D))
    weights = combined(multi_krum(2, 6), np.vstack([d[:5], d[5:] + 1e3]))[1]
    assert [i for i, weight in weights.items() if weight] == sorted(
        np.argsort(brute_krum(np.vstack([d[:5], d[5:] + 1e3]), 2))[:3].tolist()
    )


# ---------------------------------------------------------------- the geometric median


def objective(z, d, a):
    return float((a * np.sqrt(((d - z) ** 2).sum(1))).sum() / a.sum())


def best_objective(d, a):
    """The least objective found by Weiszfeld from many starts and by looking at every point, in plain NumPy."""
    found = [objective(x, d, a) for x in d]
    for start in (d.mean(0), np.median(d, axis=0), *(0.5 * x + 0.5 * d.mean(0) for x in d)):
        z = start
        for _ in range(3000):
            distance = np.sqrt(((d - z) ** 2).sum(1))
            if distance.min() <= 1e-13 * distance.max():
                break
            new = ((a / distance)[:, None] * d).sum(0) / (a / distance).sum()
            if np.abs(new - z).max() <= 1e-16 * np.abs(d).max():
                break
            z = new
        found.append(objective(z, d, a))
    return min(found)


@given(st.data())
def test_the_geometric_median_is_within_a_millionth_of_the_best(data):
    d = clients(data, 1, 8)
    if data.draw(st.booleans()):
        d[0] += 1e4 * np.abs(d).max()
    if data.draw(st.booleans()):
        d = np.vstack([d, d[-1:], d[-1:]])  # some points coincide
    a = np.random.default_rng(len(d)).integers(1, 6, len(d)).astype(float)
    z, weights = combined(rfa(weights="data"), d, a)
    best = best_objective(d, a)
    assert objective(z, d, a) <= best + 1e-6 * best + 1e-12 * np.abs(d).max()
    assert sum(weights.values()) == pytest.approx(1.0, abs=1e-12)
    assert z == pytest.approx(np.array(list(weights.values())) @ d, rel=1e-9, abs=1e-12 * np.abs(d).max())


def test_the_geometric_median_of_a_line_is_its_median():
    """A peer's rule stops after three steps and says 3.79 where 4 is right."""
    assert combined(rfa(), [[0.0], [1.0], [4.0], [9.0], [100.0]])[0] == pytest.approx([4.0], abs=1e-6)
    points = [[1.0, 0.0], [4.0, 0.0], [5.0, 0.0]]
    assert combined(rfa(weights="data"), points, [1, 1, 3])[0] == pytest.approx([5.0, 0.0], abs=1e-6)
    assert combined(rfa(), points, [1, 1, 3])[0] == pytest.approx([4.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("claim", [1.0, 1e9])
@pytest.mark.parametrize(
    "method", [rfa(), median(), trimmed_mean(), krum(), multi_krum(), bulyan()], ids=lambda m: m.name
)
def test_a_claim_does_not_move_a_robust_rule(method, claim):
    rng = np.random.default_rng(3)
    d = np.vstack([rng.standard_normal((19, D)), 50 * np.ones((1, D))])
    z, _ = combined(method, d, [1.0] * 19 + [claim])
    assert z == pytest.approx(combined(method, d)[0], abs=1e-12)
    assert np.abs(z).max() < 5


def test_a_triangle_has_its_fermat_point():
    d = np.array([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]])
    z, _ = combined(rfa(tolerance=1e-12), d)
    units = (d - z) / np.sqrt(((d - z) ** 2).sum(1))[:, None]
    assert units.sum(0) == pytest.approx([0, 0], abs=1e-9)
    assert units[0] @ units[1] == pytest.approx(-0.5, abs=1e-9)  # 120 degrees


def test_two_clients_meet_at_their_mean():
    """Every point between them is as good; the mean takes neither's side."""
    assert combined(rfa(), [[0.0, 0.0], [2.0, 4.0]])[0] == pytest.approx([1.0, 2.0], abs=1e-12)


@pytest.mark.parametrize("far", [1e2, 1e4, 1e6])
def test_one_far_client_moves_the_geometric_median_by_a_bounded_way(far):
    rng = np.random.default_rng(5)
    honest = rng.standard_normal((9, D))
    before, _ = combined(rfa(), honest)
    after, weights = combined(rfa(), np.vstack([honest, far * np.ones((1, D))]))
    # |z' - z| <= 2 a/(1 - 2a) max_i |x_i - z| with a = 1/10 of the weight far away
    bound = 2 * 0.1 / (1 - 2 * 0.1) * np.sqrt(((honest - before) ** 2).sum(1)).max()
    assert 1e-3 < np.sqrt(((after - before) ** 2).sum()) <= bound
    assert weights[9] < 10 / far


def test_clients_that_agree_are_followed_exactly():
    d = [[1.0, 2.0]] * 4
    assert combined(rfa(), d)[0] == pytest.approx([1.0, 2.0], abs=1e-15)
    assert combined(rfa(), [*d, [50.0, 0.0]])[0] == pytest.approx([1.0, 2.0], abs=1e-12)


def test_the_iterations_of_a_geometric_median_are_on_record():
    """None where a client is the median; all that it may take where they are too few."""

    def taken(points, **options):
        built = server(rfa(**options), 2)
        return built.receive(cohort(range(len(points)), points), FixedWorld(2)).facts["iterations"]

    triangle = [[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]]
    assert taken([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]]) == 0
    assert taken(triangle, iterations=3) == 3
    assert 3 < taken(triangle) < taken(triangle, tolerance=1e-12) < 1000


def test_a_geometric_median_needs_weights():
    with pytest.raises(CounterpoiseError, match="A geometric median needs weights"):
        combined(rfa().replacing(weigh=()), [[1.0], [2.0]])
