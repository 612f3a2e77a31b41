"""The cut of a cohort into chunks: complete, within bounds, and as cheap as any other."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.engine.backends.buckets import buckets, overhead, pays, room, widths


def cost(chunks, steps, overhead):
    return sum((len(chunk) + overhead) * int(steps[chunk].max()) for chunk in chunks)


@given(st.integers(1, 500), st.sampled_from([1.5, 2.0, 4.0]), st.data())
def test_recorded_chunks_have_few_widths_each_little_more_than_needed(most, ratio, data):
    clients = data.draw(st.integers(1, most))
    size = room(clients, most, ratio)
    assert clients <= size <= min(most, max(2, math.ceil(ratio * clients)))
    assert len({room(clients, most, ratio) for clients in range(1, most + 1)}) <= 2 + math.log(most, ratio)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.sampled_from([1.5, 4.0]), st.integers(0, 9))
def test_every_step_has_room_for_the_clients_that_still_have_a_batch(lengths, ratio, more):
    steps = torch.tensor(sorted(lengths, reverse=True))
    most = len(lengths) + more
    found = widths(steps, most, ratio)
    assert found == [room(sum(length > step for length in lengths), most, ratio) for step in range(max(lengths))]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 12), st.floats(0, 20))
def test_every_client_is_in_one_chunk_of_bounded_size(lengths, most, overhead):
    steps = torch.tensor(lengths)
    chunks = buckets(steps, most, overhead)
    assert sorted(torch.cat(chunks).tolist()) == list(range(len(lengths)))
    assert max(map(len, chunks)) <= most


@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.floats(0, 20))
def test_no_cut_of_the_sorted_cohort_is_cheaper(lengths, overhead):
    steps = torch.tensor(sorted(lengths))
    ours = cost(buckets(steps, len(lengths), overhead), steps, overhead)
    places = list(range(len(lengths)))
    for k in range(len(lengths)):
        for cuts in itertools.combinations(places[1:], k):
            edges = [0, *cuts, len(lengths)]
            other = [torch.tensor(places[a:b]) for a, b in itertools.pairwise(edges)]
            assert ours <= cost(other, steps, overhead) + 1e-9


def test_a_skewed_cohort_wastes_little_on_a_cpu():
    steps = torch.tensor([1] * 40 + [2] * 30 + [5] * 20 + [30] * 5 + [60])
    done = sum(len(chunk) * int(steps[chunk].max()) for chunk in buckets(steps, 100, 1.0))
    assert done <= 1.2 * int(steps.sum())
    assert 10 * int(steps.sum()) < 96 * 60  # what one chunk would do


@pytest.mark.parametrize(
    ("lengths", "parameters", "batch", "answer"),
    [
        ([7] * 5, 650, 10, True),  # 3.7 (1 + 5 / 161) = 3.8 of a client's steps instead of 5
        ([7] * 4, 650, 10, False),  # 3.8 instead of 4
        ([7] * 100, 400_000, 1, True),  # 3.7 (1 + 100 / 20.6) = 22
        ([7] * 100, 400_000, 50, False),  # 3.7 (1 + 100 / 2.9) = 131
        ([1] * 19 + [100], 650, 10, False),  # the long one alone takes 3.7 x 100, and one by one all take 119
        ([1] * 600 + [100], 650, 10, True),  # 390 instead of 700
        ([1, 0, 0], 650, 10, False),
        ([], 650, 10, False),
    ],
)
def test_chunks_pay_on_a_cpu_for_many_small_and_equal_clients(lengths, parameters, batch, answer):
    steps = torch.tensor(lengths, dtype=torch.int64)
    assert pays(steps, max(1, len(lengths)), parameters, batch) == answer
    assert not pays(steps, 4, parameters, batch)


def test_a_chunk_weighs_less_the_more_a_client_has_to_do():
    assert overhead(650, 10) == pytest.approx(161.2, abs=0.1)
    assert overhead(4 * 650, 10) == overhead(650, 40) == pytest.approx(overhead(650, 10) / 2)
