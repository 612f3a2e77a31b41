"""Trees of tensors, and the copying of one into the buffers of another."""

from __future__ import annotations

import pytest
import torch

from counterpoise.trees import align, cat, fill, leaves, own, rebuild, stack, where


def test_a_tree_is_filled_by_name_whatever_the_order():
    target = {"a": torch.zeros(2), "b": torch.zeros(2)}
    fill(target, {"b": torch.full((2,), 2.0), "a": torch.full((2,), 1.0)})
    assert target["a"].tolist() == [1, 1]
    assert target["b"].tolist() == [2, 2]


def test_a_leaf_passed_on_to_another_name_is_read_before_it_is_overwritten():
    target = {"last": torch.tensor([1.0]), "previous": torch.tensor([0.0])}
    fill(target, {"last": torch.tensor([2.0]), "previous": target["last"]})
    assert (target["last"].item(), target["previous"].item()) == (2, 1)


@pytest.mark.parametrize("wrong", [torch.zeros(1), torch.zeros(2, dtype=torch.float64)])
def test_a_tensor_that_does_not_fit_is_not_broadcast_or_cast(wrong):
    with pytest.raises(ValueError, match="does not fit a buffer"):
        fill({"a": torch.zeros(2)}, {"a": wrong})


def test_stacking_joining_and_masking_go_by_name():
    one, two = (
        {"a": torch.tensor([1.0]), "b": torch.tensor([2.0])},
        {"b": torch.tensor([4.0]), "a": torch.tensor([3.0])},
    )
    assert stack([one, two])["a"].tolist() == [[1], [3]]
    assert cat([one, two])["b"].tolist() == [2, 4]
    mixed = where(torch.tensor([True, False]), cat([one, two]), cat([two, one]))
    assert mixed["a"].tolist() == [1, 1]


def test_a_tree_is_taken_apart_and_put_together_again():
    tree = ({"a": torch.tensor(1.0), "b": None}, torch.tensor(2.0))
    assert [leaf.item() for leaf in leaves(tree)] == [1, 2]
    again = rebuild(tree, [torch.tensor(3.0), torch.tensor(4.0)])
    assert (again[0]["a"].item(), again[0]["b"], again[1].item()) == (3, None, 4)


def test_an_own_copy_has_room_for_every_element():
    wide = own({"a": torch.zeros(1).expand(3)})["a"]
    wide[0] = 1
    assert wide.tolist() == [1, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("width", [0, 1, 7, 8, 17])
def test_aligned_rows_hold_the_same_and_begin_at_multiples_of_16_bytes(dtype, width):
    one, many, numbers = (torch.randint(0, 2, shape).to(dtype) for shape in ((width,), (3, width), (3,)))
    tree = {"one": one.expand(3, width), "many": many, "numbers": numbers}
    copy = align(tree)
    for name, tensor in tree.items():
        assert torch.equal(copy[name], tensor)
        assert not width or copy[name].data_ptr() != tensor.data_ptr()
    for name in ("one", "many"):
        assert not width or copy[name].stride(0) * copy[name].element_size() % 16 == 0
        copy[name][1] = 1 - copy[name][1].to(torch.int64)  # rows of their own
        assert torch.equal(copy[name][0], tree[name][0])
