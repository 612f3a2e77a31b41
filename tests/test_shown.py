"""How things look to a person: short texts, pictures in a notebook, figures, and signatures that read like Python."""

from __future__ import annotations

import datetime
import html.parser
import inspect
import math
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counterpoise as cp
from counterpoise.colours import COLOURS
from counterpoise.comparisons.collection import Group
from counterpoise.comparisons.plan import Arm, Plan
from counterpoise.engine.rounds.records import Outcome, RoundRecord
from counterpoise.hooks import CLIENT_HOOKS, SERVER_HOOKS
from counterpoise.methods import METHODS
from counterpoise.runs.saved import SavedRun
from counterpoise.sketch import boxes, card, dots, heat, lines, table

FOREIGN = "<img src=x onerror=alert(1)>\x1b[31m\"'&"


class Reader(html.parser.HTMLParser):
    """Checks that every tag is closed in turn, and collects tags, attributes and text."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, list[dict[str, str]]] = {}
        self.text = ""
        self._open: list[str] = []
        self.feed(markup)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes.setdefault(tag, []).append(dict(attrs))
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes.setdefault(tag, []).append(dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def rounds(*accuracies: float, **more: Any) -> list[RoundRecord]:
    return [
        RoundRecord(number, (0,), Outcome({0: 1}, None), {"accuracy": value, "loss": 1 - value, **more}, seconds=0.5)
        for number, value in enumerate(accuracies, 1)
    ]


def run(*accuracies: float, **settings: Any) -> cp.Run:
    return cp.Run(
        **{
            "method": "fedavg",
            "seed": 0,
            "model": None,
            "rounds": rounds(*accuracies),
            "status": "finished",
            **settings,
        }
    )


# ---------------------------------------------------------------- texts


@pytest.mark.parametrize("name", [entry.name for entry in METHODS])
def test_a_method_and_its_parts_are_short_texts(name: str) -> None:
    method = METHODS.make(name)
    assert len(repr(method)) < 200
    assert all(part.name in repr(method) for part in method.parts)
    assert all(len(repr(part)) < 160 and "None" not in repr(part) for part in method.parts)


def test_texts_say_what_there_is() -> None:
    method = cp.methods.fedprox(mu=0.1)
    assert repr(method) == "Method(fedprox: local proximal(mu=0.1), weigh by-data, combine mean, update server-step)"
    assert repr(method.local[0]) == "Part(proximal(mu=0.1): gradient)"
    assert repr(cp.Part("mine")) == "Part(mine: no hooks)"
    assert repr(cp.Method("mine")) == "Method(mine: no parts)"
    assert repr(cp.Part("a\x1b[31m", apply=lambda round: round)) == "Part(a\\x1b[31m: apply)"
    assert "\x1b" not in repr(comparison(FOREIGN))
    assert repr(run(0.5, 0.75)) == "Run(fedavg, seed 0, 2 rounds, finished, accuracy 0.7500)"


# ---------------------------------------------------------------- notebooks


def federation(**settings: Any) -> cp.Federation:
    x = np.arange(40, dtype="f").reshape(20, 2)
    return cp.Federation.from_arrays(
        x, np.arange(20) % 4, partition=cp.iid(5), **{"test": (x[:3], [0, 1, 3]), **settings}
    )


def saved(method: str, *accuracies: float, status: str = "finished", sentence: str = "") -> SavedRun:
    now = datetime.datetime.now().astimezone()
    return SavedRun(None, {"method": method}, rounds(*accuracies), status, sentence, now)


def comparison(label: str) -> cp.Comparison:
    arms = (Arm(label, "one", {}), Arm("other", "two", {}))
    groups = [Group(arm.label, (saved(arm.label, 0.5, 0.75),)) for arm in arms]
    return cp.Comparison(Plan("compare", "", "", (0,), arms, label, {"rounds": 2}), groups)


def shown() -> dict[str, Any]:
    """Things whose every text is foreign."""
    part = cp.Part(FOREIGN, numbers={FOREIGN: 1.0}, apply=lambda round: round)
    x = np.zeros((4, 2), "f")
    named = cp.Federation.from_datasets({FOREIGN: (x, [0, 1, 0, 1]), "other": (x, [0, 1, 0, 1])})
    return {
        "part": part,
        "method": cp.methods.fedavg().adding(FOREIGN, trust=part),
        "federation": named,
        "comparison": comparison(FOREIGN),
        "run": run(0.5, 0.75, method=FOREIGN, folder=Path("runs/" + FOREIGN.replace("/", ""))),
        "saved run": saved(FOREIGN, sentence=FOREIGN),
    }


@pytest.mark.parametrize("name", shown())
def test_foreign_text_is_escaped_in_a_notebook(name: str) -> None:
    markup = shown()[name]._repr_html_()
    assert "<img" not in markup
    assert "\x1b" not in markup
    read = Reader(markup)
    assert {*read.tags} <= {*["div", "table", "tr", "td", "th", "svg", "path", "rect", "text", "circle", "polyline"]}
    assert "<img src=x onerror=alert(1)>\\x1b[31m\"'&" in read.text
    assert all(not key.startswith("on") for each in read.attributes.values() for one in each for key in one)


def test_a_method_in_a_notebook_has_its_slots_in_order_with_their_parts() -> None:
    read = Reader(METHODS.make("feddua:scaffold")._repr_html_())
    assert re.search("local.*upload.*trust.*weigh.*combine.*update", read.text)
    assert len(read.attributes["rect"]) == 5
    assert "begin, after_step, after_epoch, finish" in read.text


def test_a_part_in_a_notebook_shows_all_hooks_and_fills_those_it_has() -> None:
    part = cp.Part("mine", loss=lambda client, step, w: w.sum(), apply=lambda round: round)
    read = Reader(part._repr_html_())
    assert len(read.attributes["rect"]) == len(CLIENT_HOOKS) + len(SERVER_HOOKS)
    filled = [number for number, one in enumerate(read.attributes["rect"]) if one["fill"] != "none"]
    every = [*CLIENT_HOOKS, *SERVER_HOOKS]
    assert [every[number] for number in filled] == ["loss", "apply"]
    assert "loss(client, step, w)" in read.text


def test_a_run_in_a_notebook_has_its_curve_and_its_numbers() -> None:
    read = Reader(run(0.25, 0.75, 0.5)._repr_html_())
    (curve,) = read.attributes["polyline"]
    points = [tuple(map(float, point.split(","))) for point in curve["points"].split()]
    assert [y for _, y in points] == [92.0, 8.0, 50.0]  # the highest at the top, half-way between the others
    assert points[1][0] - points[0][0] == pytest.approx(points[2][0] - points[1][0], abs=0.11)
    assert curve["stroke"] == COLOURS[0]
    for text in ("75.0%", "25.0%", "round 3", "50.00%, best 75.00% (round 2)", "finished, 3 rounds", "1.5 s"):
        assert text in read.text


def test_a_saved_run_is_shown_and_plotted_as_a_run() -> None:
    assert saved("fedavg", 0.25, 0.75)._repr_html_() == run(0.25, 0.75)._repr_html_()
    assert saved("fedavg", 0.25, 0.75).plot() == run(0.25, 0.75).plot()
    assert list(saved("fedavg", 0.25, 0.75).plot("loss", "seconds").data[0].x) == [0.5, 1.0]
    assert "Out of memory." in Reader(saved("fedavg", status="failed", sentence="Out of memory.")._repr_html_()).text


def test_a_run_that_measured_nothing_has_no_curve() -> None:
    read = Reader(run(rounds=[RoundRecord(1, (), Outcome({}, None), {})])._repr_html_())
    assert "svg" not in read.tags
    assert "finished, 1 round" in read.text
    nan = Reader(run(math.nan, 0.5, math.inf)._repr_html_())
    assert nan.attributes["polyline"][0]["points"].count(",") == 1


def test_a_federation_in_a_notebook_counts_labels_by_client() -> None:
    read = Reader(federation()._repr_html_())
    assert "5 clients" in read.text
    assert "20, 4 to 4 each, median 4" in read.text
    assert "3 samples on the server" in read.text
    assert read.attributes["path"][-1]["d"].count("M") == 5  # a bar for each client


def test_the_heat_map_is_darkest_where_a_client_has_most() -> None:
    read = Reader(heat([[4, 0], [1, 2]]))
    *cells, bars = read.attributes["path"]
    assert [(one["d"].count("M"), one["fill-opacity"]) for one in cells] == [(1, "0.25"), (1, "0.5"), (1, "1")]
    assert cells[-1]["d"].startswith("M0.0 0.0")  # client 0, label 0
    assert cells[1]["d"].startswith("M140.0 45.0")  # client 1, label 1
    assert cells[0]["d"].startswith("M140.0 0.0")  # client 1, label 0
    heights = [float(one) for one in re.findall(r"v(-[\d.]+)h", bars["d"])]
    assert heights == [-24.0, -18.0]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"targets": np.arange(20) / 3, "test": None}, "samples to train on"),
        ({"clients": 100}, "of 40 of them"),
    ],
)
def test_other_federations_are_shown_too(settings: dict[str, Any], text: str) -> None:
    count = settings.pop("clients", 5)
    targets = settings.pop("targets", np.arange(400) % 4)
    x = np.zeros((len(targets), 2), "f")
    fed = cp.Federation.from_arrays(x, targets, partition=cp.iid(count), **settings)
    assert text in Reader(fed._repr_html_()).text


def test_the_server_of_a_deployment_is_shown() -> None:
    text = Reader(federation().on_server()._repr_html_()).text
    assert "5 clients, whose data lie on their own machines" in text


def test_pictures_of_nothing_are_empty() -> None:
    assert lines([], True) == lines([[(1, math.nan)]], True) == heat([]) == heat([[]]) == dots([("a", [])], True) == ""
    assert Reader(card("x", boxes([]), table([]))).text == "x"


def test_dots_have_a_bar_at_their_mean() -> None:
    read = Reader(dots([("a", [0.0, 1.0]), ("b", [0.5, 0.5])], True))
    assert [float(one["cx"]) for one in read.attributes["circle"]] == [110.0, 264.0, 187.0, 187.0]
    assert [one["d"].split()[0] for one in read.attributes["path"]] == ["M187.0", "M187.0"]
    assert [one["stroke"] for one in read.attributes["path"]] == list(COLOURS[:2])


# ---------------------------------------------------------------- figures


def test_a_run_is_plotted_in_the_reports_colours() -> None:
    figure = run(0.25, 0.75).plot()
    (trace,) = figure.data
    assert (list(trace.x), list(trace.y)) == ([1, 2], [0.25, 0.75])
    assert trace.line.color == COLOURS[0]
    assert figure.layout.yaxis.title.text == "test accuracy"
    assert figure.layout.paper_bgcolor == "white"


def test_a_run_is_plotted_by_other_metrics_and_against_its_costs() -> None:
    found = run(0.25, 0.75)
    assert list(found.plot("loss").data[0].y) == [0.75, 0.25]
    assert list(found.plot(against="seconds").data[0].x) == [0.5, 1.0]
    assert "&lt;b&gt;" in run(0.5, method="<b>").plot().data[0].name
    with pytest.raises(
        cp.CounterpoiseError, match=r"There is no metric 'acuracy' in these runs\. Did you mean 'accuracy'"
    ):
        found.plot("acuracy")
    with pytest.raises(cp.CounterpoiseError, match="There is no axis 'time'"):
        found.plot(against="time")
    with pytest.raises(cp.CounterpoiseError, match="There is nothing to plot: no round was evaluated"):
        run().plot()


def test_personal_models_are_plotted_by_their_name() -> None:
    records = [
        RoundRecord(
            1, (0,), Outcome({0: 1}, None), {"accuracy": 0.1}, {"accuracy": {0: 0.2}, "personal_accuracy": {0: 0.6}}
        )
    ]
    assert list(run(rounds=records).plot("personal_accuracy").data[0].y) == [0.6]


def test_a_federation_is_plotted_by_label_and_client() -> None:
    fed = cp.Federation.from_arrays(np.zeros((4, 1), "f"), [0, 0, 0, 1], partition=[[0, 1], [2, 3]], heldout=0)
    heat_map, bars = fed.plot().data
    assert [[value or 0 for value in row] for row in heat_map.z] == [[2, 1], [0, 1]]
    assert list(bars.y) == [2, 2]
    with pytest.raises(cp.CounterpoiseError, match="There is nothing to plot"):
        cp.Federation.from_arrays(np.zeros((4, 1), "f"), np.zeros(4, "f"), partition=[[0, 1], [2, 3]]).plot()


# ---------------------------------------------------------------- signatures


def exported(room: types.ModuleType = cp) -> Iterator[Any]:
    """Every function and class that a person calls; clients, runs, comparisons and reports are only received."""
    received = ("Client", "Comparison", "Report", "Run")
    for name in room.__all__:
        found = getattr(room, name)
        made = inspect.isclass(found) and hasattr(found, "__dataclass_fields__") and name not in received
        if isinstance(found, types.ModuleType):
            yield from exported(found)
        elif inspect.isfunction(found) or made:
            yield pytest.param(found, id=f"{room.__name__}.{name}")


@pytest.mark.parametrize("called", [*exported()])
def test_signatures_read_like_python(called: Any) -> None:
    signature = inspect.signature(called)
    shown = str(signature)
    assert "Annotated" not in shown
    assert "Option(" not in shown
    assert " object at 0x" not in shown
    for parameter in signature.parameters.values():
        assert not repr(parameter.annotation).startswith("'"), parameter


def test_a_methods_signature_and_its_help_say_what_options_mean() -> None:
    assert str(inspect.signature(cp.methods.fedprox)) == "(mu: float = 0.01, lr: float = 1.0) -> Method"
    assert str(inspect.signature(cp.dirichlet)) == "(alpha: float, clients: int, minimum: int = 2) -> Partition"
    text = inspect.getdoc(cp.methods.fedprox)
    assert re.search(r"\n\nOptions:\n    mu: .+ \(a number at least 0\)\n    lr: ", text)
    assert str(inspect.signature(cp.Part)).startswith("(name: str, reads: tuple[str, ...] = (), ")
