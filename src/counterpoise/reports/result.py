"""The tables of the result, the best first, and what did not finish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from counterpoise.charts.style import look
from counterpoise.comparisons.ranking import verdict
from counterpoise.comparisons.tables import OWN_MODELS, columns, on_clients, own_columns
from counterpoise.measures import COLUMNS, Standing, is_share, metric_words
from counterpoise.reports.answer import marks
from counterpoise.reports.chart import Missing, Note, Table
from counterpoise.reports.study import Study, best_first

__all__ = ["tables", "tested", "unfinished"]


def tables(found: Study) -> Iterator[Table]:
    """Every method in numbers: by the server's model, and by personal models if there are any."""
    standing = found.standing
    heads, rows = columns(standing)
    done = [f"{len(group.done)} of {len(found.plan.seeds if found.plan else group.runs)}" for group in found.groups]
    told = 2 if "seeds" in heads else 1  # `done` says it in more words
    cells = [[row[0], seeds, *row[told:]] for row, seeds in zip(rows, done, strict=True)]
    word = found.plan.arm_word if found.plan else "method"
    heads = [word, "seeds done", *heads[told:]]
    if found.alone:  # there is nothing to differ from
        kept = [place for place, head in enumerate(heads) if head not in ("p", "Wilcoxon p") and head[:3] != "vs "]
        heads, cells = [heads[place] for place in kept], [[row[place] for place in kept] for row in cells]
    yield _sorted(
        found,
        Table("headline", "In numbers" if found.alone else f"{word.capitalize()}s side by side", heads, cells),
        standing.rows,
        f"Finished runs only. {metric_words(standing.metric).capitalize()} of the last round: mean and sample deviation "
        f"over seeds. {_differences(found, heads)}"
        + " ".join([*filter(None, [on_clients(standing.metric)]), *(c.about for c in COLUMNS if c.server)]),
    )
    if standing.own:
        yield _sorted(
            found,
            Table("own", "By personal models", *own_columns(standing)),
            standing.own,
            f"{OWN_MODELS} From the last round that measured clients; paired differences as above. "
            + " ".join(column.about for column in COLUMNS if column.personal and not column.server),
        )


def _sorted(found: Study, table: Table, rows: Sequence[Standing], caption: str) -> Table:
    """The table in the order of the ranking, with the colours and marks of its rows."""
    told, order = marks(rows, found.standing.lower), best_first(rows, found.standing.lower)
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
