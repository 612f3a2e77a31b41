"""Options that would do nothing are refused: those of a part that another option switches off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from counterpoise.errors import CounterpoiseError
from counterpoise.methods.registry import METHODS

__all__ = ["refuse_idle"]

_GATE = ("gate_doubt", "gate_proof", "gate_most", "gate_turn", "gate_spread", "gate_clients")
_PACE = ("momentum", "pace_least", "pace_gain", "pace_square", "pace_floor", "pace_power", "pace_root")
_FLAGS = ("below", "until", "rounds", "clients", "clip", "spread", "most")
_TRUST = ("exclude", *(f"trust_{name}" for name in _FLAGS))


def _off(value: Any) -> bool:
    return value is not None and not value


def _given(value: Any) -> bool:
    return value is not None


def _uniform(value: Any) -> bool:
    return bool(value == "uniform")


_IDLE: tuple[tuple[str, Callable[[Any], bool], tuple[str, ...]], ...] = (
    ("coefficient", _off, ("share", "power", "cap", "clip", "half", *_GATE)),
    ("coefficient", _given, ("smoothing",)),
    ("share", _off, _GATE),
    ("share", _given, ("power",)),
    ("gate", _off, _GATE),
    ("pace", _off, _PACE),
    ("trust", _off, _TRUST),
    ("weights", _uniform, ("cap", "capped")),
)
"""An option, which of its values switch something off, and the options that then have no effect."""
_SWITCHES = ("share", "cap", "capped", "clip", "half", "momentum", "exclude")
"""Of those without effect, the ones that are switches themselves: their 0 asks for nothing."""


def refuse_idle(method: str, options: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse options without effect, each named behind `prefix`.

    A default that was given cannot be told from one that was not, so it passes. So does the 0 of a switch.
    """
    usual = METHODS[method].parameters
    for switch, idles, names in _IDLE:
        switch = prefix + switch
        for part in names if switch in options and idles(options[switch]) else ():
            name = prefix + part
            if name not in options or (part in _SWITCHES and _off(options[name])):
                continue
            if options[name] != usual[name].default:
                raise CounterpoiseError(
                    f"method {method}: with {switch} {_told(options[switch])}, {name} {_told(options[name])} has no "
                    "effect. Leave one of the two out."
                )


def _told(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool | str) else f"{value:g}"
