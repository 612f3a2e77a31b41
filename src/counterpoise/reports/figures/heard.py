"""Who was heard: the weight of every client in every round, and whom a rule favours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from counterpoise import measures
from counterpoise.charts.style import ALARM, NEUTRAL, called, from_zero, sized, whole_rounds
from counterpoise.measures.records import Curve
from counterpoise.reports.chart import Chart, Missing, Table
from counterpoise.reports.figures.learning import SPREAD, every_seed
from counterpoise.reports.figures.panels import axes, lay_out, row_panels
from counterpoise.reports.figures.readable import readable
from counterpoise.reports.study import Arm, Study
from counterpoise.runs.ending import left_out
from counterpoise.runs.plots import band
from counterpoise.runs.saved import SavedRun

__all__ = ["couplings", "unheard", "weights"]

_CLIENTS, _ROUNDS = 100, 200
_ALIKE = 1e-4
"""Weights that differ by less than this share count as equal."""
_CELLS = 250_000
"""Most cells in all maps of a page together; further seeds are left out."""


_MOST_ROWS = 50

_BOUNDS = {"minallowed": -1.05, "maxallowed": 1.05}
"""Of a correlation; otherwise a lone dot's axis goes on to 1.5."""
_FAVOUR, _COUNT = "rank correlation", "effective clients"


