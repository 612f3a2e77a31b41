"""Who holds what: nobody's sample is another's, and what the server holds is nobody's."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import joined
from hypothesis import given
from hypothesis import strategies as st

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import DATASETS, Federation, Samples
from counterpoise.federation.catalogue import _digits
from counterpoise.federation.overview import label_counts, overview


def arrays(n=60, classes=3):
    """Inputs that are their own row number, and labels in turn."""
    return np.arange(n, dtype=np.float64)[:, None], np.arange(n) % classes


def held(assignment):
    ids = torch.arange(assignment.clients)
    return [row[:n].tolist() for row, n in zip(assignment.rows(ids), assignment.sizes(ids).tolist(), strict=True)]


def numbers(samples):
    """The row numbers of a server set of `arrays`."""
    return samples.inputs.squeeze(1).long().tolist()


# ---------------------------------------------------------------- held-out parts


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any),
    fraction=st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.9]),
    seed=st.integers(0, 3),
)
def test_a_held_out_part_is_apart_and_of_the_right_size(sizes, fraction, seed):
    n = sum(sizes)
    rows = np.split(np.arange(n), np.cumsum(sizes)[:-1])
    federation = Federation.from_arrays(*arrays(n), partition=rows, heldout=fraction, seed=seed)
    train, out = held(federation.train), held(federation.heldout)
    for own, t, h in zip(rows, train, out, strict=True):
        assert sorted(t + h) == own.tolist()
        if fraction == 0 or len(own) < 2:
            assert len(h) == 0
        else:
            assert len(h) == min(max(round(len(own) * fraction), 1), len(own) - 1)


def test_another_seed_holds_out_others():
    one, two = (Federation.from_arrays(*arrays(), partition=[range(60)], seed=seed) for seed in (0, 1))
    assert held(one.heldout) != held(two.heldout)
    assert len(held(one.heldout)[0]) == 12


def test_a_drawing_client_does_not_train_on_what_it_holds_out():
    federation = Federation.from_arrays(*arrays(), partition=cp.draws(20, size=20))
    for t, h in zip(held(federation.train), held(federation.heldout), strict=True):
        assert (len(t), len(h)) == (16, 4)
        assert not set(t) & set(h)


# ---------------------------------------------------------------- the server's sets


@given(probe=st.integers(0, 3), proxy=st.integers(0, 20), seed=st.integers(0, 3))
def test_the_servers_sets_are_apart_from_each_other_and_from_every_client(probe, proxy, seed):
    federation = Federation.from_arrays(
        *arrays(), partition=cp.dirichlet(0.5, clients=4), probe=probe, proxy=proxy, seed=seed
    )
    clients = joined(held(federation.train) + held(federation.heldout))
    server = [row for samples in (federation.probe, federation.proxy) if samples for row in numbers(samples)]
    assert sorted(clients + server) == list(range(60))
    assert (federation.probe is None) == (probe == 0)
    assert (federation.proxy is None) == (proxy == 0)
    if probe:
        assert federation.probe.targets.bincount().tolist() == [probe] * 3
    if proxy:
        assert len(federation.proxy) == proxy


@pytest.mark.parametrize("partition", [np.arange(60) % 5, [range(0, 30), range(30, 60)]])
def test_the_servers_sets_are_taken_from_partitions_made_by_hand(partition):
    federation = Federation.from_arrays(*arrays(), partition=partition, probe=2, proxy=7, heldout=0)
    clients = joined(held(federation.train))
    server = numbers(federation.probe) + numbers(federation.proxy)
    assert len(server) == 13
    assert sorted(clients + server) == list(range(60))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"probe": 21}, "Class 0 has fewer than 21 samples for the probe set"),
        ({"proxy": 61}, "A proxy set of 61 samples was asked for, but only 60 are left"),
        ({"probe": 2, "proxy": 55}, "A proxy set of 55 samples was asked for, but only 54 are left"),
        ({"heldout": 1.0}, "heldout must be at least 0 and below 1, not 1.0"),
        ({"heldout": -0.1}, "heldout must be at least 0 and below 1"),
        ({"heldout": float("nan")}, "heldout must be at least 0 and below 1"),
        ({"probe": -1}, "probe must be .*at least 0, not -1"),
        ({"proxy": -5}, "proxy must be .*at least 0, not -5"),
    ],
)
def test_a_set_that_cannot_be_made_is_refused(settings, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        Federation.from_arrays(*arrays(), partition=cp.iid(3), **settings)


def test_a_federation_is_told_in_a_line():
    """Three clients with 20 samples each, of which a quarter is held out; the server's samples are not counted twice."""
    x, y = arrays(60)
    whole = Federation.from_arrays(x, y, partition=cp.iid(3), heldout=0.25, test=(x[:7], y[:7]))
    assert repr(whole) == "Federation(3 clients, 60 samples of shape (1,) in 3 classes, 15 of them held out; test 7)"
    assert repr(whole.on_server()) == "Federation(3 clients, samples of shape (1,) in 3 classes; test 7)"
    probed = Federation.from_arrays(x, y, partition=cp.iid(3), heldout=0, probe=1)
    assert repr(probed).endswith("57 samples of shape (1,) in 3 classes, none of them held out; no test set, probe 3)")
    numbers = Federation.from_arrays(x, y.astype(float), partition=cp.iid(3), heldout=0)
    assert repr(numbers).endswith("60 samples of shape (1,), none of them held out; no test set)")


