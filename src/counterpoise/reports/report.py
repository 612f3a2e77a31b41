"""A study as sections, in the order of a reader's questions: which is best, for whom, who was heard, at what cost."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import tomli_w

from counterpoise import __version__
from counterpoise.charts.style import escaped, look
from counterpoise.comparisons.plan import slugs
from counterpoise.comparisons.ranking import verdict
from counterpoise.comparisons.standing import Stand, stand, stand_of
from counterpoise.comparisons.tables import OWN_MODELS, columns, own_columns
from counterpoise.errors import CounterpoiseError
from counterpoise.measures import COLUMNS, is_share, metric_words
from counterpoise.registry import flatten
from counterpoise.reports.chart import Chart, Listing, Missing, Section, Table
from counterpoise.reports.figures.clients import gap, served, who_holds_what
from counterpoise.reports.figures.cost import costs
from counterpoise.reports.figures.heard import couplings, weights
from counterpoise.reports.figures.learning import curves, final
from counterpoise.reports.figures.trust import claims, detection, judged, judging
from counterpoise.reports.page import page
from counterpoise.reports.study import Study, study
from counterpoise.runs.config import OWN
from counterpoise.runs.files import replace_text
from counterpoise.runs.saved import SavedRun
from counterpoise.texts import counted

__all__ = ["charts", "page_path", "render", "sections", "write"]


def write(folders: str | Path | Iterable[str | Path], out: str | Path | None = None, metric: str = "") -> Path:
    """Write a report of the runs in these folders as one HTML file, and return its path.

    By default it is ``report.html`` in the folder, or in the current folder if several are given. `metric` is the one
    by which methods are compared.
    """
    places = [folders] if isinstance(folders, str | Path) else list(folders)
    found = study(places, metric)
    path = page_path(Path(out) if out is not None else Path(places[0] if len(places) == 1 else ".") / "report.html")
    replace_text(path, render(found))
    return path


def page_path(path: Path) -> Path:
    """A path that a page can be written to."""
    if path.is_dir():
        raise CounterpoiseError(f"{path} is a folder; name a file for the report.")
    if not path.parent.is_dir():
        raise CounterpoiseError(
            f"There is no folder {path.parent} for the report. Make it first, or name another place."
        )
    return path


def render(found: Study) -> str:
    """The page of a study."""
    standing = _stand(found)
    made = datetime.datetime.now().astimezone().strftime("%d %B %Y, %H:%M")
    kept = "from runs kept on disk" if found.folders else "from runs that are kept nowhere"
    footer = f"<p>Made by Counterpoise {__version__} on {made}, {kept}. The file needs no network.</p>"
    return page(found.title, _lead(found, standing), sections(found), footer)


def charts(found: Study) -> list[Chart]:
    """Every chart of a study's page."""
    return [part for section in sections(found) for part in section.parts if isinstance(part, Chart)]


def sections(found: Study) -> list[Section]:
    """Everything a study can show, and the reason for what it cannot."""
    trust = [judged(found), claims(found), detection(found)] if judging(found) else [judged(found)]
    return [
        Section("result", "The result", [*_headline(found, _stand(found)), *_unfinished(found), final(found)]),
        Section("learning", "Learning", [curves(found)]),
        Section("clients", "The clients", [served(found), gap(found), who_holds_what(found)]),
        Section("heard", "Who was heard", [weights(found), couplings(found)]),
        Section("trust", "Trust", trust),
        Section("cost", "Cost", [costs(found)]),
        Section("again", "The configuration, and how to repeat it", list(_again(found))),
    ]


def _stand(found: Study) -> Stand:
    """Methods against the plan's baseline; the settings of a sweep against the best."""
    if found.plan is None:
        return stand(found.groups, metric=found.asked)
    return stand_of(found.groups, found.plan.baseline, "the best", found.asked)


