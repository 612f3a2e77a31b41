"""A study as its file has it: cells, what was published for them, and claims. Reading one needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import tomli_w

from counterpoise.comparisons.plan import slugs
from counterpoise.errors import CounterpoiseError, unknown
from counterpoise.studies.contents import of_study
from counterpoise.studies.form import CellForm, ClaimForm, MethodForm, PublishedForm, StudyForm, check_form
from counterpoise.studies.metric import Metric, parse_metric
from counterpoise.texts import parse_toml, read_text

__all__ = ["Cell", "Claim", "Entry", "Published", "Study", "chosen", "made_study", "read_study"]

_SEEDS = 5


@dataclass(frozen=True)
class Entry:
    """A method of a cell."""

    label: str
    method: str
    """Its name, with options in brackets."""
    settings: Mapping[str, Any]
    """Settings that apply to it alone, with dotted keys."""


@dataclass(frozen=True)
class Published:
    """What was published for a method in a cell."""

    value: float
    spread: float | None
    seeds: int
    """1 if it is unknown, or if the published runs share a partition."""
    source: str
    kind: str


@dataclass(frozen=True)
class Cell:
    """An experiment of a study."""

    name: str
    slug: str
    """The name of its folder."""
    like: str
    """A preset, or a file."""
    settings: tuple[str, ...]
    """As ``--set`` takes them."""
    entries: tuple[Entry, ...]
    seeds: int
    rounds: int | None
    metric: Metric
    published: Mapping[str, Published]
    """By the method's label."""
    cannot: str
    """Why it cannot be run; empty if it can."""
    note: str


@dataclass(frozen=True)
class Claim:
    """The claim that one method beats another, on average over cells."""

    better: str
    than: str
    cells: tuple[str, ...]
    by: float | None
    source: str
    note: str


@dataclass(frozen=True)
class Study:
    """A whole study."""

    name: str
    title: str
    about: str
    cells: tuple[Cell, ...]
    claims: tuple[Claim, ...]
    values: Mapping[str, Any]
    """As its file has them."""


def read_study(path: Path) -> Study:
    """Read a study from its file."""
    try:
        text = read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        raise CounterpoiseError(f"There is no file {path}.") from None
    return made_study(parse_toml(text, str(path)), path.stem, str(path), path.parent)


def made_study(values: Mapping[str, Any], name: str, where: str, folder: Path | None = None) -> Study:
    """Check the values of a study. Files that its cells name lie relative to `folder`."""
    form = check_form(values, where)
    names = [cell.name for cell in form.cell]
    for one, slug in zip(names, slugs(names), strict=True):
        if names.count(one) > 1:
            raise CounterpoiseError(f"{where}: two cells have the name {one!r}.")
        if slug != slugs([one])[0] or of_study(slug):
            raise CounterpoiseError(
                f"{where}: the folder of cell {one!r} would be {slug!r}, which is taken. Rename it."
            )
    cells = tuple(_cell(cell, form, f"{where}, cell {cell.name!r}", folder) for cell in form.cell)
    claims = tuple(_claim(claim, cells, f"{where}, claim {place}") for place, claim in enumerate(form.claim, 1))
    return Study(name, form.title, form.about, cells, claims, values)


def chosen(study: Study, patterns: Sequence[str], seeds: int | None = None) -> Study:
    """The study with some of its cells alone, by their names (``*`` stands for anything), or with more or fewer seeds.

    A claim stays only if all its cells do.
    """
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in study.cells):
            raise unknown("cell", pattern, [cell.name for cell in study.cells], f"in the study {study.name}")
    cells = [c for c in study.cells if not patterns or any(fnmatchcase(c.name, pattern) for pattern in patterns)]
    names = {cell.name for cell in cells}
    claims = tuple(claim for claim in study.claims if names >= {*claim.cells})
    return replace(study, cells=tuple(replace(c, seeds=seeds or c.seeds) for c in cells), claims=claims)


def _cell(cell: CellForm, study: StudyForm, where: str, folder: Path | None) -> Cell:
    def either(name: str, otherwise: Any = None) -> Any:
        own, shared = getattr(cell, name), getattr(study, name)
        return own if own is not None else shared if shared is not None else otherwise

    methods = either("methods")
    if methods is None:
        raise CounterpoiseError(f"{where}: say which methods to run, there or for the whole study: methods = [...].")
    entries = tuple(_entry(one) for one in methods)
    labels = [entry.label for entry in entries]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise CounterpoiseError(f"{where}: {twice[0]} is named twice. Give one of them a label.")
    if strange := [label for label in cell.published if label not in labels]:
        raise unknown("method", strange[0], labels, f"in {where} for a published value")
    try:
        metric = parse_metric(either("metric", "last"), either("measure", "accuracy"))
    except CounterpoiseError as error:
        raise CounterpoiseError(f"{where}: {error}") from None
    published = {
        label: _published(one, either("published_seeds", 1), either("source", ""), either("kind", ""))
        for label, one in cell.published.items()
    }
    for label, one in published.items():
        if metric.in_points and not 0 <= one.value <= 100:
            raise CounterpoiseError(f"{where}: {label} was published in points, from 0 to 100, not as {one.value:g}.")
    like = str(folder / cell.like) if folder is not None and cell.like.endswith(".toml") else cell.like
    settings = tuple(f"{key}={_inline(value)}" for table in (study.set, cell.set) for key, value in _flat(table))
    return Cell(
        name=cell.name,
        slug=slugs([cell.name])[0],
        like=like,
        settings=settings,
        entries=entries,
        seeds=either("seeds", _SEEDS),
        rounds=either("rounds"),
        metric=metric,
        published=published,
        cannot=cell.cannot,
        note=cell.note,
    )


def _entry(form: MethodForm) -> Entry:
    settings = dict(_flat(form.set))
    more = ", ".join(f"{key}={_inline(value)}" for key, value in settings.items())
    return Entry(form.label or (f"{form.method}, {more}" if more else form.method), form.method, settings)


def _published(form: PublishedForm, seeds: int, source: str, kind: str) -> Published:
    return Published(
        form.value,
        form.spread,
        seeds if form.seeds is None else form.seeds,
        source if form.source is None else form.source,
        kind if form.kind is None else form.kind,
    )


def _claim(claim: ClaimForm, cells: Sequence[Cell], where: str) -> Claim:
    by_name = {cell.name: cell for cell in cells}
    for name in claim.cells:
        if name not in by_name:
            raise unknown("cell", name, by_name, f"in {where}")
        labels = [entry.label for entry in by_name[name].entries]
        for label in (claim.better, claim.than):
            if label not in labels:
                raise unknown("method", label, labels, f"in cell {name!r} for {where}")
    return Claim(claim.better, claim.than, tuple(claim.cells), claim.by, claim.source, claim.note)


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings with dotted keys. A table with a name is a choice, and one setting."""
    for key, value in table.items():
        if isinstance(value, Mapping) and "name" not in value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _inline(value: Any) -> str:
    """A value as TOML writes it in one line.

    >>> _inline({"name": "dirichlet", "alpha": 0.5, "sizes": [1, 2]})
    '{name = "dirichlet", alpha = 0.5, sizes = [1, 2]}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_inline(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()