def test_a_probe_set_needs_classes():
    x, y = arrays()
    with pytest.raises(CounterpoiseError, match="A probe set is drawn per class; these targets are not class numbers"):
        Federation.from_arrays(x, y.astype(float), partition=cp.iid(3), probe=1)


@pytest.mark.parametrize("shared", [False, True])
def test_the_server_may_take_a_fraction_of_each_client_as_its_test_set(shared):
    x, y = arrays(60)
    rows = [[*range(10)], [*range(10, 40)], [*range(40, 60)]]
    if shared:
        rows[0] += [*range(10, 20)]
    federation = Federation.from_arrays(x, y, partition=rows, test=0.2, heldout=0.25, seed=3)
    taken = {*numbers(federation.test)}
    whose = [{*mine} & taken for mine in rows]
    if not shared:
        assert [*map(len, whose)] == [2, 6, 4]
    assert min(map(len, whose)) >= 2
    parts = zip(held(federation.train), held(federation.heldout), rows, strict=True)
    for train, out, mine in parts:
        assert {*train, *out} == {*mine} - taken
        assert len(out) == round(0.25 * len({*mine} - taken))
    assert federation.test.targets.tolist() == [number % 3 for number in numbers(federation.test)]
    counts = label_counts(federation, torch.arange(3))
    assert overview(federation, counts).unused == 0 or shared
    again = [Federation.from_clients([(x[mine], y[mine]) for mine in rows], test=0.2, seed=seed) for seed in (3, 4)]
    assert again[0].fingerprint != again[1].fingerprint


def test_a_fraction_for_the_test_set_that_cannot_be_is_told():
    x, y = arrays()
    for wrong in (0, 1, -0.1, 1.5, float("nan")):
        with pytest.raises(CounterpoiseError, match="fraction of each client's samples that the server takes"):
            Federation.from_arrays(x, y, partition=cp.iid(3), test=wrong)
    with pytest.raises(CounterpoiseError, match="leave no samples over for a test set"):
        Federation.from_arrays(x, y, partition=cp.draws(3, size=4), test=0.2)
    with pytest.raises(CounterpoiseError, match=r"digits has a test set, and test=0.2 asks for another"):
        cp.load("digits", partition=cp.iid(3), test=0.2)
    with pytest.raises(CounterpoiseError, match=r"test must be a fraction of clients' samples, such as 0.2, not"):
        cp.load("digits", partition=cp.iid(3), test=(x, y))
    with pytest.raises(
        CounterpoiseError, match=r"'partition'. Say how .* data set per client use cp.Federation.from_data"
    ):
        cp.load({"north": (x, y)})
    pooled = cp.load("digits", partition=cp.iid(3), pool=True, test=0.2)
    assert (len(pooled.test), pooled.source["test"]) == (3 * 120, 0.2)


