"""How samples are dealt: every sample at most once, as many as promised, the same for the same seed."""

import json
import re

import numpy as np
import pytest
import torch
from helpers import joined
from hypothesis import given
from hypothesis import strategies as st

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import PARTITIONS, Federation
from counterpoise.federation.partition import _skim


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


def test_fedbacs_shards_leave_what_they_do_not_use():
    """60,000 images in 300 shards of 200, two to each of 20 clients: 400 images each, 8,000 in all."""
    y = np.arange(60_000) % 10
    held = deal(cp.shards(20, per_client=2, total=300), y)
    assert [len(h) for h in held] == [400] * 20
    assert len(set(joined(held))) == 8000
    assert all(len(set(y[h])) <= 2 for h in held)


@given(
    labels.filter(lambda y: len(set(y)) > 1),
    st.integers(1, 8),
    st.integers(1, 5),
    st.integers(0, 3),
)
def test_lq_gives_every_client_as_many_labels_as_it_says(y, clients, count, seed):
    partition = cp.lq(count, clients=clients)
    kinds = sorted(set(y))
    if count > len(kinds):
        with pytest.raises(
            CounterpoiseError, match=f"cannot give each client {count} labels: the data has {len(kinds)}"
        ):
            deal(partition, y, seed)
        return
    try:
        held = deal(partition, y, seed)
    except CounterpoiseError as error:
        assert re.search(r"label \d has \d+ samples for \d+ clients. Use fewer clients or labels", str(error))  # noqa: PT017
        return
    y = np.array(y)
    rows = joined(held)
    assert len(rows) == len(set(rows))
    owned = [sorted(set(y[h])) for h in held]
    assert [len(own) for own in owned] == [count] * clients
    for label in kinds:
        shares = [int((y[h] == label).sum()) for h, own in zip(held, owned, strict=True) if label in own]
        if shares:  # whoever has a label has an equal share of all of it
            assert max(shares) - min(shares) <= 1
            assert sum(shares) == (y == label).sum()
        else:
            assert clients < len(kinds)
    assert deal(partition, y, seed) == held


def test_lq_leaves_no_label_out_and_mixes_them():
    y = np.arange(10_000) % 10
    held = deal(cp.lq(2, clients=50), y)
    assert sorted(joined(held)) == list(range(10_000))
    assert len({tuple(sorted(set(y[h]))) for h in held}) > 15


quantities = [
    lambda clients, minimum: cp.power_law(clients, exponent=1.2, minimum=minimum),
    lambda clients, minimum: cp.power_law(clients, exponent=50.0, minimum=minimum),
    lambda clients, minimum: cp.quantity_dirichlet(0.3, clients=clients, minimum=minimum),
    lambda clients, minimum: cp.quantity_dirichlet(1e-300, clients=clients, minimum=minimum),
]


@given(labels, st.integers(1, 8), st.integers(0, 4), st.integers(0, 3), st.sampled_from(quantities))
def test_quantity_skews_deal_every_sample_once_and_honour_the_minimum(y, clients, minimum, seed, make):
    if len(y) < clients * minimum:
        with pytest.raises(CounterpoiseError, match=f"cannot give each of {clients} clients {minimum} samples"):
            deal(make(clients, minimum), y, seed)
        return
    held = deal(make(clients, minimum), y, seed)
    assert len(held) == clients
    assert sorted(joined(held)) == list(range(len(y)))
    assert min(map(len, held)) >= minimum
    assert deal(make(clients, minimum), y, seed) == held


def test_a_power_law_has_its_exponent():
    sizes = np.sort([len(h) for h in deal(cp.power_law(50, exponent=1.0, minimum=0), np.zeros(100_000, int))])[::-1]
    slope = np.polyfit(np.log(np.arange(1, 51)), np.log(sizes), 1)[0]
    assert slope == pytest.approx(-1.0, abs=0.01)
    equal = [len(h) for h in deal(cp.power_law(50, exponent=0.0), np.zeros(100_000, int))]
    assert set(equal) == {2000}


