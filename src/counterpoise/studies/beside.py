"""Our numbers beside the published ones, for figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from counterpoise.studies.standing import ClaimRow, Row

__all__ = ["Beside", "beside"]


class Beside(NamedTuple):
    """One of our numbers beside a published one."""

    label: str
    ours: float
    half: float
    """Half of the 95 % interval of ours."""
    published: float
    """The middle of a published range."""
    reach: float
    """How far the published spread or range reaches either side."""
    verdict: str
    unit: str
    """What is measured."""


def beside(every: Sequence[Row], claims: Sequence[ClaimRow]) -> list[Beside]:
    """Our values beside the published ones or, if only leads were published, our leads beside those."""
    return list(_values(every)) or list(_leads(claims))


def _values(every: Sequence[Row]) -> Iterator[Beside]:
    for row in every:
        if (one := row.published) is not None and row.values:
            label, unit = f"{row.cell.name}: {row.entry.label}", row.cell.metric.words
            yield Beside(label, row.mean, row.half, one.middle, one.reach, row.verdict, unit)


def _leads(claims: Sequence[ClaimRow]) -> Iterator[Beside]:
    for row in claims:
        one = row.claim
        if one.by is not None and row.judged is not None and row.found is not None:
            label, lead = f"{one.named}: {one.better} over {one.than}", row.found.paired
            unit = f"lead by {row.better[0].cell.metric.words}"
            yield Beside(label, lead.difference, (lead.high - lead.low) / 2, one.by, 0.0, row.lead_verdict, unit)
