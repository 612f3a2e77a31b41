"""What an experiment's file says about the paper it comes from."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from counterpoise.runs.experiments import choice

__all__ = ["Choice", "PaperConfig"]

Choice = Annotated[dict[str, Any], BeforeValidator(choice)]


class PaperConfig(BaseModel):
    """Where an experiment comes from and what was published. It has no effect on a run, and runs do not keep it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    about: str = ""
    """What the experiment is."""
    source: str = ""
    """The paper, and its table or figure."""
    methods: list[Choice] = []
    """The methods compared."""
    vary: dict[str, list[int | float | str]] = {}
    """Settings that the experiment varies, in every combination of their values."""
    measure: str = ""
    """What the numbers measure."""
    numbers: list[list[float]] = []
    """One row per method, one column per combination of settings."""
    note: str = ""
    """What else was published, or what a small form of the experiment changes."""
