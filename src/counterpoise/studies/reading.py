"""Read a study from its file. This needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import tomli_w

from counterpoise.choices import listed
from counterpoise.comparisons.plan import slugs
from counterpoise.errors import CounterpoiseError, no_file, unknown
from counterpoise.own import allow
from counterpoise.studies.contents import of_study
from counterpoise.studies.form import (
    AverageForm,
    CellForm,
    ClaimForm,
    MethodForm,
    PublishedForm,
    StudyForm,
    check_form,
)
from counterpoise.studies.metric import Metric, parse_metric
from counterpoise.studies.study import Average, Cell, Claim, Entry, Published, Study
from counterpoise.texts import parse_toml, read_text

__all__ = ["chosen", "made_study", "read_study"]

_SEEDS = 5
_WITHIN = 1.0
"""Methods that are said to be alike may differ by this much."""


def read_study(path: Path) -> Study:
    """Read a study from its file. Code that the file names is imported from its folder, when it is needed."""
    try:
        text = read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        raise no_file(path) from None
    values = parse_toml(text, str(path))
    allow(values, path.parent)
    return made_study(values, path.stem, str(path), path.parent)


def made_study(values: Mapping[str, Any], name: str, where: str, folder: Path | None = None) -> Study:
    """Check the values of a study. Files that its cells name lie relative to `folder`."""
    form = check_form(values, where)
    names = [cell.name for cell in form.cell] + [average.name for average in form.average]
    for one, slug in zip(names, slugs(names), strict=True):
        if names.count(one) > 1:
            raise CounterpoiseError(f"{where}: two cells have the name {one!r}.")
        if slug != slugs([one])[0] or of_study(slug):
            raise CounterpoiseError(
                f"{where}: the folder of cell {one!r} would be {slug!r}, which is taken. Rename it."
            )
    cells = {
        cell.name: _cell(cell, form, f"{where}, cell {cell.name!r}", folder)
        for cell in form.cell
        if cell.runs_of is None
    }
    views = {
        cell.name: _view(cell, form, f"{where}, cell {cell.name!r}", cells)
        for cell in form.cell
        if cell.runs_of is not None
    }
    every = {one.name: (cells | views)[one.name] for one in form.cell}
    averages = tuple(_average(one, form, every, f"{where}, average {one.name!r}") for one in form.average)
    claims = tuple(
        made for place, claim in enumerate(form.claim, 1) for made in _claims(claim, every, f"{where}, claim {place}")
    )
    return Study(name, form.title, form.about, tuple(every.values()), averages, claims, values)


def chosen(study: Study, cells: Sequence[str], seeds: int | None = None, methods: Sequence[str] = ()) -> Study:
    """Reduce a study to some of its cells or methods, or change its number of seeds.

    `cells` and `methods` are names or lists of names with commas; ``*`` stands for anything. A view keeps the cell whose
    runs it shows. A cell without any of the methods is dropped. So are averages and claims that are about anything
    dropped.
    """
    named = _listed("cell", cells, [cell.name for cell in study.cells], f"in the study {study.name}")
    whole = [cell for cell in study.cells if not named or cell.name in named]
    names = {cell.name for cell in whole} | {cell.runs_of for cell in whole}
    some = [replace(cell, seeds=seeds or cell.seeds) for cell in study.cells if cell.name in names]
    some = _with_methods(some, methods, study.name)
    there = {(cell.name, label) for cell in some for label in _labels(cell)}
    return replace(
        study,
        cells=tuple(some),
        averages=tuple(one for one in study.averages if {cell.name for cell in some} >= {*one.cells}),
        claims=tuple(one for one in study.claims if there >= one.needs),
    )


def _with_methods(cells: Sequence[Cell], methods: Sequence[str], name: str) -> list[Cell]:
    """The cells with only these methods, or with all if none is named. The study's name is for the error."""
    labels = list(dict.fromkeys(label for cell in cells for label in _labels(cell)))
    kept = _listed("method", methods, labels, f"in these cells of the study {name}") or labels
    some = (replace(cell, entries=tuple(one for one in cell.entries if one.label in kept)) for cell in cells)
    return [cell for cell in some if cell.entries]


