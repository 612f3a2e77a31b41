"""`load`: scaling, parts of a set, real data where it is here, and what flwr-datasets can load."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import datasets
from counterpoise.federation.catalogue import DATASETS, place
from counterpoise.federation.datasets import read
from counterpoise.federation.readers import read_arrays


@pytest.fixture
def colours(tmp_path):
    x = np.random.default_rng(0).integers(0, [[[[99]], [[200]], [[256]]]], (60, 3, 4, 5)).astype(np.uint8)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.arange(60) % 4, x_test=x[:7], y_test=np.arange(7) % 4)
    return str(tmp_path / "a.npz"), x


def numbers(fed):
    return fed.base.take(torch.arange(len(fed.base)), torch.float64)[0].numpy()


def test_bytes_become_numbers_as_asked(colours):
    path, x = colours
    unit, centred, standard = (cp.load(path, partition=cp.iid(2), scaling=s) for s in ("unit", "centred", "standard"))
    assert np.allclose(numbers(unit), x / 255)
    assert np.array_equal(numbers(cp.load(Path(path), partition=cp.iid(2))), numbers(unit))
    assert np.allclose(numbers(centred), x / 255 * 2 - 1)
    mean, deviation = (f(x.astype(float), axis=(0, 2, 3), keepdims=True) for f in (np.mean, np.std))
    assert np.allclose(numbers(standard), (x - mean) / deviation)
    assert standard.base.inputs.dtype == torch.uint8
    test = standard.test.take(torch.arange(7), torch.float64)[0].numpy()
    assert np.allclose(test, ((x - mean) / deviation)[:7])  # the training part's mean, not its own


def test_means_and_deviations_may_be_named(colours):
    path, x = colours
    mean, deviation = np.array([0.4, 0.5, 0.1]), np.array([0.2, 0.25, 1])
    named = cp.load(path, partition=cp.iid(2), scaling={"mean": mean, "deviation": deviation})
    wanted = (x / 255 - mean[:, None, None]) / deviation[:, None, None]
    assert np.allclose(numbers(named), wanted)
    assert np.allclose(named.test.take(torch.arange(7), torch.float64)[0].numpy(), wanted[:7])
    assert named.source["scaling"] == {"mean": [0.4, 0.5, 0.1], "deviation": [0.2, 0.25, 1]}
    grey = cp.load("digits", partition=cp.iid(2), scaling={"mean": [0.5], "deviation": [0.5]})
    assert np.allclose(numbers(grey), numbers(cp.load("digits", partition=cp.iid(2), scaling="centred")))


def test_each_picture_may_have_a_mean_and_a_deviation_of_its_own(colours):
    path, x = colours
    fed = cp.load(path, partition=cp.iid(2), scaling="per-picture")
    mean, deviation = (f(x.astype(float), axis=(1, 2, 3), keepdims=True) for f in (np.mean, np.std))
    assert np.allclose(numbers(fed), (x - mean) / deviation)
    assert np.allclose(fed.test.take(torch.arange(7), torch.float64)[0].numpy(), ((x - mean) / deviation)[:7])
    plain = cp.load(path, partition=cp.iid(2))
    assert len({fed.fingerprint, plain.fingerprint, plain.per_picture().fingerprint}) == 3
    assert plain.source is not None  # a changed federation is not what its source makes
    assert plain.per_picture().source is None
    assert plain.cropped((4, 4)).source is None
    grid = fed.base.take(torch.arange(6).view(2, 3), torch.float64)[0]
    assert np.allclose(grid.numpy(), ((x - mean) / deviation)[:6].reshape(2, 3, 3, 4, 5))


def test_a_picture_of_one_colour_is_dark_and_one_of_almost_one_is_not_made_bright():
    x = torch.full((2, 1, 4, 4), 7, dtype=torch.uint8)
    x[1, 0, 0, 0] = 8
    fed = cp.Federation.from_arrays(x, torch.tensor([0, 1]), partition=cp.iid(1), heldout=0, scale=1.0).per_picture()
    seen = fed.base.take(torch.arange(2), torch.float64)[0]
    assert (seen[0] == 0).all()
    assert float(seen[1].max()) == pytest.approx((1 - 1 / 16) / (1 / 4))  # its deviation, 0.242, counts as 1 / sqrt(16)


@pytest.mark.parametrize("scaling", ["per-picture", {"mean": [0, 0.5, 1], "deviation": [1, 0.5, 2]}])
def test_a_scaling_is_kept_and_resumed(colours, tmp_path, scaling):
    fed = cp.load(colours[0], partition=cp.iid(2), scaling=scaling)
    settings = {"model": cp.models.linear, "rounds": 2}
    cp.simulate("fedavg", fed, out=tmp_path / "run", on_round=lambda record: record.round == 1, **settings)
    assert cp.resume(tmp_path / "run").accuracy == cp.simulate("fedavg", fed, **settings).accuracy


def test_a_file_is_read_once_and_again_if_it_changes(colours, monkeypatch):
    path, x = colours
    reads = []
    monkeypatch.setattr(datasets, "read_arrays", lambda path: reads.append(path) or read_arrays(path))
    one, two = (cp.load(path, partition=cp.iid(2), seed=seed) for seed in (0, 1))
    assert len(reads) == 1
    assert one.base.inputs.data_ptr() == two.base.inputs.data_ptr()
    np.savez(path, x_train=x[::-1], y_train=np.arange(60) % 4)
    os.utime(path, ns=(0, 0))  # the clock may not have moved on
    assert np.allclose(numbers(cp.load(path, partition=cp.iid(2))), x[::-1] / 255)


def test_a_folder_is_read_again_if_one_of_its_files_changes(tmp_path):
    arrays = {"x_train": np.zeros((6, 2), "f"), "y_train": np.arange(6) % 2}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    assert (numbers(cp.load(str(tmp_path), partition=cp.iid(2))) == 0).all()
    when = tmp_path.stat().st_mtime_ns
    (tmp_path / "x_train.npy").unlink()  # the earlier federation still maps it
    np.save(tmp_path / "x_train.npy", arrays["x_train"] + 1)
    os.utime(tmp_path / "x_train.npy", ns=(0, 0))
    os.utime(tmp_path, ns=(when, when))  # as if it had been overwritten in place
    assert (numbers(cp.load(str(tmp_path), partition=cp.iid(2))) == 1).all()


def test_digits_have_17_levels():
    for scaling, low, high in (("unit", 0, 1), ("centred", -1, 1), (None, -1, 1)):
        found = numbers(cp.load("digits", partition=cp.iid(2), scaling=scaling))
        assert (found.min(), found.max()) == (low, high)
    found = numbers(cp.load("digits", partition=cp.iid(2), scaling="standard"))
    assert (found.mean(), found.std()) == pytest.approx((0, 1))


def test_a_part_of_the_samples(colours):
    path, _ = colours
    one, two, other = (cp.load(path, partition=cp.iid(2), samples=20, seed=s) for s in (0, 0, 1))
    assert len(one.base) == 20
    assert one.fingerprint == two.fingerprint != other.fingerprint
    assert len(np.unique(one.base.inputs.numpy().reshape(20, -1), axis=0)) == 20


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"scaling": "unite"}, "There is no scaling 'unite'. Did you mean 'unit'"),
        ({"scaling": {"mean": [0.5]}}, "with mean and deviation, each a list with a number for each of 3 channels"),
        ({"scaling": {"mean": [0, 0, 0], "deviation": [1, 1]}}, "for each of 3 channels"),
        ({"scaling": {"mean": [0, 0, 0], "deviation": [1, 1, 0]}}, "deviations are above 0. This is"),
        ({"scaling": {"mean": [0, 0, float("nan")], "deviation": [1, 1, 1]}}, "for each of 3 channels"),
        ({"scaling": {"mean": "abc", "deviation": [1, 1, 1]}}, "for each of 3 channels"),
        ({"scaling": 2}, "scaling must be a name or a table with mean and deviation"),
        ({"samples": 0}, "samples must be a whole number from 1 to the 60 there are, not 0"),
        ({"samples": 61}, "samples must be a whole number from 1 to the 60 there are, not 61"),
        ({"columns": {"inputs": "x"}}, "columns is for tables, pictures and flwr: data sets"),
        ({"seed": -1}, "seed must be a whole number at least 0"),
    ],
)
def test_a_bad_setting_is_refused(colours, settings, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        cp.load(colours[0], partition=cp.iid(2), **settings)


def test_only_bytes_are_scaled():
    with pytest.raises(CounterpoiseError, match="scaling is for bytes, but the inputs of synthetic are float32"):
        cp.load("synthetic", partition=cp.iid(2), scaling="unit")


def test_a_data_set_is_read_once_for_many_federations():
    one, two = (cp.load("digits", partition=cp.iid(2), seed=s) for s in (0, 0))
    assert one.base.inputs.data_ptr() == two.base.inputs.data_ptr()


# ---------------------------------------------------------------- real data, where it is here

COUNTS = {
    "mnist": (60_000, 10_000, 10),
    "fashion-mnist": (60_000, 10_000, 10),
    "cifar10": (50_000, 10_000, 10),
    "cifar100": (50_000, 10_000, 100),
    "stl10": (5_000, 8_000, 10),
    "pathmnist": (89_996, 7_180, 9),
    "organamnist": (34_561, 17_778, 11),
    "bloodmnist": (11_959, 3_421, 8),
}
MEANS = {  # the usual constants of these sets, and their deviations
    "mnist": ([0.1307], [0.3081]),
    "fashion-mnist": ([0.2860], [0.3530]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    "cifar100": ([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
}


def real(name):
    if place(DATASETS[name]) is None:
        pytest.skip(f"{name} is not in the local data folder")
    return name


@pytest.mark.data
@pytest.mark.parametrize("name", COUNTS)
def test_real_data_is_all_there(name):
    federation = cp.load(real(name), partition=cp.dirichlet(0.5, clients=50), scaling="standard")
    train, test, classes = COUNTS[name]
    assert (len(federation.base), len(federation.test), federation.classes) == (train, test, classes)
    held = federation.train.sizes(torch.arange(50)).sum() + federation.heldout.sizes(torch.arange(50)).sum()
    assert int(held) == train
    if name in MEANS:
        scale, shift = (v.flatten().numpy() for v in (federation.base.scale, federation.base.shift))
        assert -shift / scale / 255 == pytest.approx(MEANS[name][0], abs=1e-4)
        assert 1 / scale / 255 == pytest.approx(MEANS[name][1], abs=1e-4)


@pytest.mark.data
def test_mnists_writers_are_539_with_their_own_digits():
    try:
        federation = cp.load(real("mnist"), partition=cp.natural(), heldout=0)
    except cp.CounterpoiseError as error:
        if "could not be fetched" not in str(error):
            raise
        pytest.skip("MNIST's writers are not in the local data folder")
    sizes = federation.train.sizes(torch.arange(federation.clients))
    assert federation.clients == 539
    assert int(sizes.sum()) == 60_000
    assert 80 < float(sizes.double().mean()) < 140


@pytest.mark.data
def test_fedbacs_shards_on_mnist():
    federation = cp.load(real("mnist"), partition=cp.shards(20, per_client=2, total=300), heldout=0)
    ids = torch.arange(20)
    assert federation.train.sizes(ids).tolist() == [400] * 20
    labels = [len(federation.base.targets[rows].unique()) for rows in federation.train.rows(ids)]
    assert max(labels) <= 4  # a shard may lie across two labels
    assert np.mean(labels) < 3


# ---------------------------------------------------------------- flwr-datasets


@pytest.fixture
def hub(tmp_path):
    """A folder that the hub's library loads as a data set: twelve pictures of different grey."""
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("flwr_datasets")
    image = pytest.importorskip("PIL.Image")
    features = datasets.Features(
        {"picture": datasets.Image(), "kind": datasets.ClassLabel(num_classes=3), "writer_id": datasets.Value("string")}
    )
    for split, n in (("train", 12), ("test", 4)):
        rows = {
            "picture": [image.fromarray(np.full((5, 4), 10 * i, np.uint8)) for i in range(n)],
            "kind": [i % 3 for i in range(n)],
            "writer_id": [f"w{i // 4}" for i in range(n)],
        }
        datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "set" / f"{split}.parquet")
    return f"flwr:{tmp_path / 'set'}"


