"""A study's results as rows of text, and as a part of a Markdown page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from textwrap import fill
from typing import Any

from counterpoise.studies.beside import beside
from counterpoise.studies.standing import ClaimRow, Row
from counterpoise.studies.study import Study
from counterpoise.studies.verdicts import Judged

__all__ = [
    "again",
    "as_plain",
    "cannot",
    "claim_table",
    "filled",
    "markdown",
    "notes",
    "pipes",
    "printed",
    "reasons",
    "results",
    "table",
    "took",
    "verdicts_counted",
    "waiting",
]

OWN = "Values are means over seeds{}; shares are in points."
PUBLISHED = "*d* is our mean or lead less the published one, and ± how far chance reaches (95 %)."


def table(every: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a line for each method of each cell that can be run or was published. Empty columns are left out."""
    heads = ["cell", "method", "ours", "seeds", "published", "d", "verdict", "source"]
    lines = [
        [
            row.cell.name,
            row.entry.label,
            _ours(row),
            _seeds(row),
            _published(row),
            _apart(row.judged, row.cell.metric.shown),
            row.verdict,
            "" if row.published is None else ", ".join(filter(None, (row.published.source, row.published.kind))),
        ]
        for row in every
        if not row.cannot or row.published is not None
    ]
    return _without_empty(heads, lines)


