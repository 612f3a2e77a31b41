"""Several runs' jobs as one: every client keeps its own start, broadcast, letters, learning rate, state, key and
samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from counterpoise.engine.backends.interface import Job
from counterpoise.engine.clients.program import Named, TrainingResult
from counterpoise.engine.devices import put
from counterpoise.federation.samples import Samples
from counterpoise.trees import cat, leaves, select, stack

__all__ = ["join_jobs", "join_samples", "number_equals", "split_results"]


def number_equals(many: Sequence[Samples | None]) -> list[int]:
    """A number for each set of samples, from 0; equal sets have the same one."""
    different: list[Samples | None] = []
    numbers = []
    for samples in many:
        number = next((i for i, other in enumerate(different) if _equal(samples, other)), len(different))
        different += [samples] if number == len(different) else []
        numbers.append(number)
    return numbers


def _equal(a: Samples | None, b: Samples | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.form != b.form or len(a) != len(b):
        return False
    scaling = (torch.equal(*map(torch.as_tensor, pair)) for pair in ((a.scale, b.scale), (a.shift, b.shift)))
    return (a.crop == b.crop and a.per_picture == b.per_picture and all(scaling)) and all(
        x.data_ptr() == y.data_ptr() or torch.equal(x, y)
        for x, y in zip(leaves((a.inputs, a.targets)), leaves((b.inputs, b.targets)), strict=True)
    )


def join_samples(bases: Sequence[Samples]) -> tuple[Samples, list[int]]:
    """All samples in one set, and the row at which each of the given sets begins there. Equal sets are held once.

    The sets have the same scaling and cropping.
    """
    numbers = number_equals(bases)
    different = [bases[numbers.index(number)] for number in range(max(numbers) + 1)]
    begins = [0, *torch.tensor([len(base) for base in different]).cumsum(0).tolist()]
    joint = different[0]
    if len(different) > 1:
        inputs, targets = (cat([getattr(base, name) for base in different]) for name in ("inputs", "targets"))
        joint = replace(joint, inputs=inputs, targets=targets)
    return joint, [begins[number] for number in numbers]


def join_jobs(
    jobs: Sequence[Job], samples: Samples, begins: Sequence[int], numbers: Sequence[Mapping[str, Mapping[str, float]]]
) -> Job:
    """The jobs' clients one after the other.

    What a run sends to its clients is held once. `begins` says where each job's samples begin in the joint ones.
    `numbers` are those of each job's parts, or empty if those of all runs of the batch are the same.
    """
    width = max(job.rows.shape[1] for job in jobs)
    rows = [pad(job.rows + begin, (0, width - job.rows.shape[1])) for job, begin in zip(jobs, begins, strict=True)]
    return Job(
        stack([job.shared for job in jobs]),
        samples,
        torch.cat(rows),
        torch.cat([job.sizes for job in jobs]),
        torch.cat([job.steps for job in jobs]),
        torch.cat([job.clients for job in jobs]),
        torch.cat([job.keys for job in jobs]),
        cat([job.state for job in jobs]),
        cat([job.letters for job in jobs]),
        _rows_of(numbers, jobs) if numbers else {},
        torch.arange(len(jobs)).repeat_interleave(_counts(jobs)),
    )


def _rows_of(numbers: Sequence[Mapping[str, Mapping[str, float]]], jobs: Sequence[Job]) -> Named:
    """The parts' numbers as tensors, with a row for each client."""

    def rows(part: str, name: str) -> Tensor:
        each = torch.tensor([own[part][name] for own in numbers], dtype=jobs[0].shared.start.dtype)
        return put(each.repeat_interleave(_counts(jobs)), jobs[0].device)

    return {part: {name: rows(part, name) for name in named} for part, named in numbers[0].items()}


def _counts(jobs: Sequence[Job]) -> Tensor:
    """How many clients each job has."""
    return torch.tensor([len(job.sizes) for job in jobs])


def split_results(results: TrainingResult, clients: Sequence[int]) -> list[TrainingResult]:
    """Each run's results; `clients` counts each run's clients."""
    ends = torch.tensor(clients).cumsum(0).tolist()
    return [select(results, slice(end - count, end)) for end, count in zip(ends, clients, strict=True)]
