"""Data sets of Hugging Face and partitions of flwr-datasets."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation

datasets = pytest.importorskip("datasets")
Image = pytest.importorskip("PIL.Image")

KINDS = ("dog", "cat", "emu")
PIXELS = np.random.default_rng(0).integers(0, 256, (12, 5, 4, 3)).astype(np.uint8)
WANTED = PIXELS.transpose(0, 3, 1, 2)


@pytest.fixture
def pets():
    """Twelve pictures with labels that have names, in another order than the alphabet's."""
    features = datasets.Features(
        {
            "id": datasets.Value("int64"),
            "img": datasets.Image(),
            "kind": datasets.ClassLabel(names=list(KINDS)),
            "town": datasets.Value("string"),
        }
    )
    rows = {
        "id": list(range(12)),
        "img": [Image.fromarray(picture) for picture in PIXELS],
        "kind": [i % 2 for i in range(12)],
        "town": ["south", "north", "south"] * 4,
    }
    return datasets.Dataset.from_dict(rows, features=features)


def test_pictures_and_named_labels_are_found(pets):
    federation = Federation.from_datasets([pets], heldout=0)
    assert np.array_equal(federation.base.inputs.numpy(), WANTED)
    assert federation.base.targets.tolist() == [0, 1] * 6
    assert (federation.class_names, federation.classes) == (KINDS, 3)
    small = Federation.from_datasets({"one": pets}, resize=(3, 2))
    assert small.shape == (3, 3, 2)


def test_columns_may_be_named_and_identities_are_clients(pets):
    columns = {"inputs": "img", "targets": "kind", "identity": "town"}
    federation = Federation.from_datasets(pets, partition=cp.natural(), columns=columns, heldout=0)
    assert federation.client_names == ("north", "south")
    assert federation.train.sizes(torch.arange(2)).tolist() == [4, 8]
    by_town = Federation.from_datasets([pets], columns={"targets": "town"})
    assert by_town.class_names == ("north", "south")
    found = Federation.from_datasets(pets.rename_column("town", "writer_id"), partition=cp.natural())
    assert found.client_names == ("north", "south")


def test_splits_are_one_data_set_unless_none_of_them_is_for_training(pets):
    splits = datasets.DatasetDict({"train": pets.select(range(8)), "test": pets.select(range(8, 12))})
    dealt = Federation.from_datasets(splits, partition=cp.iid(2))
    assert (len(dealt.base), dealt.test.targets.tolist()) == (8, [0, 1, 0, 1])
    client = Federation.from_datasets({"a": splits, "b": pets}, heldout=0.5)
    assert client.heldout.sizes(torch.arange(2)).tolist() == [4, 6]
    named = Federation.from_datasets(datasets.DatasetDict({"north": pets, "south": pets}))
    assert named.client_names == ("north", "south")
    with pytest.raises(CounterpoiseError, match=r"which split. It has north, south. Give one of them: data\['north'\]"):
        Federation.from_datasets(datasets.DatasetDict({"north": pets, "south": pets}), partition=cp.iid(2))
    with pytest.raises(CounterpoiseError, match="This is one data set"):
        Federation.from_datasets(splits)


def test_saved_data_sets_are_read_from_their_folders(pets, tmp_path, monkeypatch):
    pets.save_to_disk(tmp_path / "one")
    splits = datasets.DatasetDict({"train": pets, "test": pets.select([1])})
    splits.save_to_disk(tmp_path / "two")
    clients = Federation.from_datasets({"a": tmp_path / "one", "b": str(tmp_path / "two")}, heldout=0)
    assert np.array_equal(clients.base.inputs[:12].numpy(), WANTED)
    assert (clients.class_names, clients.heldout.sizes(torch.arange(2)).tolist()) == (KINDS, [0, 1])
    loaded = cp.load(str(tmp_path / "two"), partition=cp.iid(3))
    assert (len(loaded.base), len(loaded.test), loaded.class_names) == (12, 1, KINDS)
    (tmp_path / "one" / "state.json").write_text("{")
    with pytest.raises(CounterpoiseError, match="one cannot be read as a data set"):
        Federation.from_datasets([tmp_path / "one"])
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(CounterpoiseError, match="Install it with: pip install datasets"):
        Federation.from_datasets([tmp_path / "one"])


def test_a_transform_of_the_users_is_applied(pets):
    def halved(rows):
        return {"img": [torch.from_numpy(np.array(p, np.float32)) / 2 for p in rows["img"]], "label": rows["kind"]}

    federation = Federation.from_datasets([pets.with_transform(halved)], heldout=0)
    assert np.array_equal(federation.base.inputs.numpy(), PIXELS / np.float32(2))
    assert federation.class_names == KINDS
    loader = torch.utils.data.DataLoader(pets.with_transform(halved), batch_size=4)
    assert Federation.from_datasets([loader], heldout=0).fingerprint == federation.fingerprint

    def noisy(rows):
        return {"img": [torch.rand(3) for _ in rows["img"]], "label": rows["kind"]}

    with pytest.raises(CounterpoiseError, match=r"sample 0 changes each time it is read.*augment="):
        Federation.from_datasets([pets.with_transform(noisy)])

    def named(rows):
        return {"img": [torch.zeros(3) for _ in rows["img"]], "label": [KINDS[i] for i in rows["kind"]]}

    assert Federation.from_datasets([pets.with_transform(named)]).class_names == ("cat", "dog")


