"""What a server believed: claimed against estimated counts, and liars caught."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from counterpoise import measures
from counterpoise.charts.style import ACCENT, ALARM, NEUTRAL, called, sized, whole_rounds
from counterpoise.reports.chart import Chart, Missing, Table
from counterpoise.reports.figures.panels import axes, lay_out
from counterpoise.reports.study import Arm, Study, liars, verdicts

__all__ = ["claims", "detection", "judged", "judging", "suspects"]

_MOST_SUSPECTS = 50
_TALL, _FLAT = 220, 70
"""Pixels of a panel over rounds; the second if every line is level."""
_CAUGHT, _ACCUSED = "liars caught", "honest clients accused"
_UNSEEN = "not judged"
_ACTIONS = ("accepted", "corrected", "warned", "excluded", _UNSEEN)


def judging(study: Study) -> list[Arm]:
    """The methods that judged claims."""
    return [arm for arm in study.arms if any(r.outcome.verdicts for run in arm.runs for r in run.records)]


def _none(title: str) -> Missing:
    return Missing(title, "No method here judges what clients claim; feddua does, and feddua:NAME around any other.")


def _moved(arm: Arm) -> bool:
    return any(r.liars for run in arm.runs for r in run.records)


def judged(study: Study) -> Table | Missing:
    """Verdicts counted and, if liars were simulated, compared with the truth."""
    title = "Verdicts"
    arms = judging(study)
    if not arms:
        return _none(title)
    truth = any(map(_moved, arms))
    rows = {arm.label: Counter(_standing(row) for run in arm.runs for row in verdicts(run.records)) for arm in arms}
    actions = [action for action in _ACTIONS if action == "accepted" or any(counts[action] for counts in rows.values())]
    columns = ["method", "claims judged", *actions]
    columns += (
        ["lies flagged", "honest claims flagged", "AUC", "liars caught", "honest clients accused", "error of counts"]
        if truth
        else []
    )
    return Table(
        "verdicts",
        title,
        columns,
        [_row(arm, [rows[arm.label][action] for action in actions], truth) for arm in arms],
        [arm.look.colour for arm in arms],
        f"{'Counts are totals over seeds; shares are means over seeds. ' if len(study.seeds) > 1 else ''}{_why_unseen(arms)}"
        + (
            "Lies and honest claims flagged are counted per claim; liars caught and honest clients accused are clients "
            "flagged at least once. AUC: how often a lie has a larger |z| than an honest claim, where z is a claim's "
            "error divided by its usual spread. Error of counts: the median relative error of the estimates."
            if truth
            else "No adversary was simulated, so there is no truth to compare them with."
        ),
    )


def _standing(row: dict[str, Any]) -> str:
    return row["action"] if row["judged"] else _UNSEEN


def _why_unseen(arms: Sequence[Arm]) -> str:
    """Why claims were believed unseen; empty if none was."""
    unseen = [row["reason"] for arm in arms for run in arm.runs for row in verdicts(run.records) if not row["judged"]]
    reason = next(filter(None, unseen), "there was no evidence")
    return f"Claims that were not judged were believed as they were: {reason}. " if unseen else ""


def _row(arm: Arm, counts: Sequence[int], truth: bool) -> list[str]:
    rows = [verdicts(run.records) for run in arm.runs]
    cells = [arm.label, str(sum(row["judged"] for each in rows for row in each)), *map(str, counts)]
    if not truth:
        return cells
    found = [measures.detection(r, liars(run.records), run.true_counts) for r, run in zip(rows, arm.runs, strict=True)]
    columns = zip(*((d.recall, d.false_alarms, d.auc, d.caught, d.accused, d.count_error) for d in found), strict=True)
    means = [measures.across_seeds([v for v in column if not math.isnan(v)])[0] for column in columns]
    return cells + [
        "not known" if math.isnan(mean) else f"{mean:.3f}" if place == 2 else f"{100 * mean:.1f} %"
        for place, mean in enumerate(means)
    ]


def suspects(study: Study) -> list[Table]:
    """Of a single run: the clients whose claims were ever not accepted, each with the last such verdict."""
    if not study.single:
        return []
    run = study.arms[0].runs[0]
    last = {row["client"]: row for row in verdicts(run.records) if row["action"] != "accepted"}
    rows = [
        [name, str(row["round"]), f"{row['claimed']:g}", _count(row["estimated"]), row["action"], row["reason"]]
        for name, row in zip(called(run.client_names, last), last.values(), strict=True)
    ][:_MOST_SUSPECTS]
    columns = ["client", "round", "claimed", "estimated", "action", "reason"]
    caption = "The last verdict on each client that was not accepted" + (
        f"; {_MOST_SUSPECTS} of {len(last)} clients." if len(last) > _MOST_SUSPECTS else "."
    )
    return [Table("suspects", "Clients that were not believed", columns, rows, caption=caption)] if rows else []


def _count(estimated: float | None) -> str:
    return "not known" if estimated is None else f"{estimated:.0f}"


def claims(study: Study) -> Chart | Missing:
    """The last verdict on every client: what it claimed, and what the evidence suggests."""
    title = "Claimed and estimated counts"
    arms = judging(study)
    figures: dict[tuple[str, ...], go.Figure] = {
        (arm.label,): figure for arm in arms if (figure := _claims(arm)) is not None
    }
    if not figures:
        return _none(title) if not arms else Missing(title, "No verdict came with an estimate of the count.")
    caption = (
        "The last verdict with an estimate, for every client and seed. On the line, claim and estimate agree; "
        "below it, the client claims more than the evidence suggests. Vertical lines: claims that would have been accepted."
    )
    caption += " Diamonds: clients that a simulated adversary controls." if any(map(_moved, arms)) else ""
    if len(figures) == 1:
        return Chart("claims", title, {(): next(iter(figures.values()))}, caption=caption)
    return Chart("claims", title, figures, {"Verdicts of": [name for (name,) in figures]}, caption)


def _claims(arm: Arm) -> go.Figure | None:
    last: dict[tuple[int, int], tuple[dict[str, Any], bool]] = {}
    for run in arm.runs:
        moved = {client for client, _ in liars(run.records)}
        for row in verdicts(run.records):
            if row["estimated"] and row["estimated"] > 0 and row["claimed"] > 0:
                (name,) = called(run.client_names, [row["client"]])
                last[run.seed, row["client"]] = (row | {"called": name}, row["client"] in moved)
    if not last:
        return None
    figure = go.Figure()
    ends = [v for row, _ in last.values() for v in (row["claimed"], row["estimated"])]
    line = [min(ends) * 0.8, max(ends) * 1.25]
    figure.add_scatter(
        x=line,
        y=line,
        mode="lines",
        line={"color": NEUTRAL, "width": 1, "dash": "dot"},
        hoverinfo="skip",
        showlegend=False,
    )
    kinds: dict[tuple[bool, bool, bool], list[tuple[int, dict[str, Any]]]] = {}
    for (seed, _), (row, lied) in last.items():
        kinds.setdefault((row["action"] != "accepted", lied, row["judged"]), []).append((seed, row))
    truth = _moved(arm)
    for (flagged, lied, seen), rows in sorted(kinds.items()):
        who = ("liar" if lied else "honest client") if truth else "client"
        verdict = "flagged" if flagged else "accepted" if seen else _UNSEEN
        figure.add_scatter(
            x=[row["claimed"] for _, row in rows],
            y=[row["estimated"] for _, row in rows],
            error_y=_interval([row for _, row in rows], ALARM if flagged else ACCENT),
            mode="markers",
            name=f"{who}, {verdict}",
            marker={
                "color": ALARM if flagged else ACCENT,
                "symbol": "diamond" if lied else "circle",
                "size": 10 if lied else 7,
                "opacity": 0.85,
            },
            text=[f"client {row['called']}, seed {seed}, round {row['round']}: {_standing(row)}" for seed, row in rows],
            hovertemplate="%{text}<br>claims %{x:,.0f}, evidence suggests %{y:,.0f}<extra></extra>",
        )
    reach = [v for row, _ in last.values() for v in (row["low"], row["high"]) if v is not None and v > 0]
    tall = [max(min(line[0], *reach, math.inf), line[0] / 10), min(max(line[1], *reach, 0.0), line[1] * 10)]
    for update, (low, high) in ((figure.update_xaxes, line), (figure.update_yaxes, tall)):
        update(type="log", tickvals=_ladder(low, high), range=[math.log10(low), math.log10(high)])
    return sized(figure, 440, "claimed count (samples)", "estimated count (samples)", showlegend=True)


def _ladder(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... between two ends; only powers of ten if the ends are far apart."""
    steps = (1, 2, 5) if high / low < 2000 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10.0**power for power in powers for step in steps]


