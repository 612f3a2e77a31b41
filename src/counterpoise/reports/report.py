"""A study as sections, in the order of a reader's questions: which is best, for whom, who was heard, at what cost."""

from __future__ import annotations

import datetime
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from counterpoise import __version__
from counterpoise.charts.style import escaped
from counterpoise.comparisons.plan import PYTHON, Plan, slugs, worded
from counterpoise.errors import CounterpoiseError
from counterpoise.registry import flatten
from counterpoise.reports.answer import answer
from counterpoise.reports.by_client import by_client
from counterpoise.reports.chart import Chart, Listing, Missing, Section
from counterpoise.reports.facts import facts
from counterpoise.reports.figures.clients import gap, served, who_holds_what
from counterpoise.reports.figures.cost import costs
from counterpoise.reports.figures.heard import couplings, unheard, weights
from counterpoise.reports.figures.learning import curves, final
from counterpoise.reports.figures.response import response
from counterpoise.reports.figures.trust import claims, detection, judged, judging, suspects
from counterpoise.reports.page import page
from counterpoise.reports.result import tables, tested, unfinished
from counterpoise.reports.study import Study, study
from counterpoise.runs.config import OWN
from counterpoise.runs.files import replace_text
from counterpoise.runs.saved import SavedRun

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
    made = datetime.datetime.now().astimezone().strftime("%d %B %Y, %H:%M")
    kept = "from runs kept on disk" if found.folders else "from runs that are kept nowhere"
    footer = f"<p>Made by Counterpoise {__version__} on {made}, {kept}. The file needs no network.</p>"
    return page(found.title, _lead(found), sections(found), footer)


def charts(found: Study) -> list[Chart]:
    """Every chart of a study's page."""
    return [part for section in sections(found) for part in section.parts if isinstance(part, Chart)]


def sections(found: Study) -> list[Section]:
    """Everything a study can show; what it cannot show is listed in the last section, with the reason."""
    top, ends, lines = _top(found), final(found), curves(found)
    by_setting = isinstance(top, Chart) and top.key == "response" and not found.personal  # it shows every seed's end
    told_apart = [*suspects(found), claims(found), detection(found)] if judging(found) else []
    every = [
        Section("result", "The result", [top]),
        Section(
            "learning",
            "Learning",
            [part for part in (*_unless(found.single or by_setting, ends), lines) if not _same(part, top)],
        ),
        Section(
            "clients",
            "The clients",
            [served(found), *by_client(found), *_unless(found.single, gap(found)), who_holds_what(found)],
        ),
        Section("heard", "Who was heard", [weights(found), *unheard(found), couplings(found)]),
        Section("trust", "Trust", [judged(found), *told_apart]),
        Section("cost", "Cost", [costs(found)]),
    ]
    absent = [part for section in every for part in section.parts if isinstance(part, Missing)]
    result, *others = (_shown(section) for section in every)
    told = [*result.parts, *tables(found), *unfinished(found), *tested(found)]
    return [
        Section("result", result.title, told),
        *(section for section in others if section.parts),
        Section("again", "The configuration, and how to repeat it", list(_again(found))),
        *([Section("absent", "Not shown", absent)] if absent else []),
    ]


def _top(found: Study) -> Chart | Missing:
    """The chart that shows the answer: how a setting changes the result, where every seed ended, or one run's curve."""
    return curves(found) if found.alone else response(found) or final(found)


def _unless(told: bool, part: Chart | Missing) -> list[Chart | Missing]:
    """The part, unless it is a chart and what it shows is told elsewhere."""
    return [] if told and isinstance(part, Chart) else [part]


def _same(part: Chart | Missing, other: Chart | Missing) -> bool:
    return part.title == other.title


def _shown(section: Section) -> Section:
    return Section(section.key, section.title, [part for part in section.parts if not isinstance(part, Missing)])


def _lead(found: Study) -> str:
    first, *rest = (escaped(_unbroken(line)) for line in answer(found))
    more = f" {' '.join(rest)}" if rest else ""
    return f'<p class="lead"><strong>{first}</strong>{more}</p>\n<p class="facts">{escaped(facts(found))}</p>'


def _unbroken(text: str) -> str:
    """Text in which no line ends between a number and what belongs to it."""
    return re.sub(r"(?<=\d) (?=%)|(?<=\bp) (?== )|(?<=\bp =) ", "\N{NO-BREAK SPACE}", text)


def _again(found: Study) -> Iterator[Listing]:
    if found.plan is not None:
        python = found.plan.source == PYTHON
        before = "In Python, with the same federation and the settings below:" if python else ""
        yield Listing("All of it", _call(found.plan) if python else found.plan.command, before, open=True)
    begun = [group for group in found.groups if group.runs]
    for group, name in zip(begun, slugs([group.label for group in begun]), strict=True):
        first, *others = group.runs
        values = flatten(first.settings)
        own = {key.removeprefix("own.") for key in values if key.startswith("own.")}
        own |= {key for key in ("data", "model", "method") if values.get(f"{key}.name") == OWN}
        commands = [f"counterpoise run {name}.toml", *(_differing(name, first, other) for other in others)]
        title = f"{group.label}: seed{'s' if others else ''} {', '.join(str(run.seed) for run in group.runs)}"
        if own:
            how = (
                f"This run used its author's own {' and '.join(sorted(own))}, so it can only be repeated from Python or, "
                "if it was deployed, by submitting its app again."
            )
            yield Listing(title, _toml(first), how)
        else:
            yield Listing(title, _toml(first), f"Save this as {name}.toml, then run:", commands)


def _call(plan: Plan) -> str:
    """The call that makes a comparison or a sweep again; what only its author has is called by what it is."""
    model, method = plan.values["model"], plan.values.get("method", {})
    arms = ", ".join(_choice(arm.settings.get("method", {})) for arm in plan.arms)
    points = ", ".join(str(dict(arm.settings)) for arm in plan.arms)
    first = f"[{arms}], federation" if plan.kind == "compare" else f"{_choice(method)}, federation, at=[{points}]"
    by = "model" if model.get("name") == OWN else repr(worded(model))
    return f"cp.{plan.kind}({first}, model={by}, rounds={plan.values['rounds']}, seeds={list(plan.seeds)}, ...)"


def _choice(method: Mapping[str, Any]) -> str:
    return str(method["called"]) if "called" in method else repr(worded(method))


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
