"""The measures that a comparison shows beside its metric. Tables, report and JSON follow a new entry here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from counterpoise.measures.curves import volatility
from counterpoise.measures.fairness import Distribution
from counterpoise.measures.records import Curve, Record
from counterpoise.memory import bytes_in_words

__all__ = ["COLUMNS", "Column", "Finished", "three"]


class Finished(NamedTuple):
    """What a column is computed from: one finished run."""

    records: Sequence[Record]
    curve: Curve
    """The metric, round by round."""
    clients: Distribution
    """The metric over clients, in the last round that measured them."""
    lower: bool
    """Whether less of the metric is better."""


class Column(NamedTuple):
    """A measure in the tables of a comparison; each shows its mean over seeds."""

    name: str
    """In JSON, and as an attribute of `Standing`."""
    head: str
    about: str
    """A sentence for the report's caption."""
    of: Callable[[Finished], float]
    show: Callable[[float], str] | None = None
    """None for a number in the metric's own unit."""
    short: str = ""
    """The heading in a narrow terminal, if it is another one."""
    server: bool = True
    """Whether the table of the server's models has it."""
    personal: bool = False
    """Whether the table of personal models has it."""


def three(value: float) -> str:
    """A number with three digits, zeros included, so that a column of them lines up.

    >>> three(0.66), three(5.0), three(391.2), three(3600.0), three(0.0)
    ('0.660', '5.00', '391', '3600', '0')
    """
    return f"{value:#.3g}".rstrip(".") if 0 < value < 999.5 else f"{value:.0f}"


COLUMNS = (
    Column(
        "volatility",
        "volatility",
        "Volatility: mean absolute change from one measured round to the next.",
        lambda run: volatility(run.curve),
        short="vol.",
    ),
    Column(
        "worst",
        "worst tenth",
        "Worst tenth: mean over the worst served tenth of clients.",
        lambda run: run.clients.worst_decile,
        server=False,
        personal=True,
    ),
    Column(
        "gap",
        "gap",
        "Gap: best served tenth of clients minus worst.",
        lambda run: run.clients.gap,
        personal=True,
    ),
    Column(
        "bytes",
        "traffic",
        "Traffic: both ways.",
        lambda run: float(sum(x.bytes_up + x.bytes_down for x in run.records)),
        bytes_in_words,
    ),
    Column(
        "seconds",
        "seconds",
        "Seconds: wall-clock time.",
        lambda run: sum(x.seconds for x in run.records),
        three,
        short="sec.",
    ),
)
"""In the order of the tables."""
