"""What ``compare.toml`` may hold, checked whenever it is read."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from counterpoise.comparisons.contents import of_comparison
from counterpoise.runs.kept import Form, shown

__all__ = ["Planned"]


def _distinct(values: list[Any]) -> list[Any]:
    if len({*values}) < len(values):
        raise ValueError("a value occurs twice")
    return values


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it contains a control character")
    return text


class _Arm(Form):
    label: Annotated[str, Field(min_length=1), AfterValidator(_printable)]
    slug: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9._=+-]*[a-z0-9])?$", max_length=255)]
    """A plain folder name, so that it cannot lead out of the comparison's folder."""
    settings: Annotated[dict[str, Any], Field(min_length=1)]


class Planned(Form):
    """``compare.toml``. Its slugs and seeds become the names of folders."""

    kind: Literal["compare", "sweep"]
    source: str
    command: str
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1), AfterValidator(_distinct)]
    baseline: str
    arms: Annotated[list[_Arm], Field(min_length=1)]
    config: dict[str, Any]

    @model_validator(mode="after")
    def _told_apart(self) -> Self:
        """No two arms share a label or a slug, no slug is the name of a kept file, and the baseline is an arm."""
        labels, slugs = [arm.label for arm in self.arms], [arm.slug for arm in self.arms]
        for what, names in (("label", labels), ("slug", slugs)):
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"two arms have the {what} {twice[0]!r}")
        if files := [slug for slug in slugs if of_comparison(slug)]:
            raise ValueError(f"the slug {files[0]!r} is the name of a file that a comparison keeps")
        if self.baseline not in (*labels, ""):
            raise ValueError(f"its baseline {shown(self.baseline)} is not the label of an arm ({', '.join(labels)})")
        return self