def weights(study: Study) -> Chart | Missing:
    """A map of clients by rounds for every method, seed by seed."""
    title = "The weight of every client in every round"
    weighing = [arm for arm in study.arms if any(r.outcome.weights for run in arm.runs for r in run.records)]
    if not weighing:
        return Missing(
            title,
            "No run here has client weights: a median, for example, has none, and older runs did not keep them.",
        )
    even = [arm for arm in weighing if _even(arm)]
    alike = _alike([arm for arm in weighing if arm not in even])
    weighing = [group[0] for group in alike]
    if not weighing:
        return Missing(title, "Every method weighs all clients of a round alike, and leaves none out.")
    clients = sorted({c for arm in weighing for run in arm.runs for r in run.records for c in r.cohort})
    rounds = max(len(run.records) for arm in weighing for run in arm.runs)
    chosen = _apart(clients, _CLIENTS)
    room = max(1, _CELLS // (len(chosen) * min(rounds, _ROUNDS) * len(weighing)))
    seeds = study.seeds[:room]
    figures: dict[tuple[str, ...], go.Figure] = {(f"seed {seed}",): _maps(alike, seed, chosen) for seed in seeds}
    drawn = [arm for group in alike for arm in group]
    quiet = [arm.label for arm in study.arms if arm not in drawn and arm not in even]
    said = [
        "The stronger the colour, the more a client counted in the round. Empty: not asked.",
        "Crosses: left out."
        if any(r.outcome.excluded for a in weighing for run in a.runs for r in run.records)
        else "",
        "Triangles: clients that a simulated adversary controls."
        if any(r.liars for a in weighing for run in a.runs for r in run.records)
        else "",
        f"{len(chosen)} of {len(clients)} clients, evenly spaced." if len(chosen) < len(clients) else "",
        f"{_ROUNDS} of {rounds} rounds, evenly spaced." if rounds > _ROUNDS else "",
        f"Seeds {', '.join(map(str, seeds))} of {len(study.seeds)}, to keep the page small."
        if len(seeds) < len(study.seeds)
        else "",
        *(f"The same weights, so one map: {'; '.join(arm.label for arm in group)}." for group in alike if group[1:]),
        f"Without weights: {', '.join(quiet)}." if quiet else "",
        f"All clients of a round alike, so without a map: {', '.join(arm.label for arm in even)}." if even else "",
    ]
    caption = " ".join(filter(None, said))
    if len(figures) == 1:
        return Chart("weights", title, {(): next(iter(figures.values()))}, caption=caption)
    return Chart("weights", title, figures, {"Show": [name for (name,) in figures]}, caption)


def unheard(study: Study) -> list[Table]:
    """Of a single run: the clients that were left out, how often, and the most frequent reason."""
    if not study.single:
        return []
    run = study.arms[0].runs[0]
    found = left_out(run.records)
    names = called(run.client_names, [one.client for one in found])
    rows = [[name, f"{one.times} of {one.asked}", one.reason] for name, one in zip(names, found, strict=True)]
    caption = "Of the rounds that asked the client, with its most frequent reason" + (
        f"; {_MOST_ROWS} of {len(rows)} clients." if len(rows) > _MOST_ROWS else "."
    )
    columns = ["client", "rounds left out", "reason"]
    return [Table("unheard", "Clients that were left out", columns, rows[:_MOST_ROWS], caption=caption)] if rows else []


def _even(arm: Arm) -> bool:
    """Whether all clients of a round have the same weight, in every round, and none is left out."""
    rounds = [r.outcome for run in arm.runs for r in run.records]
    given = [[*outcome.weights.values()] for outcome in rounds if outcome.weights]
    return not any(outcome.excluded for outcome in rounds) and all(
        max(each) - min(each) <= _ALIKE * max(map(abs, each)) for each in given
    )


def _alike(arms: list[Arm]) -> list[list[Arm]]:
    """The methods in groups that have the same map with every seed: few settings change who is heard."""
    groups: dict[str, list[Arm]] = {}
    for arm in arms:
        maps = {
            run.seed: [_row(r.outcome.weights or {}, r.outcome.excluded, r.liars) for r in run.records]
            for run in arm.runs
        }
        groups.setdefault(repr(sorted(maps.items())), []).append(arm)
    return [*groups.values()]


def _row(weights: Mapping[int, float], *others: Iterable[int]) -> tuple[list[Any], ...]:
    """What a map shows of a round."""
    return sorted((client, _short(weight)) for client, weight in weights.items()), *map(sorted, others)


def _apart(values: list[int], most: int) -> list[int]:
    return values if len(values) <= most else [values[i * len(values) // most] for i in range(most)]


def _maps(groups: list[list[Arm]], seed: int, clients: list[int]) -> go.Figure:
    here = [(arm, run, len(others)) for arm, *others in groups for run in arm.runs if run.seed == seed]
    figure = go.Figure()
    for place, (arm, run, _) in enumerate(here):
        _map(figure, place, arm, run, clients)
    every = [r for _, run, _ in here for r in run.records]
    before = 1.5 if any(r.liars for r in every) else 0.5  # for their triangles
    ends = [r.round for r in every]
    x = {"title": {"text": "rounds"}, "showgrid": False, "range": [min(ends) - before, max(ends) + 0.5]}
    x |= whole_rounds(figure)
    y = {"title": {"text": "client"}, "type": "category", "showgrid": False, "nticks": 8}
    panels = [
        {
            "x": x,
            "y": y | ({"matches": "y"} if place else {}),
            "note": {
                "text": f"{arm.name} and {more} more" if more else arm.name,
                "font": {"size": 13, "color": arm.look.colour},
            },
        }
        for place, (arm, _, more) in enumerate(here)
    ]
    tall = min(max(len(clients) * 7, 120), 300)
    lay_out(figure, panels, tall, 110, 2 if len(here) > 1 else 1, above=22, bare=True)
    cells = (cell for trace in figure.data if trace.type == "heatmap" for row in trace.z for cell in row)
    scale = {"colorbar": {"title": {"text": "weight in the round"}}} | from_zero(cells)
    return figure.update_layout(coloraxis=scale, margin={"b": 70, "t": 8}, showlegend=False, hovermode="closest")


def _map(figure: go.Figure, panel: int, arm: Arm, run: SavedRun, clients: list[int]) -> None:
    records = [run.records[i] for i in _apart(list(range(len(run.records))), _ROUNDS)]
    name = dict(zip(clients, called(run.client_names, clients), strict=True))
    given = [r.outcome.weights or {} for r in records]
    figure.add_heatmap(
        z=[[_short(weights.get(client)) for weights in given] for client in clients],
        x=[r.round for r in records],
        y=list(name.values()),
        coloraxis="coloraxis",
        xgap=1 if len(records) <= 60 else 0,
        ygap=1 if len(clients) <= 60 else 0,
        hovertemplate=f"{arm.name}<br>client %{{y}}, round %{{x}}: weight %{{z}}<extra></extra>",
        **axes(panel),
    )
    known = set(clients)
    out = [(r.round, c, why) for r in records for c, why in r.outcome.excluded.items() if c in known]
    moved = sorted({c for r in run.records for c in r.liars} & known)
    figure.add_scatter(
        x=[round for round, _, _ in out],
        y=[name[client] for _, client, _ in out],
        text=["left out" for _ in out],
        mode="markers",
        marker={"symbol": "x-thin", "size": 5, "line": {"width": 1.2, "color": ALARM}},
        hovertemplate=f"{arm.name}<br>client %{{y}}, round %{{x}}: %{{text}}<extra></extra>",
        **axes(panel),
    )
    figure.add_scatter(
        x=[records[0].round - 1 if records else 0] * len(moved),
        y=[name[client] for client in moved],
        mode="markers",
        marker={"symbol": "triangle-right", "size": 8, "color": ALARM},
        hovertemplate="an adversary controls client %{y}<extra></extra>",
        **axes(panel),
    )


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.3g}")


def couplings(study: Study) -> Chart | Missing:
    """Does the weight go where the model does well? Rank correlations, and how many clients count."""
    title, words = "Whom the weights favour", measures.metric_words(study.metric)
    found = {
        _FAVOUR: [[measures.couplings(run.records, "weight", study.metric) for run in arm.runs] for arm in study.arms],
        _COUNT: [[measures.effective_clients(run.records) for run in arm.runs] for arm in study.arms],
    }
    lines = {view: figure for view, curves in found.items() if (figure := _lines(study, view, curves, words))}
    if not lines:
        return Missing(title, "No round has both weights and clients evaluated one by one.")
    views = lines if study.single else {"means of all rounds": _means(study, found, words)} | lines
    return Chart(
        "couplings",
        title,
        {(view,): figure for view, figure in views.items()},
        {"Show": list(views)},
        f"Rank correlation: Spearman's, over the clients heard in a round, between weight and {words} on a client's "
        "held-out part. Above 0, clients that the model serves well count more; below 0, those that it serves badly. "
        "Equal weights have no order, so they have no correlation. Effective clients: (Σw)² / Σw², how many equal "
        f"weights would average out as much. {_told(study, found)}",
    )


def _told(study: Study, found: Mapping[str, list[list[Curve]]]) -> str:
    """How to read dots and lines; of a single run, which has no dots, their numbers."""
    if study.single:
        means = {view: _mean(curves[0][0]) for view, curves in found.items()}
        said = [f"{view} {mean:.2g}" for view, mean in means.items() if math.isfinite(mean)]
        return f"Means of all rounds: {', '.join(said)}."
    spread = SPREAD if len(study.seeds) > 1 else ""
    return f"In the means, every dot is a seed{spread}; over rounds, lines are means over seeds."


def _means(study: Study, found: Mapping[str, list[list[Curve]]], words: str) -> go.Figure:
    """A panel for each measure: its mean over rounds, a dot for each seed."""
    figure = go.Figure()
    for panel, curves in enumerate(found.values()):
        for row, (arm, its) in enumerate(zip(study.arms, curves, strict=True)):
            means = {run.seed: _mean(curve) for run, curve in zip(arm.runs, its, strict=True)}
            means = {seed: mean for seed, mean in means.items() if math.isfinite(mean)}
            if means:
                every_seed(figure, row, arm, means, "%{x:.3f}", panel)
    scales = [
        {"title": {"text": f"{_FAVOUR} with {words}"}, "zeroline": True, "zerolinecolor": NEUTRAL, "nticks": 7}
        | _BOUNDS,
        {"title": {"text": f"{_COUNT} a round"}, "rangemode": "tozero", "nticks": 7},
    ]
    return row_panels(figure, [arm.label for arm in study.arms], scales)


def _mean(curve: Curve) -> float:
    return measures.across_seeds([value for _, value in curve if math.isfinite(value)])[0]


def _lines(study: Study, view: str, curves: list[list[Curve]], words: str) -> go.Figure | None:
    """A measure over rounds, with bands that show when a line is pointed at."""
    figure = go.Figure()
    for arm, its in zip(study.arms, curves, strict=True):
        _line(figure, arm, its)
    if not figure.data:
        return None
    if view == _FAVOUR:
        figure.add_hline(y=0, line={"color": NEUTRAL, "width": 1, "dash": "dot"})
        figure.update_yaxes(range=[-1.05, 1.05])
    else:
        figure.update_yaxes(rangemode="tozero")
    axis = f"{_FAVOUR} with {words}" if view == _FAVOUR else "effective number of clients"
    return readable(sized(figure, 340, "rounds", axis, showlegend=True), study.arms, ())


def _line(figure: go.Figure, arm: Arm, found: list[Curve]) -> None:
    each = [{round: value for round, value in curve if math.isfinite(value)} for curve in found]
    rounds = sorted(set.intersection(*map(set, each))) if each else []
    rounds = _apart(rounds, _ROUNDS)
    if rounds:
        across = [measures.across_seeds([values[round] for values in each]) for round in rounds]
        short = [(float(np.round(mean, 4)), float(np.round(deviation, 4))) for mean, deviation in across]
        band(figure, arm.name, arm.look, rounds, short, "%{y:.3f}", rounds, opacity=0.07)
