"""One copy of a tensor for all who need it on another device or in another precision."""

from __future__ import annotations

import gc

import torch

from counterpoise import replicas
from counterpoise.replicas import replica


def place(tensor):
    return tensor.untyped_storage().data_ptr()


def test_all_who_ask_share_one_copy():
    tensor = torch.arange(12.0).view(3, 4)
    one = replica(tensor, dtype=torch.float64)
    other = replica(torch.nn.Parameter(tensor.detach()), "cpu", torch.float64)  # the same memory under another name
    assert place(one) == place(other)
    assert torch.equal(other, tensor.double())
    assert replica(tensor, dtype=torch.float32) is tensor
    assert place(replica(tensor, dtype=torch.bfloat16)) != place(one)


def test_a_copy_has_the_values_and_the_layout_of_its_part():
    tensor = torch.arange(24.0).view(2, 3, 4)
    for part in (tensor[0], tensor[1], tensor.transpose(0, 2), tensor[:, 1:], tensor[0, 0, :1].expand(5)):
        first, again = replica(part, dtype=torch.float64), replica(part, dtype=torch.float64)
        assert place(first) == place(again)
        assert torch.equal(again, part.double())
        assert again.stride() == first.stride() == part.double().stride()


def test_what_was_written_since_is_not_taken_for_the_same():
    tensor = torch.zeros(3)
    before = replica(tensor, dtype=torch.float64)
    tensor.add_(1)
    assert replica(tensor, dtype=torch.float64).tolist() == [1, 1, 1]
    assert before.tolist() == [0, 0, 0]


def test_whole_numbers_keep_their_type_and_what_inference_made_is_taken_too():
    numbers = torch.arange(3)
    assert replica(numbers, dtype=torch.float64) is numbers
    with torch.inference_mode():
        made = torch.ones(2)
    assert replica(made, dtype=torch.float64).tolist() == [1, 1]


def test_nothing_outlives_who_holds_it():
    tensor = torch.ones(5)
    copy = replica(tensor, dtype=torch.float64)
    (own,) = [pair for pair in replicas._KNOWN.values() if pair.source() is tensor.untyped_storage()]
    del copy
    gc.collect()
    assert own.copy() is None
    assert replica(tensor, dtype=torch.float64).tolist() == [1] * 5
    del tensor
    gc.collect()
    replica(torch.ones(1), dtype=torch.float64)  # a new copy sweeps out what is gone
    assert not any(pair is own for pair in replicas._KNOWN.values())
