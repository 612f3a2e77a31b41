"""Every preset is whole, says what was published, and can be built; the small ones run."""

from __future__ import annotations

import json
import math
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest

import counterpoise as cp
from counterpoise.adversary import ADVERSARIES
from counterpoise.cli import main
from counterpoise.cli.files import preset_file
from counterpoise.comparisons.arms import compared
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.catalogue import DATASETS
from counterpoise.federation.datasets import place
from counterpoise.methods import METHODS
from counterpoise.runs.build import asked_values, setup
from counterpoise.runs.config import override, parse, preset_names, read
from counterpoise.runs.starting import resume, run_setup
from counterpoise.studies.plans import plan_of
from counterpoise.studies.reading import read_study

STUDIES = Path(__file__).parents[2] / "studies"
NAMES = preset_names()
SMALL = [name for name in NAMES if name.endswith("-small")]


def make(registry, choice):
    return registry.make(choice["name"], **{key: value for key, value in choice.items() if key != "name"})


def made(name, *settings):
    """The set-up of a preset; where its data are not here, the test is skipped."""
    values = override(read(name)[0], settings)
    data = DATASETS.get(values["data"]["name"])
    if data is not None and data.name not in ("digits", "synthetic") and place(data) is None:
        pytest.skip(f"{data.name} is not in the local data folder")
    return setup(parse(values, name))


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    """Run a command in an empty folder, in 80 columns: its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["counterpoise", *words])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_papers_and_the_worlds_are_there_and_each_has_a_small_form():
    whole = [name for name in NAMES if name not in SMALL and name not in ("demo", "quickstart")]
    assert {name.partition("/")[0] for name in whole} == {
        *("fedbac", "fedoaed", "feddua", "feda4", "worlds", "shakespeare"),
    }
    assert {f"{name}-small" for name in whole} == set(SMALL)
    assert len([name for name in whole if name.startswith("worlds/")]) >= 16
    asked = (
        "fedbac/figure-3 fedbac/author-code fedoaed/figure-1-fmnist-lq2 feddua/figure-4-cifar10 feda4/table-1-fmnist"
    )
    assert {*asked.split(), "feda4/table-2", "feda4/table-3", "quickstart"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_parses_and_says_what_it_is(name):
    config = parse(read(name)[0], name)
    paper = config.paper
    assert "paper" not in config.plain()
    assert paper.about
    if name != "quickstart":
        assert paper.source
        assert paper.methods
        assert paper.numbers or paper.note
        assert config.method["name"] in {method["name"] for method in paper.methods}
    for method in paper.methods:
        make(METHODS, method)
    for adversary in config.adversary:
        make(ADVERSARIES, adversary)
    if paper.numbers:
        columns = math.prod(len(values) for values in paper.vary.values())
        assert [len(row) for row in paper.numbers] == [columns] * len(paper.methods)
    for key, values in paper.vary.items():
        each = [parse(override(read(name)[0], [f"{key}={value}"]), name).plain() for value in values]
        assert all(each.count(one) == 1 for one in each)


def test_a_comparison_in_a_world_runs_the_methods_of_its_study():
    cells = [cell for cell in read_study(STUDIES / "worlds.toml").cells if not cell.runs_of]
    for cell in cells:
        own = compared(cell.like, [], [], 1)
        assert [arm.settings for arm in own.arms] == [arm.settings for arm in plan_of(cell).arms], cell.name


@pytest.mark.parametrize("name", SMALL)
def test_a_small_form_changes_what_it_says_it_changes(name):
    """Its file holds nothing but changes, beside each what it was."""
    text = resources.files("counterpoise.presets").joinpath(f"{name}.toml").read_text()
    values = tomllib.loads(text)
    assert values["like"] == name.removesuffix("-small")
    assert values["paper"]["note"]
    changes = [line for line in text.splitlines() if "=" in line and not line.startswith(("like", "note", "methods"))]
    assert changes
    assert all(" # " in line for line in changes)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SMALL])
def test_a_preset_builds(name):
    built = made(name)
    config = parse(read(name)[0], name)
    assert built.federation.clients == config.data.partition["clients"]
    for method in config.paper.methods:
        assert make(METHODS, method).parts


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_small_form_runs(name):
    """One round of one epoch, without the ten thousand test pictures that would take longer than it."""
    few = ["data.samples=200", "data.probe=0", "method=fedavg"] if "resnet18" in name else []
    few += ["local.epochs=1"] if parse(read(name)[0], name).local.epochs else []
    run = run_setup(made(name, "rounds=1", "evaluation.every=0", *few), None, None)
    assert [record.outcome.skipped for record in run.rounds] == [""]
    assert math.isfinite(run.last("train_loss"))


def test_a_preset_runs_by_its_name_with_its_folder(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("counterpoise.runs.experiments._read", _pretend)
    code, out, _ = cli("run", "fedbac/figure-3", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["rounds"] == 1
    assert (tmp_path / "runs" / "fedbac-figure-3-fedavg-0" / "config.toml").is_file()
    assert "paper" not in (tmp_path / "runs" / "fedbac-figure-3-fedavg-0" / "config.toml").read_text()


def _pretend(source):
    text = resources.files("counterpoise.presets").joinpath("quickstart.toml").read_text()
    return tomllib.loads(text) | {"rounds": 1}, source


# ---------------------------------------------------------------- like, and the listing


def test_paths_in_a_file_lead_from_its_folder(tmp_path, monkeypatch):
    file = tmp_path / "exp" / "a.toml"
    file.parent.mkdir()
    for name in ("photos", "here", "exp/digits"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)

    def found(data, cohort="", source="exp/a.toml"):
        file.write_text(f"data = {data}\n{cohort}")
        return read(source)[0]

    assert found("{ name = '../photos' }")["data"] == {"name": "photos"}
    assert found("'../photos'")["data"] == "photos"
    assert found("{ name = '../photos' }", source=str(file))["data"] == {"name": str(tmp_path / "photos")}
    (file.parent / "who.npy").touch()
    dealt = found(
        "{ name = 'x.csv', partition = { name = 'file', path = 'who.npy' } }", "cohort = { rounds = '../here' }"
    )
    assert dealt == {
        "data": {"name": "exp/x.csv", "partition": {"name": "file", "path": "exp/who.npy"}},
        "cohort": {"rounds": "here"},
    }
    for kept in ("digits", "mnsit", "here", "flwr:mnist", "mine.rules:data", str(tmp_path / "photos"), "~/photos"):
        assert found(f"{{ name = {kept!r} }}")["data"] == {"name": kept}
    with pytest.raises(CounterpoiseError, match=rf"no such file or folder \({tmp_path}/exp/x.csv\)"):
        cp.load("exp/x.csv", partition=cp.iid(2))


def test_like_takes_over_what_is_not_said_again(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('like = "quickstart"\n[data]\nname = "synthetic"\n[model]\nname = "linear"\n[local]\nepochs = 5\n')
    values, name = read(str(file))
    config = parse(values, name)
    assert name == "mine"
    assert (config.rounds, config.data.name, config.data.heldout, config.data.probe) == (40, "synthetic", 0.2, 1)
    assert config.model == {"name": "linear"}  # another choice takes none of the first one's options
    assert (config.local.epochs, config.local.batch) == (5, 16)


@pytest.mark.parametrize(
    ("like", "sentence"),
    [
        ("'nothing'", "There is no preset 'nothing'"),
        ("3", "like must name another preset or file, not 3"),
        (None, "like must name another"),
    ],
)
def test_like_something_that_is_not_there(tmp_path, monkeypatch, like, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(f"like = {like or repr('mine.toml')}\n")
    with pytest.raises(CounterpoiseError, match=sentence):
        read("mine.toml")


def test_a_mistake_in_the_paper_table_is_told_in_a_sentence():
    values = read("quickstart")[0]
    with pytest.raises(CounterpoiseError, match=r"There is no setting 'paper.abut' in x. Did you mean 'paper.about'"):
        parse({**values, "paper": {"abut": "this"}}, "x")


def test_the_listing_shows_the_published_numbers_in_80_columns(cli):
    code, out, _ = cli("presets", "--all")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in out.splitlines()]
    for name in NAMES:
        assert any(line.startswith(name) for line in lines), name
    assert "fedbac (strength 0.0) 88" in lines
    assert "alpha 0.3, clients 20 81.73 82.20 81.54 81.45" in lines
    assert "alpha 0.1 88.72 88.72 89.11 90.27" in lines
    assert "feda4 (modules trajectory) 76.70 85.75" in lines


def test_the_listing_for_machines_and_for_a_part_of_the_names(cli):
    listed = json.loads(cli("presets", "--json")[1])
    assert [entry["name"] for entry in listed] == NAMES
    (figure,) = (entry for entry in listed if entry["name"] == "fedbac/figure-3")
    assert (figure["numbers"], figure["methods"][1]) == ([[86], [88], [92]], {"name": "fedbac", "strength": 0.0})
    part = json.loads(cli("presets", "feda4/table", "--json")[1])
    assert [entry["name"] for entry in part] == [name for name in NAMES if name.startswith("feda4/table")]
    code, _, err = cli("presets", "fedback/figure-3")
    assert code == 2
    assert "There is no preset 'fedback/figure-3'. Did you mean 'fedbac/figure-3'?" in err


def test_a_preset_is_printed_as_a_file_that_makes_the_same_run(cli, tmp_path):
    code, text, _ = cli("presets", "quickstart", "--toml")
    assert code == 0
    (tmp_path / "mine.toml").write_text(text)
    for source, folder in (("quickstart", "one"), ("mine.toml", "other")):
        assert cli("run", source, "--rounds", "2", "--out", folder)[0] == 0
    one, other = ((tmp_path / folder / "config.toml").read_text() for folder in ("one", "other"))
    assert one == other
    one, other = (resume(tmp_path / folder).curve("loss") for folder in ("one", "other"))
    assert one == other
    assert len(one) == 2


@pytest.mark.parametrize("name", NAMES)
def test_a_printed_preset_is_complete_and_changes_nothing(name):
    values, printed = parse(read(name)[0], name), tomllib.loads(preset_file(name))
    again = parse(printed, name)
    assert "like" not in printed
    assert again.paper == values.paper
    for key in ("rounds", "seed", "loss", "metrics", "engine", "evaluation", "limits", "stop"):
        assert getattr(again, key) == getattr(values, key)
    assert make(METHODS, again.method).spec == make(METHODS, values.method).spec
    assert [make(ADVERSARIES, one).spec for one in again.adversary] == [
        make(ADVERSARIES, one).spec for one in values.adversary
    ]


@pytest.mark.parametrize("name", ["worlds/fmnist-claims-small", "feda4/table-1-fmnist-small", "fedbac/figure-3"])
def test_a_printed_preset_asks_for_the_same_set_up(name):
    small = ["data=digits", "data.samples=300"]
    one, other = (override(values, small) for values in (read(name)[0], tomllib.loads(preset_file(name))))
    assert asked_values(setup(parse(one, name))) == asked_values(setup(parse(other, name)))


def test_only_a_whole_name_is_printed_as_a_file(cli):
    code, out, err = cli("presets", "feda4", "--toml")
    assert (code, out) == (2, "")
    assert "--toml prints one preset; give its whole name" in err
