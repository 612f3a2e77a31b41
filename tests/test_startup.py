"""What is not loaded: torch takes seconds, so only what needs it may ask for it."""

from __future__ import annotations

import ast
import gc
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from kept import keep

from counterpoise.cli.early import check_methods, methods_set
from counterpoise.errors import CounterpoiseError
from counterpoise.loading import loading
from counterpoise.methods import METHODS

LAZY = ("counterpoise", "counterpoise.engine", "counterpoise.federation", "counterpoise.runs")
STUDIES = Path(__file__).parents[1] / "studies"
SLOW = ("torch", "numpy", "pandas", "pydantic", "sklearn", "scipy", "plotly", "flwr")


def loaded_by(code: str) -> set[str]:
    """Which slow packages a fresh interpreter holds after this code."""
    tail = f"\nimport sys\nprint('loaded', *(name for name in {SLOW} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code + tail], check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_the_package_alone_loads_nothing_slow() -> None:
    code = """
import os
import counterpoise as cp
assert "simulate" in dir(cp) and not hasattr(cp, "simulat")
assert os.environ["OMP_WAIT_POLICY"]  # torch reads it when it is loaded
"""
    assert not loaded_by(code)


def test_help_and_mistakes_on_the_command_line_load_nothing_slow() -> None:
    helps = [
        ["--help"],
        ["run", "--help"],
        ["runs", "list", "--help"],
        ["data", "show", "-h"],
        ["study", "run", "-h"],
        ["--version"],
    ]
    mistakes = [["runn"], ["run"], ["run", "demo", "--cohort", "5"], ["compare", "quickstart", "--target", "7"]]
    code = f"""
import sys
from counterpoise.cli import main
for words in {helps + mistakes}:
    sys.argv = ["counterpoise", *words]
    try:
        main()
    except SystemExit as end:
        assert (end.code or 0) == (2 if words in {mistakes} else 0), words
"""
    assert not loaded_by(code)


def test_an_unknown_preset_or_method_is_refused_before_anything_slow_is_loaded(tmp_path: Path) -> None:
    typed = [
        (["run", "quickstrat"], "quickstart"),
        (["compare", "quickstrat"], "quickstart"),
        (["sweep", "quickstrat"], "quickstart"),
        (["run", "quickstart", "--set", "method=fedvag"], "fedavg"),
        (["run", "quickstart", "--set", "method=fedprx(mu=0.1)"], "fedprox"),
        (["compare", "quickstart", "--methods", "fedavg,fedvag"], "fedavg"),
        (["sweep", "quickstart", "--over", "method=fedavg,fedvag"], "fedavg"),
        (["sweep", "quickstart", "--set", "method=fedvag", "--over", "local.epochs=1,2"], "fedavg"),
    ]
    code = f"""
import contextlib, io, os, sys
from counterpoise.cli import main
os.chdir({str(tmp_path)!r})
for words, meant in {typed}:
    sys.argv, said = ["counterpoise", *words], io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        assert end.code == 2, words
    assert f"Did you mean {{meant!r}}?" in said.getvalue(), (words, said.getvalue())
"""
    assert not loaded_by(code)


def test_what_is_refused_early_is_refused_in_the_same_words_and_nothing_else_is() -> None:
    for name in ("fedvag", "zzz", "lab.rules.ours"):
        with pytest.raises(CounterpoiseError) as late:
            _ = METHODS[name]
        with pytest.raises(CounterpoiseError) as early:
            check_methods("quickstart", [], [name])
        assert str(early.value) == str(late.value)
    for entry in METHODS:
        check_methods("quickstart", [], [entry.name])
    check_methods("quickstart", [], ["fedprox(", "", "3"])
    check_methods("quickstart", ["model=lab:net"], ["fedvag"])  # their module may register it
    check_methods("own.toml", [], ["fedvag"])
    assert methods_set(["method=fedvag", "seed=1", " method = fedprox(mu=1)"]) == [" fedprox(mu=1)"]
    assert methods_set(["method.mu=1", "methods=fedavg"]) == []


