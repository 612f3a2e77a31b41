"""What `counterpoise runs` does: choose runs on disk, and list, show, compare or remove them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tomli_w
import typer
from rich.table import Table
from rich.text import Text

from counterpoise.cli.screen import echo
from counterpoise.cli.tables import lines, number, output, stand_table
from counterpoise.comparisons.collection import collect, groups, read_or_tell, read_run, run_folders
from counterpoise.comparisons.contents import COMPARISON
from counterpoise.comparisons.ranking import reached, verdict
from counterpoise.comparisons.removal import check_removable, remove
from counterpoise.comparisons.standing import stand
from counterpoise.comparisons.tables import FORMATS, as_plain
from counterpoise.errors import CounterpoiseError, unknown
from counterpoise.measures import curve, last
from counterpoise.runs.contents import FAILURE
from counterpoise.runs.saved import UNREADABLE, SavedRun
from counterpoise.texts import clean

__all__ = ["compare_all", "list_all", "remove_all", "show_one"]


def list_all(folders: Sequence[Path] | None, method: str, data: str, since: str, before: str, as_json: bool) -> None:
    """The runs in folders, one a line."""
    found = _chosen(folders, method, data, since, before, read_or_tell)
    if as_json:
        echo(json.dumps([_plain(run) for run in found]))
        return
    if not found:
        echo("No runs.")
        return
    console = output()
    heads = ("changed", "method", "data", "seed", "rounds", "accuracy", "run")
    for line in lines(heads, [_listed(run) for run in found], ("seed", "rounds", "accuracy"), console.width):
        console.print(line, soft_wrap=True)
    for run in found:
        if run.status == UNREADABLE:
            echo(f"unreadable: {run.sentence}")


def _listed(run: SavedRun) -> list[Text]:
    """A run's row in the listing."""
    same = run.changed.year == datetime.date.today().year
    ended = Text("" if run.status == "finished" else f" {run.status}", style="red" if run.failed else "yellow")
    return [
        Text(f"{run.changed:%m-%d %H:%M}" if same else f"{run.changed:%Y-%m-%d}"),
        _cell(run.method),
        _cell(run.data),
        Text("" if run.status == UNREADABLE else str(run.seed)),
        Text.assemble(f"{len(run.records)}/{run.rounds}", ended, (" doubtful" if run.doubts else "", "yellow")),
        Text(number(last(curve(run.records)), "accuracy")),
        _cell(run.path),
    ]


def _cell(value: object) -> Text:
    """Text that somebody else may have written, on one line and as wide as it is printed."""
    return Text(clean(str(value)).replace("\n", r"\n").replace("\t", r"\t"))


def show_one(folder: Path, target: float | None, as_json: bool) -> None:
    """How a run ended, every measure, and its configuration."""
    run = _one(folder)
    measures = run.measures(target=target)
    if as_json:
        plain = {k: None if isinstance(v, float) and v != v else v for k, v in measures.items()}
        echo(json.dumps({**_plain(run), "measures": plain, "settings": dict(run.settings)}, default=str))
        return
    table = Table.grid(padding=(0, 2))
    for key, value in measures.items():
        name = key.replace("own model's", "personal")  # in JSON the key stays as it is
        table.add_row(Text(name), Text(f"{value:.6g}" if isinstance(value, float) else str(value), justify="right"))
    console = output()
    lines = [f"{run.method} on {run.data}, seed {run.seed}: {run.status}, {len(run.records)} of {run.rounds} rounds"]
    lines += [run.sentence] if run.sentence else []
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    console.print(table)
    echo("\n" + tomli_w.dumps(dict(run.settings)).rstrip())


def compare_all(
    folders: Sequence[Path] | None,
    baseline: str | None,
    method: str,
    data: str,
    since: str,
    before: str,
    form: str,
    target: float | None,
    as_json: bool,
) -> None:
    """The runs in folders, compared seed by seed."""
    if form not in ("text", *FORMATS):
        raise unknown("format", form, ("text", *FORMATS))
    if target is not None and form != "text":
        raise CounterpoiseError(f"--target works with text and --json; a table in {form} has no column for it.")
    places = _places(folders)
    whole = len(places) == 1 and (places[0] / COMPARISON).exists() and not (method or data or since or before)
    found = stand(collect(places) if whole else groups(_chosen(folders, method, data, since, before)), baseline)
    if not found.rows:
        raise CounterpoiseError("There are no runs to compare.")
    if as_json:
        echo(
            json.dumps(
                {
                    "baseline": found.baseline,
                    "metric": found.metric,
                    "groups": as_plain(found, target),
                    "verdict": verdict(found),
                }
            )
        )
    elif form == "text":
        output().print(stand_table(found))
        told = reached(found, target) + (verdict(found) if len(found.rows) > 1 else [])
        echo("".join(f"{line}\n" for line in told), nl=False)
    else:
        echo(FORMATS[form](found))


def remove_all(folders: Sequence[Path], yes: bool) -> None:
    """Remove what these folders hold, after a question."""
    for folder in folders:
        check_removable(folder)
    count = len(run_folders(folders))
    if not yes and not typer.confirm(
        f"Remove {_counted(count)} in {', '.join(clean(str(folder)) for folder in folders)}?"
    ):
        echo("Nothing was removed.")
        raise typer.Exit(1)
    left = [path for folder in folders if folder.is_dir() for path in remove(folder)]
    stay = len(run_folders(folder for folder in folders if folder.is_dir()))
    echo(f"removed: {_counted(count - stay)}")
    if left:
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        echo(f"left, because they do not belong to what was removed: {', '.join(map(str, left[:5]))}{more}")


def _counted(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


def _places(folders: Sequence[Path] | None) -> list[Path]:
    if folders:
        return list(folders)
    if not Path("runs").is_dir():
        raise CounterpoiseError("There is no folder runs here. Say where to look.")
    return [Path("runs")]


def _one(folder: Path) -> SavedRun:
    if not any((folder / name).exists() for name in ("config.toml", FAILURE)):
        raise CounterpoiseError(f"{folder} holds no run: there is no config.toml in it.")
    return read_run(folder)


def _chosen(
    folders: Sequence[Path] | None,
    method: str,
    data: str,
    since: str,
    before: str,
    read: Callable[[Path], SavedRun] = read_run,
) -> list[SavedRun]:
    """The runs in these folders that match all filters, the latest last."""
    first, end = _day(since, "--since"), _day(before, "--before")
    found = (
        run
        for run in map(read, run_folders(_places(folders)))
        if method in run.method
        and data in run.data
        and (first is None or run.changed.date() >= first)
        and (end is None or run.changed.date() < end)
    )
    return sorted(found, key=lambda run: run.changed)


def _day(text: str, option: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(text) if text else None
    except ValueError:
        raise CounterpoiseError(f"{option} takes a day such as 2026-01-31, not {text!r}.") from None


def _plain(run: SavedRun) -> dict[str, Any]:
    accuracy = last(curve(run.records))
    return {
        "folder": str(run.path),
        "method": run.method,
        "data": run.data,
        "seed": run.seed,
        "rounds": len(run.records),
        "asked": run.rounds,
        "accuracy": accuracy if accuracy == accuracy else None,
        "status": run.status,
        "sentence": run.sentence or None,
        "doubts": list(run.doubts),
        "changed": run.changed.isoformat(timespec="seconds"),
    }
