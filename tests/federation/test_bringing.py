"""`from_datasets`: what PyTorch users have becomes a federation, and what cannot be brought in is told in a sentence."""

from __future__ import annotations

import io
import logging
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.federation.bringing import gathering

X, Y = np.arange(40, dtype=np.float32).reshape(20, 2), np.arange(20) % 3


class Mapped(Dataset):
    """Samples from a function of their number."""

    def __init__(self, sample, count=20):
        self.sample, self.count, self.reads = sample, count, []

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        self.reads.append(number)
        return self.sample(number)


def tensors(first=0, last=20):
    return TensorDataset(torch.from_numpy(X[first:last]), torch.from_numpy(Y[first:last]))


def held(federation, assignment="train"):
    """Inputs and targets of every client, in the order in which they were given."""
    assignment, ids = getattr(federation, assignment), torch.arange(federation.clients)
    rows = [row[:n].sort().values for row, n in zip(assignment.rows(ids), assignment.sizes(ids).tolist(), strict=True)]
    return [(federation.base.inputs[own].numpy(), federation.base.targets[own].numpy()) for own in rows]


def same(pairs, expected):
    return len(pairs) == len(expected) and all(
        np.array_equal(a, b)
        for pair, wanted in zip(pairs, expected, strict=True)
        for a, b in zip(pair, wanted, strict=True)
    )


PARTS = [(X[:12], Y[:12]), (X[12:], Y[12:])]

# ---------------------------------------------------------------- every form, to the same arrays

