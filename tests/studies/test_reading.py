"""What a study's file may hold, and what it means."""

from __future__ import annotations

import re
import tomllib
from copy import deepcopy
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from counterpoise.choices import listed
from counterpoise.comparisons.arms import compared
from counterpoise.errors import CounterpoiseError
from counterpoise.runs.config import parse
from counterpoise.runs.experiments import preset_names
from counterpoise.studies.plans import plan_of
from counterpoise.studies.reading import chosen, made_study, read_study

STUDIES = Path(__file__).parents[2] / "studies"
VALUES: dict[str, Any] = {
    "title": "Two worlds",
    "methods": ["fedavg", "fedprox(mu=0.1)"],
    "metric": "mean of the last 2",
    "source": "table 1",
    "published_seeds": 3,
    "set": {"local": {"epochs": 1}},
    "cell": [
        {
            "name": "mild",
            "like": "quickstart",
            "set": {"data": {"partition": {"alpha": 1.0}}},
            "published": {
                "fedavg": 90,
                "fedprox(mu=0.1)": {"value": 91.5, "spread": 0.4, "seeds": 1, "source": "p. 7"},
            },
        },
        {
            "name": "harsh",
            "like": "quickstart",
            "set": {"data": {"partition": {"name": "lq", "labels": 2, "clients": 20}}, "local": {"epochs": 3}},
            "methods": [
                "fedavg",
                {"method": "scaffold", "label": "ours", "set": {"local": {"optimizer": {"lr": 0.5}}}},
            ],
            "seeds": 7,
            "rounds": 4,
            "metric": "best",
        },
    ],
    "claim": [{"better": "fedprox(mu=0.1)", "than": "fedavg", "cells": ["mild"], "by": 1.5}],
}


def values(change: Any = None) -> dict[str, Any]:
    found = deepcopy(VALUES)
    if change is not None:
        change(found)
    return found


def test_cells_take_what_they_do_not_say_from_the_study() -> None:
    study = made_study(values(), "two", "two.toml")
    mild, harsh = study.cells
    assert (mild.seeds, mild.rounds, mild.metric.words) == (5, None, "accuracy, mean of the last 2 evaluations")
    assert (harsh.seeds, harsh.rounds, harsh.metric.rule) == (7, 4, "best")
    assert [entry.label for entry in mild.entries] == ["fedavg", "fedprox(mu=0.1)"]
    assert [entry.label for entry in harsh.entries] == ["fedavg", "ours"]
    fedavg, fedprox = mild.published.values()
    assert (fedavg.value, fedavg.spread, fedavg.seeds, fedavg.source) == (90, None, 3, "table 1")
    assert (fedprox.value, fedprox.spread, fedprox.seeds, fedprox.source) == (91.5, 0.4, 1, "p. 7")
    assert study.claims[0].by == 1.5


def test_a_cell_is_the_comparison_that_the_command_line_would_make() -> None:
    mild, harsh = (plan_of(cell) for cell in made_study(values(), "two", "two.toml").cells)
    settings = ["local.epochs=1", "data.partition.alpha=1.0"]
    same = compared("quickstart", ["fedavg", "fedprox(mu=0.1)"], settings, 5)
    assert (mild.values, mild.seeds, mild.baseline) == (same.values, same.seeds, "fedavg")
    assert [arm.settings for arm in mild.arms] == [arm.settings for arm in same.arms]
    assert harsh.values["data"]["partition"] == {"name": "lq", "labels": 2, "clients": 20}  # with no alpha left
    assert (harsh.values["rounds"], harsh.values["local"]["epochs"]) == (4, 3)
    fedavg, ours = ([piece.values for piece in harsh.pieces(arm)] for arm in harsh.arms)
    assert {one["local"]["optimizer"]["lr"] for one in fedavg} == {0.05}
    assert {one["local"]["optimizer"]["lr"] for one in ours} == {0.5}
    assert [one["seed"] for one in ours] == list(range(7))


