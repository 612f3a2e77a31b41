"""The page says what the records say, says why where it cannot, and is one safe file."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept import comparison, keep

from counterpoise import measures, reports
from counterpoise.charts.style import look, looks, unit, wrapped
from counterpoise.cli import main
from counterpoise.errors import CounterpoiseError
from counterpoise.reports.answer import answer
from counterpoise.reports.chart import Chart, Missing, Note, Section, Table
from counterpoise.reports.figures.cost import _scaled
from counterpoise.reports.page import page
from counterpoise.reports.report import render, sections
from counterpoise.reports.study import study
from counterpoise.runs.config import override
from counterpoise.runs.saved import load_run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    records = comparison(folder)
    return folder, records, {part.title: part for section in sections(study([folder])) for part in section.parts}


RANKED = ("feddua:fedavg", "scaffold", "fedavg")
"""The methods of `comparison`, the best first."""


def charts(parts) -> dict[str, Chart]:
    return {part.key: part for part in parts.values() if isinstance(part, Chart)}


def traces(figure) -> list[dict[str, Any]]:
    return figure.to_plotly_json()["data"]


def panel(figure, place: int) -> list[dict[str, Any]]:
    """The traces of one panel."""
    return [trace for trace in traces(figure) if trace.get("xaxis", "x") == ("x", "x2", "x3", "x4")[place]]


def named(figure, name: str) -> dict[str, Any]:
    (found,) = [trace for trace in traces(figure) if trace.get("name") == name]
    return found


def payload(page: str) -> dict[str, Any]:
    return json.loads(re.search(r'<script id="payload" type="application/json">(.*?)</script>', page, re.S)[1])


# ---------------------------------------------------------------- every number is that of the records


def test_curves_are_means_over_seeds_with_a_deviation_either_side(made):
    _, records, parts = made
    chart = charts(parts)["curves"]
    assert chart.switches == {
        "Show": ["test accuracy", "test loss", "training loss"],
        "against": ("rounds", "bytes", "seconds"),
    }
    values = np.array([[r.metrics["accuracy"] for r in run] for run in records["scaffold"]])
    line = named(chart.figures["test accuracy", "rounds"], "scaffold")
    assert line["x"] == list(range(1, 13))
    assert line["y"] == pytest.approx(values.mean(0), rel=1e-4)
    (band,) = [
        t for t in traces(chart.figures["test accuracy", "rounds"]) if t["legendgroup"] == "scaffold" and "fill" in t
    ]
    assert band["y"][:12] == pytest.approx(values.mean(0) + values.std(0, ddof=1), rel=1e-3)
    assert band["y"][12:] == pytest.approx((values.mean(0) - values.std(0, ddof=1))[::-1], rel=1e-3)


@pytest.mark.parametrize(("rounds", "apart"), [(2, 1), (10, 1), (14, None)])
def test_ticks_are_whole_rounds(tmp_path, rounds, apart):
    """Plotly draws about ten ticks, so that it puts none between two of more than eleven rounds."""
    comparison(tmp_path, seeds=2, rounds=rounds)
    shown = charts({part.title: part for section in sections(study([tmp_path])) for part in section.parts})
    drawn = {key: [figure.layout for figure in chart.figures.values()] for key, chart in shown.items()}
    axes = [
        (key, layout[name]) for key, all_of in drawn.items() for layout in all_of for name in layout if "xaxis" in name
    ]
    found = [(key, axis.dtick) for key, axis in axes if axis.title.text == "rounds"]
    assert {dtick for _, dtick in found} == {apart}
    assert {key for key, _ in found} == {"curves", "weights", "couplings", "detection"}


def test_bytes_and_seconds_add_up_along_the_axis(made):
    _, records, parts = made
    figures = charts(parts)["curves"].figures
    assert named(figures["test loss", "bytes"], "fedavg")["x"] == pytest.approx([1.5 * r for r in range(1, 13)])  # kB
    assert figures["test loss", "bytes"].layout.xaxis.title.text == "sent both ways (kB)"
    mean = np.mean([r[0].seconds for r in records["fedavg"]])
    assert named(figures["test loss", "seconds"], "fedavg")["x"] == pytest.approx(
        [mean * r for r in range(1, 13)], rel=1e-3
    )


def test_every_seed_is_a_dot(made):
    _, records, parts = made
    figure = charts(parts)["final"].figures[()]
    found = traces(figure)
    for place, (name, runs) in enumerate((name, records[name]) for name in RANKED):
        dots, mean = found[2 * place], found[2 * place + 1]
        ends = [run[-1].metrics["accuracy"] for run in runs]
        assert dots["x"] == ends
        assert dots["y"] == [place] * 3
        assert figure.layout.yaxis.ticktext[place] == name
        assert mean["x"] == pytest.approx([np.mean(ends)])
        assert mean["error_x"]["array"] == pytest.approx([np.std(ends, ddof=1)])


def test_clients_gap_and_worst_tenth(made):
    _, records, parts = made
    boxes = traces(charts(parts)["served"].figures[()])
    last = [[*run[-1].clients["accuracy"].values()] for run in records[RANKED[0]]]
    assert boxes[0]["x"][0] == pytest.approx(np.concatenate(last), abs=1e-4)
    assert boxes[0]["median"] == pytest.approx([np.median(np.concatenate(last))])
    gap = charts(parts)["gap"].figures[()]
    assert panel(gap, 0)[0]["x"] == pytest.approx([max(v) - min(v) for v in last])  # of 8 clients, a tenth is one
    assert panel(gap, 1)[0]["x"] == pytest.approx([min(v) for v in last])
    assert "gap" in gap.layout.xaxis.title.text
    assert "worst" in gap.layout.xaxis2.title.text
    assert [(axis.minallowed, axis.maxallowed) for axis in (gap.layout.xaxis, gap.layout.xaxis2)] == [(-0.02, 1.02)] * 2


def test_clients_own_models_are_a_view_of_their_own(tmp_path):
    records = keep(tmp_path / "run", personal=True)
    chart = next(p for s in sections(study([tmp_path])) for p in s.parts if isinstance(p, Chart) and p.key == "served")
    assert chart.switches == {"Show": ["the server's model", "personal models"]}
    own = [*records[-1].clients["personal_accuracy"].values()]
    assert traces(chart.figures["personal models",])[0]["x"][0] == pytest.approx(own, abs=1e-4)


def test_a_comparison_shows_personal_models_beside_the_servers(tmp_path):
    plain = [keep(tmp_path / f"fedavg{s}", seed=s) for s in range(3)]
    ditto = [keep(tmp_path / f"ditto{s}", seed=s, method={"name": "ditto"}, personal=True) for s in range(3)]
    parts = [part for section in sections(study([tmp_path])) for part in section.parts]
    (table,) = (part for part in parts if isinstance(part, Table) and part.key == "own")
    means = [
        [np.mean([*run[-1].clients[name].values()]) for run in runs]
        for runs, name in ((plain, "accuracy"), (ditto, "personal_accuracy"))
    ]
    assert [row[:2] for row in table.rows] == [["fedavg", "server's"], ["ditto", "personal"]]
    for row, values in zip(table.rows, means, strict=True):
        assert row[2].startswith(f"{100 * np.mean(values):.2f} ± ")
    assert table.rows[1][3].startswith(f"{100 * np.mean(np.subtract(means[1], means[0])):+.2f} [")
    drawn = {part.key: part for part in parts if isinstance(part, Chart)}
    final = drawn["final"]
    assert final.switches == {"By": ["the server's model", "personal models"]}
    seeds = [trace["x"] for trace in traces(final.figures["personal models",]) if len(trace["x"]) == 3]
    by_name = dict(zip(("fedavg", "ditto"), means, strict=True))
    assert seeds == [pytest.approx(by_name[arm.label]) for arm in study([tmp_path]).arms]
    curve = named(drawn["curves"].figures["personal accuracy", "rounds"], "ditto")
    assert curve["y"][-1] == pytest.approx(np.mean(means[1]), rel=1e-4)
    worst = panel(drawn["gap"].figures["personal models",], 1)
    ends = [min(run[-1].clients["personal_accuracy"].values()) for run in ditto]  # of 8 clients, a tenth is one
    assert any(trace["x"] == pytest.approx(ends) for trace in worst if len(trace["x"]) == 3)
    assert "Best by the server&#x27;s model: " in render(study([tmp_path]))


def test_without_a_test_set_the_report_is_about_the_clients_held_out_data(tmp_path):
    runs = {"fedavg": [], "fedprox": []}
    for name, seed in [(name, seed) for name in runs for seed in range(3)]:
        runs[name] += [keep(tmp_path / f"{name}{seed}", seed=seed, method={"name": name}, metrics=False)]
    found = study([tmp_path])
    parts = {part.title: part for section in sections(found) for part in section.parts}
    means = {
        name: [np.mean([*records[-1].clients["accuracy"].values()]) for records in seeds]
        for name, seeds in runs.items()
    }
    assert f"clients' accuracy, {100 * max(map(np.mean, means.values())):.2f} %" in answer(found)[0]
    assert "clients' accuracy (%)" in parts["Methods side by side"].columns
    drawn = charts(parts)
    assert drawn["final"].title == "Clients' accuracy after the last round"
    seeds = [trace["x"] for trace in traces(drawn["final"].figures[()]) if len(trace["x"]) == 3]
    assert sorted(np.concatenate(seeds)) == pytest.approx(sorted(np.concatenate([*means.values()])))
    assert drawn["curves"].switches["Show"][0] == "clients' accuracy"
    curve = named(drawn["curves"].figures["clients' accuracy", "rounds"], "fedprox")
    assert curve["y"][-1] == pytest.approx(np.mean(means["fedprox"]), abs=1e-5)


def test_without_a_test_set_personal_models_are_what_is_compared(tmp_path):
    keep(tmp_path / "fedavg", metrics=False)
    records = keep(tmp_path / "ditto", method={"name": "ditto"}, metrics=False, personal=True)
    found = study([tmp_path], "accuracy")
    own = np.mean([*records[-1].clients["personal_accuracy"].values()])
    assert found.standing.metric == "personal_accuracy"
    assert {row.label: row.mean for row in found.standing.rows}["ditto"] == pytest.approx(own)
    parts = {part.title: part for section in sections(found) for part in section.parts}
    assert "By personal models" not in parts  # one table, with what is compared
    drawn = charts(parts)
    assert drawn["final"].switches["By"] == ["personal models", "the server's model"]
    assert drawn["curves"].switches["Show"][:2] == ["personal accuracy", "clients' accuracy"]
    assert drawn["served"].switches["Show"][0] == "personal models"


def test_named_clients_have_a_table_of_their_means_over_seeds(tmp_path):
    runs = [keep(tmp_path / f"run{seed}", seed=seed, clients=4, personal=True) for seed in range(3)]
    assert "Client by client" not in shown(tmp_path)  # client 2 of one seed is not client 2 of another
    for seed in range(3):
        path = tmp_path / f"run{seed}" / "federation.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"client_names": ["n", "s", "e", "w"]}))
    table = shown(tmp_path)["Client by client"]
    east = 100 * np.array([records[-1].clients["personal_accuracy"][2] for records in runs])
    assert [row[0] for row in table.rows] == ["n", "s", "e", "w"]
    assert table.rows[2][1] == f"{east.mean():.2f} ± {east.std(ddof=1):.2f}"
    keep(tmp_path / "many" / "run", clients=31)
    assert "Client by client" not in shown(tmp_path / "many")


def shown(folder: Path) -> dict[str, Any]:
    return {part.title: part for section in sections(study([folder])) for part in section.parts}


def test_the_label_map_is_what_the_folder_says_for_every_deal(made):
    folder, _, parts = made
    chart = charts(parts)["labels"]
    assert chart.switches == {"Deal of": ["seed 0", "seed 1", "seed 2"]}
    kept = np.array(json.loads((folder / "feddua-fedavg" / "seed-1" / "federation.json").read_text())["labels"])
    heat, bars = traces(chart.figures["seed 1",])
    assert [[v or 0 for v in row] for row in heat["z"]] == kept.T.tolist()
    assert bars["y"] == kept.sum(1).tolist()


def test_charts_call_clients_and_labels_by_their_names(tmp_path):
    keep(tmp_path / "run", method={"name": "feddua:fedavg"}, verdicts=True)
    path = tmp_path / "run" / "federation.json"
    names = ["north", "<b>south</b>", *("e" * 40 + c + "e" * 40 for c in "ab"), *"wxyz"]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"client_names": names, "class_names": list("abcde")}))
    run = study([tmp_path / "run"])
    drawn = charts({part.title: part for section in sections(run) for part in section.parts})
    heat, bars = traces(drawn["labels"].figures[()])
    assert list(heat["y"]) == list("abcde")
    assert list(heat["x"])[:2] == list(bars["x"])[:2] == ["0 north", "1 &lt;b&gt;south&lt;/b&gt;"]  # two look alike
    assert len({*heat["x"]}) == 8
    maps = next(trace for trace in traces(drawn["weights"].figures[()]) if trace["type"] == "heatmap")
    assert list(maps["y"]) == list(heat["x"])
    (box,) = traces(drawn["served"].figures[()])
    assert box["customdata"][0][0] == "client 0 north, seed 0"  # one text for each dot
    assert any(
        "client north, seed 0" in text for t in traces(drawn["claims"].figures[()]) for text in t.get("text") or ()
    )
    assert run.arms[0].runs[0].frame("clients")["name"].iloc[:8].tolist() == names


def test_the_weight_map_leaves_empty_who_was_not_asked_and_crosses_who_was_left_out(made):
    _, records, parts = made
    figure = charts(parts)["weights"].figures["seed 2",]
    maps = [trace for trace in traces(figure) if trace["type"] == "heatmap"]
    assert len(maps) == 3
    for heat, runs in zip(maps, (records[name] for name in RANKED), strict=True):
        for row, client in zip(heat["z"], heat["y"], strict=True):
            weights = [r.outcome.weights.get(int(client)) for r in runs[2]]
            assert [v is None for v in row] == [w is None for w in weights]
            assert [v for v in row if v is not None] == pytest.approx([w for w in weights if w is not None], rel=1e-2)
    crosses = next(t for t in traces(figure) if t.get("marker", {}).get("symbol") == "x-thin")
    out = {(r.round, c) for r in records["feddua:fedavg"][2] for c in r.outcome.excluded}
    assert out
    assert {(x, int(y)) for x, y in zip(crosses["x"], crosses["y"], strict=True)} == out
    liars = [t for t in traces(figure) if t.get("marker", {}).get("symbol") == "triangle-right"]
    assert [t["y"] for t in liars] == [["1", "6"]] * 3


def test_colours_begin_at_zero_so_that_little_differs_from_nothing(made):
    _, _, parts = made
    for key in ("labels", "weights"):
        figure = charts(parts)[key].figures["seed 1",]
        cells = [cell for t in traces(figure) if t["type"] == "heatmap" for row in t["z"] for cell in row if cell]
        assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, max(cells))  # one end is ignored


def test_couplings_and_the_effective_number_over_rounds(made):
    _, records, parts = made
    figures = charts(parts)["couplings"].figures
    for place, measure in enumerate((measures.couplings, measures.effective_clients)):
        seeds = panel(figures["means of all rounds",], place)[2 * RANKED.index("fedavg")]
        assert seeds["x"] == pytest.approx([np.mean([v for _, v in measure(run)]) for run in records["fedavg"]])
    drawn = figures["means of all rounds",].layout.xaxis
    assert (drawn.minallowed, drawn.maxallowed) == (-1.05, 1.05)  # no correlation is beyond 1
    means = [
        np.mean(v) for v in zip(*([c for _, c in measures.couplings(run)] for run in records["fedavg"]), strict=True)
    ]
    assert named(figures["rank correlation",], "fedavg")["y"] == pytest.approx(means, abs=1e-4)
    effective = [
        np.mean(v)
        for v in zip(*([c for _, c in measures.effective_clients(r)] for r in records["fedavg"]), strict=True)
    ]
    assert named(figures["effective clients",], "fedavg")["y"] == pytest.approx(effective, abs=1e-4)


def test_claims_against_estimates_are_the_last_verdicts_told_apart_by_the_truth(made):
    _, records, parts = made
    last = {
        (seed, client): verdict
        for seed, run in enumerate(records["feddua:fedavg"])
        for r in run
        for client, verdict in r.outcome.verdicts.items()
    }
    found = {
        (trace["name"], x, y)
        for trace in traces(charts(parts)["claims"].figures[()])
        if trace.get("name")
        for x, y in zip(trace["x"], trace["y"], strict=True)
    }
    kinds = {
        (False, False): "honest client, accepted",
        (False, True): "honest client, flagged",
        (True, True): "liar, flagged",
    }
    assert found == {
        (kinds[client in (1, 6), v.action != "accepted"], v.claimed, v.estimated) for (_, client), v in last.items()
    }


def test_a_single_run_names_those_who_were_not_believed_and_why(tmp_path):
    records = keep(tmp_path / "run", method={"name": "feddua:fedavg"}, rounds=40, verdicts=True, holdings=False)
    parts = {part.title: part for section in sections(study([tmp_path / "run"])) for part in section.parts}
    flagged = [(c, r.round, v) for r in records for c, v in r.outcome.verdicts.items() if v.action != "accepted"]
    last = {str(client): (str(round), verdict) for client, round, verdict in flagged}
    rows = {name: row for name, *row in parts["Clients that were not believed"].rows}
    assert rows.keys() == last.keys()
    assert len(rows) > 1
    for name, (round, verdict) in last.items():
        told = [round, f"{verdict.claimed:g}", f"{verdict.estimated:.0f}", verdict.action, verdict.reason]
        assert rows[name] == told
    measured = load_run(tmp_path / "run").measures()
    assert [name for name in measured if "detection" in name] == ["detection claims"]  # nobody knows who lied


def test_detection_over_rounds_and_thresholds_and_the_table_of_verdicts(made):
    _, records, parts = made
    runs = records["feddua:fedavg"]
    rows = [
        [{"round": r.round, "client": c, **vars(v)} for r in run for c, v in r.outcome.verdicts.items()] for run in runs
    ]
    lies = [{(c, r.round) for r in run for c in r.liars} for run in runs]
    figures = charts(parts)["detection"].figures
    _, (accused,) = (panel(figures["over rounds",], place) for place in (0, 1))
    assert figures["over rounds",].layout.annotations[1].text == "honest clients accused"
    by_round = [
        {at.round: at.accused for at in measures.caught_by_round(r, lied)} for r, lied in zip(rows, lies, strict=True)
    ]
    assert accused["y"] == pytest.approx([np.mean([one[x] for one in by_round]) for x in accused["x"]], abs=1e-3)
    curve = named(figures["over thresholds",], "feddua:fedavg")
    area = np.trapezoid(curve["y"], curve["x"])
    pooled = [
        (abs(row["z"]), (row["client"], row["round"]) in lied) for r, lied in zip(rows, lies, strict=True) for row in r
    ]
    assert area == pytest.approx(measures.auc(*zip(*pooled, strict=True)), abs=1e-3)
    table = parts["Verdicts"]
    assert isinstance(table, Table)
    found = dict(zip(table.columns, table.rows[0], strict=True))
    each = [measures.detection(r, lied) for r, lied in zip(rows, lies, strict=True)]
    assert found["claims judged"] == "144"
    assert int(found["accepted"]) + int(found["excluded"]) == 144
    assert "warned" not in found
    assert found["lies flagged"] == "100.0 %"
    assert found["honest claims flagged"] == f"{100 * np.mean([d.false_alarms for d in each]):.1f} %"
    assert found["error of counts"] != "not known"


def test_detection_that_never_changes_takes_little_height(tmp_path):
    heights = []
    for rounds in (1, 12):
        keep(tmp_path / str(rounds), rounds=rounds, cohort=8, verdicts=True, liars=(1,))
        figure = charts(shown(tmp_path / str(rounds)))["detection"].figures["over rounds",]
        heights.append((len({y for t in panel(figure, 1) for y in t["y"]}), figure.layout.height))
        assert figure.layout.showlegend is False  # there is one method
    (one, flat), (several, tall) = heights
    assert one < 2 <= several
    assert flat == tall - 150


def test_long_runs_are_told_in_minutes_and_hours():
    units = [_scaled("time", seconds) for seconds in (599.0, 601.0, 36001.0)]
    assert units == [("s", 1.0), ("min", 60.0), ("h", 3600.0)]
    assert _scaled("traffic", 2e6) == ("MB", 1e6)


def test_costs_are_those_of_whole_runs(made):
    _, _, parts = made
    figure = charts(parts)["cost"].figures[()]
    axes = [figure.layout[f"xaxis{place}"].title.text for place in ("", 2, 3, 4)]
    assert axes == ["time (s)", "traffic (kB)", "memory (MB)", "state (kB)"]
    for place, cost in enumerate((12 * 0.51, 18.0, 100.0, 2.0)):
        bar, number = panel(figure, place)[:2]
        assert bar["x"] == pytest.approx([cost])
        assert float(number["text"][0]) == pytest.approx(cost, rel=0.005)


def test_an_epsilon_is_shown_beside_the_costs_of_the_methods_that_recorded_one_and_nowhere_else(made, tmp_path):
    for seed, spent in enumerate((0.25, 0.75)):
        keep(tmp_path / f"plain/seed-{seed}", seed=seed)
        keep(tmp_path / f"private/seed-{seed}", seed=seed, method={"name": "fedprox"}, epsilon=spent)
    chart = next(p for s in sections(study([tmp_path])) for p in s.parts if isinstance(p, Chart) and p.key == "cost")
    figure = chart.figures[()]
    assert figure.layout.xaxis5.title.text == "epsilon"
    bar, number = (trace for trace in traces(figure) if trace.get("xaxis") == "x5")
    labels = list(figure.layout.yaxis.ticktext)
    assert [labels[row] for row in bar["y"]] == ["fedprox"]
    assert (bar["x"], number["text"]) == ([12 * 0.5], [" 6.00"])
    assert "epsilon is the privacy spent" in chart.caption
    page = render(study([made[0]]))
    assert "epsilon" not in page[page.index("<body") : page.index("<script")]
    assert "epsilon" not in charts(made[2])["cost"].caption


def test_costs_say_what_clients_uploaded_and_are_lower_on_a_phone(made):
    _, _, parts = made
    chart = charts(parts)["cost"]
    assert chart.caption.endswith("Of what was sent, clients uploaded 12 kB.")
    figure = chart.figures[()]
    rows, panels = len(RANKED), 4
    assert figure.layout.height == 34 * rows + 10 + 66
    assert figure.layout.meta["narrow"]["height"] == panels * (24 * rows + 10 + 66)


def test_a_method_has_one_colour_everywhere_and_no_two_share_a_look(made):
    _, _, parts = made
    colours = {"fedavg": look(0).colour, "feddua:fedavg": look(1).colour, "scaffold": look(2).colour}
    seen = 0
    for chart in charts(parts).values():
        for figure in chart.figures.values():
            for trace in traces(figure):
                if trace.get("name") in colours and trace.get("line", {}).get("color"):
                    seen += 1
                    assert trace["line"]["color"] == colours[trace["name"]]
    assert seen > 20
    assert parts["Methods side by side"].colours == [colours[name] for name in RANKED]
    assert len({look(place) for place in range(24)}) == 24


def test_the_best_lines_are_solid_and_keep_the_colours_of_their_places():
    ranked = [7, 6, 0, 1, 2, 3, 4, 5]
    found = looks(ranked)
    assert [one.dash for one in found] == ["solid", "solid", "dash", "dash", "solid", "solid", "solid", "solid"]
    assert [one.colour for one in found] == [look(place).colour for place in ranked]
    assert len({(one.colour, one.dash) for one in looks([*range(23, -1, -1)])}) == 24


def test_the_method_that_is_best_has_a_solid_line_though_it_was_named_seventh(tmp_path):
    for place in range(8):
        keep(tmp_path / f"{place}", method={"name": "fedprox", "mu": float(place)}, level=0.9 if place == 6 else 0.6)
    found = study([tmp_path])
    curves = next(p for s in sections(found) for p in s.parts if isinstance(p, Chart) and p.key == "curves")
    best, *others = found.arms
    assert best.look.colour == look(6).colour
    figure = curves.figures["test accuracy", "rounds"]
    assert named(figure, best.name)["line"]["dash"] == "solid"
    assert sum(named(figure, arm.name)["line"]["dash"] == "dash" for arm in others) == 2


def test_one_curve_has_a_heading_in_the_singular(made, tmp_path):
    assert charts(made[2])["curves"].title == "Learning curves"
    keep(tmp_path / "run")
    assert sections(study([tmp_path / "run"]))[0].parts[0].title == "Learning curve"


# ---------------------------------------------------------------- what is missing says why


def reasons(folder: Path) -> dict[str, str]:
    return {p.title: p.reason for s in sections(study([folder])) for p in s.parts if isinstance(p, Missing)}


@pytest.mark.parametrize(
    ("settings", "title", "reason"),
    [
        ({"heldout": False}, "The fairness gap", "Clients were not evaluated one by one"),
        ({"heldout": False}, "Each client's accuracy", "Clients were not evaluated one by one"),
        ({"holdings": False}, "Who holds which labels", "the runs' folders do not say"),
        ({"classes": None}, "Who holds which labels", "the targets are not class numbers"),
        ({"weights": False}, "The weight of every client in every round", "No run here has client weights"),
        ({"weights": False}, "Whom the weights favour", "No round has both weights and clients"),
        (
            {"metrics": False, "heldout": False},
            "Clients' accuracy after the last round",
            "this federation has no test set, and no client held samples back",
        ),
        ({}, "Verdicts", "No method here judges what clients claim"),
        ({"verdicts": True}, "Detection", "No adversary was simulated"),
        (
            {"status": "stopped"},
            "fedavg, seed 0",
            "It was stopped after round 12 of 12. The charts show the rounds it completed",
        ),
        ({"status": "diverged"}, "fedavg, seed 0", "It diverged after round 12."),
    ],
)
def test_a_missing_part_says_why(tmp_path, settings, title, reason):
    keep(tmp_path / "run", **settings)
    assert reason in reasons(tmp_path)[title]
    assert reason.replace("'", "&#x27;") in reports.write(tmp_path).read_text()


def test_unfinished_seeds_are_named_and_kept_out_of_the_means(tmp_path):
    kept = keep(tmp_path / "a")
    keep(tmp_path / "b", seed=1, status="stopped", level=0.1)
    chart = next(p for s in sections(study([tmp_path])) for p in s.parts if isinstance(p, Chart) and p.key == "curves")
    line = named(chart.figures["test accuracy", "rounds"], "fedavg")
    assert line["y"] == pytest.approx([r.metrics["accuracy"] for r in kept], rel=1e-4)
    assert reasons(tmp_path)["fedavg, seed 1"] == "It was stopped after round 12 of 12."


def test_one_run_alone_shows_all_it_has(tmp_path):
    keep(tmp_path / "run", verdicts=True, liars=(2,))
    found = {p.key for s in sections(study([tmp_path / "run"])) for p in s.parts if isinstance(p, Chart)}
    assert found == {
        "curves",
        "served",
        "labels",
        "weights",
        "couplings",
        "claims",
        "detection",
        "cost",
    }
    assert reports.write(tmp_path / "run") == tmp_path / "run" / "report.html"


def test_a_single_run_tells_in_words_what_would_be_single_dots(tmp_path):
    records = keep(tmp_path / "run", liars=(2,))
    drawn = charts(shown(tmp_path / "run"))
    each = records[-1].clients["accuracy"].values()
    told = f"worst served tenth of clients has {100 * min(each):.2f} % on average, the best {100 * max(each):.2f} %."
    assert told in drawn["served"].caption  # of 8 clients, a tenth is one
    assert drawn["couplings"].switches == {"Show": ["rank correlation", "effective clients"]}
    effective = np.mean([value for _, value in measures.effective_clients(records)])
    assert drawn["couplings"].caption.endswith(f"effective clients {effective:.2g}.")
    personal = keep(tmp_path / "own", personal=True)[-1].clients["personal_accuracy"].values()
    caption = charts(shown(tmp_path / "own"))["served"].caption
    assert f"{100 * min(personal):.2f} % on average by personal models" in caption


def test_personal_models_are_named_only_if_there_are_any(tmp_path):
    keep(tmp_path / "server")
    keep(tmp_path / "own", personal=True)
    for name, named in (("server", False), ("own", True)):
        assert ("personal" in shown(tmp_path / name)["Client by client"].caption) is named


def test_a_run_of_no_round_and_a_torn_one_still_report(tmp_path):
    keep(tmp_path / "begun", rounds=1, method={"name": "fedprox", "mu": 0.1})
    for file in ("metrics.jsonl", "clients.jsonl"):
        (tmp_path / "begun" / file).write_text('{"schema":1}\n')
    keep(tmp_path / "torn", status="running")
    for file in ("metrics.jsonl", "clients.jsonl"):
        path = tmp_path / "torn" / file
        path.write_text(path.read_text()[:-40])
    page = reports.write(tmp_path).read_text()
    assert "It was interrupted after round 11 of 12." in page
    chart = next(p for s in sections(study([tmp_path])) for p in s.parts if isinstance(p, Chart) and p.key == "curves")
    assert named(chart.figures["test accuracy", "rounds"], "fedavg")["x"] == list(range(1, 12))


def test_an_older_schema_still_reports(tmp_path):
    keep(tmp_path / "old")
    for file, gone in (
        ("metrics.jsonl", ("memory", "bytes_server", "bytes_clients")),
        ("clients.jsonl", ("notes", "excluded")),
    ):
        path = tmp_path / "old" / file
        lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
        kept = [{k: v for k, v in line.items() if k not in gone} for line in lines]
        path.write_text("\n".join(map(json.dumps, [{"schema": 0}, *kept])) + "\n")
    (tmp_path / "old" / "federation.json").unlink()
    (tmp_path / "old" / "config.toml").write_text(
        'rounds = 12\nseed = 0\ndata = "digits"\nmodel = "linear"\nmethod = "fedavg"\n'
    )
    found = {p.key: p for s in sections(study([tmp_path])) for p in s.parts if isinstance(p, Chart)}
    cost = found["cost"].figures[()].layout
    assert [cost.xaxis.title.text, cost.xaxis2.title.text] == ["time (s)", "traffic (kB)"]
    assert "xaxis3" not in cost.to_plotly_json()
    assert not {"memory", "state"} & {*re.findall("[a-z]+", found["cost"].caption)}  # which were not measured
    assert named(found["curves"].figures["test accuracy", "rounds"], "fedavg")
    assert "fedavg on digits" in reports.write(tmp_path).read_text()


def test_a_damaged_file_of_holdings_is_passed_over(tmp_path):
    keep(tmp_path / "run", verdicts=True, liars=(1,))
    (tmp_path / "run" / "federation.json").write_text('{"schema":1,"cli')
    assert "the runs' folders do not say" in reasons(tmp_path)["Who holds which labels"]


# ---------------------------------------------------------------- one safe, small file


def test_negative_numbers_have_a_minus_sign_and_names_stay_as_they_are_typed():
    table = Table("x", "X", ["method", "vs"], [["fedprox(mu=-1)", "-0.5 [-1.0, +0.2]"]], caption="fed-1 is at -2.")
    written = (
        page("t", "", [Section("s", "S", [table, Note("N", "From -3 on.")])], "")
        .partition("<script>")[0]
        .replace("<wbr>", "")
    )
    signed = [text.replace("~", "\N{MINUS SIGN}") for text in ("~0.5 [~1.0, +0.2]", "fed-1 is at ~2.", "From ~3 on.")]
    for text in (*signed, "fedprox(mu=-1)"):
        assert f">{text}<" in written or f" {text}<" in written


def test_no_line_of_a_command_ends_within_an_option(made):
    written = render(study([made[0]]))
    commands = re.findall("<details>.*?<pre>(.*?)</pre>", written, re.S)
    assert len(commands) == 3
    for text in commands:
        assert "<span>--set</span> seed=1" in text
        assert "--set" not in text.replace("<span>--set</span>", "")


def test_markup_in_names_is_text(tmp_path):
    evil = "<script>alert('x')</script><img src=x>"
    keep(tmp_path / "a", method={"name": "own", "called": evil, "parts": ""}, data={"name": f"{evil}&"}, verdicts=True)
    keep(tmp_path / "b")
    page = reports.write(tmp_path, tmp_path / "page.html").read_text()
    assert evil not in page
    assert "<img" not in re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert page.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;") > 2
    names = {t.get("name") for f in payload(page)["charts"]["curves"].values() for t in f["data"]}
    assert "&lt;script&gt;alert('x')&lt;/script&gt;&lt;img src=x&gt;" in names


@pytest.mark.slow
def test_twenty_runs_of_two_hundred_rounds_fit_into_eight_megabytes(tmp_path):
    for number, name in enumerate(("fedavg", "fedprox", "scaffold", "feddua:fedavg", "counterpoise")):
        for seed in range(4):
            keep(
                tmp_path / f"{number}-{seed}",
                method={"name": name},
                seed=seed,
                rounds=200,
                clients=100,
                cohort=100,
                verdicts=number == 3,
                liars=tuple(range(10)),
                classes=100,
            )
    page = reports.write(tmp_path)
    assert 5e6 < page.stat().st_size < 8e6, f"{page.stat().st_size / 1e6:.2f} MB"
    assert "Seeds 0, 1 of 4, to keep the page small." in page.read_text()


def test_the_same_runs_give_the_same_page(tmp_path):
    keep(tmp_path / "run")
    pages = [re.sub(r"on \d\d \w+ \d{4}, \d\d:\d\d", "", render(study([tmp_path]))) for _ in range(2)]
    assert pages[0] == pages[1]


def test_the_configuration_and_its_commands_give_every_run_again(made):
    folder, _, _ = made
    listings = next(s for s in sections(study([folder])) if s.key == "again").parts
    assert [listing.title for listing in listings] == [
        f"{n}: seeds 0, 1, 2" for n in ("fedavg", "feddua:fedavg", "scaffold")
    ]
    for listing, place in zip(listings, ("fedavg", "feddua-fedavg", "scaffold"), strict=True):
        values = tomllib.loads(listing.text)
        for seed, command in enumerate(listing.commands):
            words = shlex.split(command)
            assert words[:3] == ["counterpoise", "run", f"{place}.toml"]
            kept = tomllib.loads((folder / place / f"seed-{seed}" / "config.toml").read_text())
            assert override(values, words[4::2]) == kept


# ---------------------------------------------------------------- the command


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["counterpoise", *words])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0), *capsys.readouterr()

    return call


def test_the_command_says_where_the_report_is(cli, tmp_path):
    keep(tmp_path / "a")
    keep(tmp_path / "b", seed=1)
    assert cli("report", "a") == (0, f"report: {Path('a', 'report.html')}\n", "")
    code, out, _ = cli("report", "a", "b", "--json")
    assert (code, json.loads(out)) == (0, {"report": "report.html", "figures": []})
    assert cli("report", "a", "--out", "page.html")[0] == 0
    assert "fedavg on digits" in Path("page.html").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "There is no folder nowhere."),
        (["empty"], "There is no run in empty. Make one with: counterpoise run quickstart"),
        (["run", "--out", "empty"], "empty is a folder; name a file for the report."),
        (["run", "--out", "no/page.html"], "There is no folder no for the report."),
        (["run", "--export", "figures", "--format", "gif"], "There is no format 'gif'."),
        (["run", "--export", "figures", "--width", "inch"], "There is no width 'inch'."),
        (["run", "--export", "figures", "--format", ","], "--format takes png, svg and pdf"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(cli, tmp_path, words, sentence):
    (tmp_path / "empty").mkdir()
    keep(tmp_path / "run")
    code, _, err = cli("report", *words)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err


def test_without_chromium_the_export_says_what_to_do(tmp_path, monkeypatch):
    keep(tmp_path / "run")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CounterpoiseError, match=r"neither is on the path\. Install one, or open the report"):
        reports.export(tmp_path / "run", tmp_path / "figures")


def test_units_and_lines():
    assert unit(1_500_000) == ("MB", 1e6)
    assert unit(999) == ("B", 1.0)
    assert wrapped("fedprox(mu=0.1, local.epochs=3) <b>", 18) == "fedprox(mu=0.1,<br>local.epochs=3)<br>&lt;b&gt;"
    assert unit(0) == ("B", 1.0)
    assert wrapped("x" * 100).count("<br>") == 2