def _interval(rows: Sequence[dict[str, Any]], colour: str) -> dict[str, Any]:
    def reach(row: dict[str, Any], end: str) -> float:
        value = row[end]
        return 0.0 if value is None else max(0.0, (value - row["estimated"]) * (1 if end == "high" else -1))

    up, down = ([round(reach(row, end), 2) for row in rows] for end in ("high", "low"))
    return {"array": up, "arrayminus": down, "color": colour, "thickness": 0.7, "width": 0}


def detection(study: Study) -> Chart | Missing:
    """Liars caught against honest clients accused: as rounds go by, and over thresholds."""
    title = "Detection"
    arms = judging(study)
    if not arms:
        return _none(title)
    arms = [arm for arm in arms if _moved(arm)]
    if not arms:
        return Missing(title, "No adversary was simulated, so nobody can say who lied.")
    by_round, by_threshold = go.Figure(), go.Figure()
    for place, arm in enumerate(arms):
        line = {"color": arm.look.colour, "width": 2.5, "dash": f"10px,{10 * place}px" if place else "solid"}
        _by_round(by_round, arm, line)  # where lines coincide, those below show through the gaps of those above
        _by_threshold(by_threshold, arm, line)
    highest = max((y for t in by_round.data if t.yaxis == "y2" for y in t.y), default=0.0)
    panels = [
        {
            "x": {"title": {"text": "rounds"}, **whole_rounds(by_round)},
            "y": {"tickformat": ".0%", "range": [-0.03 * top, 1.05 * top]},
            "note": {"text": what, "font": {"size": 13}},
        }
        for what, top in ((_CAUGHT, 1.0), (_ACCUSED, min(1.0, max(0.1, highest))))
    ]
    tall = _FLAT if all(len({*trace.y}) < 2 for trace in by_round.data) else _TALL
    several = len(arms) > 1
    views = {"over rounds": lay_out(by_round, panels, tall, 80, 2, above=22).update_layout(showlegend=several)}
    if by_threshold.data:
        by_threshold.add_scatter(
            x=[0, 1],
            y=[0, 1],
            mode="lines",
            line={"color": NEUTRAL, "width": 1, "dash": "dot"},
            hoverinfo="skip",
            showlegend=False,
        )
        by_threshold.update_xaxes(tickformat=".0%", range=[-0.02, 1.02])
        by_threshold.update_yaxes(tickformat=".0%", range=[-0.03, 1.03])
        views["over thresholds"] = sized(by_threshold, 400, "honest claims flagged", "lies flagged", showlegend=several)
    return Chart(
        "detection",
        title,
        {(view,): figure for view, figure in views.items()},
        {"Show": list(views)},
        "Over rounds: the share of liars and of honest clients heard so far that were flagged at least once"
        f"{'; means over seeds' if len(study.seeds) > 1 else ''}. "
        + ("Where methods coincide, their colours alternate. " if several else "")
        + "Over thresholds: the result of flagging every claim whose |z| reaches a threshold"
        f"{', all seeds together' if len(study.seeds) > 1 else ''}.",
    )


