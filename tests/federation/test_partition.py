"""How samples are dealt: every sample at most once, as many as promised, the same for the same seed."""

import numpy as np
import pytest
import torch
from helpers import joined
from hypothesis import given
from hypothesis import strategies as st

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import PARTITIONS


def deal(partition, labels, seed=0):
    """Each client's rows, as lists."""
    held = partition.assign(torch.as_tensor(labels), seed)
    ids = torch.arange(held.clients)
    sizes = held.sizes(ids).tolist()
    return [row[:n].tolist() for row, n in zip(held.rows(ids), sizes, strict=True)]


labels = st.lists(st.integers(0, 4), min_size=1, max_size=60)


@given(labels, st.integers(1, 10), st.integers(0, 3))
def test_iid_deals_every_sample_once_in_equal_shares(y, clients, seed):
    if len(y) < clients:
        with pytest.raises(
            CounterpoiseError, match=f"iid cannot give each of {clients} clients a sample.*Use fewer clients"
        ):
            deal(cp.iid(clients), y, seed)
        return
    held = deal(cp.iid(clients), y, seed)
    assert sorted(joined(held)) == list(range(len(y)))
    assert max(map(len, held)) - min(map(len, held)) <= 1
    assert deal(cp.iid(clients), y, seed) == held


@given(labels, st.integers(1, 6), st.integers(1, 3), st.integers(0, 4))
def test_shards_are_equal_and_leave_only_the_rest(y, clients, per_client, spare):
    count = clients * per_client + spare
    partition = cp.shards(clients, per_client=per_client, total=count)
    if len(y) < count:
        with pytest.raises(CounterpoiseError, match=f"shards cannot cut the samples into {count} shards"):
            deal(partition, y)
        return
    held = deal(partition, y)
    size = len(y) // count
    rows = joined(held)
    assert len(rows) == len(set(rows)) == clients * per_client * size
    assert {len(h) for h in held} == {per_client * size}
    assert deal(partition, y) == held


def test_a_client_with_two_shards_has_few_labels():
    y = np.arange(1000) % 10
    held = deal(cp.shards(10), y)
    assert max(len(set(y[h])) for h in held) <= 2  # 20 shards of 50 divide 10 labels of 100
    assert sorted(joined(held)) == list(range(1000))
    assert deal(cp.shards(10), y, seed=1) != held


@given(
    labels,
    st.integers(1, 8),
    st.integers(0, 4),
    st.sampled_from([1e-300, 1e-8, 1e-3, 0.1, 1.0, 100.0]),
    st.integers(0, 3),
)
def test_dirichlet_deals_every_sample_once_and_honours_the_minimum(y, clients, minimum, alpha, seed):
    partition = cp.dirichlet(alpha, clients=clients, minimum=minimum)
    if len(y) < clients * minimum:
        with pytest.raises(
            CounterpoiseError, match=f"dirichlet cannot give each of {clients} clients {minimum} samples"
        ):
            deal(partition, y, seed)
        return
    held = deal(partition, y, seed)
    assert len(held) == clients
    assert sorted(joined(held)) == list(range(len(y)))
    assert min(map(len, held)) >= minimum
    assert deal(partition, y, seed) == held


def skew(alpha, seed=0):
    """The mean share of a client's commonest label."""
    y = np.arange(5000) % 10
    held = deal(cp.dirichlet(alpha, clients=10), y, seed)
    return np.mean([np.bincount(y[h]).max() / len(h) for h in held])


def test_a_smaller_alpha_is_more_skewed():
    shares = [np.mean([skew(alpha, seed) for seed in range(3)]) for alpha in (0.05, 0.5, 5.0, 500.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.6
    assert shares[-1] < 0.13


def test_dirichlet_shares_have_the_moments_of_the_distribution():
    """Of one label dealt to k clients, a share has mean 1/k and variance (k - 1)/(k^2 (k alpha + 1))."""
    k, alpha = 4, 0.5
    y = np.zeros(2000, dtype=int)
    shares = np.array(
        [[len(h) / 2000 for h in deal(cp.dirichlet(alpha, clients=k, minimum=0), y, seed)] for seed in range(300)]
    )
    assert shares.mean(0) == pytest.approx(np.full(k, 1 / k), abs=0.05)
    assert shares.var(0).mean() == pytest.approx((k - 1) / (k**2 * (k * alpha + 1)), rel=0.15)


@pytest.mark.parametrize("partition", [cp.iid(5), cp.shards(5), cp.dirichlet(0.5, clients=5), cp.draws(5, size=10)])
def test_another_seed_deals_otherwise(partition):
    y = np.arange(200) % 4
    assert deal(partition, y, 0) != deal(partition, y, 1)


def test_draws_give_each_client_its_own_samples_of_a_shared_base():
    held = deal(cp.draws(50, size=20), np.zeros(1000, dtype=int))
    assert [len(h) for h in held] == [20] * 50
    assert all(0 <= row < 1000 for h in held for row in h)
    assert len({tuple(h) for h in held}) == 50
    counts = np.bincount(joined(held), minlength=1000)
    assert counts.max() < 10  # a mean of one each


def test_a_drawing_clients_samples_do_not_depend_on_the_population():
    y = np.zeros(100, dtype=int)
    assert deal(cp.draws(3, size=5), y) == deal(cp.draws(50, size=5), y)[:3]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: cp.iid(0), "partition iid: option clients must be a whole number at least 1, not 0"),
        (lambda: cp.iid(2.5), "option clients must be a whole number at least 1, not 2.5"),
        (lambda: cp.iid("ten"), "not 'ten'"),
        (lambda: cp.dirichlet(0, clients=3), "partition dirichlet: option alpha must be a number above 0, not 0"),
        (lambda: cp.dirichlet(float("nan"), clients=3), "option alpha must be a number above 0, not nan"),
        (lambda: cp.dirichlet(0.5), "partition dirichlet needs the option clients: number of clients"),
        (lambda: cp.dirichlet(0.5, clients=3, minimum=-1), "option minimum must be a whole number at least 0, not -1"),
        (
            lambda: cp.shards(10, per_client=2, total=19),
            "10 clients with 2 shards each need 20 shards, and total is 19",
        ),
        (lambda: cp.draws(3, size=0), "option size must be a whole number at least 1, not 0"),
        (lambda: PARTITIONS.make("dirichlett"), "There is no partition 'dirichlett'. Did you mean 'dirichlet'?"),
    ],
)
def test_a_bad_partition_is_refused_with_a_sentence(make, sentence):
    with pytest.raises(CounterpoiseError, match=sentence.replace("?", "[?]")):
        make()
