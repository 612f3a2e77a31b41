"""The reference is generated from the code, and links between pages lead somewhere, without building the site."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType

import click
import pytest
import torch
import typer
from torch import nn
from worlds_standing import standings

from counterpoise.cli.app import app
from counterpoise.methods import METHODS
from counterpoise.reports.inline import Report
from counterpoise.runs.config import (
    Config,
    DataConfig,
    EngineConfig,
    EvaluationConfig,
    LimitsConfig,
    LocalConfig,
    StopConfig,
    parse,
)
from counterpoise.runs.experiments import override
from counterpoise.runs.paper import PaperConfig
from counterpoise.runs.places import CHOICES
from counterpoise.studies.finding import found_in

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(text: str) -> list[list[str]]:
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| `")]


def test_every_key_is_listed_with_its_meaning(reference: ModuleType) -> None:
    listed = {row[0].strip(" `"): row[-1].strip() for row in rows(reference.keys())}
    tables = {"data": DataConfig, "local": LocalConfig, "paper": PaperConfig}
    tables |= {"engine": EngineConfig, "evaluation": EvaluationConfig, "limits": LimitsConfig, "stop": StopConfig}
    expected = {field.alias or name for name, field in Config.model_fields.items() if name not in tables} | {"like"}
    expected |= {f"{name}.{key}" for name, table in tables.items() for key in table.model_fields}
    assert listed.keys() == expected
    assert all(listed.values())


def test_every_choice_is_listed_with_all_its_options(reference: ModuleType) -> None:
    text = reference.methods() + reference.choices()
    for registry in (METHODS, *CHOICES.values(), reference.METRICS):
        for entry in registry:
            assert f"### `{entry.name}`" in text
    listed = [row[0].strip(" `") for row in rows(reference.methods())]
    assert sorted(listed) == sorted(option for entry in METHODS for option in entry.parameters)


def test_every_command_is_listed(reference: ModuleType) -> None:
    text = reference.commands()
    listed = re.findall(r"^## (.+)$", text, re.M)
    assert {"run", "compare", "sweep", "runs list", "study run", "deploy local"} <= {*listed}
    root = typer.main.get_command(app)
    first = dict.fromkeys(name.split()[0] for name in listed)
    assert [*first] == root.list_commands(click.Context(root)), "the page has the order of the help"
    assert "| `--set KEY=VALUE` |" in text
    assert all(row[-1].strip() for row in rows(text))


def test_a_notebooks_page_has_what_its_cells_show(tmp_path: Path) -> None:
    pytest.importorskip("myst_parser")  # make docs installs it
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    notebooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebooks)
    sources = ["a = 2\n'<' * a", "b = 3", "import plotly.graph_objects as go\ngo.Figure()", "go.Figure()"]
    cells = [{"cell_type": "markdown", "source": ["# T"]}, *({"cell_type": "code", "source": [s]} for s in sources)]
    made = [*notebooks.as_markdown({"cells": cells}, tmp_path / "book.html", "../../")]
    assert [text.split("\n")[0] for text in made] == [
        "# T", "```python", "``````{raw} html", "```python", *["```python", "``````{raw} html"] * 2
    ]  # fmt: skip
    assert "<pre>&#x27;&lt;&lt;&#x27;</pre>" in made[2]
    assert ['src="../../_static/plotly.min.js"' in made[place] for place in (5, 7)] == [True, False]
    report = Report("t", "<p>whole")
    assert 'src="book-report.html"' in notebooks.shown(report, tmp_path / "book.html", "")
    assert (tmp_path / "book-report.html").read_text() == "<p>whole"
    with pytest.raises(ZeroDivisionError):
        notebooks.run("1 / 0", {})


def test_a_signature_keeps_its_defaults(reference: ModuleType) -> None:
    short = reference.shorter(None, "", "", None, None, "(a: ~torch.Tensor, b: float = 1.5, c: str = 'a.b')", None)[0]
    assert short == "(a: Tensor, b: float = 1.5, c: str = 'a.b')"


def test_every_page_that_is_generated_is_asked_for(reference: ModuleType) -> None:
    asked = [name for page in PAGES for name in re.findall(r"<!-- generated: (\w+) -->", page.read_text())]
    assert sorted(asked) == sorted(reference.PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
    leads = {link: (page.parent / link).resolve() for link in links if link.endswith(".md")}
    assert [link for link, target in leads.items() if target not in PAGES] == [], "the site does not have these pages"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_line_is_lost_as_a_comment(page: Path) -> None:
    """MyST takes a line that begins with a per cent sign for a comment."""
    assert not [line for line in page.read_text().splitlines() if line.startswith("%")]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.S)


def lines() -> list[str]:
    """Every command of ours in a code block of a page, without its comment."""
    found = set()
    for page in PAGES:
        for line in re.findall(r"^    (counterpoise [a-z].*)$", page.read_text(encoding="utf-8"), re.M):
            found.add(re.sub(r" +#.*| > \S+$", "", re.sub(r" +#.*", "", line)).removesuffix("\\").strip())
    return sorted(found)


@pytest.mark.parametrize("line", lines())
def test_every_command_on_a_page_is_one_that_we_have(line: str) -> None:
    words = shlex.split(line)[1:]
    command: click.Command = typer.main.get_command(app)
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    assert not isinstance(command, click.Group), line
    command.make_context(line, words)


def test_the_figures_for_choosing_are_those_of_the_study() -> None:
    def table(text: str, heads: str) -> dict[str, dict[str, str]]:
        head, _, *rest = text[text.index(heads) :].split("\n\n")[0].splitlines()
        names, rows = [cell.strip(" `") for cell in head.split("|")[1:-1]], [row.split("|")[1:-1] for row in rest]
        return {row[0].strip(" `").split("`")[-1]: dict(zip(names, map(str.strip, row), strict=True)) for row in rows}

    measured = table((ROOT / "docs/worlds.md").read_text(), "| world | fedavg | fedavgm")
    for world in standings(found_in(ROOT / "studies/worlds.toml").rows):
        measured[world.name]["best other"] = f"{world.best_mean:.1f} `{world.best}`"
    page = (ROOT / "docs/choose.md").read_text()
    shown = [table(page[found.start() :], "| world |") for found in re.finditer(r"^\| world \|", page, re.M)]
    assert len(shown) == 3
    assert all("best other" in values for one in shown for values in one.values())
    for world, values in [pair for one in shown for pair in one.items()]:
        values.pop("world")
        assert values == {name: measured[world][name] for name in values}, world


def test_the_experiment_of_other_libraries_is_one_of_ours(reference: ModuleType) -> None:
    (text,) = blocks("coming-from.md", "toml")
    values = tomllib.loads(text)
    parse(values, "mine.toml")
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    flags = [row[1] for row in rows(page) if "--set" in row[1]]
    assert len(flags) >= 7
    for flag in flags:
        method = ["method=fedprox"] if "method.mu" in flag else []
        parse(override(values, method + re.findall(r"--set ([^ `]+)", flag)), flag)


def test_the_code_for_those_who_come_from_flower_imports() -> None:
    pytest.importorskip("flwr")
    names: dict = {}
    for block in blocks("coming-from.md", "python"):
        if "from pfl." not in block:
            exec(block, names)
    assert callable(names["experiment"])
    assert callable(names["train"])


@pytest.mark.filterwarnings("ignore")  # pfl's
def test_the_code_for_those_who_come_from_pfl_trains() -> None:
    (block,) = (block for block in blocks("coming-from.md", "python") if "from pfl." in block)
    code = compile(block, "coming-from.md", "exec")
    weighted = pytest.importorskip("pfl.metrics").Weighted
    names: dict = {}
    exec(code, names)
    net = nn.Linear(4, 2)
    x = torch.randn(100, 37, 4, generator=torch.Generator().manual_seed(0))
    y = (x[..., 0] > 0).long()
    net.loss = lambda x, y, **_: nn.functional.cross_entropy(net(x), y)
    net.metrics = lambda x, y: {"loss": weighted(net.loss(x, y).item() * len(y), len(y))}
    names["in_pfl"](net, [*zip(x, y, strict=True)])
    assert (net(x).argmax(-1) == y).float().mean() > 0.9


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    comparing, own = blocks("tutorial.md", "python")
    exec(comparing, names)
    assert list(names["found"].runs) == ["fedavg", "fedprox(mu=0.1)", "counterpoise"]
    exec(own, names)
    assert names["run"].accuracy > 0.7
    assert sum(names["run"].weights[0].values()) == pytest.approx(1)
