"""Clients that draw their own distributions of labels: held against exact probabilities, by enumeration."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from helpers import joined
from hypothesis import given
from hypothesis import strategies as st

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.catalogue import DATASETS, place
from counterpoise.federation.coarse import CIFAR100

EQUAL = 1e9
"""A concentration at which all shares are the same."""


def deal(partition, labels, seed=0):
    """Each client's rows, as lists."""
    held = partition.assign(torch.as_tensor(labels), seed)
    return [row.tolist() for row in held.flat.tensor_split(held.offsets[1:-1])]


def drawn_one_by_one(left, chances, count):
    """The exact probability of each sorted outcome of `count` draws; ``chances(left)`` gives each label's."""
    found = Counter()

    def draw(left, sofar, probability):
        if len(sofar) == count:
            found[tuple(sorted(sofar))] += probability
            return
        for label, chance in enumerate(chances(left)):
            if chance:
                draw([n - (k == label) for k, n in enumerate(left)], (*sofar, label), probability * chance)

    draw(list(left), (), 1.0)
    return found


def check(partition, y, exact, seeds=1500):
    """What one client drew, over many seeds, against exact probabilities, by a chi-squared bound."""
    y = np.array(y)
    counts = Counter(tuple(sorted(y[deal(partition, y, seed)[0]].tolist())) for seed in range(seeds))
    assert counts.keys() <= exact.keys()
    assert sum(exact.values()) == pytest.approx(1)
    distance = sum((counts[outcome] - seeds * p) ** 2 / (seeds * p) for outcome, p in exact.items())
    freedom = len(exact) - 1
    assert distance < freedom + 4 * np.sqrt(2 * freedom)


def test_a_label_that_has_run_out_is_drawn_no_more():
    left = [1, 2, 4]
    y = np.repeat(np.arange(3), left)
    exact = drawn_one_by_one(left, lambda left: [(n > 0) / sum(n > 0 for n in left) for n in left], 4)
    check(cp.client_dirichlet(EQUAL, clients=1, size=4), y, exact)


def test_the_next_client_finds_what_the_first_one_left():
    y = np.repeat(np.arange(2), [3, 3])
    for seed in range(20):
        one, two = deal(cp.client_dirichlet(1.0, clients=2, size=3), y, seed)
        assert sorted(one + two) == list(range(6))


def test_labels_take_the_place_of_others_in_their_coarse_class_first():
    """With two coarse classes, the second keeps its half for as long as it has any label."""
    left, tree = [1, 5, 1, 2], [0, 0, 1, 1]

    def chances(left):
        groups = [[k for k in (0, 1) if left[k]], [k for k in (2, 3) if left[k]]]
        full = sum(map(bool, groups))
        return [next((1 / full / len(g) for g in groups if k in g), 0) for k in range(4)]

    y = np.repeat(np.arange(4), left)
    exact = drawn_one_by_one(left, chances, 5)
    check(cp.pachinko(1, size=5, coarse_alpha=EQUAL, fine_alpha=EQUAL, coarse=tree), y, exact)


def test_a_clients_labels_have_the_moments_of_its_dirichlet_and_its_draws():
    """A share p of n draws has variance Var(p) (1 - 1/n) + E(p) (1 - E(p)) / n."""
    k, alpha, n = 4, 0.5, 50
    y = np.arange(4000) % k
    partition = cp.client_dirichlet(alpha, clients=5, size=n)
    shares = np.array([[np.bincount(y[h], minlength=k) / n for h in deal(partition, y, seed)] for seed in range(80)])
    shares = shares.reshape(-1, k)
    own = (k - 1) / (k**2 * (k * alpha + 1))
    assert shares.mean(0) == pytest.approx(np.full(k, 1 / k), abs=0.05)
    assert shares.var(0).mean() == pytest.approx(own * (1 - 1 / n) + (1 / k) * (1 - 1 / k) / n, rel=0.15)


