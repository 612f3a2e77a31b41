"""The cut of a cohort into chunks: complete, within bounds, and as cheap as any other."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.engine.buckets import buckets, room


def exactly(clients, most):
    return clients


def cost(chunks, steps, overhead, size=exactly):
    most = len(steps)
    return sum((size(len(chunk), most) + overhead) * int(steps[chunk].max()) for chunk in chunks)


@given(st.integers(1, 500), st.data())
def test_recorded_chunks_have_few_sizes_each_at_most_twice_what_is_needed(most, data):
    clients = data.draw(st.integers(1, most))
    size = room(clients, most)
    assert clients <= size <= min(most, 2 * clients)
    assert len({room(clients, most) for clients in range(1, most + 1)}) <= 1 + most.bit_length()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 12), st.floats(0, 20))
def test_every_client_is_in_one_chunk_of_bounded_size(lengths, most, overhead):
    steps = torch.tensor(lengths)
    chunks = buckets(steps, most, overhead)
    assert sorted(torch.cat(chunks).tolist()) == list(range(len(lengths)))
    assert max(map(len, chunks)) <= most


@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.floats(0, 20), st.sampled_from([exactly, room]))
def test_no_cut_of_the_sorted_cohort_is_cheaper(lengths, overhead, size):
    steps = torch.tensor(sorted(lengths))
    ours = cost(buckets(steps, len(lengths), overhead, size), steps, overhead, size)
    places = list(range(len(lengths)))
    for k in range(len(lengths)):
        for cuts in itertools.combinations(places[1:], k):
            edges = [0, *cuts, len(lengths)]
            other = [torch.tensor(places[a:b]) for a, b in itertools.pairwise(edges)]
            if _between_lengths(edges, steps):
                assert ours <= cost(other, steps, overhead, size) + 1e-9


def _between_lengths(edges, steps):
    """Whether no clients of the same number of steps are cut apart, which only pays where sizes are rounded."""
    return all(int(steps[edge - 1]) < int(steps[edge]) for edge in edges[1:-1])


def test_a_skewed_cohort_wastes_little_on_a_cpu():
    steps = torch.tensor([1] * 40 + [2] * 30 + [5] * 20 + [30] * 5 + [60])
    done = sum(len(chunk) * int(steps[chunk].max()) for chunk in buckets(steps, 100, 1.0))
    assert done <= 1.2 * int(steps.sum())
    assert 10 * int(steps.sum()) < 96 * 60  # what one chunk would do
