"""Client by client: how well each is served, and who holds which labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from counterpoise import measures
from counterpoise.charts.holdings import holdings_figure
from counterpoise.charts.style import called, rows, shade, sized
from counterpoise.comparisons.wording import unit_of
from counterpoise.registry import flatten
from counterpoise.reports.chart import Chart, Missing
from counterpoise.reports.figures.learning import OWN_DATA, SPREAD, every_seed
from counterpoise.reports.figures.panels import row_panels
from counterpoise.reports.study import PERSONALS, Study
from counterpoise.runs.plots import percent
from counterpoise.runs.saved import SavedRun

__all__ = ["gap", "served", "who_holds_what"]

_DOTS = 600
"""Most clients of a method to draw as dots; more would hide one another."""


def served(study: Study) -> Chart | Missing:
    """Every client's final metric, by method: under the server's model, and under its own if it has one."""
    title = f"Each client's {measures.metric_words(study.metric)}"
    found = {view: figure for view, own in _views(study).items() if (figure := _boxes(study, own)) is not None}
    if not found:
        return _unmeasured(title)
    several = len(found) > 1
    seeds, each = (", all seeds together", " with one seed") if len(study.seeds) > 1 else ("", "")
    most = max(sum(len(_named(run, study.metric, False)) for run in arm.runs) for arm in study.arms)
    many = f"; methods with more than {_DOTS} are drawn without dots" if most > _DOTS else ""
    caption = (
        f"Measured on every client's held-out part in the last round that did so{seeds}. Box: quartiles; "
        f"whiskers: worst and best. Every dot is a client{each}{many}.{_tenths_told(study) if study.single else ''}"
        + (f" Personal models are measured on {OWN_DATA}." if several else "")
    )
    if not several:
        return Chart("served", title, {(): next(iter(found.values()))}, caption=caption)
    return Chart("served", title, {(view,): figure for view, figure in found.items()}, {"Show": list(found)}, caption)


def _tenths_told(study: Study) -> str:
    """Of a single run, what the chart of the gap would show as single dots."""
    unit, show = unit_of(study.metric)
    said = []
    for view, own in _views(study).items():
        if last := _last(study.arms[0].runs[0], study.metric, own):
            spread = measures.distribution(last.values(), study.lower)
            worst, best = (f"{show(value)}{unit}" for value in (spread.worst_decile, spread.best_decile))
            whose = f" by {view}" if study.personal else ""
            said.append(f" The worst served tenth of clients has {worst} on average{whose}, the best {best}.")
    return "".join(said)


def _views(study: Study) -> dict[str, bool]:
    """Whose models to show, and whether they are personal."""
    return {view: view == PERSONALS for view in study.views}


def _boxes(study: Study, own: bool) -> go.Figure | None:
    figure, shown = go.Figure(), list[str]()
    hover = ".2%" if percent(study.metric) else ".4g"
    for arm in study.arms:
        each = [found for run in arm.runs for found in _named(run, study.metric, own)]
        if not each:
            continue
        values = [value for _, _, value in each]
        spread = measures.distribution(values, study.lower)
        dots = {"x": [[round(v, 4) for v in values]], "boxpoints": "all", "jitter": 0.6, "pointpos": 0}
        dots |= {
            "customdata": [[f"client {c}, seed {s}" for s, c, _ in each]],  # plotly would make one text of a list
            "hovertemplate": f"{arm.name}, %{{customdata}}: %{{x:{hover}}}<extra></extra>",
        }
        figure.add_box(
            q1=[spread.lower_quartile],
            median=[spread.median],
            q3=[spread.upper_quartile],
            lowerfence=[spread.lowest],
            upperfence=[spread.highest],
            y=[len(shown)],
            orientation="h",
            width=0.5,
            name=arm.name,
            line={"color": arm.look.colour, "width": 1.5},
            fillcolor=shade(arm.look.colour, 0.12),
            marker={"color": shade(arm.look.colour, 0.65), "size": 5},
            showlegend=False,
            **(dots if len(each) <= _DOTS else {"boxpoints": False}),
        )
        shown.append(arm.label)
    if not shown:
        return None
    figure.update_xaxes(tickformat=percent(study.metric))
    return sized(
        rows(figure, shown),
        90 + 52 * len(shown),
        f"{measures.metric_words(study.metric)} on a client's held-out part",
    )


def gap(study: Study) -> Chart | Missing:
    """How far apart the best and the worst served tenth of clients are, and how well the worst is served."""
    title = "The fairness gap"
    drawn = {view: figure for view, own in _views(study).items() if (figure := _tenths(study, own)) is not None}
    if not drawn:
        return _unmeasured(title)
    words = measures.metric_words(study.metric)
    spread = SPREAD if len(study.seeds) > 1 else ""
    caption = (
        f"The gap is the mean {words} of the best served tenth of clients minus that of the worst served tenth (at least "
        f"one client each), which has the other panel. Every dot is a seed{spread}."
    )
    if len(drawn) == 1:
        return Chart("gap", title, {(): next(iter(drawn.values()))}, caption=caption)
    return Chart("gap", title, {(view,): figure for view, figure in drawn.items()}, {"By": list(drawn)}, caption)


def _tenths(study: Study, own: bool) -> go.Figure | None:
    figure, shown = go.Figure(), list[str]()
    hover = "%{x:.2%}" if percent(study.metric) else "%{x:.4g}"
    for arm in study.arms:
        found = {
            run.seed: measures.distribution(last.values(), study.lower)
            for run in arm.runs
            if (last := _last(run, study.metric, own))
        }
        if found:
            every_seed(figure, len(shown), arm, {seed: spread.gap for seed, spread in found.items()}, hover, 0)
            every_seed(figure, len(shown), arm, {seed: spread.worst_decile for seed, spread in found.items()}, hover, 1)
            shown.append(arm.label)
    scale: dict[str, Any] = {"tickformat": percent(study.metric), "rangemode": "tozero", "nticks": 7}
    scale |= {"minallowed": -0.02, "maxallowed": 1.02} if percent(study.metric) else {}  # a deviation may reach beyond
    titles = ("gap: best minus worst tenth", f"{measures.metric_words(study.metric)} of the worst tenth")
    return row_panels(figure, shown, [scale | {"title": {"text": text}} for text in titles]) if shown else None


def _last(run: SavedRun, metric: str, own: bool = False) -> dict[int, float]:
    each = measures.of_clients(run.records, measures.PERSONAL + metric if own else metric)
    return {client: value for client, value in each.items() if math.isfinite(value)}


def _named(run: SavedRun, metric: str, own: bool) -> list[tuple[int, str, float]]:
    """Seed, name and value of each client in the last round that measured them."""
    found = _last(run, metric, own)
    return [(run.seed, *pair) for pair in zip(called(run.client_names, found), found.values(), strict=True)]


def _unmeasured(title: str) -> Missing:
    return Missing(
        title,
        "Clients were not evaluated one by one: no part of their data was held out, or evaluation.clients_every is 0.",
    )


def who_holds_what(study: Study) -> Chart | Missing:
    """Labels by client, for every way the data was dealt."""
    title = "Who holds which labels"
    deals: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for arm in study.arms:
        for run in arm.runs:
            found = run.holdings
            fingerprint = str(flatten(run.settings).get("data.fingerprint") or run.path or run.held)
            if found and found.get("labels") and fingerprint not in deals:
                deals[fingerprint] = (f"seed {run.seed}", found)
    if not deals:
        kept = any(run.holdings for arm in study.arms for run in arm.runs)
        why = (
            "the targets are not class numbers"
            if kept
            else "the runs' folders do not say (the server of a deployment does not know; other folders are damaged, or "
            "an earlier version made them)"
        )
        return Missing(title, f"There is nothing to draw: {why}.")
    names = [name for name, _ in deals.values()]
    if len(set(names)) < len(names):
        names = [f"deal {number}" for number in range(1, len(deals) + 1)]
    figures: dict[tuple[str, ...], go.Figure]
    if len(deals) == 1:
        ((_, only),) = deals.values()
        figures, switches = {(): holdings_figure(only)}, {}
    else:
        figures = {(name,): holdings_figure(found) for name, (_, found) in zip(names, deals.values(), strict=True)}
        switches = {"Deal of": names}
    first = next(iter(deals.values()))[1]
    some = (
        f" {len(first['shown'])} of {first['clients']} clients, evenly spaced."
        if len(first["shown"]) < first["clients"]
        else ""
    )
    return Chart(
        "labels",
        title,
        figures,
        switches,
        f"How many samples of each label a client holds, held-out ones included; below, its total.{some}",
    )
