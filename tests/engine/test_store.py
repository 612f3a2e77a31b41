"""Rows per client, allocated when a client is first seen."""

import math
import sys
import tempfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.engine.rounds.store import Store, row_bytes
from counterpoise.flat import raw_bytes
from counterpoise.methods import scaffold
from counterpoise.runs.index import read_index


def test_a_client_never_written_has_the_initial_row():
    store = Store({"x": torch.zeros(2)})
    assert len(store) == 0
    assert store[10**12]["x"].tolist() == [0.0, 0.0]
    store.scatter([5, 3], {"x": torch.tensor([[1.0, 2.0], [3.0, 4.0]])})
    assert list(store) == [3, 5]
    assert store.gather([3, 9, 5])["x"].tolist() == [[3.0, 4.0], [0.0, 0.0], [1.0, 2.0]]


def test_rows_lie_where_the_initial_row_does():
    """Here the device meta, which holds no numbers, stands for a GPU."""
    store = Store({"y": torch.zeros(3, device="meta"), "n": torch.tensor(0.0)})
    store.scatter([4, 2], {"y": torch.ones(2, 3, device="meta"), "n": torch.tensor([1.0, 2.0])})
    found = store.gather([2, 9, 4])
    assert found["n"].tolist() == [2, 0, 1]
    assert (found["y"].device.type, found["y"].shape) == ("meta", (3, 3))
    assert [rows.device.type for rows in store.gather([]).values()] == ["meta", "cpu"]


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True), max_size=8), st.integers(0, 12))
def test_a_store_is_a_dictionary_of_rows(rounds, room):
    initial = {"x": torch.zeros(2), "n": torch.zeros((), dtype=torch.int64)}
    store, rows, count = Store(initial, memory=room * row_bytes(initial)), {}, 0
    for clients in rounds:
        stacked = {"x": torch.randn(len(clients), 2), "n": torch.arange(count, count + len(clients))}
        store.scatter(clients, stacked)
        rows |= {client: {name: t[place] for name, t in stacked.items()} for place, client in enumerate(clients)}
        count += len(clients)
    assert list(store) == sorted(rows)
    assert store.spilled == max(0, len(rows) - room)
    found = store.gather(range(31))
    for client in range(31):
        for name, tensor in rows.get(client, initial).items():
            assert torch.equal(found[name][client], tensor)


@pytest.mark.parametrize("room", [0, 3, 5.5, 100])
def test_rows_in_memory_take_no_more_than_their_budget_and_the_initial_row(room):
    initial = {"x": torch.zeros(5)}
    store = Store(initial, memory=room * row_bytes(initial))
    for client in range(40):
        store.put(client, {"x": torch.full((5,), float(client))})
        assert len(store._rows["x"]) <= max(math.ceil(room) + 1, 1)
    assert store.gather(range(40))["x"][:, 0].tolist() == [*range(40)]


def test_a_store_of_no_names_is_of_use():
    store = Store({})
    store.scatter([2, 5], {})
    assert (list(store), store.gather([2, 3]), store[5]) == ([2, 5], {}, {})


def test_a_row_is_a_copy_of_what_was_written():
    store, rows = Store({"x": torch.zeros(2)}), torch.ones(1, 2)
    store.scatter([1], {"x": rows})
    rows.zero_()
    assert store[1]["x"].tolist() == [1.0, 1.0]


def test_what_was_touched_is_known_and_can_be_dropped():
    store = Store({"x": torch.zeros(1)})
    store.put(4, {"x": torch.ones(1)})
    assert store.touched == {4}
    store.touched.clear()
    store.scatter([4, 6], {"x": torch.ones(2, 1)})
    assert store.touched == {4, 6}
    store.drop()
    assert (len(store), store.touched) == (0, set())
    assert store[4]["x"].tolist() == [0.0]


