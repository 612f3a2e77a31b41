"""What a study's file may hold, checked whenever it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from counterpoise.errors import CounterpoiseError, brief, unknown

__all__ = ["AverageForm", "CellForm", "ClaimForm", "MethodForm", "PublishedForm", "StudyForm", "check_form"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must hold no control characters")
    return text


Word = Annotated[str, Field(min_length=1), AfterValidator(_printable)]
Text = Annotated[str, AfterValidator(_printable)]
Seeds = Annotated[int, Field(ge=1, le=10_000)]
Rounds = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class MethodForm(_Table):
    """A method with its label and settings that apply to it alone; a text is the method without either."""

    method: Word
    label: Word | None = None
    set: dict[str, Any] = {}


class PublishedForm(_Table):
    """What was published for a method in a cell; a number is the value alone."""

    value: Finite
    to: Finite | None = None
    """The upper end of a printed range that begins at the value."""
    spread: Finite | None = None
    """The deviation over their runs."""
    seeds: Seeds | None = None
    source: Text | None = None
    kind: Text | None = None


def _method(value: Any) -> Any:
    if isinstance(value, str):
        return {"method": value}
    if isinstance(value, Mapping):
        return value
    raise ValueError('must be a name, or a table with a method: { method = "...", label = "..." }')


def _published(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"value": value}
    if isinstance(value, Mapping):
        return value
    raise ValueError("must be a number, or a table with a value: { value = 62.5, spread = 0.4, seeds = 3 }")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Method = Annotated[MethodForm, BeforeValidator(_method)]
Names = Annotated[list[Word], Field(min_length=1)]
Published = Annotated[PublishedForm, BeforeValidator(_published)]


class _Shared(_Table):
    """What a cell may say for itself, and the study for all of its cells."""

    methods: Annotated[list[Method], Field(min_length=1)] | None = None
    seeds: Seeds | None = None
    rounds: Rounds | None = None
    metric: Word | None = None
    measure: Word | None = None
    chance: Annotated[Finite, Field(ge=0, lt=100)] | None = None
    """In points: a run whose last accuracy is below this ended at chance."""
    source: Text | None = None
    kind: Text | None = None
    published_seeds: Seeds | None = None


class CellForm(_Shared):
    """An experiment of the study, or another view of the runs of one."""

    name: Word
    like: Word | None = None
    runs_of: Word | None = None
    """The cell whose runs it shows by another measure or metric."""
    set: dict[str, Any] = {}
    published: dict[Word, Published] = {}
    cannot: Text = ""
    note: Text = ""


class AverageForm(_Table):
    """What was published as the average over several cells."""

    name: Word
    cells: Names
    published: dict[Word, Published]
    source: Text | None = None
    kind: Text | None = None
    published_seeds: Seeds | None = None
    note: Text = ""


class ClaimForm(_Table):
    """The claim that one method beats others, or is like another, in a cell or on average over several."""

    better: Word | None = None
    than: Annotated[Names, BeforeValidator(_listed)] | None = None
    """One claim for each."""
    alike: Annotated[list[Word], Field(min_length=2, max_length=2)] | None = None
    within: Annotated[Finite, Field(gt=0)] | None = None
    """How far apart those that are alike may be."""
    cells: Names
    than_cells: Names | None = None
    """The cells of the second method, if they are others."""
    smaller_in: Names | None = None
    """Cells in which the lead is said to be smaller."""
    metric: Word | None = None
    """The metric of this claim, if it is not that of its cells."""
    by: Annotated[Finite, Field(ge=-100, le=100)] | None = None
    """The published lead in points."""
    source: Text = ""
    note: Text = ""


class StudyForm(_Shared):
    """A study's file."""

    title: Word
    about: str = ""
    set: dict[str, Any] = {}
    """Settings for all cells, below those of each."""
    cell: Annotated[list[CellForm], Field(min_length=1)]
    average: list[AverageForm] = []
    claim: list[ClaimForm] = []


def check_form(values: Mapping[str, Any], where: str) -> StudyForm:
    """Check a study. The error is one sentence that names the first mistake and where it stands."""
    try:
        return StudyForm.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    place, table = _place(first["loc"], values)
    name = str(first["loc"][-1])
    if first["type"] == "extra_forbidden":
        raise unknown("key", name, table.model_fields, f"in {where}{place}")
    if first["type"] == "missing":
        raise CounterpoiseError(f"{where}{place}: the key {name} is missing.")
    said = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    raise CounterpoiseError(f"{where}{place}: {name} {said}, not {brief(first['input'])}.")


_TABLES: Mapping[str, type[_Table]] = {
    "cell": CellForm,
    "average": AverageForm,
    "claim": ClaimForm,
    "methods": MethodForm,
    "published": PublishedForm,
}


def _place(location: Sequence[int | str], values: Mapping[str, Any]) -> tuple[str, type[_Table]]:
    """Where a mistake stands, in words, and the form of the table that it stands in."""
    words = ""
    form: type[_Table] = StudyForm
    for part, key in pairwise(location):
        if part in ("cell", "average", "claim") and isinstance(key, int):
            table = values[part][key]
            named = table.get("name") if isinstance(table, Mapping) else None
            words += f", {part} {brief(named) if isinstance(named, str) else key + 1}"
        elif part in ("methods", "published") and key != location[-1]:
            words += f", {part} {key + 1 if isinstance(key, int) else brief(key)}"
        form = _TABLES.get(str(part), form)
    return words, form
