"""Inputs and targets in parts, and pairs of data sets for training and test, as users bring them."""

from __future__ import annotations

import gc
import logging

import numpy as np
import pytest
import torch
from helpers import double
from torch import nn
from torch.utils.data import DataLoader, Dataset, StackDataset, TensorDataset

import counterpoise as cp
from counterpoise.federation import Federation
from counterpoise.federation.bringing import cache, gathering
from counterpoise.local import Local, sgd

GENERATOR = np.random.default_rng(0)
X, SEEN = GENERATOR.normal(size=(20, 3)).astype(np.float32), GENERATOR.normal(size=(20, 2)).astype(np.float32)
KIND, BOX = np.arange(20) % 3, GENERATOR.normal(size=(20, 4)).astype(np.float32)
ONE_HOT = np.eye(3, dtype=np.float32)[KIND]


class Told(Dataset):
    """Samples from a function of their number."""

    def __init__(self, sample, count=20):
        self.sample, self.count = sample, count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return self.sample(number)


NAMED = {
    "arrays": (X, {"kind": KIND, "box": BOX}),
    "samples": Told(lambda i: (X[i], {"kind": KIND[i], "box": torch.from_numpy(BOX[i])})),
    "columns": StackDataset(x=torch.from_numpy(X), kind=torch.from_numpy(KIND), box=torch.from_numpy(BOX)),
}
PLACED = {
    "arrays": (X, (KIND, torch.from_numpy(BOX))),
    "samples": Told(lambda i: (X[i], (KIND[i], BOX[i]))),
    "tensors": Told(lambda i: (X[i], (torch.tensor(KIND[i]), torch.from_numpy(BOX[i])))),
}


def as_arrays(tree):
    return {name: tensor.numpy() for name, tensor in (tree.items() if isinstance(tree, dict) else enumerate(tree))}


@pytest.mark.parametrize("form", NAMED)
def test_targets_with_names(form, monkeypatch):
    monkeypatch.setattr(gathering, "_MOST_ROWS", 7)
    columns = {"inputs": "x", "targets": ["kind", "box"]} if form == "columns" else None
    fed = Federation.from_datasets([NAMED[form]], test=NAMED[form], columns=columns, heldout=0)
    for found in (as_arrays(fed.base.targets), as_arrays(fed.test.targets)):
        assert [*found] == ["box", "kind"]
        assert np.array_equal(found["box"], BOX)
        assert np.array_equal(found["kind"], KIND)
    assert (fed.classes, fed.class_names) == (None, None)


@pytest.mark.parametrize("form", PLACED)
def test_targets_with_places(form):
    fed = Federation.from_datasets([PLACED[form], PLACED[form]], heldout=0)
    assert isinstance(fed.base.targets, tuple)
    assert np.array_equal(fed.base.targets[0].numpy(), np.concatenate([KIND, KIND]))
    assert np.array_equal(fed.base.targets[1].numpy(), np.concatenate([BOX, BOX]))


def test_a_tuple_of_numbers_is_one_target_and_a_part_may_be_one_hot():
    fed = Federation.from_datasets([Told(lambda i: (X[i], (float(i), 1.5)))], heldout=0)
    assert fed.base.targets.tolist() == [[i, 1.5] for i in range(20)]
    fed = Federation.from_datasets([(X, {"kind": ONE_HOT, "box": BOX})], heldout=0)
    assert np.array_equal(fed.base.targets["kind"].numpy(), ONE_HOT)


def test_inputs_in_a_tuple():
    fed = Federation.from_datasets([((X, torch.from_numpy(SEEN)), KIND)], heldout=0)
    for found, given in zip(fed.base.inputs, (X, SEEN), strict=True):
        assert np.array_equal(found.numpy(), given)
    both = ((X[:15], SEEN[:15]), KIND[:15], (X[15:], SEEN[15:]), KIND[15:])
    dealt = Federation.from_datasets(both, partition=cp.iid(2))
    assert np.array_equal(dealt.test.inputs[1].numpy(), SEEN[15:])
    clients = Federation.from_datasets(((X, KIND), (SEEN[:, :1].repeat(3, 1), KIND)), heldout=0)  # a tuple of clients
    assert (clients.clients, clients.shape) == (2, (3,))


@pytest.mark.parametrize("backend", ["batched", "per-client"])
def test_two_heads_are_trained_on_targets_in_parts(backend):
    class Heads(nn.Linear):
        def forward(self, x, seen):
            return super().forward(torch.cat([x, seen], 1))

    def loss(outputs, targets):
        box = (outputs[:, 3:] - targets["box"]).square().mean(1)
        return nn.functional.cross_entropy(outputs[:, :3], targets["kind"], reduction="none") + box

    data = [((X, SEEN), {"kind": KIND, "box": BOX})] * 2
    federation = Federation.from_datasets(data, heldout=0)
    local = Local(batch=20, optimizer=sgd(0.1))
    model = Heads(5, 7).double()
    run = cp.simulate("avg", federation, model=model, rounds=1, loss=loss, local=local, engine=double(backend=backend))
    alone, x = Heads(5, 7).double(), [torch.from_numpy(part).double() for part in (X, SEEN)]
    alone.load_state_dict(model.state_dict())
    targets = {"kind": torch.from_numpy(KIND), "box": torch.from_numpy(BOX).double()}
    loss(alone(*x), targets).mean().backward()
    for p, q in zip(alone.parameters(), run.model.parameters(), strict=True):
        assert torch.allclose(p - 0.1 * p.grad, q, rtol=1e-12)