@pytest.mark.parametrize(("coarse_alpha", "fine_alpha"), [(0.5, EQUAL), (EQUAL, 0.5), (0.3, 2.0)])
def test_pachinko_has_the_moments_of_its_two_levels(coarse_alpha, fine_alpha):
    """Three coarse classes of two labels: a label's share is a product of two independent Dirichlet shares."""
    tree, n = [0, 1, 2, 2, 1, 0], 60
    y = np.arange(6000) % 6
    partition = cp.pachinko(5, size=n, coarse_alpha=coarse_alpha, fine_alpha=fine_alpha, coarse=tree)
    shares = np.array([[np.bincount(y[h], minlength=6) / n for h in deal(partition, y, seed)] for seed in range(80)])
    shares = shares.reshape(-1, 6)

    def square(k, alpha):  # E(p^2) of a share of k
        return 1 / k**2 + (k - 1) / (k**2 * (k * alpha + 1))

    own = square(3, coarse_alpha) * square(2, fine_alpha) - 1 / 36
    assert shares.mean(0) == pytest.approx(np.full(6, 1 / 6), abs=0.05)
    assert shares.var(0).mean() == pytest.approx(own * (1 - 1 / n) + 5 / 36 / n, rel=0.15)
    together = shares @ (np.array(tree)[:, None] == np.arange(3))
    coarse = (square(3, coarse_alpha) - 1 / 9) * (1 - 1 / n) + 2 / 9 / n
    assert together.var(0).mean() == pytest.approx(coarse, rel=0.15)


PARTITIONS = {
    "client-dirichlet": lambda clients, size: cp.client_dirichlet(0.2, clients=clients, size=size),
    "pachinko": lambda clients, size: cp.pachinko(clients, size=size, coarse=[0, 1, 1, 0, 2]),
}