def test_formats_and_subsets_change_nothing(pets):
    wanted = Federation.from_datasets([pets.select([3, 1, 2])], heldout=0).fingerprint
    for form in ("torch", "numpy", None):
        some = pets.with_format(form).select([3, 1, 2])
        assert Federation.from_datasets([some], heldout=0).fingerprint == wanted
    subset = torch.utils.data.Subset(pets, [3, 1, 2])
    federation = Federation.from_datasets([subset], columns={"targets": "kind"}, heldout=0)
    assert federation.base.inputs.tolist() == WANTED[[3, 1, 2]].tolist()


def test_names_of_classes_that_differ_are_joined(pets):
    other = pets.cast_column("kind", datasets.ClassLabel(names=["ant", "cat", "dog"]))
    federation = Federation.from_datasets([pets, other], heldout=0)
    assert federation.class_names == ("ant", "cat", "dog", "emu")
    assert federation.base.targets.tolist() == [2, 1] * 6 + [0, 1] * 6


def test_arrays_and_tables(pets):
    x = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    rows = {"features": list(x), "y": [0, 1, 2] * 2}
    arrays = datasets.Dataset.from_dict(
        rows,
        features=datasets.Features(
            {"features": datasets.List(datasets.Value("float32")), "y": datasets.Value("int64")}
        ),
    )
    assert np.array_equal(Federation.from_datasets([arrays], heldout=0).base.inputs.numpy(), x)
    table = datasets.Dataset.from_dict({"a": x[:, 0], "b": x[:, 1], "label": ["p", "q"] * 3})
    federation = Federation.from_datasets([table], heldout=0)
    assert np.array_equal(federation.base.inputs.numpy(), x)
    assert federation.class_names == ("p", "q")
    two = Federation.from_datasets([table], columns={"inputs": ["b"], "targets": "a"}, heldout=0)
    assert (two.classes, two.shape) == (None, (1,))


def test_data_sets_that_cannot_be_had_are_told(pets):
    def told(sentence, data, **columns):
        with pytest.raises(CounterpoiseError, match=sentence) as found:
            Federation.from_datasets({"a": data}, columns=columns or None)
        assert "\n" not in str(found.value)

    told("client a: this data set is streamed.*Load it without streaming=True", pets.to_iterable_dataset())
    told("There is no column 'im' in client a. Did you mean 'img'", pets, inputs="im")
    told("client a: which column holds the targets. There are id, img, town", pets.remove_columns("kind"))
    text = datasets.Dataset.from_dict({"text": ["good", "bad"], "label": [0, 1]})
    told("client a: the column text holds text", text)
    told("sample 0 has the label -1, but classes are numbered from 0", pets.map(lambda row: {"kind": -1}))
    lists = datasets.Dataset.from_dict({"a": [[1.0]], "b": [[2.0]], "label": [0]})
    told("client a: which column holds the inputs. There are a, b. Say columns=", lists)
    gaps = datasets.Dataset.from_dict({"a": [1.0, None], "label": [0, 1]})
    told("the column a has no value in 1 of 2 rows, row 2", gaps)


# ---------------------------------------------------------------- flwr-datasets


def test_partitions_of_flwr_datasets_are_clients(pets, tmp_path):
    flwr = pytest.importorskip("flwr_datasets")
    from flwr_datasets.partitioner import IidPartitioner

    pets.to_parquet(tmp_path / "set" / "train.parquet")
    pets.select([1]).to_parquet(tmp_path / "set" / "test.parquet")
    source = flwr.FederatedDataset(dataset=str(tmp_path / "set"), partitioners={"train": 3}, shuffle=False)
    wanted = [source.load_partition(number)["id"][:] for number in range(3)]
    for data in ([source.load_partition(number) for number in range(3)], source, source.partitioners["train"]):
        federation = Federation.from_datasets(data, test=source.load_split("test"), heldout=0)
        assert np.array_equal(federation.base.inputs.numpy(), WANTED[np.concatenate(wanted)])
        assert federation.train.sizes(torch.arange(3)).tolist() == [4, 4, 4]
        assert (len(federation.test), federation.class_names) == (1, KINDS)
    halves = [part.train_test_split(test_size=0.25, seed=0) for part in map(source.load_partition, range(3))]
    federation = Federation.from_datasets(halves)
    assert federation.heldout.sizes(torch.arange(3)).tolist() == [1, 1, 1]
    with pytest.raises(CounterpoiseError, match="flwr-datasets cannot deal this: The dataset field should be set"):
        Federation.from_datasets(IidPartitioner(2))
    with pytest.raises(CounterpoiseError, match="A partition deals one data set, but data holds 3"):
        Federation.from_datasets(source, partition=cp.iid(2))