def test_files_lie_beside_the_study(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('like = "quickstart"\nrounds = 9\n')
    found = values(lambda v: v["cell"][0].update(like="mine.toml"))
    (tmp_path / "two.toml").write_text(tomli_w.dumps(found))
    study = read_study(tmp_path / "two.toml")
    assert study.name == "two"
    assert plan_of(study.cells[0]).values["rounds"] == 9


def test_some_cells_and_other_seeds_can_be_chosen() -> None:
    study = made_study(values(), "two", "two.toml")
    assert [cell.name for cell in chosen(study, []).cells] == ["mild", "harsh"]
    part = chosen(study, ["ha*"], 2)
    assert [(cell.name, cell.seeds) for cell in part.cells] == [("harsh", 2)]
    assert (len(study.claims), part.claims) == (1, ())
    with pytest.raises(CounterpoiseError, match=r"There is no cell 'mil' in the study two\. Did you mean 'mild'\?"):
        chosen(study, ["mil"])


def test_some_methods_can_be_chosen() -> None:
    view = {"name": "swings", "runs_of": "harsh", "methods": ["ours"], "metric": "best"}
    study = made_study(values(lambda v: v["cell"].append(view)), "two", "two.toml")
    (claim,) = study.claims

    def left(*methods: str) -> dict[str, list[str]]:
        return {cell.name: [e.label for e in cell.entries] for cell in chosen(study, [], None, methods).cells}

    assert left("ours") == {"harsh": ["ours"], "swings": ["ours"]}
    assert left("fed*(mu=0.1)", "ours") == {"mild": ["fedprox(mu=0.1)"], "harsh": ["ours"], "swings": ["ours"]}
    assert left("fedavg") == {"mild": ["fedavg"], "harsh": ["fedavg"]}
    assert [chosen(study, [], None, [label]).claims for label in (claim.better, claim.than)] == [(), ()]
    assert chosen(study, [], None, [claim.better, claim.than]).claims == (claim,)
    with pytest.raises(
        CounterpoiseError, match=r"no method 'our' in these cells of the study two\. Did you mean 'ours'"
    ):
        chosen(study, ["harsh"], None, ["our"])


def test_names_that_hold_commas_can_be_chosen_among_others() -> None:
    def renamed(v: dict[str, Any]) -> None:
        v["cell"][0]["name"] = "figure 1, mild, early"
        v["claim"] = []

    study = made_study(values(renamed), "two", "two.toml")
    for text in ("figure 1, mild, early,harsh", "harsh, figure 1, mild*", "figure *,harsh"):
        for given in ([text], text):
            assert [cell.name for cell in chosen(study, given).cells] == ["figure 1, mild, early", "harsh"]
    assert [cell.name for cell in chosen(study, ["h*,*h"]).cells] == ["harsh"]
    longer = made_study(values(lambda v: v["cell"][0].update(name="harsh, early") or v.update(claim=[])), "t", "t.toml")
    assert [cell.name for cell in chosen(longer, ["harsh, early"]).cells] == ["harsh, early"]
    assert [cell.name for cell in chosen(study, ["f*,*"]).cells] == ["figure 1, mild, early", "harsh"]
    assert len(chosen(study, ["", ","], None, [""]).cells) == 2, "nothing named is everything"
    wide = ["fedadam(lr=0.1, tau=0.01)", "fedavg"]
    for text in ("fedadam(lr=*, tau=0.01),fedavg", "fedadam(lr=0.1, tau=0.01), fedavg"):
        assert len(listed(text, wide, lambda name: any(fnmatchcase(one, name) for one in wide))) == 2
    with pytest.raises(CounterpoiseError, match="There is no cell 'late' in the study two"):
        chosen(study, ["figure 1, mild, early,late"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda v: v.pop("title"), "two.toml: the key title is missing."),
        (lambda v: v.update(metrics="last"), "There is no key 'metrics' in two.toml. Did you mean 'metric'?"),
        (lambda v: v["cell"][1].update(seed=3), "There is no key 'seed' in two.toml, cell 'harsh'. Did you mean 'seeds'"),
        (lambda v: v["cell"][0].pop("like"), "two.toml, cell 'mild': the key like is missing."),
        (lambda v: v["cell"][0].pop("name"), "two.toml, cell 1: the key name is missing."),
        (lambda v: v["cell"][0].update(seeds=0), "two.toml, cell 'mild': seeds should be greater than or equal to 1, not 0."),
        (lambda v: v["claim"][0].pop("than"), "two.toml, claim 1: the key than is missing."),
        (lambda v: v["cell"][0]["published"].update(fedavg="high"), "two.toml, cell 'mild': fedavg must be a number, or a table"),
        (lambda v: v["cell"][0]["published"].update(fedavg={"spread": 1}), "cell 'mild', published 'fedavg': the key value is missing."),
        (lambda v: v["cell"][1]["methods"].append({"name": "x"}), "cell 'harsh', methods 3: the key method is missing."),
        (lambda v: v["cell"][0]["published"].update(fedavg=0.9e3), "fedavg was published in points, from 0 to 100, not as 900."),
        (lambda v: v["cell"][0]["published"].update(fedpox=9), "There is no method 'fedpox' in two.toml, cell 'mild' for a"),
        (lambda v: v["cell"][0].update(metric="first"), "two.toml, cell 'mild': metric must be last, best"),
        (lambda v: v["cell"][1].update(name="mild"), "two.toml: two cells have the name 'mild'."),
        (lambda v: v["cell"][1].update(name="Mild"), "the folder of cell 'Mild' would be 'mild_2', which is taken. Rename it."),
        (lambda v: v["cell"][1].update(name="study.toml"), "would be 'study.toml', which is taken."),
        (lambda v: v["cell"][1].update(methods=["fedavg", "fedavg"]), "fedavg is named twice. Give one of them a label."),
        (lambda v: v.pop("methods"), "two.toml, cell 'mild': say which methods to run"),
        (lambda v: v["claim"][0].update(cells=["mald"]), "There is no cell 'mald' in two.toml, claim 1. Did you mean 'mild'"),
        (lambda v: v["claim"][0].update(than="scaffold"), "There is no method 'scaffold' in cell 'mild' for two.toml, claim 1"),
        (lambda v: v.update(title="a\nb"), "title must hold no control characters"),
        (lambda v: v["claim"][0].pop("better"), "two.toml, claim 1: the key better is missing."),
        (lambda v: v["claim"][0].update(than=["fedavg", "scaffold"]), "There is no method 'scaffold' in cell 'mild' for two.toml, claim 1"),
        (lambda v: v["claim"][0].update(than_cells=["harsh"], than="avg"), "There is no method 'avg' in cell 'harsh' for two.toml, claim 1"),
        (lambda v: v["claim"][0].update(by=101.0), "by"),
        (lambda v: v["claim"][0].update(by=1.0, smaller_in=["mild"]), "two.toml, claim 1: by is the published lead of one method"),
        (lambda v: (v["claim"][0].pop("by", None), v["claim"][0].update(smaller_in=["harsh"])), "There is no method 'fedprox(mu=0.1)' in cell 'harsh' for two.toml"),
        (lambda v: v["claim"][0].update(metric="worst"), "two.toml, claim 1: metric must be last, best"),
        (lambda v: v["claim"][0].update(within=2.0), "two.toml, claim 1: within says how far apart two methods that are alike"),
        (lambda v: v["claim"][0].update(alike=["fedavg", "fedavg"]), "two.toml, claim 1: methods that are alike have no better one."),
        (lambda v: v["cell"][0]["published"].update(fedavg={"value": 90, "to": 900}), "fedavg was published in points, from 0 to 100, not as 900."),
        (lambda v: v["cell"][0]["published"].update(fedavg={"value": 90, "to": 80}), "fedavg was published as a range from 90 up, not down to 80."),
        (lambda v: v.update(average=[{"name": "all", "cells": ["mild", "harsh"], "published": {}}]), "average 'all': its cells have different metrics"),
        (lambda v: v.update(average=[{"name": "all", "cells": ["mild"], "published": {"ours": 9}}]), "There is no method 'ours' in two.toml, average 'all' for a"),
        (lambda v: v.update(average=[{"name": "mild", "cells": ["mild"], "published": {}}]), "two cells have the name 'mild'."),
        (lambda v: v["cell"].append({"name": "loss", "runs_of": "mald"}), "There is no cell 'mald' with runs of its own for two.toml, cell 'loss'."),
        (lambda v: v["cell"].append({"name": "loss", "runs_of": "mild", "seeds": 3}), "cell 'loss': seeds is that of the cell 'mild', whose runs it shows."),
        (lambda v: v["cell"].append({"name": "loss", "runs_of": "mild", "methods": ["ours"]}), "There is no method 'ours' in the cell 'mild' for two.toml, cell 'loss'"),
    ],
)  # fmt: skip
def test_mistakes_are_sentences_that_say_where(change: Any, sentence: str) -> None:
    with pytest.raises(CounterpoiseError) as error:
        made_study(values(change), "two", "two.toml")
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda v: v["cell"][0]["set"].update(local={"epoch": 3}), "There is no setting 'local.epoch'"),
        (
            lambda v: v["cell"][0]["set"].update(method={"mu": 3}),
            "takes its methods from methods = [...], not from set.",
        ),
        (lambda v: v["cell"][0].update(like="quickstrat"), "There is no preset 'quickstrat'"),
        (
            lambda v: v["cell"][1].update(methods=["fedavg", {"method": "fedavg", "set": {"seed": 3}}]),
            "The cell 'harsh', fedavg, seed=3: a method cannot set the seed.",
        ),
        (
            lambda v: v["cell"][1].update(methods=["fedavg", {"method": "fedavg", "label": "again"}]),
            "The cell 'harsh', again: another method of the cell has the same settings.",
        ),
    ],
)
def test_mistakes_in_settings_are_told_before_anything_runs(change: Any, sentence: str) -> None:
    study = made_study(values(change), "two", "two.toml")
    with pytest.raises(CounterpoiseError) as error:
        [plan_of(cell) for cell in study.cells]
    assert sentence in str(error.value)


