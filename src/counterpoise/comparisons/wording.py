"""Numbers as text for people."""

from __future__ import annotations

import math
from collections.abc import Callable

from counterpoise.measures import Paired, is_share
from counterpoise.texts import counted, percent

__all__ = ["clock", "dashed", "interval_of", "number", "roughly", "signed", "tells", "unit_of"]


def unit_of(metric: str) -> tuple[str, Callable[[float], str]]:
    """The unit of a metric and a function that formats its values: shares such as accuracy become percentages."""
    return (" %", lambda x: f"{100 * x:.2f}") if is_share(metric) else ("", lambda x: f"{x:.4f}")


def interval_of(beside: Paired, show: Callable[[float], str]) -> str:
    """The ends of a difference's interval, with their signs."""
    return f"[{signed(beside.low, show)}, {signed(beside.high, show)}]"


def tells(beside: Paired, metric: str) -> bool:
    """Whether a difference has an interval that rules anything out: shares never differ by more than 1."""
    everything = is_share(metric) and beside.low <= -1 and beside.high >= 1
    return not math.isnan(beside.low) and not everything


def signed(value: float, show: Callable[[float], str]) -> str:
    """A value with its sign, a plus included."""
    text = show(value)
    return text if text.startswith("-") else f"+{text}"


def dashed(value: float, show: Callable[[float], str], otherwise: str = "-") -> str:
    """A value as text, or `otherwise` for NaN."""
    return otherwise if math.isnan(value) else show(value)


def number(value: float, metric: str) -> str:
    """A metric for a narrow column; empty if it is not known."""
    if math.isnan(value):
        return ""
    return percent(value) if is_share(metric) else f"{value:.4g}"


def clock(seconds: float) -> str:
    """A remaining time; empty if it is not known.

    >>> clock(71), clock(3700)
    ('1:11', '1:01:40')
    """
    if not math.isfinite(seconds):
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def roughly(seconds: float) -> str:
    """A remaining time in words, no more exact than it can be known; empty if it is not known.

    >>> roughly(50), roughly(70), roughly(722), roughly(3 * 3600), roughly(50 * 3600)
    ('less than a minute', 'about 1 minute', 'about 12 minutes', 'about 3 hours', 'about 2 days')
    """
    if not math.isfinite(seconds):
        return ""
    if seconds < 60:
        return "less than a minute"
    size, unit = next((one for one in ((86400, "day"), (3600, "hour")) if seconds >= 2 * one[0]), (60, "minute"))
    return f"about {counted(round(seconds / size), unit)}"
