"""The tables of the result, the best first, and what did not finish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from counterpoise.charts.style import look
from counterpoise.comparisons.ranking import verdict
from counterpoise.comparisons.tables import OWN_MODELS, columns, on_clients, own_columns
from counterpoise.measures import COLUMNS, Standing, is_share, metric_words, on_shared_seeds
from counterpoise.reports.answer import marks
from counterpoise.reports.chart import Missing, Note, Table
from counterpoise.reports.study import Study, best_first

__all__ = ["tables", "tested", "unfinished"]


def tables(found: Study) -> list[Table]:
    """Every method in numbers: by the server's model, and by personal models if there are any."""
    every = [_headline(found), *([_own(found)] if found.standing.own else [])]
    return every[::-1] if found.personal_first else every


def _headline(found: Study) -> Table:
    standing = found.standing
    heads, rows = columns(standing)
    word = found.plan.arm_word if found.plan else "method"
    heads, cells = _without_blanks(*_with_seeds(found, [word, *heads[1:]], rows))
    return _sorted(
        found,
        Table("headline", "In numbers" if found.alone else f"{word.capitalize()}s side by side", heads, cells),
        standing.rows,
        f"Finished runs only. {metric_words(standing.metric).capitalize()} of the last round{_spread(found)}. "
        f"{_differences(found, heads)}"
        + " ".join(
            [
                *filter(None, [on_clients(standing.metric)]),
                *(c.about for c in COLUMNS if c.server),
                _points("Volatility and gap are", found),
            ]
        ),
    )


def _own(found: Study) -> Table:
    return _sorted(
        found,
        Table("own", "By personal models", *_without_blanks(*own_columns(found.standing))),
        found.standing.own,
        f"{OWN_MODELS} From the last round that measured clients; paired differences as in the other table. "
        + " ".join([*(c.about for c in COLUMNS if c.personal and not c.server), _points("The gap is", found)]),
    )


def _points(what: str, found: Study) -> str:
    return f"{what} in percentage points." if is_share(found.standing.metric) else ""


def _with_seeds(found: Study, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """The table with a column of seeds done, if some are not."""
    planned = {group.label: len(found.plan.seeds if found.plan else group.runs) for group in found.groups}
    told = 2 if "seeds" in heads else 1
    if told == 1 and all(len(group.done) == planned[group.label] for group in found.groups):
        return [*heads], [[*row] for row in rows]
    done = [f"{len(group.done)} of {planned[group.label]}" for group in found.groups]
    cells = [[row[0], seeds, *row[told:]] for row, seeds in zip(rows, done, strict=True)]
    return [heads[0], "seeds done", *heads[told:]], cells


def _without_blanks(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """The table without columns that nobody has: a difference if there is one method, a p if there is one seed."""
    kept = [place for place in range(len(heads)) if any(row[place] for row in rows)]
    return [heads[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _spread(found: Study) -> str:
    return ": mean and sample deviation over seeds" if len(found.seeds) > 1 else ""


def _sorted(found: Study, table: Table, rows: Sequence[Standing], caption: str) -> Table:
    """The table in the order of the ranking, with the colours and marks of its rows."""
    told, order = marks(rows, found.standing.lower), best_first(rows, found.standing.lower)
    means = {row.label: row.mean for row in on_shared_seeds(rows)}
    if len({*means.values()}) == 1:  # none is best
        told = [""] * len(rows)
    elif "best" in told:
        top = means[rows[told.index("best")].label]
        told = ["best" if means[row.label] == top else mark for row, mark in zip(rows, told, strict=True)]
    return Table(
        table.key,
        table.title,
        table.columns,
        [table.rows[place] for place in order],
        [look(place).colour for place in order],
        caption,
        [told[place] for place in order],
    )


def _differences(found: Study, heads: Sequence[str]) -> str:
    if found.alone:
        return ""
    standing = found.standing
    unit = "percentage points, " if is_share(standing.metric) else ""
    wilcoxon = ", and the p of Wilcoxon's signed-rank test" if "Wilcoxon p" in heads else ""
    if "p" not in heads:
        return (
            f"Difference from {standing.baseline or 'the best'} with the same seed{unit and ', in percentage points'}. "
        )
    return (
        f"Paired difference from {standing.baseline or 'the best'} over the same seeds "
        f"({unit}95 % interval and p of a paired t-test{wilcoxon}). "
        "Not told apart: over these seeds, the difference from the best may be noise. "
    )


def tested(found: Study) -> Iterator[Note]:
    """What `compare` prints below its table."""
    if not found.alone:
        yield Note("The test", " ".join(f"{line[0].upper()}{line[1:]}." for line in verdict(found.standing)))


def unfinished(found: Study) -> Iterator[Missing]:
    """Runs with fewer rounds than they were asked for, each with the reason."""
    for group in found.groups:
        if not group.runs:
            yield Missing(group.label, "It has not begun.")
        for run in group.runs:
            if run.status != "finished":
                shown = "" if group.done or not run.records else " The charts show the rounds it completed."
                state = "is running" if run.status == "running" else f"was {run.status}"
                said = run.sentence or f"It {state} after round {len(run.records)} of {run.rounds}."
                yield Missing(f"{group.label}, seed {run.seed}", said + shown)
        if early := [f"with seed {run.seed}, {run.why}" for run in group.runs if run.why]:
            yield Missing(group.label, f"Its rule ended it early: {'; '.join(early)}.")
