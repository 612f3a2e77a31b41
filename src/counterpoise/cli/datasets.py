"""What `counterpoise data` does: list data sets, fetch them, and say where they are and what they look like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.padding import Padding
from rich.text import Text

from counterpoise.cli.leaving import leave
from counterpoise.cli.pictures import ascii_picture, grid, png
from counterpoise.cli.screen import Console, echo
from counterpoise.errors import CounterpoiseError, unknown
from counterpoise.federation.catalogue import DATASETS, DataSet, place
from counterpoise.federation.sources import data_folder
from counterpoise.texts import clean

if TYPE_CHECKING:
    from counterpoise.federation.readers import Raw

__all__ = ["bring", "draw", "list_all", "locate"]


def _known(name: str) -> DataSet:
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]


def _row(dataset: DataSet) -> dict[str, Any]:
    found = place(dataset)
    return {
        "name": dataset.name,
        "summary": dataset.summary,
        "licence": dataset.licence,
        "home": dataset.home,
        "here": not dataset.files or found is not None,
        "where": None if found is None else str(found),
        "files": [{"path": f.path, "urls": list(f.urls), "md5": f.md5} for f in dataset.files],
    }


def list_all(as_json: bool) -> None:
    """Every data set, and whether it is here."""
    rows = [_row(dataset) for dataset in DATASETS.values()]
    if as_json:
        echo(json.dumps(rows))
        return
    console = Console()
    for row in rows:
        here = "needs no files" if not row["files"] else "here" if row["here"] else "not here"
        console.print(Text.assemble((row["name"], "bold"), "  ", (here, "green" if row["here"] else "yellow")))
        console.print(Padding(Text(row["summary"]), (0, 0, 0, 2)))
        source = f"licence: {row['licence']}" + (f"; from {row['home']}" if row["home"] else "")
        console.print(Padding(Text(source, style="dim"), (0, 0, 1, 2)))
    console.print(Text(f"Local data folder: {data_folder()} (set COUNTERPOISE_DATA to change it)"), soft_wrap=True)


def bring(names: list[str]) -> None:
    """Download data sets that are not here."""
    failures = []
    for name in DATASETS if names == ["all"] else names:
        dataset = _known(name)
        try:
            dataset.bring()
        except CounterpoiseError as error:
            failures.append(f"{name}: {error}")
            continue
        echo(f"{name}: {place(dataset) or 'needs no files'}")
    if failures:
        raise CounterpoiseError("\n".join(failures))


def locate(name: str | None) -> None:
    """The local data folder, or a data set in it."""
    folder = data_folder()
    if name is None:
        echo(folder)
        return
    dataset = _known(name)
    found = place(dataset)
    if found is not None or not dataset.files:
        echo(found or "It needs no files.")
        if said := dataset.provenance():
            echo(said, err=True)  # scripts read the path from standard output
        return
    lines = [f"{name} is not here. Fetch it with 'counterpoise data get {name}', or put there"]
    lines += [f"  {folder / f'{name}.npz'}  (x_train, y_train, x_test, y_test)", "or, as published,"]
    lines += [f"  {folder / f.path}" + (f"  from {f.urls[0]}" if f.urls else "") for f in dataset.files]
    echo("\n".join(lines))


def _read(name: str, columns: Mapping[str, str | list[str]], resize: int | None) -> Raw:
    """A data set's arrays; if columns or a size are missing, an error that names the options of this command."""
    from counterpoise.federation.datasets import read  # which loads torch

    try:
        return read(name, columns=columns or None, resize=resize)
    except CounterpoiseError as error:
        options = {"columns=": "--label COLUMN and --inputs COLUMN,COLUMN", "resize=": "--resize PIXELS"}
        told = next(
            (f" On the command line: {option}." for python, option in options.items() if python in str(error)), ""
        )
        raise CounterpoiseError(f"{error}{told}") from None


def draw(name: str, out: Path | None, columns: Mapping[str, str | list[str]], resize: int | None) -> None:
    """What a data set holds, with a few samples."""
    from counterpoise.federation.naming import number_texts, texts
    from counterpoise.federation.structure import by_part, is_structured, shape_in_words

    raw = _read(name, columns, resize)
    if (found := texts(raw.y_train)) is not None:
        numbers, kinds = number_texts(found)
        raw = raw._replace(y_train=numbers, class_names=kinds)
    x, y = raw.x_train, raw.y_train.reshape(len(raw.y_train), -1)
    tests = 0 if raw.y_test is None else len(raw.y_test)
    has_parts, shape = is_structured(x), by_part(lambda array: tuple(array.shape[1:]), x)
    shown = f"in parts: {shape_in_words(shape)}" if has_parts else f"of shape {shape}, {x.dtype}"
    echo(f"{name}: {len(y)} training and {tests} test samples {shown}")
    if name in DATASETS and (said := DATASETS[name].provenance()):
        echo(f"files: {said}")
    if out is not None and out.suffix != ".png":
        raise CounterpoiseError(f"The picture is a PNG file; {out} does not end in .png.")
    if y.shape[1] != 1 or y.dtype.kind not in "ui":
        return _no_picture(out, "its targets are not class labels")
    labels, counts = np.unique(y[:, 0], return_counts=True)
    names = [str(label) if raw.class_names is None else raw.class_names[label] for label in labels]
    echo(f"{len(labels)} labels, {counts.min()} to {counts.max()} training samples each")
    if raw.class_names is not None:
        echo(f"named {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}")
    if has_parts or x.dtype != np.uint8 or x.ndim != 4 or x.shape[1] not in (1, 3):
        return _no_picture(out, "its samples are not pictures, which are bytes of shape (1 or 3, height, width)")
    some = [np.flatnonzero(y[:, 0] == label)[:10] for label in labels[:10]]
    bright = (x[np.concatenate(some)].astype(np.uint16) * 255 // raw.peak).astype(np.uint8)
    if out is not None:
        _write(out, png(grid(bright, 10)))
        return
    firsts = np.cumsum([0, *map(len, some)])[:-1][:5]
    drawn = [ascii_picture(bright[first], 15) for first in firsts]
    echo(" ".join(f"{clean(name)[:15]:<15}" for name in names[:5]))
    echo("\n".join(" ".join(line) for line in zip(*drawn, strict=True)))


def _no_picture(out: Path | None, why: str) -> None:
    """Say why there is no picture; that is an error if a file was asked for."""
    if out is not None:
        leave(f"Error: {out} is not written: {why}.", 1)
    echo(f"Nothing is drawn: {why}.")


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise CounterpoiseError(f"{path} cannot be written: {error.strerror or error}.") from None
    echo(f"written: {path}")