@pytest.mark.parametrize("name", PARTITIONS)
@given(
    y=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    clients=st.integers(1, 8),
    size=st.none() | st.integers(1, 9),
    seed=st.integers(0, 3),
)
def test_every_client_has_as_many_samples_and_none_is_dealt_twice(name, y, clients, size, seed):
    partition = PARTITIONS[name](clients, size)
    each = size or max(1, len(y) // clients)
    if clients * each > len(y):
        with pytest.raises(CounterpoiseError, match=f"{name} cannot give each of {clients} clients {each} samples"):
            deal(partition, y, seed)
        return
    held = deal(partition, y, seed)
    assert [len(h) for h in held] == [each] * clients
    assert len(set(joined(held))) == clients * each
    assert deal(partition, y, seed) == held


@pytest.mark.parametrize("alpha", [1e-300, 1e-3])
def test_a_client_whose_labels_have_all_run_out_draws_the_others(alpha):
    y = np.arange(60) % 3
    held = deal(cp.client_dirichlet(alpha, clients=6), y)
    assert sorted(joined(held)) == list(range(60))
    assert len(set(y[held[0]])) == 1


def test_reuse_shares_samples_between_clients_so_that_each_keeps_to_its_distribution():
    y = np.arange(2000) % 4
    held = deal(cp.client_dirichlet(1e-4, clients=20, reuse=True), y)
    assert [len(h) for h in held] == [100] * 20
    assert all(len(set(h)) == 100 for h in held)  # nobody holds a sample twice
    labels = [set(y[h].tolist()) for h in held]
    assert all(len(own) == 1 for own in labels)  # even the last client's label had not run out
    clients_of = Counter(min(own) for own in labels)
    times = np.bincount(joined(held), minlength=2000)
    for label, clients in clients_of.items():
        used = times[y == label]
        assert used.sum() == 100 * clients
        assert used.max() - used.min() <= 1  # dealt again only after all others
    assert set(clients_of.values()) != {5}  # as it is if every label is dealt once


def test_a_size_of_its_own_may_use_more_samples_than_there_are_if_they_are_shared():
    held = deal(cp.client_dirichlet(1.0, clients=30, size=5, reuse=True), np.arange(20) % 2)
    assert [len(set(h)) for h in held] == [5] * 30


@pytest.mark.parametrize("reuse", [False, True])
def test_clients_may_hold_unequally_many(reuse):
    y = np.arange(400) % 4
    held = deal(cp.client_dirichlet(0.3, clients=3, sizes=[90, 10, 40], reuse=reuse), y)
    assert [len(set(h)) for h in held] == [90, 10, 40]
    alike = (cp.client_dirichlet(0.3, clients=3, reuse=reuse, **how) for how in ({"size": 40}, {"sizes": [40] * 3}))
    one, other = (deal(partition, y) for partition in alike)
    assert one == other


def test_cifar_100_has_twenty_coarse_classes_of_five_labels():
    assert Counter(Counter(CIFAR100).values()) == {5: 20}
    assert len(CIFAR100) == 100
    named = {0: 4, 1: 1, 2: 14, 3: 8, 4: 0, 52: 17, 53: 4, 97: 8, 98: 14, 99: 13}
    # apple, aquarium fish, baby, bear, beaver, oak tree, orange, wolf, woman, worm
    assert {label: CIFAR100[label] for label in named} == named


@pytest.mark.data
def test_the_coarse_classes_are_those_of_the_files():
    path = place(DATASETS["cifar100"])
    if path is None or path.suffix != ".npz":
        pytest.skip("cifar100.npz is not in the local data folder")
    with np.load(path, allow_pickle=False) as arrays:
        if "y_train_coarse" not in arrays:
            pytest.skip("cifar100.npz holds no coarse labels")
        fine, coarse = arrays["y_train"].ravel(), arrays["y_train_coarse"].ravel()
    assert (np.array(CIFAR100)[fine] == coarse).all()


def test_pachinko_deals_all_of_a_set_like_cifar_100():
    y = np.arange(5000) % 100
    held = deal(cp.pachinko(50), y)
    assert sorted(joined(held)) == list(range(5000))
    coarse = [len({CIFAR100[label] for label in y[h]}) for h in held]
    fine = [len(set(y[h].tolist())) for h in held]
    assert np.mean(coarse[:10]) < 8  # of twenty
    assert np.mean(fine[:10]) > 3 * np.mean(coarse[:10])  # almost all labels of a coarse class


@pytest.mark.parametrize(
    ("make", "y", "sentence"),
    [
        (lambda: cp.pachinko(2), np.arange(300) % 101, "the labels 0 to 99, but this data has a label 100"),
        (lambda: cp.pachinko(2, coarse=[0, 1]), [0, 1, 2, 1], "the labels 0 to 1, but this data has a label 2"),
        (lambda: cp.pachinko(2, coarse=[0, 1]), [0, -1, 1, 1], "this data has a label -1"),
        (lambda: cp.pachinko(2, coarse=[]), [0], "coarse must be a list of whole numbers, one for each label"),
        (lambda: cp.pachinko(2, coarse=[0, 0.5]), [0], "coarse must be a list of whole numbers"),
        (lambda: cp.pachinko(2, size=0), [0], "option size must be a whole number at least 1 or nothing, not 0"),
        (lambda: cp.pachinko(2, fine_alpha=0), [0], "option fine_alpha must be a number above 0, not 0"),
        (lambda: cp.client_dirichlet(0, clients=2), [0], "option alpha must be a number above 0, not 0"),
        (
            lambda: cp.client_dirichlet(1, clients=2, sizes=[1]),
            [0],
            "sizes must be a list of 2 whole numbers above 0, one for each client, not",
        ),
        (lambda: cp.client_dirichlet(1, clients=1, sizes=[0]), [0], "a list of 1 whole numbers above 0"),
        (lambda: cp.client_dirichlet(1, clients=1, sizes=[1], size=1), [0], "give size or sizes, not both"),
        (
            lambda: cp.client_dirichlet(1, clients=2, sizes=[1, 2]),
            [0, 0],
            "sizes that sum to 3: that needs at least 3 samples, but there are 2",
        ),
        (
            lambda: cp.client_dirichlet(1, clients=2, size=4, reuse=True),
            [0, 0, 0, 0, 1, 1, 1],
            "a client could draw 4 samples of label 1, which has 3. Use a smaller size",
        ),
    ],
)
def test_what_cannot_be_dealt_is_told(make, y, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        make().assign(torch.as_tensor(y), 0)


def test_the_exact_probabilities_of_these_tests_are_right():
    """Two labels of one and two samples, two draws: 0 then 1, 1 then 0, 1 twice."""
    exact = drawn_one_by_one([1, 2], lambda left: [(n > 0) / sum(m > 0 for m in left) for n in left], 2)
    assert exact == {(0, 1): 0.5 + 0.25, (1, 1): 0.25}
    assert all(len(outcome) == 2 for outcome in itertools.chain(exact))
