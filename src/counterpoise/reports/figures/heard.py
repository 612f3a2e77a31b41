"""Who was heard: the weight of every client in every round, and whom a rule favours."""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from counterpoise import measures
from counterpoise.charts.style import ALARM, NEUTRAL, called, sized
from counterpoise.measures.records import Curve
from counterpoise.reports.chart import Chart, Missing
from counterpoise.reports.study import Arm, Study
from counterpoise.runs.plots import band
from counterpoise.runs.saved import SavedRun

__all__ = ["couplings", "weights"]

_CLIENTS, _ROUNDS = 100, 200
_ALIKE = 1e-4
"""Weights that differ by less than this share count as equal."""
_CELLS = 250_000
"""Most cells in all maps of a page together; further seeds are left out."""


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
    weighing = [arm for arm in weighing if arm not in even]
    if not weighing:
        return Missing(title, "Every method weighs all clients of a round alike, and leaves none out.")
    clients = sorted({c for arm in weighing for run in arm.runs for r in run.records for c in r.cohort})
    rounds = max(len(run.records) for arm in weighing for run in arm.runs)
    chosen = _apart(clients, _CLIENTS)
    room = max(1, _CELLS // (len(chosen) * min(rounds, _ROUNDS) * len(weighing)))
    seeds = study.seeds[:room]
    figures: dict[tuple[str, ...], go.Figure] = {(f"seed {seed}",): _maps(weighing, seed, chosen) for seed in seeds}
    quiet = [arm.label for arm in study.arms if arm not in weighing and arm not in even]
    said = [
        "The stronger the colour, the more a client counted in the round. Empty: not asked. Crosses: left out.",
        "Triangles: clients that a simulated adversary controls."
        if any(r.liars for a in weighing for run in a.runs for r in run.records)
        else "",
        f"{len(chosen)} of {len(clients)} clients, evenly spaced." if len(chosen) < len(clients) else "",
        f"{_ROUNDS} of {rounds} rounds, evenly spaced." if rounds > _ROUNDS else "",
        f"Seeds {', '.join(map(str, seeds))} of {len(study.seeds)}, to keep the page small."
        if len(seeds) < len(study.seeds)
        else "",
        f"Without weights: {', '.join(quiet)}." if quiet else "",
        f"All clients of a round alike, so without a map: {', '.join(arm.label for arm in even)}." if even else "",
    ]
    caption = " ".join(filter(None, said))
    if len(figures) == 1:
        return Chart("weights", title, {(): next(iter(figures.values()))}, caption=caption)
    return Chart("weights", title, figures, {"Show": [name for (name,) in figures]}, caption)


def _even(arm: Arm) -> bool:
    """Whether all clients of a round have the same weight, in every round, and none is left out."""
    rounds = [r.outcome for run in arm.runs for r in run.records]
    given = [[*outcome.weights.values()] for outcome in rounds if outcome.weights]
    return not any(outcome.excluded for outcome in rounds) and all(
        max(each) - min(each) <= _ALIKE * max(map(abs, each)) for each in given
    )


def _apart(values: list[int], most: int) -> list[int]:
    return values if len(values) <= most else [values[i * len(values) // most] for i in range(most)]


def _maps(arms: list[Arm], seed: int, clients: list[int]) -> go.Figure:
    here = [(arm, run) for arm in arms for run in arm.runs if run.seed == seed]
    tall = min(max(len(clients) * 7, 120), 300)
    height = len(here) * (tall + 44) + 100
    figure = make_subplots(
        rows=len(here),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=40 / height if len(here) > 1 else 0,
        subplot_titles=[arm.name for arm, _ in here],
    )
    for note, (arm, _) in zip(figure.layout.annotations, here, strict=True):
        note.update(x=0, xanchor="left", font={"size": 13.5, "color": arm.look.colour})
    for row, (arm, run) in enumerate(here, 1):
        _map(figure, row, arm, run, clients)
    figure.update_yaxes(title_text="client", type="category", showgrid=False, nticks=8)
    ends = [r.round for _, run in here for r in run.records]
    figure.update_xaxes(showgrid=False, range=[min(ends) - 1.5, max(ends) + 0.5])
    figure.update_xaxes(title_text="rounds", row=len(here), col=1)
    bar = {"title": {"text": "weight in the round"}}
    return sized(figure, height, coloraxis={"colorbar": bar, "cmin": 0}, margin={"b": 70, "t": 30}, showlegend=False)


def _map(figure: go.Figure, row: int, arm: Arm, run: SavedRun, clients: list[int]) -> None:
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
        row=row,
        col=1,
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
        row=row,
        col=1,
    )
    figure.add_scatter(
        x=[records[0].round - 1 if records else 0] * len(moved),
        y=[name[client] for client in moved],
        mode="markers",
        marker={"symbol": "triangle-right", "size": 8, "color": ALARM},
        hovertemplate="an adversary controls client %{y}<extra></extra>",
        row=row,
        col=1,
    )


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.3g}")


def couplings(study: Study) -> Chart | Missing:
    """Does the weight go where the model does well? Rank correlations over rounds, and how many clients count."""
    title = "Whom the weights favour"
    views: dict[str, go.Figure] = {}
    figure = go.Figure()
    for arm in study.arms:
        _line(figure, arm, [measures.couplings(run.records, "weight", study.metric) for run in arm.runs])
    if figure.data:
        figure.add_hline(y=0, line={"color": NEUTRAL, "width": 1, "dash": "dot"})
        figure.update_yaxes(range=[-1.05, 1.05])
        views[_FAVOUR] = sized(
            figure, 320, "rounds", f"rank correlation with {measures.metric_words(study.metric)}", showlegend=True
        )
    figure = go.Figure()
    for arm in study.arms:
        _line(figure, arm, [measures.effective_clients(run.records) for run in arm.runs])
    if figure.data:
        figure.update_yaxes(rangemode="tozero")
        views[_COUNT] = sized(figure, 320, "rounds", "effective number of clients", showlegend=True)
    if not views:
        return Missing(title, "No round has both weights and clients evaluated one by one.")
    return Chart(
        "couplings",
        title,
        {(view,): figure for view, figure in views.items()},
        {"Show": list(views)},
        f"Rank correlation: Spearman's, over the clients heard in a round, between weight and {measures.metric_words(study.metric)} on a "
        "client's held-out part. Above 0, clients that the model serves well count more; below 0, those that it serves "
        "badly. Equal weights have no order, so they have no line. Effective clients: (Σw)² / Σw², how many equal "
        "weights would average out as much. Lines are means over seeds.",
    )


def _line(figure: go.Figure, arm: Arm, found: list[Curve]) -> None:
    each = [{round: value for round, value in curve if math.isfinite(value)} for curve in found]
    rounds = sorted(set.intersection(*map(set, each))) if each else []
    rounds = _apart(rounds, _ROUNDS)
    if rounds:
        across = [measures.across_seeds([values[round] for values in each]) for round in rounds]
        short = [(float(np.round(mean, 4)), float(np.round(deviation, 4))) for mean, deviation in across]
        band(figure, arm.name, arm.look, rounds, short, "%{y:.3f}", rounds, opacity=0.07)