def _by_round(figure: go.Figure, arm: Arm, line: dict[str, Any]) -> None:
    found = [
        {at.round: at for at in measures.caught_by_round(verdicts(run.records), liars(run.records))} for run in arm.runs
    ]
    rounds = sorted(set.intersection(*map(set, found)))
    for panel, what in enumerate(("caught", "accused")):
        kept = [r for r in rounds if all(math.isfinite(getattr(at[r], what)) for at in found)]
        means = [round(measures.across_seeds([getattr(at[r], what) for at in found])[0], 4) for r in kept]
        figure.add_scatter(
            x=kept,
            y=means,
            name=arm.name,
            legendgroup=arm.name,
            showlegend=not panel,
            mode="lines" if len(kept) > 1 else "markers",
            line=line,
            hovertemplate=f"{arm.name}<br>round %{{x}}: {(_CAUGHT, _ACCUSED)[panel]} %{{y:.0%}}<extra></extra>",
            **axes(panel),
        )


def _by_threshold(figure: go.Figure, arm: Arm, line: dict[str, Any]) -> None:
    scored = [
        (abs(row["z"]), (row["client"], row["round"]) in lied)
        for run in arm.runs
        for lied in (liars(run.records),)
        for row in verdicts(run.records)
        if row["z"] is not None
    ]
    points = _corners(measures.roc([z for z, _ in scored], [lie for _, lie in scored]))
    if points:
        figure.add_scatter(
            x=[round(alarms, 4) for _, alarms, _ in points],
            y=[round(recall, 4) for _, _, recall in points],
            name=arm.name,
            mode="lines",
            line=line,
            customdata=[f"{at:.3g}" for at, _, _ in points],
            hovertemplate=f"{arm.name}<br>|z| ≥ %{{customdata}}: %{{y:.0%}} of lies, %{{x:.0%}} of honest claims<extra></extra>",
        )


def _corners(points: list[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """The curve without the points that lie on a straight piece of it."""
    kept = points[:1]
    for before, at, after in zip(points, points[1:], points[2:], strict=False):
        if not (before[1] == at[1] == after[1] or before[2] == at[2] == after[2]):
            kept.append(at)
    return kept + points[1:][-1:]