def test_a_view_has_the_settings_of_the_cell_whose_runs_it_shows() -> None:
    view = {"name": "swings", "runs_of": "harsh", "metric": "volatility", "measure": "loss", "methods": ["ours"]}
    study = made_study(values(lambda v: v["cell"].append(view)), "two", "two.toml")
    _, harsh, swings = study.cells
    assert (swings.like, swings.settings, swings.seeds, swings.rounds) == (harsh.like, harsh.settings, 7, 4)
    assert (swings.metric.words, [entry.label for entry in swings.entries]) == (
        "loss, volatility of all evaluations",
        ["ours"],
    )
    assert (swings.runs_of, harsh.runs_of) == ("harsh", "")
    assert [cell.name for cell in chosen(study, ["swings"]).cells] == ["harsh", "swings"]


def test_a_claim_may_name_several_that_are_beaten_other_cells_and_methods_that_are_alike() -> None:
    def change(found: dict[str, Any]) -> None:
        found["cell"][1] |= {"methods": ["fedavg", "fedprox(mu=0.1)"], "metric": "mean of the last 2"}
        found["average"] = [{"name": "both", "cells": ["mild", "harsh"], "published": {"fedavg": 80}, "source": "p. 8"}]
        found["claim"] = [
            {"better": "fedavg", "than": ["fedavg", "fedprox(mu=0.1)"], "cells": ["mild"], "than_cells": ["harsh"]},
            {"alike": ["fedavg", "fedprox(mu=0.1)"], "cells": ["mild"]},
            {"better": "fedavg", "than": "fedprox(mu=0.1)", "cells": ["mild"], "smaller_in": ["harsh"]},
        ]

    study = made_study(values(change), "two", "two.toml")
    assert [(one.better, one.than, one.than_cells, one.within) for one in study.claims] == [
        ("fedavg", "fedavg", ("harsh",), None),
        ("fedavg", "fedprox(mu=0.1)", ("harsh",), None),
        ("fedavg", "fedprox(mu=0.1)", ("mild",), 1.0),
        ("fedavg", "fedprox(mu=0.1)", ("mild",), None),
    ]
    (both,) = study.averages
    assert (both.published["fedavg"].value, both.published["fedavg"].seeds, both.published["fedavg"].source) == (
        80,
        3,
        "p. 8",
    )
    several = made_study(
        values(change) | {"claim": [{"alike": ["fedavg", "fedavg"], "cells": ["*r*", "*d"]}]}, "two", "two.toml"
    )
    assert several.claims[0].cells == ("mild", "harsh")  # in the order of the study
    part = chosen(study, ["mild"])
    assert (part.averages, [one.within for one in part.claims]) == ((), [1.0])