def claim_table(claims: Sequence[ClaimRow]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a line for each claim. Columns that are empty for all are left out."""
    heads = ["claim", "cells", "our lead [95 %]", "verdict", "published lead", "d", "verdict on d", "source"]
    lines = []
    for row in claims:
        claim, found = row.claim, row.found
        shown = partial(row.better[0].cell.metric.shown, sign="+")
        ours = "" if found is None else shown(found.paired.difference)
        if found is not None and not math.isnan(found.paired.low):
            ours += f" [{shown(found.paired.low)}, {shown(found.paired.high)}]"
        by = "" if claim.by is None else f"{claim.by:+g}"
        d = _apart(row.judged, shown)
        lines.append([_claimed(row), claim.named, ours, row.verdict, by, d, row.lead_verdict, claim.source])
    return _without_empty(heads, lines)


def _without_empty(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """A table without its empty columns, but for the first three."""
    kept = [place for place in range(len(heads)) if place < 3 or any(line[place] for line in lines)]
    return [heads[place] for place in kept], [[line[place] for place in kept] for line in lines]


def results(every: Sequence[Row], claims: Sequence[ClaimRow]) -> list[tuple[list[str], list[list[str]]]]:
    """A line for each method if there is something to hold it against, otherwise a line for each cell; views apart."""
    if claims or any(row.published is not None for row in every):
        there = [row for row in every if row.published is not None or row.outcomes or row.values]
        return [table(there or every)]
    parts = ([row for row in every if not row.cell.runs_of], [row for row in every if row.cell.runs_of])
    return [matrix(part) for part in parts if part]


def matrix(every: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a line for each cell with our mean for each method, and how many of its seeds if not all."""
    return _by_cell([row for row in every if not row.cannot], _mean)


def printed(every: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a line for each cell with what was published for each method."""
    return _by_cell([row for row in every if row.published is not None], _published)


def _by_cell(every: Sequence[Row], text: Callable[[Row], str]) -> tuple[list[str], list[list[str]]]:
    labels = list(dict.fromkeys(row.entry.label for row in every))
    cells: dict[str, dict[str, str]] = {}
    for row in every:
        cells.setdefault(row.cell.name, {})[row.entry.label] = text(row)
    return ["cell", *labels], [[name, *(found.get(label, "") for label in labels)] for name, found in cells.items()]


def _mean(row: Row) -> str:
    return _ours(row, short=True) + (f" ({_seeds(row)})" if row.lacking and row.values else "")


def _seeds(row: Row) -> str:
    """How many seeds a row has, and of how many if some are to run."""
    if not row.values:
        return ""
    return f"{len(row.values)} of {row.cell.seeds}" if row.lacking else str(len(row.values))


def as_plain(every: Sequence[Row], claims: Sequence[ClaimRow]) -> dict[str, Any]:
    """The content of the tables as plain values for JSON."""
    return {
        "rows": [
            {
                "cell": row.cell.name,
                "method": row.entry.label,
                "metric": row.cell.metric.words,
                "seeds": {str(seed): row.values.get(seed) for seed in sorted(row.outcomes or row.values)},
                "collapsed": row.collapsed,
                **_finite({"mean": row.mean, "deviation": row.deviation}),
                "published": None if row.published is None else vars(row.published),
                "judged": None if row.judged is None else _finite(row.judged._asdict()),
                "verdict": row.verdict,
            }
            for row in every
        ],
        "claims": [
            {
                **vars(row.claim),
                "found": None if row.found is None else _finite(row.found.paired._asdict()),
                "verdict": row.verdict,
                "judged": None if row.judged is None else _finite(row.judged._asdict()),
                "lead_verdict": row.lead_verdict,
            }
            for row in claims
        ],
    }


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """None for NaN, which JSON does not have."""
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in values.items()}


def waiting(every: Sequence[Row]) -> dict[str, str]:
    """The methods of which nothing has been run yet, by the cells that lack just these. Views are left out.

    Empty if nothing of the study has been run.
    """
    own = [row for row in every if not (row.parts or row.cell.runs_of or row.cannot)]
    whole, lacking = Counter(row.cell.name for row in own), dict[str, list[str]]()
    for row in own if any(row.outcomes for row in own) else ():
        if not row.outcomes:
            lacking.setdefault(row.cell.name, []).append(row.entry.label)
    found: dict[str, list[str]] = {}
    for name, labels in lacking.items():
        found.setdefault("every method" if len(labels) == whole[name] else "; ".join(labels), []).append(name)
    return {"; ".join(names): labels for labels, names in found.items()}


def cannot(every: Sequence[Row]) -> dict[str, str]:
    """Why cells cannot be run, by their names. Averages and views are not named again."""
    own = (row for row in every if not row.parts and not row.cell.runs_of)
    return {row.cell.name: row.cannot for row in own if row.cannot}


def notes(every: Sequence[Row], claims: Sequence[ClaimRow]) -> list[tuple[str, str]]:
    """The remarks on cells, averages and claims, each with what it is about."""
    about = [(row.cell.name, row.cell.note) for row in every] + [(_claimed(row), row.claim.note) for row in claims]
    return list(dict.fromkeys(pair for pair in about if pair[1]))


def verdicts_counted(every: Sequence[Row], claims: Sequence[ClaimRow]) -> tuple[str, str]:
    """How many of each verdict the published values have, leads among them, and how many the claims."""
    values = [row.verdict for row in every if row.published is not None]
    leads = [row.lead_verdict for row in claims if row.lead_verdict]
    return _counted([*values, *leads]), _counted(row.verdict for row in claims)


def _counted(verdicts: Iterable[str]) -> str:
    """How many of each verdict. Those that say in brackets why there is none count as one."""
    counts = Counter("without a verdict" if word.startswith("(") else word for word in verdicts)
    return ", ".join(f"{count} {word}" for word, count in counts.most_common())


def _claimed(row: ClaimRow) -> str:
    """A claim in words, without its cells."""
    claim = row.claim
    second = "itself" if claim.than == claim.better else claim.than
    words = [claim.better, "beats" if claim.within is None else "is like", second]
    if claim.than_cells != claim.cells:
        words.append(f"in {', '.join(claim.than_cells)}")
    if claim.within is not None:
        words.append(f"within {claim.within:g}")
    if claim.metric:
        words.append(f"by the {claim.metric}")
    if claim.smaller_in:
        words.append(f"by more than in {', '.join(claim.smaller_in)}")
    return " ".join(words)


def reasons(every: Sequence[Row]) -> list[str]:
    """Why runs diverged or failed, one line for each method of a cell."""
    found = []
    for row in every:
        if why := next((one.why for one in row.outcomes.values() if one.why), ""):
            found.append(f"{row.cell.name}, {row.entry.label}: {why}")
    return found


def markdown(
    study: Study, every: Sequence[Row], claims: Sequence[ClaimRow], level: int = 2, figure: str = "", command: str = ""
) -> str:
    """A part of a page about a study."""
    published = any(row.published is not None for row in every) or any(row.claim.by is not None for row in claims)
    metrics = list(dict.fromkeys(row.cell.metric.words for row in every))
    parts = [f"{'#' * level} {study.title}", *map(filled, study.about.strip().split("\n\n"))]
    told = [OWN.format(" ± the sample deviation" if published or claims else ""), PUBLISHED if published else ""]
    parts.append(filled(f"{' '.join(filter(None, told))} Measured: {'; '.join(metrics)}."))
    parts += [pipes(*one) for one in results(every, claims)]
    if claims:
        parts.append(pipes(*claim_table(claims)))
    parts.append(_items("Still to run:", [f"{names}: {labels}" for names, labels in waiting(every).items()]))
    why = {reason: [name for name, own in cannot(every).items() if own == reason] for reason in cannot(every).values()}
    parts.append(_items("Cannot be run:", [f"{'; '.join(names)}: {reason}" for reason, names in why.items()]))
    parts.append(_items("Collapsed:", reasons(every)))
    parts.append(_items("Notes:", [f"{name}: {note}" for name, note in notes(every, claims)]))
    if figure:
        shown = "published against ours" if beside(every, claims) else "every method in every cell"
        parts.append(f"![{study.title}: {shown}]({figure})")
    if command:
        sentence, repeats = again(every, command)
        parts.append(f"{filled(sentence)}\n\n    {repeats}")
    return "\n\n".join(filter(None, parts)) + "\n"


def again(every: Sequence[Row], command: str) -> tuple[str, str]:
    """How to repeat a study's runs, and the command. It names a new file, because kept results are not run again."""
    if not any(row.outcomes for row in every):
        return "Run it, or one cell with `--cells NAME`:", command
    how = "Run it again, or one cell with `--cells NAME`, and keep the results in a file of your own."
    return f"{how} {took(every)}".rstrip(), f"{command} --results my-{PurePath(command.split()[-1]).stem}.json"


def took(every: Sequence[Row]) -> str:
    """How long the runs of these rows took, in a sentence; empty if there are none."""
    own = [one for row in every if not row.cell.runs_of for one in row.outcomes.values() if one.status == "finished"]
    if not own:
        return ""
    machines = "; ".join(dict.fromkeys(_device(one.made.machine) for one in own))
    seconds = sum(one.seconds for one in own) / len(own)
    return (
        f"A run took {seconds:.{1 if seconds < 10 else 0}f} s on average ({machines}), which is its share if runs trained "
        "as one batch: a run alone takes longer."
    )


def _device(machine: str) -> str:
    """The GPUs of a machine, or its processor and cores.

    >>> _device("1 x NVIDIA H200, Xeon, 16 cores, torch 2.11.0"), _device("aarch64, 2 cores, torch 2.11.0")
    ('1 x NVIDIA H200', 'aarch64, 2 cores')
    """
    parts = machine.split(", ")
    return parts[0] if " x " in parts[0] else ", ".join(parts[:2])


def _items(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, "", *(filled(f"- {line}", "  ") for line in lines)]) if lines else ""


def filled(text: str, indent: str = "") -> str:
    """A paragraph in lines of 120 characters. None begins with a per cent sign, which MyST takes for a comment.

    Hyphens stay within a line, because names in backticks have some.
    """
    lines = fill(text.replace(" %", "\xa0%"), 120, subsequent_indent=indent, break_on_hyphens=False)
    return lines.replace("\xa0%", " %")


def pipes(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(heads), "|" + "---|" * len(heads), *map(line, lines)])