def test_drawing_clients_leave_nothing_for_the_server():
    with pytest.raises(CounterpoiseError, match="leave no samples over for a probe or proxy set"):
        Federation.from_arrays(*arrays(), partition=cp.draws(5, size=3), proxy=3)


# ---------------------------------------------------------------- the three forms of a partition


def test_a_partition_is_a_recipe_owners_or_rows():
    x, y = arrays(6)
    owners, rows = np.array([1, 0, 1, 2, 2, 2]), [[1], [0, 2], [3, 4, 5]]
    for partition in (owners, torch.tensor(owners), rows, [np.array(r) for r in rows], [torch.tensor(r) for r in rows]):
        federation = Federation.from_arrays(x, y, partition=partition, heldout=0)
        assert [sorted(own) for own in held(federation.train)] == rows
        assert (federation.clients, federation.classes, federation.shape) == (3, 3, (1,))
    recipe = Federation.from_arrays(x, y, partition=cp.iid(3), heldout=0)
    assert sorted(joined(held(recipe.train))) == list(range(6))


def test_clients_may_be_given_one_by_one():
    clients = [(np.full((n, 2), i, dtype=np.float32), np.full(n, i)) for i, n in enumerate((3, 1, 2))]
    federation = Federation.from_clients(clients, heldout=0)
    for i, rows in enumerate(held(federation.train)):
        inputs, targets = federation.base.take(torch.tensor(rows), torch.float64)
        assert torch.equal(inputs, torch.full((len(clients[i][1]), 2), float(i), dtype=torch.float64))
        assert targets.tolist() == [i] * len(clients[i][1])


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_a_client_given_no_samples_is_still_a_client(empty):
    clients = [(np.zeros((0 if i == empty else 3, 2)), np.zeros(0 if i == empty else 3, dtype=int)) for i in range(3)]
    federation = Federation.from_clients(clients, heldout=0)
    assert federation.clients == 3
    assert [len(rows) for rows in held(federation.train)] == [0 if i == empty else 3 for i in range(3)]


