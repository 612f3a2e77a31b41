"""Charts of many lines: names at the ends that do not overlap, an enlarged tail, bands for a few."""

from __future__ import annotations

import re

import plotly.graph_objects as go
import pytest
from kept import comparison, keep

from counterpoise.reports.chart import Chart, Missing
from counterpoise.reports.figures.heard import weights
from counterpoise.reports.figures.learning import curves
from counterpoise.reports.figures.readable import legend, spaced
from counterpoise.reports.study import study

METHODS = ("fedavg", "fedprox", "scaffold", "fedadam")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    for place, name in enumerate(METHODS):
        for seed in range(2):
            keep(folder / f"{name}-{seed}", seed=seed, level=0.6 + 0.1 * place, method={"name": name})
    found = study([folder])
    return found, curves(found).figures


@pytest.mark.parametrize(
    ("values", "gap", "expected"),
    [
        ([0.1, 0.9], 0.2, [0.1, 0.9]),
        ([0.9, 0.9, 0.9], 0.1, [0.8, 0.9, 1.0]),
        ([0.0, 0.05], 0.2, [0.0, 0.2]),
        ([0.5, 0.4], 0.3, [0.7, 0.4]),
    ],
)
def test_names_are_a_gap_apart_and_within_the_chart(values, gap, expected):
    assert spaced(values, gap, 0.0, 1.0) == pytest.approx(expected)


def test_every_line_has_its_name_at_its_end_and_no_legend(drawn):
    found, figures = drawn
    figure = figures["test accuracy", "rounds"]
    names = {note.text: note for note in figure.layout.annotations if note.name == "end"}
    assert set(names) == set(METHODS)
    assert figure.layout.showlegend is False
    assert {name: note.font.color for name, note in names.items()} == {arm.label: arm.look.colour for arm in found.arms}
    high_to_low = sorted(names, key=lambda name: -names[name].y)
    assert high_to_low == [arm.label for arm in found.arms]


def test_the_last_third_is_drawn_again_on_a_scale_of_its_own(drawn):
    _, figures = drawn
    figure = figures["test accuracy", "rounds"]
    lines = {trace.name: trace for trace in figure.data if trace.name}
    tails = [trace for trace in figure.data if trace.xaxis == "x2"]
    assert [trace.legendgroup for trace in tails] == list(lines)
    low, high = figure.layout.yaxis2.range
    for tail in tails:
        whole = lines[tail.legendgroup]
        assert list(tail.x) == [9, 10, 11, 12]  # from 12 - 11 / 3 on
        assert list(tail.y) == list(whole.y)[-4:]
        assert low < min(tail.y) <= max(tail.y) < high


def test_lines_that_end_in_different_places_keep_a_legend(tmp_path):
    keep(tmp_path / "a", rounds=12)
    keep(tmp_path / "b", rounds=6, method={"name": "scaffold"})
    figure = curves(study([tmp_path])).figures["test accuracy", "rounds"]
    assert not figure.layout.annotations
    assert figure.layout.showlegend


def test_only_the_two_best_of_many_show_their_bands(drawn, tmp_path):
    _, figures = drawn
    bands = {t.legendgroup: t.opacity for t in figures["test accuracy", "rounds"].data if t.fill}
    assert bands == {"fedavg": 0, "fedprox": 0, "scaffold": None, "fedadam": None}
    comparison(tmp_path)
    three = curves(study([tmp_path])).figures["test accuracy", "rounds"]
    assert all(trace.opacity is None for trace in three.data if trace.fill)


def test_a_method_that_weighs_all_alike_has_no_map(tmp_path):
    keep(tmp_path / "a", cohort=1)
    assert isinstance(weights(study([tmp_path / "a"])), Missing)
    keep(tmp_path / "b", method={"name": "scaffold"})
    both = weights(study([tmp_path]))
    assert isinstance(both, Chart)
    assert "All clients of a round alike, so without a map: fedavg" in both.caption
    assert sum(trace.type == "heatmap" for trace in both.figures[()].data) == 1


def test_methods_with_the_same_weights_share_a_map(tmp_path):
    for name in ("fedavg", "fedbac", "scaffold"):  # the first two have as many letters, so their weights are the same
        for seed in range(2):
            keep(tmp_path / f"{name}-{seed}", method={"name": name}, seed=seed)
    chart = weights(study([tmp_path]))
    names = [[note.text for note in figure.layout.annotations] for figure in chart.figures.values()]
    assert {*names[0]} in ({"fedavg and 1 more", "scaffold"}, {"fedbac and 1 more", "scaffold"})
    assert names[0] == names[1]
    assert re.search("The same weights, so one map: (fedavg; fedbac|fedbac; fedavg)[.]", chart.caption)
    assert "Without weights" not in chart.caption


def test_who_is_heard_with_another_seed_alone_makes_another_map(tmp_path):
    for name, seed in (("fedavg", 0), ("fedavg", 1), ("fedbac", 0)):
        keep(tmp_path / f"{name}-{seed}", method={"name": name}, seed=seed)
    figure = weights(study([tmp_path])).figures["seed 0",]
    assert sorted(note.text for note in figure.layout.annotations) == ["fedavg", "fedbac"]


def test_a_map_begins_before_the_first_round_only_for_liars(tmp_path):
    keep(tmp_path / "honest")
    keep(tmp_path / "lied", liars=(1,))
    starts = [weights(study([tmp_path / name])).figures[()].layout.xaxis.range[0] for name in ("honest", "lied")]
    assert starts == [0.5, -0.5]


@pytest.mark.parametrize(("names", "rows"), [(["a", "b", "c"], 1), (["a" * 17] * 9, 9), (["a" * 9, "b" * 9, "c"], 2)])
def test_a_narrow_figure_grows_by_its_legend(names, rows):
    found = legend(go.Figure(layout={"height": 300}), names)
    assert found == {"showlegend": True, "height": 300 + 19 * rows}
