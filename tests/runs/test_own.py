"""Code of the user's own, by name: what may be named, where it is looked for, and that nothing else is imported."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import py_compile
import queue
import shutil
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import tomli_w
import torch

import counterpoise as cp
from counterpoise import own
from counterpoise.cli import comparing, main
from counterpoise.cli.comparing import Shown
from counterpoise.comparisons import ranking
from counterpoise.comparisons.arms import compared, shared_config
from counterpoise.comparisons.collection import Group
from counterpoise.comparisons.far import order
from counterpoise.comparisons.perform import Workers, make_folder, perform
from counterpoise.comparisons.placement import Place
from counterpoise.comparisons.plan import write_plan
from counterpoise.comparisons.process import Worker, own_code
from counterpoise.comparisons.worker import begin
from counterpoise.engine.scores import LOSSES, cross_entropy
from counterpoise.errors import CounterpoiseError
from counterpoise.runs.build import make, setup
from counterpoise.runs.config import override, parse, read
from counterpoise.runs.run import Run
from counterpoise.runs.saved import SavedRun
from counterpoise.runs.starting import run_setup
from counterpoise.runs.trust import own_names

RULES = """
import pathlib
from typing import Annotated

import torch
from torch import nn

import counterpoise as cp
from counterpoise.registry import Option
from counterpoise.schedules import Schedule
from mine.size import SIZE

with open(pathlib.Path(__file__).parent / "imported", "a") as file:
    file.write(".")

class Net(nn.Module):
    def __init__(self, shape, classes, hidden: int = SIZE):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    def forward(self, inputs):
        return self.layers(inputs)

def ours(mu: Annotated[float, Option("strength of the pull", low=0)] = 0.1) -> cp.Method:
    return cp.methods.fedprox(mu=mu)

def focal(outputs, targets, gamma=2.0):
    chance = outputs.softmax(1).gather(1, targets[:, None])[:, 0]
    return -((1 - chance) ** gamma) * chance.log()

def sure(outputs, targets):
    return outputs.softmax(1).amax(1)

def step(lr: float, scale: float = 1.0) -> cp.Optimizer:
    return cp.Optimizer(lr, lambda w: {}, lambda w, g, state, lr: (w - scale * lr * g, state))