def test_rows_beyond_the_budget_lie_on_disk_and_read_the_same():
    initial = {"x": torch.zeros(3), "n": torch.zeros((), dtype=torch.int64), "deep": torch.zeros(2, 2).double()}
    plain, tight = Store(initial), Store(initial, memory=2 * row_bytes(initial))
    generator = torch.Generator().manual_seed(0)
    for clients in ([4, 9, 2], [7, 4, 1], [2, 9, 11]):  # some for the second time, in memory and on disk
        rows = {
            "x": torch.randn(3, 3, generator=generator),
            "n": torch.randint(0, 99, (3,), generator=generator),
            "deep": torch.randn(3, 2, 2, generator=generator, dtype=torch.float64),
        }
        for store in (plain, tight):
            store.scatter(clients, rows)
    assert (plain.spilled, tight.spilled) == (0, 4)
    assert list(plain) == list(tight) == [1, 2, 4, 7, 9, 11]
    assert plain.bytes == tight.bytes == 6 * row_bytes(initial)
    for client in range(12):
        assert all(torch.equal(plain[client][k], tight[client][k]) for k in initial)
    together = [store.gather([11, 3, 4])["deep"] for store in (plain, tight)]
    assert torch.equal(*together)
    tight.drop()
    assert (len(tight), tight.spilled) == (0, 0)
    tight.put(5, initial)
    assert list(tight) == [5]


@pytest.mark.parametrize("name", ["mifa", "scaffold"])
def test_a_run_that_spills_is_the_same_and_resumes(name, tmp_path, monkeypatch):
    monkeypatch.setattr("counterpoise.runs.checkpoint._PIECE", 1000)  # a file for each client
    federation = cp.load("digits", partition=cp.iid(12))
    settings = {"model": cp.models.linear, "rounds": 5, "cohort": 4, "seed": 2}
    whole = cp.simulate(name, federation, **settings)
    spilling = {"engine": cp.Engine(store_gib=1e-5)}  # four rows of 2,600 bytes
    stopped = cp.simulate(
        name, federation, out=tmp_path, on_round=lambda record: record.round == 3, **settings, **spilling
    )
    assert len(list((tmp_path / "checkpoint").glob("rows-3*.safetensors"))) > 2
    resumed = cp.resume(tmp_path)
    assert len(stopped.rounds) == 3
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert resumed.bytes_server == whole.bytes_server
    assert resumed.bytes_clients == whole.bytes_clients


@pytest.mark.parametrize(("name", "tensors"), [("mifa", 1), ("scaffold", 1), ("feddc", 2)])
@pytest.mark.parametrize("row", [0, 2])
def test_a_disk_that_fills_up_while_a_round_is_written_leaves_the_last_good_round(
    name, tensors, row, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys.modules["counterpoise.runs.course"], "pause_between_saves", lambda *_: -1.0)
    federation = cp.load("digits", partition=cp.iid(12))
    settings = {"model": cp.models.linear, "rounds": 5, "cohort": 4, "seed": 2, "engine": cp.Engine(store_gib=0)}
    whole = cp.simulate(name, federation, **settings)
    count = iter(range(100))

    def full(tensor):
        if next(count) == tensors * (3 * 4 + row):  # in the fourth round
            raise OSError(28, "No space left on device")
        return raw_bytes(tensor)

    with monkeypatch.context() as patch:
        patch.setattr("counterpoise.engine.rounds.store.raw_bytes", full)
        with pytest.raises(
            cp.CounterpoiseError, match=r"folder /.*: No space left on device\. Set TMPDIR .* store_gib"
        ):
            cp.simulate(name, federation, out=tmp_path / "run", **settings)
    assert read_index(tmp_path / "run" / "checkpoint")["round"] == 3
    resumed = cp.resume(tmp_path / "run")
    assert [record.round for record in resumed.rounds] == [1, 2, 3, 4, 5]
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_rows_on_disk_have_no_name_there(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = Store({"x": torch.zeros(3)}, memory=0)
    store.put(1, {"x": torch.ones(3)})
    assert store.spilled == 1
    assert list(tmp_path.iterdir()) == []


def test_a_budget_of_nothing_spills_every_row_of_a_simulation():
    federation = cp.load("digits", partition=cp.iid(6))
    simulation = Simulation(scaffold(), federation, cp.models.linear((1, 8, 8), 10), engine=cp.Engine(store_gib=0))
    simulation.advance()
    assert simulation.client_state["control-variates"].spilled == 6


@pytest.mark.parametrize("bad", [-1, "much", float("nan"), True])
def test_a_bad_budget_is_refused(bad):
    with pytest.raises(cp.CounterpoiseError, match="store_gib must be a number from 0 to"):
        cp.Engine(store_gib=bad)