def test_a_target_that_changes_in_one_part_is_refused():
    noise = np.random.default_rng(1)
    with pytest.raises(cp.CounterpoiseError, match="changes each time it is read"):
        Federation.from_datasets([Told(lambda i: (X[i], {"kind": KIND[i], "box": noise.normal(size=4)}))])


# ---------------------------------------------------------------- a data set for training and one for test


def frame():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(X).add_prefix("column ").assign(label=KIND)


def tensors(first, last):
    return TensorDataset(torch.from_numpy(X[first:last]), torch.from_numpy(KIND[first:last]))


@pytest.mark.parametrize(
    "pair",
    [
        lambda: (tensors(0, 12), tensors(12, 20)),
        lambda: (DataLoader(tensors(0, 12), 4), DataLoader(tensors(12, 20), 4)),
        lambda: (tensors(0, 12), (X[12:], KIND[12:])),
        lambda: ((X[:12], KIND[:12]), (X[12:], KIND[12:])),
        lambda: (frame()[:12], frame()[12:]),
    ],
)
def test_a_client_may_bring_a_data_set_for_training_and_one_for_test(pair, caplog):
    with caplog.at_level(logging.WARNING):
        fed = Federation.from_datasets({"north": pair(), "south": (X[:5], KIND[:5])}, heldout=0.2)
    north = torch.tensor([0])
    assert np.array_equal(fed.base.inputs[fed.train.rows(north)[0, :12].sort().values].numpy(), X[:12])
    assert np.array_equal(fed.base.inputs[fed.heldout.rows(north)[0, :8]].numpy(), X[12:])
    assert [held.sizes(torch.arange(2)).tolist() for held in (fed.train, fed.heldout)] == [[12, 4], [8, 1]]
    assert ("Of a DataLoader only its data set is used" in caplog.text) == isinstance(pair()[0], DataLoader)


# ---------------------------------------------------------------- large samples in parts


@pytest.fixture
def table(tmp_path):
    datasets = pytest.importorskip("datasets")
    columns = {"input_ids": KIND[:, None].repeat(4, 1), "attention_mask": np.ones((20, 4), int)}
    made = datasets.Dataset.from_dict({k: v.tolist() for k, v in columns.items()} | {"label": KIND, "length": KIND + 1})
    made.save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize("targets", ["label", ["label", "length"]])
def test_parts_are_kept_and_found_again_and_mapped(table, tmp_path, monkeypatch, targets):
    def made(kept):
        columns = {"targets": targets}
        return Federation.from_datasets(str(table), partition=cp.iid(2), columns=columns, cache=kept, heldout=0)

    first, kept = made(False), made(tmp_path / "kept")
    (entry,) = (tmp_path / "kept").iterdir()
    many = ["targets.npy"] if targets == "label" else ["targets-0.npy", "targets-1.npy"]
    assert sorted(file.name for file in entry.iterdir()) == ["facts.json", "inputs-0.npy", "inputs-1.npy", *many]
    monkeypatch.setattr("counterpoise.federation.bringing.clients.gather", None)  # nothing is read again
    again = made(tmp_path / "kept")
    assert first.fingerprint == kept.fingerprint == again.fingerprint
    np.save(entry / "inputs-1.npy", np.ones((19, 4), int))
    with pytest.raises(TypeError):  # it is damaged, so it would be
        made(tmp_path / "kept")


def test_load_says_where_targets_in_parts_are_taken(table):
    with pytest.raises(cp.CounterpoiseError, match="load takes targets in one piece"):
        cp.load(str(table), partition=cp.iid(2), columns={"targets": ["label", "length"]})


def test_parts_that_are_large_together_lie_in_files_without_names(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERPOISE_DATA", str(tmp_path / "data"))
    data = [({"a": X, "b": SEEN}, KIND)]
    plain = Federation.from_datasets(data, heldout=0)
    monkeypatch.setattr(cache, "machine_memory", lambda: 4 * (X.nbytes + SEEN.nbytes) - 1)
    monkeypatch.setattr(gathering, "_MOST_ROWS", 7)
    mapped = Federation.from_datasets(data, heldout=0)
    assert (tmp_path / "data" / "arrays").is_dir()
    assert [*(tmp_path / "data" / "arrays").iterdir()] == []
    gc.collect()
    assert mapped.fingerprint == plain.fingerprint