def halving(every: int = 3) -> Schedule:
    return Schedule(lambda round: 0.5 ** (round // every))

def silent() -> cp.Adversary:
    return cp.Adversary(reply=lambda cohort, acting: cohort)

def bright(inputs, keys, by=0.1):
    return inputs + by

def spread(clients: int = 4) -> cp.Partition:
    return cp.iid(clients=clients)

def data(partition, seed, test=None, rows: int = 90) -> cp.Federation:
    inputs, targets = torch.rand(rows, 1, 8, 8, generator=torch.Generator().manual_seed(seed)), torch.arange(rows) % 10
    return cp.Federation.from_arrays(inputs, targets, partition=partition, seed=seed, test=test)

NUMBER = 3
MADE = cp.methods.fedavg()

def wrong():
    return 3

def broken():
    return [][1]

def part(keep: float) -> cp.Part:
    return cp.Part("mine")

def untold(keep) -> cp.Method:
    return cp.methods.fedavg()

def spoilt() -> cp.Method:
    rule = cp.Part("spoilt", apply=lambda round: round.but(weights=round.cohort.examples * float("nan")))
    return cp.methods.fedavg().replacing("spoilt", weigh=rule)

def boom() -> cp.Method:
    return cp.methods.fedavg().replacing("boom", weigh=cp.Part("n", apply=lambda round: round.but(weights=1 / 0)))

def kept(keep: float) -> cp.Method:
    return cp.methods.fedavg()
"""
FILE = """
rounds = 1
cohort = 4
model = { name = "mine.rules:Net", hidden = 5 }
method = { name = "mine.rules:ours", mu = 0.2 }
loss = { name = "mine.rules:focal", gamma = 1 }
metrics = ["accuracy", "mine.rules:sure"]
adversary = "mine.rules:silent"
data = { name = "digits", partition = { name = "iid", clients = 5 } }

[local]
optimizer = { name = "mine.rules:step", lr = 0.1 }
schedule = "mine.rules:halving"
augment = { name = "mine.rules:bright", by = 0.2 }
"""


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No name is allowed and no module loaded that an earlier test brought."""
    monkeypatch.setattr(own, "_folders", {})
    monkeypatch.setattr(own, "_tops", {})
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("mine", "lone", "late"):
            del sys.modules[name]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an experiment and a package that notes each time it is imported."""
    folder = tmp_path / "project"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "size.py").write_text("SIZE = 7\n")
    (folder / "mine" / "rules.py").write_text(RULES)
    (folder / "a.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return folder


def imported(folder: Path) -> int:
    """How often the package was imported."""
    note = folder / "mine" / "imported"
    return len(note.read_text()) if note.exists() else 0


def run(source: Path, out: Path, *typed: str) -> Run:
    return run_setup(setup(parse(override(read(str(source), typed)[0], typed), str(source))), out=out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["counterpoise", *words])
        try:
            main()
        except SystemExit as left:
            return int(left.code or 0), "".join(capsys.readouterr())
        return 0, "".join(capsys.readouterr())

    return call


def test_a_file_names_code_in_its_folder_and_the_run_names_it_too(project: Path, tmp_path: Path) -> None:
    done = run(project / "a.toml", tmp_path / "out")
    assert done.method == "fedprox"
    assert sum(p.numel() for p in done.model.parameters()) == 64 * 5 + 5 + 5 * 10 + 10
    assert {"accuracy", "sure"} <= done.rounds[-1].metrics.keys()
    kept = tomllib.loads((tmp_path / "out" / "config.toml").read_text())
    assert kept["method"] == {"name": "mine.rules:ours", "mu": 0.2}
    assert kept["model"] == {"name": "mine.rules:Net", "hidden": 5}
    assert kept["loss"] == {"name": "mine.rules:focal", "gamma": 1}
    assert kept["metrics"] == [{"name": "accuracy"}, {"name": "mine.rules:sure"}]
    assert kept["adversary"] == [{"name": "mine.rules:silent"}]
    assert kept["local"]["optimizer"] == {"name": "mine.rules:step", "lr": 0.1, "scale": 1.0}
    assert kept["local"]["schedule"] == {"name": "mine.rules:halving", "every": 3}
    assert kept["local"]["augment"] == {"name": "mine.rules:bright", "by": 0.2}
    assert kept["code"].keys() == {"mine/rules.py", "mine/size.py"}
    assert "own" not in kept
    assert str(project) not in (tmp_path / "out" / "config.toml").read_text()
    assert imported(project) == 1
    again = run(project / "a.toml", tmp_path / "out")
    assert again.folder == done.folder


def test_a_loss_by_name_is_the_same_as_the_function(project: Path) -> None:
    read(str(project / "a.toml"), [])
    loss = make(LOSSES, {"name": "mine.rules:focal", "gamma": 0.0})
    outputs, targets = torch.tensor([[0.0, 1.0], [2.0, -1.0]]), torch.tensor([1, 1])
    torch.testing.assert_close(loss(outputs, targets), cross_entropy(outputs, targets))
    built_in = make(LOSSES, {"name": "squared-error"})
    assert built_in(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 1.0])).tolist() == [1.0, 4.0]


def test_names_typed_are_looked_for_in_the_current_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CounterpoiseError, match=r"no module mine\.rules in .*: neither mine/rules.py nor"):
        setup(parse(override(read("quickstart", ["model=mine.rules:Net"])[0], ["model=mine.rules:Net"]), "it"))
    monkeypatch.chdir(project)
    typed = ["model=mine.rules:Net", "model.hidden=3", "method=feddua:mine.rules:ours", "method.mu=0.3"]
    made = setup(parse(override(read("quickstart", typed)[0], typed), "it"))
    assert made.training.method.spec.name == "feddua:mine.rules:ours"
    assert made.training.method.spec.options["mu"] == 0.3


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("model=mine.rule:Net", "no module mine.rule in .* is there. Code is looked for beside the file that names it"),
        ("model=mine.rules:Nett", "There is no name 'Nett' in .*rules.py. Did you mean 'Net'?"),
        ("method=mine.rules:NUMBER", "method mine.rules:NUMBER must be a function or a class, not 3."),
        ("method=mine.rules:MADE", "method mine.rules:MADE is a Method itself. Name a class or a function"),
        ("method=mine.rules:wrong", "method mine.rules:wrong must return a Method, not 3."),
        ("method=mine.rules:broken", "mine.rules:broken failed: IndexError: list index .*rules.py, line 59"),
        ("method=mine.rules:part", "method mine.rules:part is written to return a Part. Name .* returns a Method"),
        ("method=mine.rules:untold", r"method mine.rules:untold needs the option keep\."),
        ("loss=mine.rules:wrong", r"loss is called as loss\(outputs, targets\), but the function given takes"),
        ("method.mu=-1", "method mine.rules:ours: option mu must be a number at least 0, not -1."),
        ("model.hidden=2.5", "model mine.rules:Net: option hidden must be a whole number, not 2.5."),
        ("model.hiden=2", "There is no option 'hiden' of model mine.rules:Net. Did you mean 'hidden'?"),
        ("loss.gamma='a'", "loss mine.rules:focal: option gamma must be a whole number or a number, not 'a'."),
        ("model=../mine/rules:Net", "There is no model '../mine/rules:Net'. Did you mean 'mine.rules:Net'"),
        ("model=/mine/rules.py:Net", "Did you mean 'mine.rules:Net'"),
        ("method=mine.rules.ours", "There is no method 'mine.rules.ours'. Did you mean 'mine.rules:ours'"),
        ("model=mine..rules:Net", "my_project.rules:ours"),
        ("model=os:getcwd", "There is no model 'os' and no module os in "),
        ("method=fedua:fedavg", "no module fedua in .*Did you mean 'feddua'"),
    ],
)
def test_a_wrong_name_is_one_sentence(
    project: Path, setting: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    with pytest.raises(CounterpoiseError, match=sentence) as told:
        setup(parse(override(read("a.toml", [setting])[0], [setting]), "a.toml"))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import nowhere_at_all\n", "ModuleNotFoundError: No module named .nowhere_at_all. .*lone.py, line 1"),
        ("x = 1\nnet = = 2\n", "SyntaxError: invalid syntax .*lone.py, line 2"),
        ("\nraise SystemExit(3)\n", "SystemExit: 3 .*lone.py, line 2"),
        ("import counterpoise as cp\ncp.sgd(-1)\n", "option lr must be .*lone.py, line 2"),
    ],
)
def test_an_error_in_a_module_says_where(project: Path, text: str, sentence: str) -> None:
    (project / "lone.py").write_text(text)
    own.allow("lone:net", project)
    with pytest.raises(CounterpoiseError, match=f"The module lone in .* cannot be imported: .*{sentence}") as told:
        own.load("lone:net")
    assert "\n" not in str(told.value)


def test_a_run_that_own_code_spoilt_is_to_be_run_again(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be resumed: the code that is mended is no longer the code that the run began with."""
    monkeypatch.chdir(project)
    with pytest.raises(cp.Failed, match=r"the weight nan .* Remove the cause, then run it again with --overwrite"):
        run(project / "a.toml", tmp_path / "run", "method=mine.rules:spoilt")


def test_an_error_in_own_code_is_a_sentence_on_the_command_line(
    project: Path, tmp_path: Path, cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    told = "part n: its hook apply failed (<lambda> in rules.py, line 72): ZeroDivisionError: division by zero."
    code, said = cli("run", "a.toml", "--set", "method=mine.rules:boom", "--out", str(tmp_path / "run"))
    assert (code, "Traceback" in said) == (2, False)
    assert told in " ".join(said.split())
    kept = tmp_path / "run" / "failure.txt"
    assert said.rstrip().endswith(f"The whole traceback is in {kept}.")
    assert kept.read_text().startswith(f"{told}\nTraceback")


def test_own_code_that_fails_before_the_first_round_is_a_sentence_and_leaves_no_folder(
    project: Path, cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    (project / "late.py").write_text("def sure(outputs, targets):\n    raise OverflowError('too much')\n")
    code, said = cli("run", "a.toml", "--set", "metrics=['late:sure']")
    assert code == 2
    assert "Your own code failed: OverflowError: too much" in said
    assert f"{project / 'late.py'}, line 2" in said
    assert not (project / "runs").exists() or not list((project / "runs").iterdir())


def test_a_failure_is_forgotten_when_the_run_goes_on(tmp_path: Path) -> None:
    def stop(record: cp.measures.RoundRecord) -> None:
        raise RuntimeError("no disk for my notes")

    fed, place = cp.load("digits", partition=cp.iid(clients=4), seed=0), tmp_path / "run"
    with pytest.raises(RuntimeError, match="no disk"):
        cp.simulate("fedavg", fed, model=cp.models.mlp, rounds=2, cohort=2, out=place, on_round=stop)
    assert "no disk for my notes" in (place / "failure.txt").read_text()
    cp.resume(place, federation=fed)
    assert not (place / "failure.txt").exists()


def test_a_file_that_leads_out_of_the_folder_is_refused(project: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("net = 1\n")
    (project / "lone.py").symlink_to(tmp_path / "outside.py")
    own.allow("lone:net", project)
    with pytest.raises(CounterpoiseError, match=r"lone\.py leads out of "):
        own.load("lone:net")


def test_a_module_does_not_take_the_place_of_another(project: Path) -> None:
    (project / "json.py").write_text("net = 1\n")
    own.allow("json:net", project)
    with pytest.raises(CounterpoiseError, match=r"another one of that name is loaded already\. Rename it"):
        own.load("json:net")


def test_a_module_that_is_built_into_python_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(name for name in sys.builtin_module_names if name not in sys.modules)
    (project / f"{name}.py").write_text("def net(): ...\n")
    monkeypatch.chdir(project)
    own.allow(f"{name}:net", project)
    with pytest.raises(CounterpoiseError, match=r"another one of that name is in built-in\. Rename it"):
        own.load(f"{name}:net")


def test_packages_are_imported_with_what_they_import_from_one_another(tmp_path: Path) -> None:
    (tmp_path / "mine" / "deep").mkdir(parents=True)
    (tmp_path / "mine" / "__init__.py").write_text("from .deep import net\n")
    (tmp_path / "mine" / "deep" / "__init__.py").write_text("from ..other import net\n")
    (tmp_path / "mine" / "other.py").write_text(
        "import importlib\ndef net():\n    return importlib.import_module('mine.by')\n"
    )
    (tmp_path / "mine" / "by.py").write_text("")
    own.allow("mine:net", tmp_path)
    net = own.load("mine:net")
    assert (net.__module__, net().__name__) == ("mine.other", "mine.by")
    assert inspect.getsource(net).startswith("def net")
    assert not list(tmp_path.rglob("*.pyc"))


def test_a_module_that_python_finds_elsewhere_is_refused(project: Path, tmp_path: Path, monkeypatch) -> None:
    """One of the same name in two places is refused even if none is loaded, also one that only the code imports."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "late.py").write_text("")
    (project / "late.py").write_text("SIZE = 3\n")
    (project / "lone.py").write_text("def net():\n    import late\n    return late\n")
    own.allow(["lone:net", "late:net"], project)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "other")])
    importlib.invalidate_caches()
    for name in ("late:net", "lone:net"):
        with pytest.raises(CounterpoiseError, match=r"another one of that name is in .*other/late\.py\. Rename it"):
            own.load(name)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(tmp_path / "other")])
    importlib.invalidate_caches()
    assert own.load("lone:net")().SIZE == 3
    own.allow("late:net", tmp_path / "other")
    with pytest.raises(CounterpoiseError, match=r"another one of that name is loaded already"):
        own.load("late:net")
    assert str(project) not in sys.path


@pytest.mark.parametrize("late", [False, True])
def test_only_source_is_imported(project: Path, late: bool) -> None:
    """Not bytecode, even if it says that it belongs to this source, nor an extension module."""
    source, other = project / "late.py", project / "other.py"
    source.write_text("SIZE = 3\n")
    other.write_text("SIZE = 4\n")
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(other), importlib.util.cache_from_source(str(source)), invalidation_mode=unchecked)
    other.unlink()
    (project / f"late{importlib.machinery.EXTENSION_SUFFIXES[0]}").write_bytes(b"not a library")
    (project / "fast.pyc").write_bytes(Path(importlib.util.cache_from_source(str(source))).read_bytes())
    inside = "def net():\n    import late\n    return late.SIZE\n"
    (project / "lone.py").write_text(inside if late else "import late\ndef net():\n    return late.SIZE\n")
    own.allow("lone:net", project)
    assert own.load("lone:net")() == 3
    (project / "mine" / "fast.pyc").write_bytes((project / "fast.pyc").read_bytes())
    (project / "mine" / "quick.py").write_text("import mine.fast\n")
    own.allow("mine.quick:net", project)
    with pytest.raises(CounterpoiseError, match=r"No module named .mine\.fast"):
        own.load("mine.quick:net")


def test_a_name_stands_for_what_the_folder_defines(project: Path) -> None:
    (project / "lone.py").write_text(
        "from os import system\nfrom subprocess import Popen as model\nfrom functools import partial\n"
        "from mine.rules import Net\nhidden = partial(system)\n"
    )
    for name in ("system", "model", "hidden"):
        own.allow(f"lone:{name}", project)
        with pytest.raises(CounterpoiseError, match=rf"lone:{name} is defined in .*, not in .*, so it is not used"):
            own.load(f"lone:{name}")
    own.allow("lone:Net", project)
    assert own.load("lone:Net").__module__ == "mine.rules"


def test_a_name_that_was_not_given_is_not_imported(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project))
    with pytest.raises(CounterpoiseError, match="code that you did not name, so it was not imported"):
        cp.models.MODELS.make("mine.rules:Net")
    assert imported(project) == 0


def test_resume_imports_only_what_is_trusted_and_has_not_changed(project: Path, tmp_path: Path, cli) -> None:
    out = tmp_path / "out"
    run(project / "a.toml", out)
    own._folders.clear()
    status, said = cli("resume", str(out), "--rounds", "2")
    assert status == 2
    assert f"{out} names code of somebody's own: mine.rules:Net, " in said
    assert "--trust FOLDER" in said
    status, said = cli("resume", str(out), "--rounds", "2", "--trust", str(tmp_path / "nowhere"))
    assert "there is no folder" in said
    status, said = cli("resume", str(out), "--rounds", "2", "--trust", str(project / "mine"))
    assert f"Give the folder that mine lies in: {project}." in said
    assert "--trust is for `resume`." in cli("run", str(project / "a.toml"), "--trust", ".")[1]
    own._folders.clear()
    (project / "mine" / "size.py").write_text("SIZE = 7  # as before\n")
    with pytest.raises(CounterpoiseError, match=r"mine/size.py differs from the code that this run began with"):
        cp.resume(out, rounds=2, trust=project)
    with pytest.raises(CounterpoiseError, match=r"mine/size.py is another file than when it began"):
        run(project / "a.toml", out)
    (project / "mine" / "size.py").write_text("SIZE = 7\n")
    own._folders.clear()
    assert len(cp.resume(out, rounds=2, trust=project).rounds) == 2


def test_a_method_of_ones_own_is_shown_by_its_name(project: Path, cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    status, said = cli("methods", "mine.rules:ours")
    assert (status, "mu = " in said) == (0, True)
    assert "keep  a number" in cli("methods", "mine.rules:kept")[1]  # whose author does not say what it means
    assert "Did you mean 'mine.rules:ours'?" in cli("methods", "mine.rules.ours")[1]


def test_changed_code_is_not_imported_to_find_that_out(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(project / "a.toml", out)
    for name in [name for name in sys.modules if name.startswith("mine")]:
        del sys.modules[name]
    with open(project / "mine" / "rules.py", "a") as file:
        file.write("\n")
    with pytest.raises(CounterpoiseError, match=r"mine/rules\.py differs from"):
        cp.resume(out, rounds=2, trust=project)
    assert imported(project) == 1


def test_a_strangers_run_is_opened_with_every_command_and_imports_nothing(
    project: Path, tmp_path: Path, cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder holds the code as well, and so does the current folder."""
    out = tmp_path / "out"
    run(project / "a.toml", out)
    own._folders.clear()
    own._tops.clear()
    for name in [name for name in sys.modules if name.startswith("mine")]:
        del sys.modules[name]
    (project / "mine" / "imported").unlink()
    shutil.copytree(project / "mine", out / "mine")
    monkeypatch.chdir(out)
    for words in (
        ["runs", "list", "."],
        ["runs", "show", "."],
        ["runs", "compare", ".", "."],
        ["report", ".", "--out", str(tmp_path / "report.html")],
        ["resume", "."],
        ["resume", ".", "--rounds", "3"],
        ["run", "config.toml", "--out", str(tmp_path / "other")],
        ["run", "./config.toml"],
        ["partition", "config.toml"],
        ["compare", "config.toml", "--methods", "fedavg,fedprox", "--out", str(tmp_path / "many")],
        ["sweep", "config.toml", "--over", "rounds=1,2", "--out", str(tmp_path / "many")],
    ):
        status, said = cli(*words)
        refused = words[0] not in ("runs", "report")
        assert (status, "imported" in said) == ((2, True) if refused else (0, False)), (words, said)
        assert ("--trust FOLDER" in said) is refused, (words, said)
        assert imported(out) == imported(project) == 0, words
    values = tomllib.loads((out / "config.toml").read_text())
    values["code"] = {}
    (out / "config.toml").write_text(tomli_w.dumps(values))
    with pytest.raises(CounterpoiseError, match="differ from the code"):
        cp.resume(out, rounds=2, trust=out)
    assert imported(out) == imported(project) == 0


def test_data_and_partitions_by_name(project: Path, tmp_path: Path) -> None:
    typed = ["data.name=mine.rules:data", "data.options.rows=80", "data.partition=mine.rules:spread", "data.test=0.25"]
    (project / "b.toml").write_text(tomli_w.dumps(override(tomllib.loads(FILE), typed)))
    done = run(project / "b.toml", tmp_path / "out")
    kept = done.settings["data"]
    assert kept["name"] == "mine.rules:data"
    assert (kept["options"], kept["test"]) == ({"rows": 80}, 0.25)
    assert kept["partition"] == {"name": "mine.rules:spread", "clients": 4}
    assert len(cp.resume(tmp_path / "out", rounds=2, trust=project).rounds) == 2
    for more, sentence in (
        ("data.options.rows=0.5", "data set mine.rules:data: option rows must be a whole number, not 0.5"),
        ("data.heldout=0.3", "takes no data.heldout: its function has no parameter heldout"),
    ):
        with pytest.raises(CounterpoiseError, match=sentence):
            run(project / "b.toml", tmp_path / "other", more)
    with pytest.raises(CounterpoiseError, match=r"data\.options is for data of your own; digits takes none"):
        run(project / "a.toml", tmp_path / "other", "data.options.rows=3")


def test_a_comparison_passes_its_names_to_its_workers_and_keeps_digests(project: Path, tmp_path: Path, cli) -> None:
    source, out = str(project / "a.toml"), tmp_path / "many"
    plan = compared(source, ["fedavg", "mine.rules:ours(mu=0.3)"], seeds=1)
    assert plan.arms[1].settings == {"method": {"name": "mine.rules:ours", "mu": 0.3}}
    assert plan.values["code"].keys() == {"mine/rules.py", "mine/size.py"}
    pieces = [next(plan.pieces(arm)) for arm in plan.arms]
    assert own_code(pieces)["mine.rules:Net"] == str(project)
    assert order(tmp_path, "", pieces, None, 1)["own"] == own_code(pieces)
    with pytest.raises(CounterpoiseError, match="option hidden must be a whole number"):
        compared(source, ["fedavg"], ["model.hidden=a"])
    write_plan(make_folder(out) or out, plan)
    own._folders.clear()
    assert "names code of somebody's own: mine.rules:Net" in cli("resume", str(out))[1]
    with open(project / "mine" / "size.py", "a") as file:
        file.write("\n")
    assert "mine/size.py differs from" in cli("resume", str(out), "--trust", str(project))[1]
    changed = compared(source, ["fedavg", "mine.rules:ours(mu=0.3)"], seeds=1)
    with pytest.raises(CounterpoiseError, match=r"with other settings: mine/size\.py has changed\. .*--overwrite"):
        plan.extended(changed)


def test_hints_say_that_a_comparison_of_own_code_must_be_trusted(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = compared(str(project / "a.toml"), ["fedavg", "mine.rules:ours"], seeds=2)
    command = f"counterpoise resume {tmp_path} --trust project"
    with pytest.raises(SystemExit):
        comparing._stopped(tmp_path, plan, Workers(), comparing.Shown(), signal.SIGINT)
    assert capsys.readouterr().err.strip().endswith(f"Stopped with 0 of 4 runs done. Continue with: {command}")
    write_plan(tmp_path, plan)
    arm = plan.arms[1]
    now = datetime.now(UTC)
    runs = [SavedRun(tmp_path / piece.place, piece.values, (), "stopped", "", now) for piece in plan.pieces(arm)]
    assert ranking._finishing([Group(arm.label, tuple(runs))], {arm.label: [0]}) == [f"to finish: {command}"]


def test_a_module_that_is_not_there_is_told_with_the_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text("def net(shape, classes): ...")
    (tmp_path / "a.toml").write_text(
        'rounds = 1\nmethod = "fedavg"\nmodel = "netz:net"\n[data]\nname = "digits"\npartition = { name = "iid", clients = 2 }\n'
    )
    with pytest.raises(CounterpoiseError, match=r"no model 'netz' and no module netz in .* Did you mean 'nets:net'\?"):
        compared(str(tmp_path / "a.toml"), ["fedavg"], seeds=1)


def test_only_choices_name_code() -> None:
    text = {"name": "some.text:here"}
    assert own_names({"data": {"name": "digits", "options": text, "columns": text}, "own": text, "code": text}) == []
    nested = {"data": {"name": "a.b:c", "options": {"rule": {"name": "d.e:f"}}}, "adversary": [{"name": "g.h:i"}]}
    assert own_names([nested, {"method": {"name": "j.k:l", "options": {"name": "m.n:o"}}}]) == [
        *("a.b:c", "d.e:f", "g.h:i", "j.k:l", "m.n:o")
    ]


def test_a_worker_imports_from_the_folder_that_it_is_told(project: Path, tmp_path: Path) -> None:
    """In a process of its own, which starts with nothing allowed."""
    plan = compared(str(project / "a.toml"), ["mine.rules:ours"], seeds=1)
    groups = perform(plan, tmp_path / "many", jobs=1)
    assert [run.status for group in groups for run in group.runs] == ["finished"]
    assert imported(project) == 2


def test_a_metric_is_shown_by_the_name_that_records_have(project: Path) -> None:
    plan = compared(str(project / "a.toml"), ["fedavg"], seeds=1)
    for name in ("sure", "personal_sure", "accuracy"):
        Shown(name).check(plan)
    with pytest.raises(CounterpoiseError, match=r"There is no metric 'mine\.rules:sure'"):
        Shown("mine.rules:sure").check(plan)


def test_a_worker_begins_no_run_with_other_code_than_the_plan(project: Path, tmp_path: Path) -> None:
    plan = compared(str(project / "a.toml"), ["fedavg", "mine.rules:ours"], ["rounds=1"], seeds=1)
    (project / "late.py").write_text("")
    values = {**next(plan.pieces(plan.arms[0])).values, "code": {**plan.values["code"], "late.py": "of another arm"}}
    assert next(begin(tmp_path / "one", values)) is not None
    with open(project / "mine" / "size.py", "a") as file:
        file.write("\n")
    with pytest.raises(CounterpoiseError, match=r"mine/size\.py differs from the code that this run began with"):
        next(begin(tmp_path / "two", values))
    assert not (tmp_path / "two").exists()


def test_a_worker_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """But it does find counterpoise on PYTHONPATH; here a small one stands there, which ends at once."""
    worker = tmp_path / "path" / "counterpoise" / "comparisons" / "worker.py"
    worker.parent.mkdir(parents=True)
    for package in (worker.parent, worker.parent.parent):
        (package / "__init__.py").touch()
    worker.write_text(f"import json\nopen({str(tmp_path / 'began')!r}, 'w').close()\n")
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "json.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
    with open(tmp_path / "log", "wb") as log:
        place = str(tmp_path / "strange")
        begun = Worker(queue.Queue(), log, None, Place(), {"PYTHONPATH": str(tmp_path / "path")}, place)
        begun.dismiss()
        assert begun.wait() == 0
    assert (tmp_path / "began").exists()
    assert not (tmp_path / "imported").exists()


def test_flower_apps_take_names_and_the_folder(project: Path) -> None:
    apps = pytest.importorskip("counterpoise.flower")
    with pytest.raises(CounterpoiseError, match="code that you did not name"):
        apps.client_app("mine.rules:ours", "mine.rules:Net", lambda context: None)
    apps.client_app("mine.rules:ours", "mine.rules:Net", lambda context: None, folder=project)
    own._folders.clear()
    apps.server_app("mine.rules:ours", lambda context: None, model="mine.rules:Net", folder=project)
    assert own.folder_of("mine.rules:Net") == project


def test_names_in_a_file_that_is_only_read_are_not_allowed(project: Path) -> None:
    """As in a study, whose cells name files."""
    read(str(project / "a.toml"))
    shared_config(str(project / "a.toml"), ["model=mine.rules:Net"], None)
    assert own.folder_of("mine.rules:Net") is None


def test_like_leads_to_the_file_beside_and_not_to_one_in_the_current_folder(project: Path, monkeypatch) -> None:
    strange = project.parent / "strange"
    strange.mkdir()
    (strange / "a.toml").write_text('model = "strange.rules:Net"\n')
    (strange / "quickstart").write_text('like = "a.toml"\n')
    (project / "b.toml").write_text('like = "a.toml"\nrounds = 3\n')
    (project / "c.toml").write_text('like = "quickstart"\nrounds = 3\n')
    monkeypatch.chdir(strange)
    assert read("../project/b.toml", [])[0]["model"] == {"name": "mine.rules:Net", "hidden": 5}
    assert "mine" not in str(read("../project/c.toml", [])[0]["model"])
    assert (own.folder_of("mine.rules:Net"), own.folder_of("strange.rules:Net")) == (project, None)
    assert read("a.toml", [])[0]["model"] == "strange.rules:Net"
    (project / "a.toml").write_text('like = "../project/b.toml"\n')
    with pytest.raises(CounterpoiseError, match="like must name another preset or file"):
        read("../project/b.toml", [])


@pytest.mark.parametrize("more", ["", "code = { 'mine/rules.py' = '00' }", "data.fingerprint = '00'"])
def test_names_in_a_runs_folder_or_a_copy_of_its_configuration_are_not_allowed(project: Path, more: str) -> None:
    if not more:
        (project / "metrics.jsonl").touch()
    (project / "b.toml").write_text(f'rounds = 1\nmodel = "mine.rules:Net"\n{more}\n')
    (project / "c.toml").write_text('like = "b.toml"\n')
    for name in ("b.toml", "c.toml"):
        read(str(project / name), [])
        assert own.folder_of("mine.rules:Net") is None


def test_sources_are_found_by_reading_imports(tmp_path: Path) -> None:
    files = {
        "a/__init__.py": "from . import b\n",
        "a/b.py": "from .c import d\nimport torch\n",
        "a/c/__init__.py": "",
        "a/c/d.py": "from ..e import *\nfrom a import f\n",
        "a/e.py": "import unknown_to_all\n",
        "a/f.py": "def late():\n    import g\n",
        "g.py": "",
        "h.py": "",
        "imported_by_nobody.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    own.allow(["a.b:x", "h:x"], tmp_path)
    assert [*own.digests(["a.b:x", "h:x"])] == sorted(files.keys() - {"imported_by_nobody.py"})
    digest = own.digests(["h:x"])["h.py"]
    assert digest == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_the_configuration_of_own_data_holds_no_setting_that_nobody_made(tmp_path: Path) -> None:
    fed = cp.Federation.from_arrays(torch.zeros(20, 3), torch.arange(20) % 2, partition=cp.iid(2), heldout=0.5)
    cp.simulate("fedavg", fed, model=cp.models.mlp, rounds=1, out=tmp_path)
    config = tmp_path / "config.toml"
    assert tomllib.loads(config.read_text())["data"].keys() == {"name", "fingerprint"}
    config.write_text(config.read_text().replace("[data]", "[data]\nheldout = 0.2\nproxy = 0"))  # as it used to be
    assert cp.resume(tmp_path, rounds=2, federation=fed).status == "finished"
