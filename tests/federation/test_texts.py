"""Texts: padded rows, plays by role, and data sets whose samples have parts."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import counterpoise as cp
from counterpoise.cli.datasets import draw
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_rows_are_padded_at_the_end_and_masked(kind):
    made = cp.padded([kind([5, 6, 7]), kind([8])], token=np.int64(-100), length=4)
    assert made["input_ids"].tolist() == [[5, 6, 7, -100], [8, -100, -100, -100]]
    assert made["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
    assert {part.dtype for part in made.values()} == {np.dtype("int64")}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (([[1], [1, 2]], 0, 1), "text 1 has 2 tokens, but length is 1. Cut it, or give a larger length"),
        (([[1], []], 0), "text 1 must be a row of one or more whole numbers, not .."),
        (([[1], [0.5]], 0), "text 1 must be a row of one or more whole numbers"),
        (([[1], [[1], [1, 2]]], 0), "text 1 must be a row of one or more whole numbers"),
        ((["to be"], 0), "text 0 is 'to be'; turn it into tokens"),
        (([], 0), "there are no texts"),
        (([[1]], None), "token must be a whole number, not None"),
        (([[1]], 0, 0), "length must be a whole number from 1 on, not 0"),
        (([[1]], True), "token must be a whole number, not True"),
        ((5, 0), "give a list of texts, each a row of tokens, not 5"),
        (("to be", 0), "give a list of texts, each a row of tokens, not 'to be'"),
        (([[1]], 0, 2.5), "length must be a whole number from 1 on, not 2.5"),
    ],
)
def test_what_cannot_be_padded_is_told(given, said):
    with pytest.raises(CounterpoiseError, match=f"padded: {said}"):
        cp.padded(*given)


# ---------------------------------------------------------------- plays by role


def put(folder, train, test, names, **changed):
    arrays = {"clients": np.array(names)}
    for part, texts in (("train", train), ("test", test)):
        arrays[f"text_{part}"] = np.frombuffer("".join(texts).encode(), np.uint8)
        arrays[f"off_{part}"] = np.cumsum([0, *map(len, texts)])
    arrays = {name: array for name, array in (arrays | changed).items() if array is not None}
    np.savez(folder / "shakespeare_by_role.npz", **arrays)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path))
    return tmp_path


def test_plays_are_cut_into_characters_and_those_that_follow(folder):
    """Every pair of neighbours within a role's text is learned once, and no pair across two roles."""
    rng = np.random.default_rng(0)
    train = ["".join(map(chr, rng.integers(97, 123, n))) for n in (200, 81, 1, 82, 5)]
    put(folder, train, ["abc", "a", "", "xy", "hello"], ["A/x", "A/y", "A/z", "B/x", "B/y"])
    fed = cp.load("shakespeare", partition=cp.natural(minimum=1), heldout=0)
    assert fed.client_names == ("A/x", "A/y", "B/x", "B/y")  # one has no pair
    assert fed.shape == (80,)
    assert fed.classes is None
    for client, text in enumerate([train[0], train[1], train[3], train[4]]):
        ids = torch.tensor([client])
        base = fed.base.rows(fed.train.rows(ids)[0][: int(fed.train.sizes(ids))].sort().values)
        assert len(base) == -(-(len(text) - 1) // 80)
        pairs = [(int(x), int(y)) for x, y in zip(base.inputs.flatten(), base.targets.flatten(), strict=True) if y >= 0]
        assert pairs == list(zip(text.encode(), text.encode()[1:], strict=False))
        assert (base.inputs[base.targets < 0] == 0).all()
        assert {*base.targets[base.targets < 0].tolist()} <= {-100}
    assert len(fed.test) == 3


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"clients": None}, "has no array called clients; it needs text_train, off_train"),
        (
            {"off_train": np.array([0, 9, 4])},
            "is damaged: off_train does not say where each client's text_train begins",
        ),
        ({"off_test": np.array([0, 2])}, "is damaged: off_test"),
    ],
)
def test_a_damaged_file_is_told(folder, changed, said):
    put(folder, ["abcd", ""], ["ab", "c"], ["x", "y"], **changed)
    with pytest.raises(CounterpoiseError, match=said):
        cp.load("shakespeare", partition=cp.natural(minimum=1))


def test_a_missing_file_is_told(folder):
    said = r"shakespeare_by_role.npz is not in .* \(nobody publishes it in this form\): put it there"
    with pytest.raises(CounterpoiseError, match=said):
        cp.load("shakespeare", partition=cp.natural())


# ---------------------------------------------------------------- data sets whose samples have parts


class Told(Dataset):
    """Samples made by a function of their number."""

    def __init__(self, make, count=6):
        self.make, self.count = make, count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return self.make(number)


IDS = np.arange(24).reshape(6, 4)
MASK = (np.arange(4) < 1 + np.arange(6)[:, None] % 4).astype(np.int64)
PARTS = {
    "pairs": lambda i: ({"input_ids": torch.tensor(IDS[i]), "attention_mask": MASK[i].tolist()}, i % 2),
    "one dictionary": lambda i: {"input_ids": IDS[i], "attention_mask": MASK[i], "labels": i % 2},
    "named columns": lambda i: {"ids": IDS[i], "mask": MASK[i], "more": 0, "y": i % 2},
}


@pytest.mark.parametrize("case", PARTS)
def test_parts_of_samples_become_arrays(case):
    columns = {"inputs": ["ids", "mask"]} if case == "named columns" else None
    data = [Told(PARTS[case]), Told(PARTS[case], 3)]
    fed = Federation.from_datasets(data, test=Told(PARTS[case]), columns=columns, heldout=0)
    ids, mask = ("ids", "mask") if columns else ("input_ids", "attention_mask")
    assert {*fed.base.inputs} == {ids, mask}
    assert np.array_equal(fed.base.inputs[ids].numpy(), np.concatenate([IDS, IDS[:3]]))
    assert np.array_equal(fed.test.inputs[mask].numpy(), MASK)
    assert fed.base.targets.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]


