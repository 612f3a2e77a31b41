"""The colours of methods in every chart and picture."""

from __future__ import annotations

__all__ = ["ACCENT", "ALARM", "COLOURS", "NEUTRAL"]

COLOURS = (
    *("#1F83C4", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#7A5CC8", "#9A6B3F", "#8FA31E", "#C2274B", "#5E7C8B", "#E58A72"),
)
"""The first six are after Okabe and Ito (2008), without black and yellow, which are invisible on one of the two
backgrounds, and with a lighter blue that shows on both. From the seventh on, charts change the dash too."""
ACCENT, ALARM, NEUTRAL = COLOURS[0], COLOURS[1], "#8a8f98"
