"""`make evidence`: write docs/evidence.md and its figures from the results of the studies, without running anything."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from counterpoise.studies.drawing import drawing
from counterpoise.studies.finding import Finding, found_in
from counterpoise.studies.standing import Row
from counterpoise.studies.tables import again, claim_table, filled, pipes, printed, verdicts_counted

HERE = Path(__file__).resolve().parent
_COMMIT, _CHANGED = re.compile(r"[0-9a-f]{7,40}"), re.compile(r"[0-9a-f]{7,40}-dirty")
ROOMS = {"papers": "The four papers", "external": "Tables that other projects publish", "": "Our own worlds"}
"""The folders of the studies in the order of the page, with the headings of their parts."""
INTRODUCTION = """\
# Evidence

This page holds what others published beside what this library found. [Studies](studies.md) says how a verdict is
computed. Every value comes from a run whose settings, seed, curve and machine are in the JSON file beside its study, so
the page can be made again without a GPU by `make evidence`. The command below each table repeats its runs. It is for a
clone of the repository, which holds the files of the studies."""


def main() -> None:
    """Write the page."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--out", type=Path, default=HERE.parent / "docs", help="folder for the page")
    out = words.parse_args().out
    (out / "figures").mkdir(parents=True, exist_ok=True)
    studies = {room: {path: found_in(path) for path in _studies(HERE / room)} for room in ROOMS}
    parts = [INTRODUCTION, *_summary([found for room in studies.values() for found in room.values()])]
    for room, heading in ROOMS.items():
        if studies[room]:
            parts += [f"## {heading}", *(_part(path, found, out) for path, found in studies[room].items())]
    (out / "evidence.md").write_text("\n\n".join(parts).rstrip() + "\n", encoding="utf-8")


def _studies(folder: Path) -> list[Path]:
    """The studies of a folder: those with results first, and those with short names, which the others build on."""
    paths = [path for path in folder.glob("*.toml") if path.stem != "example"]
    return sorted(paths, key=lambda path: (not path.with_suffix(".json").exists(), len(path.stem), path.stem))


def _summary(studies: Sequence[Finding]) -> Iterator[str]:
    heads = ["study", "runs", "hours", "published values", "claims"]
    lines = [_line(found) for found in studies]
    yield pipes(heads, lines)
    ended = [one for found in studies for row in _run(found) for one in row.outcomes.values()]
    cpu = sum(one.seconds for one in ended if "NVIDIA" not in one.made.machine) / 3600
    yield filled(
        f"*Hours* are summed over processes: {cpu:.1f} of them on a CPU, the others on a GPU that six to eighteen "
        "processes shared. A lead that a paper prints counts among its published values."
    )
    yield filled(told_commits(studies))


_LOST = {"f323cf7": "5f24f18"}
"""Commits that runs name although they are not in the history, and those whose code was found beside their results."""


def told_commits(found: Sequence[Finding]) -> str:
    """Which runs name something else than the commit of the code that made them."""
    others = {one.study.title: [name for name in _commits(one) if not _COMMIT.fullmatch(name)] for one in found}
    some = [f"{len(names)} of *{title}*" for title, names in others.items() if names]
    lost = [
        f"`{name}` is not in the history. The code found beside its results is that of `{_LOST[name]}`. Ten of its runs that "
        "nothing since could have changed (*without memory* and *all on the server* in `cifar10-sparse`) were repeated at "
        "`df86043`, and every value of their curves was the same."
        for name in sorted({name for one in found for name in _commits(one)} & _LOST.keys())
    ]
    if not some:
        return " ".join(["Every run names the commit of the code that made it.", *lost])
    named = sorted({name for names in others.values() for name in names})
    changed = [f"`{name}`" for name in named if _CHANGED.fullmatch(name)]
    unknown = [f"`{name}`" if name else "nothing" for name in named if not _CHANGED.fullmatch(name)]
    words = [f"Runs name the commit of the code that made them, except {', '.join(some)}."]
    if changed:
        words.append(f"Some of these say {', '.join(changed)}: files were changed after that commit.")
    if unknown:
        words.append(f"{'Others' if changed else 'These'} say {', '.join(unknown)}: their commit is unknown.")
    return " ".join([*words, *lost])


def _commits(found: Finding) -> Iterator[str]:
    return (one.made.commit for row in _run(found) for one in row.outcomes.values())


def _line(found: Finding) -> list[str]:
    rows = list(_run(found))
    ended = [one for row in rows for one in row.outcomes.values()]
    todo = sum(row.lacking for row in rows)
    hours = sum(one.seconds for one in ended) / 3600
    return [
        found.study.title,
        f"{len(ended)} of {len(ended) + todo}" if todo else str(len(ended)),
        f"{hours:.2f}" if ended else "",
        *verdicts_counted(found.rows, found.claims),
    ]


def _run(found: Finding) -> Iterator[Row]:
    """The rows with runs of their own: no averages, no views, and nothing that cannot be run."""
    return (row for row in found.rows if not row.parts and not row.cell.runs_of and not row.cannot)


_TABLES = {
    "worlds": "every-method",
    "worlds-ablation": "each-part-switched-off",
}
"""The studies whose tables are on the page of worlds, and where."""


def _part(path: Path, found: Finding, out: Path) -> str:
    command = f"counterpoise study run {path.relative_to(HERE.parent)}"
    if not any(row.outcomes for row in found.rows):
        runs = sum(row.lacking for row in _run(found))
        about = "\n\n".join(map(filled, found.study.about.strip().split("\n\n")))
        parts = [f"### {found.study.title}", about, f"Not run yet: {runs} runs.", f"    {command}"]
        if any(row.published is not None for row in found.rows):
            parts += ["What was published:", pipes(*printed(found.rows))]
        heads, lines = claim_table(found.claims)
        kept = [place for place, head in enumerate(heads) if head in ("claim", "cells", "published lead", "source")]
        table = [[line[place] for place in kept] for line in (heads, *lines)]
        return "\n\n".join([*parts, *([pipes(table[0], table[1:])] if found.claims else [])])
    figure = f"figures/study-{path.stem}.svg"
    drawn = drawing(found.rows, found.claims, found.study.title)
    if drawn:
        (out / figure).write_text(drawn, encoding="utf-8")
    if place := _TABLES.get(path.stem):
        sentence, repeats = again(found.rows, command)
        parts = [f"### {found.study.title}", *map(filled, found.study.about.strip().split("\n\n"))]
        parts += [f"[Its tables are on the page of worlds](worlds.md#{place}).", f"![{found.study.title}]({figure})"]
        return "\n\n".join([*parts, filled(sentence), f"    {repeats}"])
    return found.markdown(level=3, figure=figure if drawn else "", command=command).rstrip()


if __name__ == "__main__":
    main()