@pytest.mark.parametrize(
    ("partition", "sentence"),
    [
        (np.zeros(5, dtype=int), "partition must give one client number, from 0, to each of the 6 samples"),
        (np.full(6, -1), "partition must give one client number, from 0"),
        (np.zeros(6), "partition must give one client number, from 0"),
        ([[0, 6]], "partition names a sample outside 0 to 5"),
        ([[-1]], "partition names a sample outside 0 to 5"),
        ([], "partition must be a recipe"),
        ([0, 0, 1, 1, 2], "partition must give one client number, from 0, to each of the 6 samples"),
        ([np.array([True, False, True, False, True, False])], "partition"),
        ([[0.5, 1.5]], "partition"),
        ("iid", "partition"),
        (5, "partition"),
        (None, "partition"),
    ],
)
def test_a_partition_that_does_not_fit_is_refused(partition, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        Federation.from_arrays(*arrays(6), partition=partition)


# ---------------------------------------------------------------- samples


def with_bad(value):
    x, y = arrays()
    x[3] = value
    return x, y


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: Federation.from_arrays(*with_bad(np.nan), partition=cp.iid(3)),
            "the data: inputs hold NaN or infinity",
        ),
        (
            lambda: Federation.from_arrays(*with_bad(np.inf), partition=cp.iid(3)),
            "the data: inputs hold NaN or infinity",
        ),
        (
            lambda: Federation.from_arrays(arrays()[0], np.full(60, np.nan), partition=cp.iid(3)),
            "the data: targets hold NaN or infinity",
        ),
        (
            lambda: Federation.from_arrays(arrays()[0], np.arange(59), partition=cp.iid(3)),
            r"inputs of shape \(60, 1\) and targets of shape \(59,\) do not hold the same number of samples",
        ),
        (
            lambda: Federation.from_arrays(
                *arrays(), partition=cp.iid(3), test=(np.zeros((4, 2)), np.zeros(4, dtype=int))
            ),
            r"the test set has inputs of shape \(2,\) for a sample, but the clients have \(1,\)",
        ),
        (
            lambda: Federation.from_arrays(*arrays(), partition=cp.iid(3), test=with_bad(np.nan)),
            "the test set: inputs hold NaN or infinity",
        ),
        (
            lambda: Federation.from_arrays(np.array([["a"]] * 60), arrays()[1], partition=cp.iid(3)),
            "the data: inputs are of type .*; give numbers, one row per sample",
        ),
        (
            lambda: Federation.from_arrays(arrays()[0], arrays()[1] - 1, partition=cp.iid(3)),
            "must not be negative; count them from 0",
        ),
        (
            lambda: Federation.from_arrays(arrays()[0], arrays()[1] + 10**12, partition=cp.iid(3)),
            r"The label 100000000000\d would make .* classes of 60 samples. Number the classes from 0 without gaps",
        ),
        (lambda: Federation.from_clients([]), "A federation needs at least one client"),
        (
            lambda: Federation.from_clients(
                [(np.zeros((2, 2)), np.zeros(2, int)), (np.zeros((2, 3)), np.zeros(2, int))]
            ),
            r"client 1 has inputs of shape \(3,\) for a sample, but client 0 has \(2,\)",
        ),
        (lambda: Federation.from_clients([(np.zeros((2, 2)), np.zeros(3, int))]), "client 0: inputs of shape"),
        (lambda: cp.load("digitz", partition=cp.iid(3)), "There is no data set 'digitz'. Did you mean 'digits'"),
        (lambda: cp.load("digits", partition="iid"), "partition must be a recipe such as"),
    ],
)
def test_bad_data_is_refused_with_a_sentence(make, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        make()


def test_bytes_stay_bytes_until_the_batch():
    samples = Samples.of(np.array([[0, 128, 255]], dtype=np.uint8), np.array([1]), scale=0.5, shift=-1.0)
    assert samples.inputs.dtype == torch.uint8
    inputs, targets = samples.take(torch.tensor([[0, 0]]), torch.float64)
    assert inputs.tolist() == [[[-1.0, 63.0, 126.5]] * 2]
    assert targets.tolist() == [[1, 1]]


def test_a_column_of_labels_is_taken_as_labels():
    federation = Federation.from_arrays(arrays()[0], arrays()[1][:, None].astype(np.uint8), partition=cp.iid(3))
    assert federation.classes == 3
    assert federation.base.targets.shape == (60,)


def test_targets_that_are_numbers_have_no_classes():
    federation = Federation.from_arrays(
        arrays()[0], np.random.default_rng(0).standard_normal((60, 2)), partition=cp.iid(3)
    )
    assert federation.classes is None
    assert sorted(joined(held(federation.train) + held(federation.heldout))) == list(range(60))


@pytest.mark.parametrize("name", [name for name, dataset in DATASETS.items() if not dataset.files])
def test_every_data_set_loads_and_repeats(name):
    one, two, other = (
        cp.load(name, partition=cp.dirichlet(0.5, clients=7), probe=2, proxy=30, seed=s) for s in (0, 0, 1)
    )
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != other.fingerprint
    assert one.source["name"] == name
    assert (len(one.probe), len(one.proxy), one.classes, one.clients) == (20, 30, 10, 7)
    assert len(one.test) > 0


def test_digits_are_all_there_and_the_test_set_is_apart():
    from sklearn.datasets import load_digits

    federation = cp.load("digits", partition=cp.iid(5), heldout=0)
    images = load_digits().images.reshape(1797, -1)
    assert len(federation.base) + len(federation.test) == 1797
    ours = torch.cat([federation.base.inputs, federation.test.inputs]).reshape(1797, -1).numpy()
    assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, images.astype(int).tolist()))
    taken, _ = federation.test.take(torch.arange(3), torch.float64)
    assert np.array_equal(taken.reshape(3, -1).numpy(), images[4:15:5] / 8 - 1)