FORMS = {
    "arrays": lambda x, y: (x, y),
    "tensors": lambda x, y: (torch.from_numpy(x), torch.from_numpy(y)),
    "lists": lambda x, y: (list(x), y.tolist()),
    "a tensor data set": lambda x, y: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
    "a data set of NumPy": lambda x, y: Mapped(lambda i: (x[i], y[i]), len(y)),
    "a data set of Python's numbers": lambda x, y: Mapped(lambda i: [torch.tensor(x[i]), int(y[i])], len(y)),
    "targets of one number": lambda x, y: Mapped(lambda i: (x[i], torch.tensor([y[i]])), len(y)),
    "dictionaries": lambda x, y: Mapped(lambda i: {"img": x[i], "label": y[i], "id": i}, len(y)),
    "a loader": lambda x, y: DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), 7, shuffle=True),
    "a subset": lambda x, y: Subset(Mapped(lambda i: (x[i - 5], y[i - 5]), 90), range(5, 5 + len(y))),
    "joined": lambda x, y: ConcatDataset([Mapped(lambda i: (x[i], y[i]), len(y)), Subset(tensors(), [])]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_clients(form):
    federation = Federation.from_datasets([FORMS[form](x, y) for x, y in PARTS], heldout=0)
    assert same(held(federation), PARTS)
    assert (federation.clients, federation.classes, federation.client_names) == (2, 3, None)
    assert federation.fingerprint == Federation.from_clients(PARTS, heldout=0).fingerprint


@pytest.mark.parametrize("form", FORMS)
def test_one_data_set_is_dealt_and_another_is_the_test(form):
    federation = Federation.from_datasets(
        FORMS[form](X, Y), partition=cp.iid(4), test=FORMS[form](X[:5], Y[:5]), seed=3
    )
    wanted = Federation.from_arrays(X, Y, partition=cp.iid(4), test=(X[:5], Y[:5]), seed=3)
    assert federation.fingerprint == wanted.fingerprint


def test_random_splits_are_clients():
    parts = random_split(tensors(), [5, 15], generator=torch.Generator().manual_seed(0))
    (x, _), (z, _) = held(Federation.from_datasets(parts, heldout=0))
    assert sorted(np.concatenate([x, z]).tolist()) == X.tolist()
    assert len(x) == 5


def test_names_of_clients_are_kept_and_shown(tmp_path):
    federation = Federation.from_datasets({"north": tensors(0, 12), "south": PARTS[1]}, test=tensors())
    assert federation.client_names == ("north", "south")
    samples = "20 samples of shape (2,) in 3 classes, 4 of them held out"
    assert repr(federation) == f"Federation(2 clients (north, south), {samples}; test 20)"
    assert (federation.only(1).client_names, federation.on_server().client_names) == (("south",), ("north", "south"))
    assert federation.only("south").fingerprint == federation.only(1).fingerprint
    run = cp.simulate("fedavg", federation, model=cp.models.linear, rounds=1, out=tmp_path / "run")
    assert run.frame("clients")["name"].tolist() == ["north", "south"]
    assert run.frame("clients").columns[:5].tolist() == ["method", "seed", "round", "client", "name"]
    assert "name" not in run.frame("rounds")
    again = cp.resume(tmp_path / "run", rounds=2, federation=federation)
    assert again.frame("clients")["name"].tolist() == ["north", "south"] * 2


def test_fractions_may_differ_in_width():
    for first, second in (("f4", "f8"), ("f8", "f4"), ("f4", "f2")):
        federation = Federation.from_datasets([(X.astype(first), Y), (X.astype(second), Y)], heldout=0)
        assert federation.base.inputs.numpy().dtype == np.dtype(first)
        assert np.array_equal(federation.base.inputs.numpy(), np.concatenate([X, X]))


def test_an_empty_client_stays_a_client():
    federation = Federation.from_datasets({"a": tensors(), "b": Subset(tensors(), []), "c": PARTS[0]}, heldout=0)
    assert [len(y) for _, y in held(federation)] == [20, 0, 12]
    assert federation.client_names == ("a", "b", "c")


# ---------------------------------------------------------------- test parts


def test_a_clients_own_test_part_is_what_it_holds_out():
    federation = Federation.from_datasets([(X[:8], Y[:8], X[8:11], Y[8:11]), (X[11:], Y[11:])], heldout=1 / 3)
    trained, out = held(federation), held(federation, "heldout")
    assert same(trained[:1], [(X[:8], Y[:8])])
    assert same(out[:1], [(X[8:11], Y[8:11])])
    assert [len(y) for _, y in trained + out] == [8, 6, 3, 3]
    assert sorted(np.concatenate([trained[1][0], out[1][0]]).tolist()) == X[11:].tolist()


def test_a_clients_own_test_part_is_not_taken_by_the_server():
    parts = [(X[:8], Y[:8], X[8:11], Y[8:11]), (X[11:17], Y[11:17], X[17:], Y[17:])]
    federation = Federation.from_datasets(parts, probe=2, proxy=4)
    taken = torch.cat([federation.probe.inputs, federation.proxy.inputs]).numpy()
    assert len(taken) == 10
    assert not {row[0] for row in taken} & {*X[8:11, 0], *X[17:, 0]}
    assert [len(y) for _, y in held(federation, "heldout")] == [3, 3]
    assert sum(len(y) for _, y in held(federation)) == 14 - 10


def test_a_clients_own_test_part_is_seen_as_the_client_sees():
    pictures = np.full((6, 1, 2, 2), 100, np.uint8)
    labels = np.arange(6) % 2
    parts = [(pictures[:4], labels[:4], pictures[4:], labels[4:])]
    federation = Federation.from_datasets(parts * 2, features=cp.colour(0.5))
    for (x, _), (out, _) in zip(held(federation), held(federation, "heldout"), strict=True):
        assert len({*x.ravel().tolist()}) == 1
        assert {*x.ravel().tolist()} == {*out.ravel().tolist()} != {100}


def test_the_test_part_of_one_data_set_is_the_servers():
    federation = Federation.from_datasets((X[:15], Y[:15], X[15:], Y[15:]), partition=cp.iid(3))
    assert federation.test.inputs.tolist() == X[15:].tolist()
    assert len(federation.base) == 15


# ---------------------------------------------------------------- labels


def test_text_labels_become_numbers_and_are_remembered():
    federation = Federation.from_datasets(
        [Mapped(lambda i: (X[i], ("dog", "cat")[i % 2])), (X, ["emu", "cat"] * 10)], test=(X, ["cow"] * 20), heldout=0
    )
    assert federation.class_names == ("cat", "cow", "dog", "emu")
    assert federation.classes == 4
    (_, one), (_, two) = held(federation)
    assert (one.tolist(), two.tolist()) == ([2, 0] * 10, [3, 0] * 10)
    assert federation.test.targets.tolist() == [1] * 20


def test_text_labels_of_arrays_and_clients_too():
    federation = Federation.from_arrays(X, np.array(["10", "9"] * 10), partition=cp.iid(2), test=(X[:1], ["11"]))
    assert federation.class_names == ("9", "10", "11")  # by size
    assert federation.base.targets[:2].tolist() == [1, 0]
    assert federation.test.targets.tolist() == [2]
    clients = Federation.from_clients([(X, ["a", "c"] * 10), (X, ["b", "c"] * 10)], heldout=0, test=(X[:1], ["d"]))
    assert [y[:2].tolist() for _, y in held(clients)] == [[0, 2], [1, 2]]
    assert (clients.class_names, clients.test.targets.tolist()) == (("a", "b", "c", "d"), [3])


def test_numbers_may_have_names_and_then_all_classes_count():
    federation = Federation.from_arrays(X, Y % 2, partition=cp.iid(2), class_names=["no", "yes", "perhaps"])
    assert (federation.classes, federation.class_names) == (3, ("no", "yes", "perhaps"))
    with pytest.raises(
        CounterpoiseError, match=r"the label 2 has no name; the 2 classes \(no, yes\) are numbered from 0"
    ):
        Federation.from_arrays(X, Y, partition=cp.iid(2), class_names=["no", "yes"])
    with pytest.raises(CounterpoiseError, match="the label -1 has no name"):
        Federation.from_arrays(X, Y - 1, partition=cp.iid(2), class_names=["no", "yes", "perhaps"])


def test_names_of_classes_may_be_fixed():
    names = ["yes", "no", "perhaps"]
    texts, numbers = (X, ["no", "yes"] * 10), (X, [1, 0] * 10)
    made = [Federation.from_datasets([one], class_names=names, heldout=0) for one in (texts, numbers)]
    made += [
        Federation.from_arrays(*one, partition=[range(20)], class_names=names, heldout=0) for one in (texts, numbers)
    ]
    for federation in made:
        assert federation.base.targets.tolist() == [1, 0] * 10
        assert (federation.class_names, federation.classes) == (tuple(names), 3)
    for given, data, sentence in (
        (["yes"], texts, r"client 0: the label 'no' is not among class_names \(yes\). Add it"),
        (["no", "no"], texts, "class_names must be a list of different names, not"),
        ("no", texts, "class_names must be a list of different names, not 'no'"),
        (names, (X, X[:, 0]), "class_names are for classes, but these targets are fractions"),
    ):
        with pytest.raises(CounterpoiseError, match=sentence):
            Federation.from_datasets([data], class_names=given)


def test_identities_may_have_names():
    who = ["south", "north", "north", "east"] * 5
    federation = Federation.from_arrays(X, Y, partition=cp.natural(minimum=6), identities=who, heldout=0)
    assert federation.client_names == ("north",)
    assert held(federation)[0][0].tolist() == [X[i].tolist() for i in range(20) if who[i] == "north"]
    every = Federation.from_arrays(X, Y, partition=cp.natural(), identities=who, heldout=0, proxy=3)
    assert every.client_names == ("east", "north", "south")
    for name, (x, _) in zip(every.client_names, held(every), strict=True):
        assert {who[int(row[0]) // 2] for row in x} == {name}
    numbers = Federation.from_arrays(X, Y, partition=cp.natural(), identities=np.repeat([7, 5], 10))
    assert numbers.client_names == ("5", "7")


def test_fractions_are_regression_targets():
    federation = Federation.from_datasets([Mapped(lambda i: (X[i], float(i) / 2)), (X, X[:, 0])])
    assert federation.classes is None
    assert federation.base.targets.dtype == torch.float64


# ---------------------------------------------------------------- pictures


def test_pictures_become_bytes_with_their_channels_first():
    image = pytest.importorskip("PIL.Image")
    colours = np.random.default_rng(0).integers(0, 256, (20, 5, 4, 3)).astype(np.uint8)
    wanted, grey = colours.transpose(0, 3, 1, 2), colours[:, None, :, :, 0]
    for form, expected in (
        (Mapped(lambda i: (image.fromarray(colours[i]), i % 2)), wanted),
        (Mapped(lambda i: (colours[i], i % 2)), wanted),
        (Mapped(lambda i: (torch.from_numpy(wanted[i].copy()), i % 2)), wanted),
        ((colours, Y), wanted),
        (Mapped(lambda i: (image.fromarray(colours[i, :, :, 0]), i % 2)), grey),
        ((colours[:, :, :, 0], Y), grey),
        (Mapped(lambda i: (image.fromarray(colours[i]).convert("P"), 0)), None),
    ):
        federation = Federation.from_datasets([form], heldout=0)
        assert federation.base.inputs.dtype == torch.uint8
        assert expected is None or np.array_equal(federation.base.inputs.numpy(), expected)
        assert federation.shape in ((3, 5, 4), (1, 5, 4))
    numbers, _ = federation.base.take(torch.tensor([0]), torch.float32)
    assert float(numbers.max()) <= 1


def test_a_picture_of_more_than_a_byte_per_pixel_is_told():
    image = pytest.importorskip("PIL.Image")
    deep = image.fromarray(np.full((5, 4), 4000, np.uint16))
    with pytest.raises(CounterpoiseError, match=r"more than a byte per pixel \(mode I;16\)"):
        Federation.from_datasets([Mapped(lambda i: (deep, 0))])


# ---------------------------------------------------------------- read once, and the same each time


def test_samples_are_read_once_but_for_a_few():
    data = Mapped(lambda i: (X[i % 20], 0), 300)
    Federation.from_datasets([data])
    assert len(data.reads) == 300 + 2 * 10 + 1
    assert {*data.reads} == {*range(300)}


@pytest.mark.parametrize(
    "sample", [lambda i: (torch.rand(3), 1), lambda i: (torch.ones(3), int(torch.randint(0, 10**9, ())))]
)
def test_a_random_transform_is_refused(sample):
    with pytest.raises(
        CounterpoiseError, match=r"client b: sample 0 changes each time it is read.*cp\.Local\(augment="
    ):
        Federation.from_datasets({"a": tensors(), "b": Mapped(sample)})


def test_a_flip_of_half_the_samples_is_seen():
    torch.manual_seed(0)
    with pytest.raises(CounterpoiseError, match="random transform"):
        Federation.from_datasets([Mapped(lambda i: (X[i][:: 1 if torch.rand(()) < 0.5 else -1].copy(), 0))])


def test_samples_that_are_nan_are_not_taken_for_random():
    with pytest.raises(CounterpoiseError, match="client 0: the input of sample 0 holds NaN"):
        Federation.from_datasets([Mapped(lambda i: (np.full(2, np.nan), 0))])


def test_blocks_join_without_a_gap(monkeypatch):
    monkeypatch.setattr(gathering, "_BLOCK", 24)  # three samples
    federation = Federation.from_datasets(
        [FORMS["arrays"](*PARTS[0]), FORMS["a data set of NumPy"](*PARTS[1])], heldout=0
    )
    assert same(held(federation), PARTS)


def test_of_a_loader_only_the_data_set_counts_and_this_is_said(caplog):
    loader = DataLoader(tensors(), 5, shuffle=True, drop_last=True, collate_fn=lambda pairs: None)
    with caplog.at_level(logging.WARNING):
        federation = Federation.from_datasets([loader, DataLoader(tensors())], heldout=0)
    assert same(held(federation)[:1], [(X, Y)])
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "Of a DataLoader only its data set is used. Its batch size, order and collate_fn are not; say cp.Local(batch=5)."
    ]
    caplog.clear()
    Federation.from_datasets([tensors()])
    assert not caplog.records


def test_a_bar_is_shown_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    Federation.from_datasets([tensors()])
    assert "reading ━━━━━━━━━━━━━━━━━━━━━━━━ 20 of 20 samples" in sys.stderr.getvalue()


# ---------------------------------------------------------------- wrong forms


class Endless(IterableDataset):
    def __iter__(self):
        yield X[0], 0


class Unnumbered(Dataset):
    def __len__(self):
        return 3


class Lengthless(Dataset):
    def __getitem__(self, number):
        return X[0], 0


def one(sample, **settings):
    return lambda: Federation.from_datasets([Mapped(sample)], **settings)


def given(data, **settings):
    return lambda: Federation.from_datasets(data, **settings)


MISTAKES = {
    "one data set": (given(tensors()), r"This is one data set. Say how to deal it, partition=cp.iid\(clients=10\)"),
    "many and a partition": (given([tensors()] * 3, partition=cp.iid(2)), "data holds 3, one for each client"),
    "a number": (given(3), "data must be data sets, not 3"),
    "nothing": (given(None), "data must be data sets, not None"),
    "nobody": (given([]), "A federation needs at least one client"),
    "nothing at all": (given({"a": Subset(tensors(), [])}), "The data hold no samples"),
    "an array for a client": (
        given([X]),
        r"client 0 is of type ndarray; give a torch Dataset, a DataLoader, arrays \(x",
    ),
    "a number for a client": (given({"a": 3}), "client a is of type int; give a torch Dataset"),
    "three arrays": (given([(X, Y, X)]), r"client 0 is a tuple of 3 \(ndarray, ndarray, ndarray\); give"),
    "a list of samples": (
        given([(X[0], 1), (X[1], 0)]),
        r"client 0: x has 2 rows and y one value.*A list holds one data set for each client; stack single samples",
    ),
    "more inputs than targets": (given([(X, Y[:-1])]), "client 0: x has 20 rows and y 19 rows"),
    "one name twice": (given({1: tensors(), "1": tensors()}), "Two clients are called '1'"),
    "iterable": (given([Endless()]), r"client 0: Endless gives its samples only one after the other.*zip\(\*dataset\)"),
    "a loader of an iterable": (given([DataLoader(Endless())]), "Endless gives its samples only one after the other"),
    "no length": (given([Lengthless()]), "Lengthless gives its samples only one after the other, without"),
    "no numbers": (given([Unnumbered()]), "sample 0 cannot be read"),
    "a sampler": (
        given([DataLoader(tensors(), sampler=SubsetRandomSampler([1, 2]))]),
        r"SubsetRandomSampler chooses 2 of 20 samples.*torch\.utils\.data\.Subset\(dataset, indices\)",
    ),
    "a sampler that repeats": (
        given([DataLoader(tensors(), sampler=WeightedRandomSampler([1.0] * 20, 20))]),
        "WeightedRandomSampler chooses 20 of 20 samples, some more than once, but of a loader only its data set counts",
    ),
    "a class": (given([TensorDataset]), "client 0 is the class TensorDataset, not a data set of it"),
    "a list of arrays": (given([[X, Y]]), r"client 0 is a list of 2 \(ndarray, ndarray\); give"),
    "columns in a list": (given([tensors()], columns=["x"]), r"columns must be a dictionary such as .*, not \['x'\]"),
    "a column by number": (
        given([tensors()], columns={"inputs": 3}),
        "columns: 'inputs' must be the name of a column, or a list of names, not 3",
    ),
    "columns of nothing": (
        given([tensors()], columns={"inputs": []}),
        "columns: 'inputs' must be the name of a column",
    ),
    "an input without parts": (one(lambda i: ({}, 0)), "the input of sample 0 has no parts"),
    "dictionaries in an array": (given([(np.array([{}] * 20), Y)]), "client 0: inputs: the type is object"),
    "a sparse tensor": (
        given([(torch.from_numpy(X).to_sparse(), Y)]),
        r"client 0: x: this tensor is sparse.*x.to_dense",
    ),
    "sparse samples": (one(lambda i: (torch.ones(3).to_sparse(), 0)), "the input of sample 0: this tensor is sparse"),
    "a tensor without numbers": (given([(torch.empty(20, 2, device="meta"), Y)]), "or without numbers"),
    "infinity": (
        given({"a": (X, Y), "b": (np.where(X == 15, np.inf, X), Y)}),
        "client b: the input of sample 7 holds NaN or infinity",
    ),
    "a target that is NaN": (
        given([(X, np.where(Y == 2, np.nan, 0.5))]),
        "client 0: the target of sample 2 holds NaN or infinity",
    ),
    "no label": (
        given({"a": (X, Y), "b": (X, np.where(np.arange(20) == 4, -1, Y))}),
        "client b: sample 4 has the label -1, but classes are numbered from 0",
    ),
    "masked values": (
        given([(np.ma.masked_array(X, X > 9), Y)]),
        r"client 0: x: some values are masked.*x.filled\(0\)",
    ),
    "an empty path": (given("", partition=cp.iid(2)), "the data: the path is empty"),
    "a scale by name": (given([(X, Y)], scale="unit"), "scale must be a number or a tensor of them, not 'unit'"),
    "a narrow and a wide fraction": (
        given([(X.astype(np.float16), Y), (X, Y)]),
        "client 1: sample 0 is of type float32, but others are of type float16",
    ),
    "too large for the others": (
        given([(X, Y), (X.astype(float) + 1e300, Y)]),
        "client 1: the input of sample 0 holds NaN or infinity",
    ),
    "whose": (given(tensors(), partition=cp.natural()), r"Name a table's column, columns=\{'identity': 'hospital'\}"),
    "a bare input": (one(lambda i: X[i]), r"sample 0 is of type ndarray; a data set must give pairs \(input, target\)"),
    "three parts": (one(lambda i: (1, 2, 3)), "sample 0 has 3 parts; a data set must give pairs"),
    "unknown parts": (one(lambda i: {"a": 1, "label": 2}), "which part of a sample holds its inputs. It has a, label"),
    "a wrong part": (
        one(lambda i: {"photo": 1, "label": 2}, columns={"inputs": "phto"}),
        "There is no part 'phto' of a sample of client 0. Did you mean 'photo'",
    ),
    "a wrong column": (
        given([tensors()], columns={"input": "x"}),
        "There is no column 'input' of a data set. Did you mean",
    ),
    "text": (one(lambda i: ("good film", 0)), "is text, 'good film'; turn it into numbers"),
    "an object": (one(lambda i: (object(), 0)), "the input of sample 0: the type is object; give whole"),
    "complex numbers": (given([(X * 1j, Y)]), "client 0: inputs: the type is complex64; give whole"),
    "shapes": (
        one(lambda i: (np.zeros((1 + i % 3, 4)), 0)),
        r"sample \d+ has shape \(\d, 4\), but others have shape \(\d, 4\). Bring samples to one shape: pictures with resize=",
    ),
    "types": (
        one(lambda i: (np.zeros(2, "uint8" if i == 7 else "f"), 0)),
        "sample 7 is of type uint8, but others are of",
    ),
    "types of clients": (
        given([(X, Y), (X.astype(np.uint8), Y)]),
        "client 1: sample 0 is of type uint8, but others are of type float32",
    ),
    "shapes of clients": (
        given([(X, Y), (X[:, :1], Y)]),
        r"client 1: sample 0 has shape \(1,\), but others have shape \(2,",
    ),
    "shape of the test": (given([(X, Y)], test=(X[:, :1], Y)), "the test set: sample 0 has shape"),
    "no target": (one(lambda i: (X[i], None)), "sample 0 has no target; give one class number, name or array"),
    "targets in more parts": (
        given([(X, {"box": X, "kind": Y}), (X, {"box": X})]),
        "client 1 has the parts box, but others have the parts box, kind. Give the same parts to all.",
    ),
    "targets in parts and in one piece": (
        one(lambda i: (X[i], {"box": 1} if i < 3 else 1)),
        "sample 3 has targets in one piece, but others have the parts box",
    ),
    "targets in one piece and in parts": (
        one(lambda i: (X[i], 1 if i < 3 else {"box": 1})),
        r"sample 3 has parts within its target \('box'\); give one class number",
    ),
    "parts of targets in parts": (
        one(lambda i: (X[i], {"box": {"x": 1}})),
        r"client 0, part 'box': sample 0 has parts within its target \('x'\)",
    ),
    "text in parts of targets": (
        given([(X, {"kind": Y, "name": ["a", "b"] * 10})]),
        "client 0: the part 'name' of targets is text; turn it into numbers first",
    ),
    "names for targets in parts": (given([(X, (X, Y))], class_names=["a", "b", "c"]), "these targets have parts"),
    "fewer rows in a part of targets": (given([(X, (X, Y[:-1]))]), "client 0: x has 20 rows and y 19 rows"),
    "fewer rows in a part of inputs": (given([((X, X[:-1]), Y)]), r"client 0: x\[1\] has 19 rows and y 20 rows"),
    "parts or a test set": (
        given([((X, Y), (X, Y))]),
        "client 0: this may be inputs and targets in parts, or a training and a test set. Give parts as dictionaries",
    ),
    "a test part in a pair": (
        given([((X, Y, X, Y), tensors())]),
        "client 0 is a pair of data sets for training and test, and one of them has a test part of its own",
    ),
    "ragged targets": (one(lambda i: (X[i], np.zeros(1 + i % 2))), r"targets differ in shape: \(1,\) and \(2,\)"),
    "one-hot": (given([(X, np.eye(3)[Y])]), r"targets are one-hot rows of 3 numbers; .* y.argmax\(1\)"),
    "some text": (one(lambda i: (X[i], "a" if i else 0)), "sample 0 has the label 0, but others have text"),
    "text and numbers": (
        given({"a": (X, Y), "b": (X, ["x", "y"] * 10)}),
        r"client a: labels are numbers, but those of client b are names \(x, y\). Give both",
    ),
    "classes and fractions": (
        given([(X, Y), (X, X[:, 0])]),
        "client 1: targets of type float32 .* do not go with those",
    ),
    "text that is no label": (
        given([(np.zeros((30, 1)), [f"word {i}" for i in range(30)])]),
        "30 samples have 30 different labels .*so these are no class labels",
    ),
    "two test sets": (
        given((X, Y, X, Y), partition=cp.iid(2), test=(X, Y)),
        "The data bring a test part, and test= gives another",
    ),
    "a test of a test": (given([(X, Y)], test=(X, Y, X, Y)), "test is one set"),
    "a broken data set": (
        one(lambda i: 1 / 0),
        r"client 0: sample 0 cannot be read \(ZeroDivisionError: division by zero\)",
    ),
    "scaling": (given([(X, Y)], scaling="unit"), "scaling is for bytes, but the inputs of the data are float32"),
    "scaling twice": (given([(X, Y)], scaling="unit", shift=-1.0), "Give it or these two, not both"),
    "a test set and a fraction": (given((X, Y, X, Y), partition=cp.iid(2), test=0.2), "test=0.2 asks for another"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_form_gets_one_sentence(mistake):
    call, sentence = MISTAKES[mistake]
    with pytest.raises(CounterpoiseError, match=sentence) as found:
        call()
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 420
