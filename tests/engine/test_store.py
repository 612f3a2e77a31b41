"""Rows per client, allocated when a client is first seen."""

import torch

from counterpoise.engine.store import Store


def test_a_client_never_written_has_the_initial_row():
    store = Store({"x": torch.zeros(2)})
    assert len(store) == 0
    assert store[10**12]["x"].tolist() == [0.0, 0.0]
    store.scatter([5, 3], {"x": torch.tensor([[1.0, 2.0], [3.0, 4.0]])})
    assert list(store) == [3, 5]
    assert store.gather([3, 9, 5])["x"].tolist() == [[3.0, 4.0], [0.0, 0.0], [1.0, 2.0]]


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