def test_digits_come_from_scikit_learns_loader_if_their_file_lies_elsewhere(monkeypatch, tmp_path):
    read = _digits(tmp_path, 0)
    elsewhere = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("counterpoise.federation.catalogue.find_spec", lambda name: elsewhere)
    for one, other in zip(_digits(tmp_path, 0)[:4], read[:4], strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    monkeypatch.setattr("counterpoise.federation.catalogue.find_spec", lambda name: None)
    with pytest.raises(CounterpoiseError, match="'digits' comes with scikit-learn; install it"):
        _digits(tmp_path, 0)


def test_who_holds_what_as_a_table_and_in_a_few_words():
    pytest.importorskip("pandas")
    x, y = arrays(6)
    federation = Federation.from_arrays(x, y, partition=[[0, 3, 1, 2], [5]])
    assert repr(federation.train) == "Table(2 clients with 4 rows, 1 to 3 each)"
    found = federation.frame()
    assert found.to_dict("index") == {0: {0: 2, 1: 1, 2: 1}, 1: {0: 0, 1: 0, 2: 1}}
    names = np.array(["a", "b", "c"])[y]
    named = Federation.from_arrays(x, names, partition=cp.natural(minimum=1), identities=["n", "s", "n", "n", "s", "s"])
    assert named.frame().loc["s"].to_dict() == {"a": 0, "b": 2, "c": 1}
    pytest.importorskip("plotly")
    assert (named.plot().data[0].texttemplate, list(named.plot().data[0].z[1])) == ("%{z}", [None, 2])
    assert Federation.from_arrays(x, y, partition=[[0]] * 30).plot().data[0].texttemplate is None
    with pytest.raises(CounterpoiseError, match="not class numbers, so there are no labels to count"):
        Federation.from_arrays(x, x[:, 0], partition=cp.iid(2)).frame()


def test_the_fingerprint_knows_who_holds_what():
    x, y = arrays(6)
    prints = [
        Federation.from_arrays(x, y, partition=partition, heldout=0).fingerprint
        for partition in (
            [[0, 1], [2, 3, 4, 5]],
            [[0, 1, 2], [3, 4, 5]],
            [[0, 2], [1, 3, 4, 5]],
            [[1, 0], [2, 3, 4, 5]],
        )
    ]
    assert len(set(prints[:3])) == 3
    assert prints[3] == prints[0]  # the order within a client decides nothing


def test_the_fingerprint_is_that_of_the_whole_whatever_the_pieces(monkeypatch):
    x, y = np.random.default_rng(0).normal(size=(60, 3, 2)), np.arange(60) % 3
    made = [Federation.from_arrays(x, y, partition=cp.iid(3), test=(x[:7], y[:7])).fingerprint]
    for piece in (1, 100, 1000):
        monkeypatch.setattr("counterpoise.flat._PIECE", piece)
        made.append(Federation.from_arrays(x, y, partition=cp.iid(3), test=(x[:7], y[:7])).fingerprint)
    assert len({*made}) == 1
    x[59, 2, 1] = np.inf
    with pytest.raises(CounterpoiseError, match="NaN or infinity"):
        Federation.from_arrays(x, y, partition=cp.iid(3))


def test_the_fingerprint_is_the_digest_of_arrays_and_rows():
    """Runs that are kept know their data by it, so it must not change."""
    x, y = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([0, 1, 1, 0])
    federation = Federation.from_arrays(x, y, partition=[[0, 1], [2, 3]], heldout=0)
    digest = hashlib.sha256()
    for name, shape, array in (
        ("torch.float32", (4, 2), x),
        ("torch.int64", (4,), y),
        ("torch.float32", (), np.float32(1 / 255)),
        ("torch.float32", (), np.float32(0)),
    ):
        digest.update(f"{name} {shape}".encode() + array.tobytes())
    digest.update(b"2 classes")
    for held in (federation.train, federation.heldout):
        digest.update(held.offsets.numpy().tobytes() + held.flat.numpy().tobytes())
    assert federation.fingerprint == digest.hexdigest()[:16]