def test_flwr_datasets_load_what_they_can(hub):
    federation = cp.load(hub, partition=cp.natural(), heldout=0)
    assert (federation.clients, federation.shape, federation.classes) == (3, (1, 5, 4), 3)
    assert federation.base.inputs[:, 0, 0, 0].tolist() == [10 * i for i in range(12)]
    assert federation.base.targets.tolist() == [i % 3 for i in range(12)]
    assert len(federation.test) == 4
    named = cp.load(hub, partition=cp.iid(2), columns={"inputs": "picture", "targets": "kind"})
    assert named.source["columns"] == {"inputs": "picture", "targets": "kind"}


@pytest.mark.parametrize(
    ("shape", "dtype", "read"),
    [
        ((5, 4), "uint8", (1, 5, 4)),
        ((3, 5, 4), "uint8", (3, 5, 4)),
        ((5, 4, 3), "uint8", (3, 5, 4)),
        ((5, 4), "float32", (5, 4)),
        (None, "uint8", (4,)),
    ],
)
def test_declared_bytes_stay_bytes_and_can_be_trained(hub, tmp_path, shape, dtype, read):
    datasets = pytest.importorskip("datasets")
    kinds = {2: datasets.Array2D, 3: datasets.Array3D}
    kind = datasets.List(datasets.Value(dtype)) if shape is None else kinds[len(shape)](shape=shape, dtype=dtype)
    x = np.random.default_rng(0).integers(0, 256, (12, *(shape or (4,)))).astype(dtype)
    features = datasets.Features({"cells": kind, "label": datasets.ClassLabel(num_classes=3)})
    made = datasets.Dataset.from_dict({"cells": list(x), "label": [i % 3 for i in range(12)]}, features=features)
    made.to_parquet(tmp_path / "own" / "train.parquet")
    federation = cp.load(f"flwr:{tmp_path / 'own'}", partition=cp.iid(2), columns={"inputs": "cells"}, heldout=0)
    assert federation.shape == read
    assert federation.base.inputs.dtype == getattr(torch, dtype)
    wanted = x.transpose(0, 3, 1, 2) if shape == (5, 4, 3) else x.reshape(12, *read)
    assert np.array_equal(federation.base.inputs.numpy(), wanted)
    run = cp.simulate("fedavg", federation, model=cp.models.linear, rounds=1)
    assert len(run.rounds) == 1


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"inputs": "pictur"}, "There is no column 'pictur' in .*Did you mean 'picture'"),
        ({"input": "picture"}, "There is no column 'input' of a data set. Did you mean 'inputs'"),
    ],
)
def test_a_column_that_is_not_there_is_told(hub, columns, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        cp.load(hub, partition=cp.iid(2), columns=columns)


def test_a_set_that_the_hub_does_not_have_is_told(hub):
    with pytest.raises(CounterpoiseError, match=r"flwr-datasets cannot load '.*nowhere'"):
        read(hub + "/nowhere")


def test_partitioners_of_flwr_datasets_deal():
    pytest.importorskip("flwr_datasets")
    options = {"num_partitions": 5, "alpha": 0.5, "min_partition_size": 2}
    one, two, other = (
        cp.load("digits", partition=cp.flwr("DirichletPartitioner", options), heldout=0, probe=1, seed=s)
        for s in (0, 0, 1)
    )
    assert one.fingerprint == two.fingerprint != other.fingerprint
    assert one.clients == 5
    assert sorted(one.train.flat.tolist()) == sorted(set(one.train.flat.tolist()))
    assert len(one.train.flat) == 1438 - 10
    equal = cp.load("digits", partition=cp.flwr("IidPartitioner", {"num_partitions": 4}), heldout=0)
    assert sorted(set(equal.train.sizes(torch.arange(4)).tolist())) in ([359, 360], [359], [360])
    for name, sentence in (
        ("DirichletPartitione", "Did you mean 'DirichletPartitioner'"),
        ("VerticalSizePartitioner", ""),
    ):
        with pytest.raises(CounterpoiseError, match=rf"There is no partitioner .*{sentence}"):
            cp.load("digits", partition=cp.flwr(name, {}))
    with pytest.raises(CounterpoiseError, match="IidPartitioner of flwr-datasets cannot deal this"):
        cp.load("digits", partition=cp.flwr("IidPartitioner", {"num_partitions": -1}))


def test_without_the_extra_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    for make in (
        lambda: read("flwr:mnist"),
        lambda: cp.load("digits", partition=cp.flwr("IidPartitioner", {"num_partitions": 4})),
    ):
        with pytest.raises(CounterpoiseError, match=r"pip install 'counterpoise\[datasets\]'"):
            make()


def test_arrays_given_as_a_name_are_told_where_they_belong():
    arrays = (np.zeros((4, 2)), np.zeros(4, int))
    with pytest.raises(CounterpoiseError, match=r"load takes the name of a data set .* cp.Federation.from_datasets"):
        cp.load(arrays, partition=cp.iid(clients=2))


def test_a_pooled_test_set_is_dealt_to_clients_too():
    plain, pooled = (cp.load("digits", partition=cp.iid(clients=4), heldout=0.25, pool=pool) for pool in (False, True))
    everyone = torch.arange(4)
    held = pooled.train.sizes(everyone).sum() + pooled.heldout.sizes(everyone).sum()
    assert (len(pooled.base), pooled.test, int(held)) == (1797, None, 1797)
    assert len(plain.base) + len(plain.test) == 1797
    ours, theirs = (torch.cat(parts) for parts in ((plain.base.inputs, plain.test.inputs), (pooled.base.inputs,)))
    assert torch.equal(ours, theirs)
    assert torch.equal(torch.cat((plain.base.targets, plain.test.targets)), pooled.base.targets)
    assert pooled.source["pool"] is True
    assert "pool" not in plain.source


def test_what_cannot_be_pooled_is_told(tmp_path):
    np.savez(tmp_path / "alone.npz", x_train=np.zeros((4, 2)), y_train=np.arange(4) % 2)
    with pytest.raises(CounterpoiseError, match=r"pool deals the test set to clients too, but .*alone\.npz has none"):
        cp.load(str(tmp_path / "alone.npz"), partition=cp.iid(clients=2), pool=True)
    arrays = {
        "x_train": np.zeros((4, 2)),
        "y_train": np.arange(4) % 2,
        "x_test": np.zeros((2, 2)),
        "y_test": np.arange(2),
    }
    np.savez(tmp_path / "both.npz", **arrays)
    with pytest.raises(CounterpoiseError, match="its test samples do not say whose they are"):
        cp.load(str(tmp_path / "both.npz"), partition=cp.natural(), pool=True)