def test_standardised_pixels_are_all_that_differs_from_the_worlds_without_a_resnet() -> None:
    one, whole = (read_study(STUDIES / f"{name}.toml") for name in ("worlds-standard", "worlds"))
    cells = {cell.name: cell for cell in whole.cells if "resnet" not in cell.name and not cell.runs_of}
    assert {cell.name: cell.like for cell in one.cells} == {name: cell.like for name, cell in cells.items()}
    assert len(one.cells) == 25
    for cell in one.cells:
        assert {*cell.settings} - {*cells[cell.name].settings} == {'data.scaling="standard"'}
        assert {*cells[cell.name].settings} <= {*cell.settings}
        assert all(entry in cells[cell.name].entries for entry in cell.entries)
        assert (cell.seeds, cell.metric) == (5, cells[cell.name].metric)


@pytest.mark.parametrize(
    ("name", "methods", "seeds"), [("worlds", (16, 6), {5, 10}), ("worlds-ablation", (11, 4), {5})]
)
def test_the_worlds_are_all_of_them_in_their_full_form(name: str, methods: tuple[int, int], seeds: set[int]) -> None:
    study = read_study(STUDIES / f"{name}.toml")
    full = {name for name in preset_names() if name.startswith("worlds/") and not name.endswith("-small")}
    assert {cell.like for cell in study.cells} == full
    assert len(full) == 26
    own = [cell for cell in study.cells if not cell.runs_of]
    for cell in own:  # a ResNet-18 takes too long for all of them
        assert len(plan_of(cell).arms) == methods["resnet" in cell.name]
    assert {len(plan_of(cell).seeds) for cell in own} == seeds
    assert {cell.metric.words for cell in own} == {"accuracy, mean of the last 4 evaluations"}
    views = [cell for cell in study.cells if cell.runs_of]
    attacked = {cell.name for cell in own if "adversary" in plan_of(cell).values}
    if views:
        assert {cell.runs_of for cell in views if cell.metric.measure == "honest replies left out"} == {
            c.name for c in own
        }
        assert {cell.runs_of for cell in views if cell.metric.measure == "hostile replies left out"} == attacked


def test_the_study_in_the_docs_can_be_run() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", (STUDIES.parent / "docs/studies.md").read_text(encoding="utf-8"), re.S)
    study = made_study(tomllib.loads(text), "docs", "docs/studies.md")
    assert [len(plan_of(cell).arms) for cell in study.cells] == [2, 3, 2]
    assert [entry.label for entry in study.cells[1].entries] == ["fedavg", "fedprox(mu=0.1)", "tuned"]


def test_the_example_can_be_run() -> None:
    study = read_study(STUDIES / "example.toml")
    assert [bool(cell.cannot) for cell in study.cells] == [False, False, True]
    assert all(plan_of(cell) for cell in study.cells)


def test_data_may_be_changed_by_single_settings_its_name_among_them() -> None:
    values = {
        "title": "T",
        "methods": ["fedavg"],
        "cell": [{"name": "a", "like": "quickstart", "set": {"data": {"name": "mnist", "heldout": 0.0}}}],
    }
    (cell,) = made_study(values, "t", "t").cells
    config = parse(next(plan_of(cell).pieces(plan_of(cell).arms[0])).values, "here")
    assert (config.data.name, config.data.heldout) == ("mnist", 0.0)
    assert config.data.partition is not None