def _ours(row: Row, short: bool = False) -> str:
    """Our mean and deviation. Of a method with collapsed runs, every seed; in short form without decimals of points."""
    shown = row.cell.metric.shown
    if row.collapsed:
        brief = short and row.cell.metric.in_points
        every = ((seed, row.values.get(seed)) for seed in sorted(row.outcomes))
        return (" " if brief else ", ").join(
            _ended(row, seed) if value is None else f"{value:.0f}" if brief else shown(value) for seed, value in every
        )
    if not row.values:
        return ""
    return shown(row.mean) if short or math.isnan(row.deviation) else f"{shown(row.mean)} ± {shown(row.deviation)}"


def _ended(row: Row, seed: int) -> str:
    status = row.outcomes[seed].status
    never = "never" if row.cell.metric.rule == "rounds" else "no value"
    return never if status == "finished" else status


def _published(row: Row) -> str:
    if row.published is None:
        return ""
    spread = "" if row.published.spread is None else f" ± {row.published.spread:g}"
    upto = "" if row.published.to is None else f" to {row.published.to:g}"
    return f"{row.published.value:g}{upto}{spread}" + (f" ({row.published.seeds})" if row.published.seeds > 1 else "")


def _apart(judged: Judged | None, shown: Callable[..., str]) -> str:
    """d and how far chance reaches."""
    if judged is None:
        return ""
    half = "" if math.isnan(judged.half) else f" ± {shown(judged.half, sign='')}"
    return shown(judged.difference, sign="+") + half