def test_quantity_dirichlet_sizes_have_the_moments_of_the_distribution():
    k, alpha, n = 4, 0.5, 2000
    y = np.arange(n) % 5
    partition = cp.quantity_dirichlet(alpha, clients=k, minimum=0)
    shares = np.array([[len(h) / n for h in deal(partition, y, seed)] for seed in range(300)])
    assert shares.mean(0) == pytest.approx(np.full(k, 1 / k), abs=0.05)
    assert shares.var(0).mean() == pytest.approx((k - 1) / (k**2 * (k * alpha + 1)), rel=0.15)
    largest = max(deal(partition, y), key=len)
    assert np.bincount(y[largest]) / len(largest) == pytest.approx(np.full(5, 0.2), abs=0.05)  # labels are IID


def test_the_minimum_is_taken_from_the_largest_one_by_one():
    """A slow loop that takes each sample from whoever has most just then."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        counts = rng.integers(0, 12, rng.integers(2, 9))
        asked = int(rng.integers(0, counts.sum() + 1))
        left = counts.copy()
        for _ in range(asked):
            left[left.argmax()] -= 1
        assert _skim(counts, asked).tolist() == (counts - left).tolist()


# ---------------------------------------------------------------- what the data or a file gives


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=60),
    st.integers(1, 4),
    st.none() | st.integers(1, 5),
    st.integers(0, 3),
)
def test_natural_clients_are_identities_with_enough_samples(who, minimum, clients, seed):
    partition = cp.natural(clients=clients, minimum=minimum)
    enough = [i for i in sorted(set(who)) if who.count(i) >= minimum]
    if len(enough) < (clients or 1):
        with pytest.raises(CounterpoiseError, match=f"{len(enough)} of {len(set(who))} identities have at least"):
            deal(partition, who, seed)
        return
    held = deal(partition, who, seed)
    found = [{who[row] for row in h} for h in held]
    assert all(len(f) == 1 for f in found)
    assert [len(h) for h in held] == [who.count(min(f)) for f in found]
    owners = [min(f) for f in found]
    assert len(set(owners)) == len(owners) == (clients or len(enough))
    assert set(owners) <= set(enough)
    assert deal(partition, who, seed) == held


def test_a_natural_partition_needs_identities():
    x, y = np.zeros((6, 2)), np.arange(6) % 2
    with pytest.raises(CounterpoiseError, match="does not say who its samples come from"):
        Federation.from_arrays(x, y, partition=cp.natural())
    with pytest.raises(CounterpoiseError, match="identities must be one whole number or name for each of the 6"):
        Federation.from_arrays(x, y, partition=cp.natural(), identities=np.arange(5))
    federation = Federation.from_arrays(
        x, y, partition=cp.natural(minimum=1), identities=[5, 5, 9, 9, 9, 2], heldout=0, probe=1
    )
    rows = federation.train.rows(torch.arange(federation.clients)).numpy()
    assert federation.clients in (2, 3)
    for client, size in enumerate(federation.train.sizes(torch.arange(federation.clients)).tolist()):
        assert len({[5, 5, 9, 9, 9, 2][row] for row in rows[client, :size]}) == 1


def test_a_partition_from_a_file(tmp_path):
    x, y = np.arange(6.0)[:, None], np.arange(6) % 2
    owners, rows = np.array([1, 0, 1, -1, 2, 2]), [[1], [0, 2], [4, 5]]
    np.save(tmp_path / "a.npy", owners)
    np.savez(tmp_path / "a.npz", owners=owners)
    (tmp_path / "a.json").write_text(json.dumps(owners.tolist()))
    (tmp_path / "b.json").write_text(json.dumps(rows))
    for name in ("a.npy", "a.npz", "a.json", "b.json"):
        federation = Federation.from_arrays(x, y, partition=cp.from_file(str(tmp_path / name)), heldout=0)
        assert [len(federation.train.rows(torch.tensor([i]))[0]) for i in range(3)] == [1, 2, 2]
        assert sorted(federation.train.flat.tolist()) == [0, 1, 2, 4, 5]
    reserved = Federation.from_arrays(x, y, partition=cp.from_file(str(tmp_path / "b.json")), heldout=0, proxy=3)
    kept = set(reserved.train.flat.tolist())
    assert reserved.clients == 3
    assert not kept & {int(v) for v in reserved.proxy.inputs.flatten()}


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("none.npy", None, "There is no file .*none.npy"),
        ("a.json", "[[0, 1], [1]]", "gives a sample to two clients"),
        (
            "a.json",
            "[[0, 6]]",
            "must give one client number to each of the 6 samples, or a list of rows below 6 to each client",
        ),
        ("a.json", "[0, 1]", "must give one client number to each of the 6 samples"),
        ("a.json", "[0.5, 1, 1, 1, 1, 1]", "must give one client number"),
        ("a.json", '{"a": 1}', "must give one client number"),
        ("a.json", "[[0, 1], 2]", "must give one client number"),
        ("a.json", "[-1, -1, -1, -1, -1, -1]", "must give one client number"),
        ("a.json", "nonsense", "a.json is not valid JSON"),
        ("a.npy", "nonsense", "cannot be read as a partition"),
    ],
)
def test_a_bad_file_is_told(tmp_path, name, content, sentence):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(CounterpoiseError, match=sentence):
        Federation.from_arrays(np.zeros((6, 1)), np.arange(6) % 2, partition=cp.from_file(str(tmp_path / name)))


# ---------------------------------------------------------------- mixtures


@given(labels.filter(lambda y: len(y) >= 24), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3))
def test_a_mixture_is_both_recipes_side_by_side(y, one, two, seed):
    partition = cp.mixed(cp.iid(one), cp.dirichlet(0.3, clients=two, minimum=1))
    held = deal(partition, y, seed)
    assert len(held) == partition.clients == one + two
    assert sorted(joined(held)) == list(range(len(y)))
    assert sum(map(len, held[:one])) == len(y) * one // (one + two)
    assert deal(partition, y, seed) == held


def test_a_mixture_has_both_kinds_of_clients():
    y = np.arange(4000) % 10
    held = deal(cp.mixed(cp.iid(10), cp.lq(1, clients=10)), y)
    assert min(len(set(y[h])) for h in held[:10]) == 10
    assert {len(set(y[h])) for h in held[10:]} == {1}


@pytest.mark.parametrize("other", [cp.natural(), cp.natural(clients=3), cp.from_file("x.npy")])
def test_identities_and_files_cannot_be_mixed(other):
    with pytest.raises(CounterpoiseError, match="identities and files cannot be mixed"):
        cp.mixed(cp.iid(3), other)


def test_drawing_clients_cannot_be_mixed():
    with pytest.raises(CounterpoiseError, match="clients that draw from a shared base cannot be mixed"):
        deal(cp.mixed(cp.iid(3), cp.draws(3, size=2)), np.zeros(20, int))


# ---------------------------------------------------------------- many clients


@pytest.mark.slow
@pytest.mark.parametrize(
    "partition",
    [
        cp.iid(1_000_000),
        cp.shards(1_000_000),
        cp.dirichlet(0.5, clients=1_000_000),
        cp.lq(2, clients=1_000_000),
        cp.power_law(1_000_000, exponent=0.8),
        cp.quantity_dirichlet(0.5, clients=1_000_000),
        cp.mixed(cp.iid(500_000), cp.dirichlet(0.1, clients=500_000)),
    ],
    ids=lambda p: p.spec.name,
)
def test_a_million_clients(partition):
    y = torch.arange(5_000_000) % 10
    held = partition.assign(y, 0)
    assert held.clients == 1_000_000
    assert int(held.sizes(torch.arange(1_000_000)).min()) >= 2
    assert (
        len(torch.unique(held.flat))
        == len(held.flat)
        == 5_000_000 - len(y) % 2_000_000 * (partition.spec.name == "shards")
    )


@pytest.mark.parametrize(
    "partition",
    [
        cp.iid(5),
        cp.shards(5),
        cp.dirichlet(0.5, clients=5),
        cp.draws(5, size=10),
        cp.lq(2, clients=5),
        cp.power_law(5),
        cp.quantity_dirichlet(0.5, clients=5),
        cp.mixed(cp.iid(2), cp.iid(3)),
        cp.natural(clients=2),
        cp.capped_dirichlet(0.5, clients=5),
        cp.client_dirichlet(0.5, clients=5),
        cp.pachinko(5),
    ],
)
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
            "10 clients with 2 shards each need 20 shards, but total is 19",
        ),
        (lambda: cp.draws(3, size=0), "option size must be a whole number at least 1, not 0"),
        (lambda: PARTITIONS.make("dirichlett"), "There is no partition 'dirichlett'. Did you mean 'dirichlet'?"),
    ],
)
def test_a_bad_partition_is_refused_with_a_sentence(make, sentence):
    with pytest.raises(CounterpoiseError, match=sentence.replace("?", "[?]")):
        make()


BY_LABEL = [
    cp.shards(4),
    cp.dirichlet(0.5, clients=4),
    cp.capped_dirichlet(0.5, clients=4),
    cp.client_dirichlet(0.5, clients=4),
    cp.pachinko(4),
    cp.lq(1, clients=4),
    cp.mixed(cp.iid(2), cp.lq(1, clients=2)),
]
BY_COUNT = [cp.iid(4), cp.draws(4, size=5), cp.power_law(4), cp.quantity_dirichlet(0.5, clients=4)]
NOT_CLASSES = [
    (np.linspace(0, 0.09, 90), r"they are fractions such as 0\.0\d+"),
    (np.arange(90.0), r"(\d+) samples have \1 different values"),
    (np.arange(90), r"(\d+) samples have \1 different values"),
    (np.arange(90).reshape(45, 2) % 3, r"each is an array of shape \(2,\)"),
]


@pytest.mark.parametrize(("y", "why"), NOT_CLASSES)
@pytest.mark.parametrize("partition", BY_LABEL, ids=lambda partition: partition.spec.name)
def test_a_regressions_targets_are_no_labels_to_deal_by(partition, y, why):
    sentence = f"deals by label, but these targets are not class numbers: {why}.*Use iid, power-law"
    with pytest.raises(CounterpoiseError, match=sentence):
        Federation.from_arrays(np.zeros((len(y), 2), "f"), y, partition=partition)


@pytest.mark.parametrize(("y", "why"), NOT_CLASSES[:2])
@pytest.mark.parametrize("partition", BY_COUNT, ids=lambda partition: partition.spec.name)
def test_recipes_that_look_at_no_label_deal_any_targets(partition, y, why):
    assert Federation.from_arrays(np.zeros((len(y), 2), "f"), y, partition=partition).clients == 4


@pytest.mark.parametrize("partition", BY_LABEL, ids=lambda partition: partition.spec.name)
def test_whole_floats_that_samples_share_are_class_numbers(partition):
    """Targets of a binary loss are such."""
    y = np.arange(90) % 2
    assert deal(partition, y.astype(np.float32)) == deal(partition, y)


def test_few_different_targets_are_labels_even_if_each_is_alone():
    assert sorted(joined(deal(cp.shards(10, per_client=2), np.arange(20)))) == list(range(20))
    with pytest.raises(CounterpoiseError, match="21 samples have 21 different values"):
        deal(cp.shards(10, per_client=2), np.arange(21))
    assert len(joined(deal(cp.shards(10, per_client=2), np.arange(60) // 2))) == 60  # two samples each


def test_targets_are_dealt_by_bins_as_the_docs_say():
    y = torch.arange(90) / 7
    bins = torch.bucketize(y, y.quantile(torch.tensor([0.2, 0.4, 0.6, 0.8])))
    held = cp.shards(5, per_client=1).assign(bins, 0)
    fed = Federation.from_arrays(torch.zeros(90, 2), y, partition=held.flat.tensor_split(held.offsets[1:-1]), heldout=0)
    rows = fed.train.rows(torch.arange(5))
    assert [len(bins[row].unique()) for row in rows] == [1] * 5


def test_rare_labels_are_held_by_a_few_clients_and_all_others_by_the_rest():
    y = torch.arange(1000) % 10
    held = deal(cp.rare(2, holders=3, clients=20), y)
    assert sorted(i for rows in held for i in rows) == list(range(1000))
    assert all((y[rows] >= 8).all() for rows in held[:3])
    assert all((y[rows] < 8).all() for rows in held[3:])
    assert sorted(map(len, held[:3])) == [66, 67, 67]
    assert {len(rows) for rows in held[3:]} == {47, 48}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: cp.rare(2, holders=20, clients=20), "20 holders of the rare labels leave none of 20 clients"),
        (lambda: deal(cp.rare(10, holders=2, clients=20), torch.arange(1000) % 10), "10 of 10 labels cannot be rare"),
        (lambda: deal(cp.rare(1, holders=19, clients=20), torch.arange(50) % 10), "each of 19 holders a sample"),
    ],
)
def test_labels_that_cannot_be_rare_are_refused(make, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        make()


# ---------------------------------------------------------------- capped Dirichlet


@given(
    labels, st.integers(1, 8), st.integers(0, 4), st.sampled_from([1e-300, 1e-3, 0.1, 1.0, 100.0]), st.integers(0, 3)
)
def test_a_client_with_its_equal_share_gets_no_further_labels(y, clients, minimum, alpha, seed):
    partition = cp.capped_dirichlet(alpha, clients=clients, minimum=minimum)
    try:
        held = deal(partition, y, seed)
    except CounterpoiseError as error:
        assert re.search(f"(cannot give|draws gave) each of {clients} clients {minimum} samples", str(error))  # noqa: PT017
        return
    assert sorted(joined(held)) == list(range(len(y)))
    assert min(map(len, held)) >= minimum
    y = np.array(y)
    for rows in held:
        for label in set(y[rows].tolist()):
            assert (y[rows] < label).sum() < len(y) / clients
    assert deal(partition, y, seed) == held


def test_capped_shares_have_the_moments_of_the_distribution_over_who_is_left():
    """Of three clients, one is full after the first label; the others share the second as a Dirichlet draw over two."""
    alpha, n = 0.5, 600
    y = np.repeat([0, 1], [400, 200])
    partition = cp.capped_dirichlet(alpha, clients=3, minimum=0)
    counts = np.array([[np.bincount(y[h], minlength=2) for h in deal(partition, y, seed)] for seed in range(600)])
    full = counts[:, :, 0] >= n / 3
    assert (counts[:, :, 1][full] == 0).all()
    one = full.sum(1) == 1
    shares = counts[one][~full[one]].reshape(-1, 2, 2)[:, 0, 1] / 200
    assert len(shares) > 300
    assert shares.mean() == pytest.approx(0.5, abs=0.05)
    assert shares.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.15)
    first = counts[:, :, 0] / 400
    assert first.var(0).mean() == pytest.approx(2 / (9 * (3 * alpha + 1)), rel=0.15)


def test_a_capped_partition_is_drawn_again_until_everyone_has_enough():
    y = np.arange(400) % 4
    sizes = np.array(
        [[len(h) for h in deal(cp.capped_dirichlet(0.1, clients=8, minimum=5), y, seed)] for seed in range(20)]
    )
    assert sizes.min() >= 5
    without = [[len(h) for h in deal(cp.capped_dirichlet(0.1, clients=8, minimum=0), y, seed)] for seed in range(20)]
    assert np.min(without) == 0
    assert [list(own) for own in sizes if list(own) in without]  # a first draw that was good enough was kept


def test_a_capped_partition_that_cannot_be_drawn_is_told():
    y = np.zeros(40, int)
    with pytest.raises(
        CounterpoiseError,
        match=r"none of 1000 draws gave each of 4 clients 10 samples[.] Use fewer clients, a larger alpha",
    ):
        deal(cp.capped_dirichlet(0.1, clients=4), y)