def _lead(found: Study, standing: Stand) -> str:
    runs = [run for group in found.groups for run in group.runs]
    told = [f"{line[0].upper()}{line[1:]}." for line in verdict(standing)] if len(found.groups) > 1 else []
    facts = [
        counted(len(found.groups), found.plan.arm_word if found.plan else "method"),
        counted(len({run.seed for run in runs}), "seed"),
        counted(max(len(run.records) for run in runs), "round"),
        f"model {_named(runs, 'model')}",
        f"data {_named(runs, 'data')}, dealt by {_named(runs, 'data', 'partition')}",
    ]
    lead = f'<p class="lead">{escaped(" ".join(told))}</p>' if told else ""
    return f'{lead}\n<p class="facts">{escaped("; ".join(facts))}.</p>'


def _named(runs: list[SavedRun], *keys: str) -> str:
    """The names that the runs' configurations give to something, each once."""
    names: dict[str, None] = {}
    for run in runs:
        values = flatten(run.settings)
        named = values.get(".".join((*keys, "name")), values.get(".".join(keys)))
        names[str(named or "not known")] = None
    return " and ".join(names)


def _headline(found: Study, standing: Stand) -> Iterator[Table]:
    heads, rows = columns(standing)
    told = 2 if "seeds" in heads else 1  # in more words below
    done = [f"{len(group.done)} of {len(found.plan.seeds if found.plan else group.runs)}" for group in found.groups]
    unit = "percentage points, " if is_share(standing.metric) else ""
    wilcoxon = ", and the p of Wilcoxon's signed-rank test" if "Wilcoxon p" in heads else ""
    colours = [look(place).colour for place in range(len(rows))]
    yield Table(
        "headline",
        "Methods side by side" if len(rows) > 1 else "In numbers",
        [heads[0], "seeds done", *heads[told:]],
        [[row[0], seeds, *row[told:]] for row, seeds in zip(rows, done, strict=True)],
        colours,
        f"Finished runs only. {metric_words(standing.metric).capitalize()} of the last round: mean and sample deviation over seeds. "
        f"Paired difference from {standing.baseline or 'the best'} over the same seeds "
        f"({unit}95 % interval and p of a paired t-test{wilcoxon}). "
        + " ".join(column.about for column in COLUMNS if column.server),
    )
    if standing.own:
        yield Table(
            "own",
            "By personal models",
            *own_columns(standing),
            colours,
            f"{OWN_MODELS} From the last round that measured clients; paired differences as above. "
            + " ".join(column.about for column in COLUMNS if column.personal and not column.server),
        )


def _unfinished(found: Study) -> Iterator[Missing]:
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


def _again(found: Study) -> Iterator[Listing]:
    if found.plan is not None:
        yield Listing("All of it", found.plan.command, open=True)
    begun = [group for group in found.groups if group.runs]
    for group, name in zip(begun, slugs([group.label for group in begun]), strict=True):
        first, *others = group.runs
        values = flatten(first.settings)
        own = {key.removeprefix("own.") for key in values if key.startswith("own.")}
        own |= {key for key in ("data", "model", "method") if values.get(f"{key}.name") == OWN}
        commands = [f"counterpoise run {name}.toml", *(_differing(name, first, other) for other in others)]
        title = f"{group.label}: seed{'s' if others else ''} {', '.join(str(run.seed) for run in group.runs)}"
        if own:
            how = f"This run used its author's own {' and '.join(sorted(own))}, so it can only be repeated from Python."
            yield Listing(title, _toml(first), how)
        else:
            yield Listing(title, _toml(first), f"Save this as {name}.toml, then run:", commands)


def _toml(run: SavedRun) -> str:
    return tomli_w.dumps(dict(run.settings)).strip()


def _differing(name: str, first: SavedRun, other: SavedRun) -> str:
    """The command for another seed: the first seed's, with every setting in which the two differ."""
    before = flatten(first.settings)
    settings = [f"{key}={_value(value)}" for key, value in flatten(other.settings).items() if before.get(key) != value]
    return shlex.join(["counterpoise", "run", f"{name}.toml", *(word for s in settings for word in ("--set", s))])


def _value(value: object) -> str:
    """A value as TOML writes it."""
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()