def _cell(cell: CellForm, study: StudyForm, where: str, folder: Path | None) -> Cell:
    if cell.like is None:
        raise CounterpoiseError(f"{where}: the key like is missing.")
    methods = cell.methods or study.methods
    if methods is None:
        raise CounterpoiseError(f"{where}: say which methods to run, there or for the whole study: methods = [...].")
    entries = tuple(_entry(one) for one in methods)
    labels = [entry.label for entry in entries]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise CounterpoiseError(f"{where}: {twice[0]} is named twice. Give one of them a label.")
    metric = _metric(cell, study, where)
    return Cell(
        name=cell.name,
        slug=slugs([cell.name])[0],
        like=str(folder / cell.like) if folder is not None and cell.like.endswith(".toml") else cell.like,
        settings=tuple(f"{key}={_inline(value)}" for table in (study.set, cell.set) for key, value in _flat(table)),
        entries=entries,
        seeds=cell.seeds or study.seeds or _SEEDS,
        rounds=cell.rounds or study.rounds,
        metric=metric,
        published=_all_published(cell, study, metric, labels, where),
        cannot=cell.cannot,
        note=cell.note,
        chance=(study.chance or 0.0) if cell.chance is None else cell.chance,
    )


def _view(cell: CellForm, study: StudyForm, where: str, cells: Mapping[str, Cell]) -> Cell:
    """Another view of a cell's runs: of all its methods, or of those that are named by their labels."""
    name = cell.runs_of or ""
    if name not in cells:
        raise unknown("cell", name, cells, f"with runs of its own for {where}")
    of = cells[name]
    own = (
        ("like", cell.like),
        ("set", cell.set),
        ("seeds", cell.seeds),
        ("rounds", cell.rounds),
        ("cannot", cell.cannot),
        ("chance", cell.chance),
    )
    if given := next((key for key, value in own if value), ""):
        raise CounterpoiseError(f"{where}: {given} is that of the cell {of.name!r}, whose runs it shows. Remove it.")
    labels = [entry.label for entry in of.entries]
    named = [_entry(one).label for one in cell.methods or ()] or labels
    for label in named:
        if label not in labels:
            raise unknown("method", label, labels, f"in the cell {of.name!r} for {where}")
    metric = _metric(cell, study, where)
    return replace(
        of,
        name=cell.name,
        slug=slugs([cell.name])[0],
        entries=tuple(entry for entry in of.entries if entry.label in named),
        metric=metric,
        published=_all_published(cell, study, metric, named, where),
        note=cell.note,
        runs_of=of.name,
    )


def _metric(cell: CellForm, study: StudyForm, where: str) -> Metric:
    try:
        return parse_metric(cell.metric or study.metric or "last", cell.measure or study.measure or "accuracy")
    except CounterpoiseError as error:
        raise CounterpoiseError(f"{where}: {error}") from None


def _entry(form: MethodForm) -> Entry:
    settings = dict(_flat(form.set))
    more = ", ".join(f"{key}={_inline(value)}" for key, value in settings.items())
    return Entry(form.label or (f"{form.method}, {more}" if more else form.method), form.method, settings)


def _all_published(
    form: CellForm | AverageForm, study: StudyForm, metric: Metric, labels: Sequence[str], where: str
) -> dict[str, Published]:
    def said(own: Any, name: str, otherwise: Any) -> Any:
        return next((one for one in (own, getattr(form, name), getattr(study, name)) if one is not None), otherwise)

    if strange := [label for label in form.published if label not in labels]:
        raise unknown("method", strange[0], labels, f"in {where} for a published value")
    found = {}
    for label, one in form.published.items():
        _check_published(one, metric, f"{where}: {label}")
        seeds = said(one.seeds, "published_seeds", 1)
        source, kind = said(one.source, "source", ""), said(one.kind, "kind", "")
        found[label] = Published(one.value, one.to, one.spread, seeds, source, kind)
    return found


