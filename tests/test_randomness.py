"""The counter hash against an implementation in plain Python integers, and what is drawn from it."""

import hashlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise import randomness
from counterpoise.randomness import counted, counter, integer, normal, orders, permuted, purpose, sample, uniform

MASK = (1 << 64) - 1
words = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5)


def splitmix(state):
    """Steele, Lea and Flood's finaliser on unsigned 64-bit words."""
    z = state & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def by_hand(*words):
    state = 0
    for word in words:
        state = splitmix((state ^ (word & MASK)) + 0x9E3779B97F4A7C15)
    return state


def test_splitmix_gives_the_published_first_values():
    """The generator of seed 1234567 of Vigna's splitmix64.c."""
    golden = 0x9E3779B97F4A7C15
    assert [splitmix(1234567 + k * golden) for k in (1, 2, 3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@given(words)
def test_the_counter_is_splitmix_on_wrapping_words(given_words):
    assert int(counter(*given_words)) & MASK == by_hand(*given_words)
    assert integer(*given_words) == by_hand(*given_words) & (MASK >> 1)


@given(words)
def test_tensors_hash_as_their_numbers_do(given_words):
    last = torch.tensor([given_words[-1], 5, -7])
    expected = [by_hand(*given_words[:-1], word) for word in last.tolist()]
    assert [value & MASK for value in counter(*given_words[:-1], last).tolist()] == expected


def test_words_broadcast():
    table = counter(3, torch.arange(4)[:, None], torch.arange(5)[None, :])
    assert table.shape == (4, 5)
    assert int(table[2, 3]) == int(counter(3, 2, 3))
    assert len(set(table.flatten().tolist())) == 20


def test_a_purpose_is_the_head_of_its_digest():
    assert purpose("batches") == int(hashlib.sha256(b"batches").hexdigest()[:16], 16) >> 1
    assert purpose("batches") != purpose("cohort")


def test_uniform_uses_the_top_bits():
    bits = counter(1, torch.arange(100))
    doubles = [(word & MASK) >> 11 for word in bits.tolist()]
    assert uniform(bits).tolist() == [word / 2**53 for word in doubles]
    singles = [(word & MASK) >> 40 for word in bits.tolist()]
    assert uniform(bits, torch.float32).tolist() == [word / 2**24 for word in singles]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_uniform_numbers_are_uniform(dtype):
    u = uniform(counter(7, torch.arange(100_000)), dtype).double()
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    assert float(u.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(u.var()) == pytest.approx(1 / 12, abs=0.002)
    counts = torch.histc(u, 20, 0, 1)
    assert float(((counts - 5000) ** 2 / 5000).sum()) < 50  # chi-square with 19 degrees of freedom


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_normal_numbers_are_normal(dtype):
    z = normal(counter(8, torch.arange(100_000)), dtype).double()
    assert bool(z.isfinite().all())
    assert float(z.mean()) == pytest.approx(0, abs=0.015)
    assert float(z.var()) == pytest.approx(1, abs=0.02)
    assert float((z**3).mean()) == pytest.approx(0, abs=0.05)
    assert float((z**4).mean()) == pytest.approx(3, abs=0.12)
    assert float((z.abs() < 1).double().mean()) == pytest.approx(math.erf(2**-0.5), abs=0.006)


def test_neighbouring_counters_are_not_correlated():
    u = uniform(counter(9, torch.arange(50_000))).numpy()
    v = uniform(counter(10, torch.arange(50_000))).numpy()
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(u, v)[0, 1]) < 0.02


@given(st.lists(st.integers(0, 2**63 - 1), max_size=3), words, words, st.integers(0, 2**63 - 1))
def test_numpys_words_are_torchs(plain, rows, columns, between):
    first, second = np.array(rows)[:, None], np.array(columns)
    ours = counted(*plain, first, between, second)
    assert ours.dtype == np.int64
    assert ours.tolist() == counter(*plain, torch.from_numpy(first), between, torch.from_numpy(second)).tolist()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_numpys_orders_are_torchs(sizes):
    keys, counts = counter(3, torch.arange(len(sizes))), torch.tensor(sizes)
    theirs = orders(keys, counts, 30)
    for mine, other, n in zip(orders(keys.numpy(), counts.numpy(), 30), theirs, sizes, strict=True):
        assert mine[:n].tolist() == other[:n].tolist()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(0, 9))
def test_orders_are_permutations_whatever_the_padding(sizes, extra):
    keys = counter(3, torch.arange(len(sizes)))
    width = max(sizes) + extra
    padded = orders(keys, torch.tensor(sizes), width)
    for i, n in enumerate(sizes):
        alone = orders(keys[i : i + 1], torch.tensor([n]), n)[0]
        assert sorted(alone.tolist()) == list(range(n))
        assert padded[i, :n].tolist() == alone.tolist()


def test_orders_are_uniform():
    found = orders(counter(4, torch.arange(6000)), torch.full((6000,), 3), 3)
    counts = np.unique(found.numpy(), axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert ((counts - 1000) ** 2 / 1000).sum() < 25


@given(st.integers(1, 60), st.data())
def test_a_sample_is_distinct_and_within_the_population(population, data):
    count = data.draw(st.integers(0, population))
    drawn = sample(population, count, 5, 6).tolist()
    assert len(drawn) == len(set(drawn)) == count
    assert all(0 <= client < population for client in drawn)
    assert sample(population, count, 5, 6).tolist() == drawn


@pytest.mark.parametrize("count", [3, 7])
def test_a_sample_favours_nobody(count):
    """One path draws few of many, the other the head of an order."""
    hits = np.zeros(10)
    for round in range(2000):
        hits[sample(10, count, 1, round).tolist()] += 1
    expected = 200 * count
    assert ((hits - expected) ** 2 / expected).sum() < 30


def test_a_sample_of_a_huge_population_makes_no_array_of_it(monkeypatch):
    longest = 0
    real = torch.arange

    def watched(*args, **kwargs):
        nonlocal longest
        found = real(*args, **kwargs)
        longest = max(longest, len(found))
        return found

    monkeypatch.setattr(randomness.torch, "arange", watched)
    drawn = sample(10**15, 20, 1, 2).tolist()
    assert len(set(drawn)) == 20
    assert longest == 20
    assert max(drawn) > 10**14


def test_more_than_all_cannot_be_drawn():
    with pytest.raises(ValueError, match="cannot draw 5 of 4"):
        sample(4, 5, 0)


@pytest.mark.parametrize(("population", "count"), [(2, 2), (3, 2), (5, 2), (10, 3), (16, 8)])
def test_a_small_population_has_even_pairs(population, count):
    """Few clients are few bits: every ordered pair of the first two must be as frequent as any other."""
    keys = counter(7, torch.arange(60_000))[:, None]
    found = permuted(keys, torch.arange(count).expand(len(keys), -1), population)
    pairs = (found[:, 0] * population + found[:, 1]).bincount(minlength=population**2).double()
    apart = torch.tensor([i * population + j for i in range(population) for j in range(population) if i != j])
    expected = len(keys) / len(apart)
    chi2, freedom = float(((pairs[apart] - expected) ** 2 / expected).sum()), len(apart) - 1
    assert chi2 < freedom + 5 * (2 * freedom) ** 0.5 + 5