def test_tuples_and_arrays_with_names_are_parts_too():
    fed = Federation.from_datasets([Told(lambda i: ((IDS[i], np.float32(i)), i % 2))], heldout=0)
    assert np.array_equal(fed.base.inputs[0].numpy(), IDS)
    assert fed.base.inputs[1].tolist() == [0, 1, 2, 3, 4, 5]
    named = ({"input_ids": IDS, "attention_mask": MASK}, np.arange(6) % 2)
    fed = Federation.from_datasets({"north": named, "south": named}, test=named, heldout=0)
    assert fed.client_names == ("north", "south")
    assert np.array_equal(fed.base.inputs["attention_mask"].numpy(), np.concatenate([MASK, MASK]))
    assert len(Federation.from_datasets(named, partition=cp.iid(clients=2)).base) == 6


def test_columns_of_hugging_face_hold_tokens(tmp_path):
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict(
        {"text": ["a"] * 6, "input_ids": IDS.tolist(), "attention_mask": MASK.tolist(), "label": [0, 1] * 3}
    )
    for given in (made, made.with_format("torch")):
        fed = Federation.from_datasets(given, partition=cp.iid(clients=2), cache=False)
        assert np.array_equal(fed.base.inputs["input_ids"].numpy(), IDS)
        assert np.array_equal(fed.base.inputs["attention_mask"].numpy(), MASK)
        assert fed.classes == 2


@pytest.fixture
def reviews():
    """Tokenised texts with a named label and whose they are."""
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["good", "bad"])
    numbers = datasets.Sequence(datasets.Value("int64"))
    columns = {"input_ids": numbers, "sentiment": label, "label": datasets.Value("int64")}
    columns["client_id"] = datasets.Value("string")
    rows = {"input_ids": IDS.tolist(), "sentiment": [0, 1] * 3, "label": [7] * 6, "client_id": ["b", "a", "b"] * 2}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(columns))


def test_tokens_of_hugging_face_keep_their_named_label_and_whose_they_are(reviews):
    for given in (reviews, reviews.with_transform(lambda rows: {"x": rows["input_ids"], "y": rows["sentiment"]})):
        fed = Federation.from_datasets(given, partition=cp.natural(minimum=1), cache=False, heldout=0)
        assert fed.client_names == ("a", "b")
        assert fed.class_names == ("good", "bad")
        assert fed.base.targets.tolist() == [0, 1] * 3
        assert fed.train.rows(torch.tensor([0]))[0].sort().values.tolist() == [1, 4]


def test_a_folder_of_tokens_is_loaded(reviews, tmp_path, capsys):
    path = str(tmp_path / "reviews")
    reviews.save_to_disk(path)
    fed = cp.load(path, partition=cp.natural(minimum=1), heldout=0, samples=4)
    assert fed.base.inputs["input_ids"].shape == (4, 4)
    rows = fed.base.inputs["input_ids"][:, 0] // 4
    assert fed.base.targets.tolist() == (rows % 2).tolist()
    with pytest.raises(CounterpoiseError, match=r"scaling is for pictures in one array, but the inputs of .* several"):
        cp.load(path, partition=cp.iid(2), scaling="standard")
    draw(path, None, {}, None)
    assert "6 training and 0 test samples in parts: input_ids 4" in capsys.readouterr().out


def test_a_folder_of_tokens_in_splits_is_loaded_and_pooled(reviews, tmp_path):
    datasets = pytest.importorskip("datasets")
    splits = {"train": reviews.select(range(4)), "test": reviews.select(range(4, 6))}
    datasets.DatasetDict(splits).remove_columns("client_id").save_to_disk(str(tmp_path / "splits"))
    load = functools.partial(cp.load, str(tmp_path / "splits"), partition=cp.iid(2))
    assert np.array_equal(load().base.inputs["input_ids"].numpy(), IDS[:4])
    assert np.array_equal(load().test.inputs["input_ids"].numpy(), IDS[4:])
    assert np.array_equal(load(pool=True).base.inputs["input_ids"].numpy(), IDS)


WRONG = {
    "ragged": (
        lambda i: ({"ids": [1] * (1 + i)}, 0),
        r"sample 1 has shape \(2,\), but others .* cp.padded\(texts, token=0\)",
    ),
    "other parts": (
        lambda i: ({"ab"[i // 3]: 1}, 0),
        "sample 3 has the parts b, but others have the parts a. Give the same",
    ),
    "other counts": (lambda i: ((1,) * (1 + i // 3), 0), "sample 3 has 2 parts, but others have 1 parts"),
    "one piece": (
        lambda i: (IDS[i] if i else {"a": IDS[i]}, 0),
        "sample 1 has inputs in one piece, but others have the parts a",
    ),
    "parts within parts": (lambda i: ({"a": {"b": 1}}, 0), "has parts within a part; let the data set give one tensor"),
    "random": (lambda i: ({"a": np.random.default_rng().random(3)}, 0), "sample 0 changes each time it is read"),
}


@pytest.mark.parametrize("case", WRONG)
def test_samples_that_do_not_go_together_are_told(case):
    make, said = WRONG[case]
    with pytest.raises(CounterpoiseError, match=said):
        Federation.from_datasets([Told(make)])


def test_parts_with_unequal_rows_are_told():
    with pytest.raises(CounterpoiseError, match=r"client 0: x\['b'\] has 5 rows and y 6 rows; give as many of both"):
        Federation.from_datasets([({"a": IDS, "b": IDS[:5]}, np.arange(6) % 2)])