def loaded_by_command(*words: str) -> set[str]:
    """Which slow packages a command that succeeds loads."""
    code = f"""
import sys
from counterpoise.cli import main
sys.argv = ["counterpoise", *{words}]
try:
    main()
except SystemExit as end:
    assert not end.code
"""
    return loaded_by(code)


@pytest.mark.parametrize("command", ["methods", "presets"])
def test_the_short_lists_load_nothing_slow(command: str) -> None:
    assert not loaded_by_command(command)


@pytest.mark.parametrize("command", ["presets feda4", "presets feda4 --json", "data list", "data where digits"])
def test_lists_of_presets_and_data_sets_do_not_load_torch(command: str) -> None:
    assert "torch" not in loaded_by_command(*command.split())


def test_completion_loads_nothing_slow() -> None:
    asked = ["ru", "run q", "methods fedp", "compare quickstart --methods fedavg,fedp"]
    asked += ["run quickstart --set method.m", "partition quickstart --set data."]
    code = f"""
import os
from counterpoise.cli import main
for words in {asked}:
    os.environ |= {{"_COUNTERPOISE_COMPLETE": "complete_bash", "COMP_WORDS": "counterpoise " + words}}
    os.environ["COMP_CWORD"] = str(len(words.split()))
    try:
        main()
    except SystemExit as end:
        assert not end.code
"""
    assert not loaded_by(code)


@pytest.mark.parametrize("command", ["list", "list --json", "show"])
def test_runs_are_listed_and_shown_without_torch(tmp_path: Path, command: str) -> None:
    keep(tmp_path / "one")
    assert "torch" not in loaded_by_command("runs", *command.split(), str(tmp_path / "one"))


def test_a_study_is_shown_without_torch() -> None:
    assert "torch" not in loaded_by_command("study", "show", str(STUDIES / "worlds-ablation.toml"))


def test_every_partition_is_registered_in_a_fresh_interpreter() -> None:
    code = """
from counterpoise.federation import AVAILABILITIES, PARTITIONS, SKEWS
import counterpoise as cp
for registry, names in ((PARTITIONS, "iid draws mixed dirichlet lq shards natural power-law flwr pachinko"),
                        (AVAILABILITIES, "weighted stragglers replay"), (SKEWS, "noise rotation colour")):
    assert {*names.split()} <= {entry.name for entry in registry}, sorted(entry.name for entry in registry)
"""
    loaded_by(code)


@pytest.mark.parametrize("package", LAZY)
def test_every_name_resolves_and_nothing_else_does(package: str) -> None:
    module = importlib.import_module(package)
    assert {*module.__all__} <= {*dir(module)}
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        _ = module.simulat


@pytest.mark.parametrize("package", LAZY)
def test_type_checkers_see_the_same_names_from_the_same_modules(package: str) -> None:
    module = importlib.import_module(package)
    tree = ast.parse(Path(module.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: line.module for line in block.body for alias in line.names}
    assert {*seen} == {*module.__all__}
    (table,) = (node for node in ast.walk(block.orelse[-1]) if isinstance(node, ast.Dict))
    homes = {name: home for home, names in ast.literal_eval(table).items() for name in names.split()}
    assert seen.items() <= homes.items()
    assert {homes[name] for name in homes.keys() - seen.keys()} <= {package}  # modules that are not exported
    files = {path.stem for path in Path(module.__file__).parent.iterdir()}
    assert {name for name in homes if homes[name] == package} == files & homes.keys()  # a module would hide the name


def test_waiting_for_a_slow_package_is_told_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.delitem(sys.modules, "pydantic")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr("gc.freeze", lambda: None)  # it would keep every object of the other tests
    for terminal in (True, False):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        with loading():
            assert not gc.isenabled()
            importlib.util.find_spec("pydantic")  # as an import does
            importlib.util.find_spec("torch")
        assert gc.isenabled()
        out, err = capsys.readouterr()
        assert not out
        notes = ("loading pydantic ...", "loading torch ...")
        assert err == ("".join(f"{note}\r{' ' * len(note)}\r" for note in notes) if terminal else "")