def _check_published(one: PublishedForm, metric: Metric, what: str) -> None:
    for end in (one.value, one.value if one.to is None else one.to):
        if metric.in_points and not 0 <= end <= 100:
            raise CounterpoiseError(f"{what} was published in points, from 0 to 100, not as {end:g}.")
    if one.to is not None and one.to < one.value:
        raise CounterpoiseError(f"{what} was published as a range from {one.value:g} up, not down to {one.to:g}.")


def _average(form: AverageForm, study: StudyForm, cells: Mapping[str, Cell], where: str) -> Average:
    over = [cells[name] for name in _named("cell", form.cells, [*cells], f"in {where}")]
    if len({cell.metric for cell in over}) > 1:
        raise CounterpoiseError(f"{where}: its cells have different metrics, which cannot be averaged.")
    labels = [entry.label for entry in over[0].entries if all(entry.label in _labels(cell) for cell in over)]
    published = _all_published(form, study, over[0].metric, labels, where)
    return Average(form.name, tuple(cell.name for cell in over), published, form.note)


def _claims(form: ClaimForm, cells: Mapping[str, Cell], where: str) -> Iterator[Claim]:
    """A claim, or one for each of the methods that are said to be beaten."""
    if form.alike is None and form.within is not None:
        raise CounterpoiseError(
            f"{where}: within says how far apart two methods that are alike may be. Say alike = [...]."
        )
    if form.alike is not None and (form.better, form.than, form.by, form.smaller_in) != (None, None, None, None):
        raise CounterpoiseError(
            f"{where}: methods that are alike have no better one. Remove better, than, by, smaller_in."
        )
    if form.by is not None and form.smaller_in is not None:
        raise CounterpoiseError(
            f"{where}: by is the published lead of one method, and smaller_in compares two leads. Make two claims of it."
        )
    if form.metric is not None:
        try:
            parse_metric(form.metric)
        except CounterpoiseError as error:
            raise CounterpoiseError(f"{where}: {error}") from None
    first, second = (form.better, form.than) if form.alike is None else (form.alike[0], form.alike[1:])
    if first is None or second is None:
        raise CounterpoiseError(f"{where}: the key {'better' if first is None else 'than'} is missing.")
    here, elsewhere = (_named("cell", names, [*cells], f"in {where}") for names in (form.cells, form.smaller_in or []))
    there = _named("cell", form.than_cells, [*cells], f"in {where}") if form.than_cells else here
    for label, names in ((first, here + elsewhere), *((than, there + elsewhere) for than in second)):
        for name in names:
            if label not in (labels := _labels(cells[name])):
                raise unknown("method", label, labels, f"in cell {name!r} for {where}")
    for than in second:
        yield Claim(
            better=first,
            than=than,
            cells=tuple(here),
            than_cells=tuple(there),
            smaller_in=tuple(elsewhere),
            metric=form.metric or "",
            by=form.by,
            within=None if form.alike is None else form.within or _WITHIN,
            source=form.source,
            note=form.note,
            named=", ".join(form.cells),
        )


def _listed(kind: str, texts: Sequence[str], names: Sequence[str], where: str) -> list[str]:
    """The names that `texts` mean; each text may list several with commas."""
    return _named(kind, listed(texts, names, lambda pattern: bool(_matching(pattern, names))), names, where)


def _named(kind: str, patterns: Sequence[str], names: Sequence[str], where: str) -> list[str]:
    """The names that these patterns mean, in their own order."""
    if strange := [pattern for pattern in patterns if not _matching(pattern, names)]:
        raise unknown(kind, strange[0], names, where)
    meant = {name for pattern in patterns for name in _matching(pattern, names)}
    return [name for name in names if name in meant]


def _matching(pattern: str, names: Sequence[str]) -> list[str]:
    """The names that a pattern means; ``*`` stands for anything."""
    return [name for name in names if name == pattern or fnmatchcase(name, pattern)]


def _labels(cell: Cell) -> list[str]:
    return [entry.label for entry in cell.entries]


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings with dotted keys. A table with a name is a choice and one setting, except for the table of the data."""
    for key, value in table.items():
        if isinstance(value, Mapping) and ("name" not in value or prefix + key == "data"):
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
