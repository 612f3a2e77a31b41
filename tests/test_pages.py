"""Every code block and command of README and site is run, in the order of its page and in a folder of the page's own.

Each run is cut to two rounds, on made-up data. What pages say about results is tested elsewhere.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pytest
import torch
import typer
from safetensors.torch import save_file

import counterpoise as cp
from counterpoise.cli import main
from counterpoise.cli.app import app
from counterpoise.comparisons import arms
from counterpoise.engine.rounds.setup import Setup
from counterpoise.reports.chromium import find
from counterpoise.runs.config import Config
from counterpoise.studies import performing

ROOT = Path(__file__).parents[1]
PAGES = [path for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]) if path.name != "CHANGELOG.md"]

NOT_RUN = {
    "pip install": "downloads packages; tests/test_packaging.py installs ours",
    "make ": "builds environments; see test_every_target_on_a_page_is_in_the_makefile",
    "torchrun": "starts several processes; tests/engine/test_distributed.py",
    "--on dask:HOST:8786": "needs a cluster; tests/comparisons/test_clusters.py",
    "--on ray": "needs Ray; tests/comparisons/test_clusters.py",
    "SLURMCluster": "needs SLURM",
    "from distributed import Client": "needs a cluster; tests/comparisons/test_clusters.py",
    "counterpoise deploy local": "takes minutes; tests/flower/test_deployment.py (make test-deploy)",
    "flower-super": "the same",
    "flwr ": "the same",
    "[superlink.dep]": "the same; Flower reads this file",
    "export FLWR_": "the same; it prepares a shell for Flower",
    "export PATH=": "the same",
    "from pfl.": "needs pfl; tests/test_site.py runs it if it is installed",
    "studies/papers/": "trains large models; tests/studies/test_papers.py runs cells of each file",
    "studies/external/": "trains large models; tests/studies/test_external.py runs cells of each file",
    "benchmarks/": "downloads other libraries and measures for an hour",
}
"""Parts of commands and blocks that are not run, and why, with the test that covers them if there is one."""
if find() is None:
    NOT_RUN["--export"] = "needs Chromium or Chrome; tests/reports/test_browser.py, where there is one"

ELSEWHERE = r"(?<!\w)(?=/(?:srv|shared)/)"
"""Where the path of a server or a cluster begins on a page; here it leads into the page's own folder."""


# ---------------------------------------------------------------- what is on a page


class Piece(NamedTuple):
    """A code block, or a command in a sentence."""

    language: str
    """One of `LANGUAGES`, or another one that is not run."""
    text: str


LANGUAGES = ("console", "inline", "python", "toml")


_PIECE = re.compile(
    r"^ *```(?P<language>\S*)\n(?P<fenced>.*?)^ *```$"
    r"|(?<=\n\n)(?P<indented>(?: {4,}\S[^\n]*\n)+)"
    r"|`(?P<inline>counterpoise\s[^`]+)`",
    re.M | re.S,
)


def pieces(page: Path) -> Iterator[Piece]:
    """What a page has to run, in order. A block that is indented instead of fenced holds commands."""
    for found in _PIECE.finditer(page.read_text(encoding="utf-8")):
        if found["indented"]:
            yield Piece("console", textwrap.dedent(found["indented"]).replace("\\\n", ""))
        elif found["inline"]:
            yield Piece("inline", " ".join(found["inline"].split()))
        else:
            yield Piece(found["language"], textwrap.dedent(found["fenced"]))


def is_whole(line: str) -> bool:
    """Whether a command in a sentence can be given as it stands: it leaves no NAME open and lacks no argument."""
    if re.search(r"\b[A-Z]{3,}\b|\.\.\.", line):
        return False
    words = shlex.split(line)[1:]
    command: click.Command = typer.main.get_command(app)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command = command.commands[words.pop(0)]
    if isinstance(command, click.Group):
        return bool(words)
    try:
        return bool(command.make_context(line, words))
    except click.MissingParameter:
        return False


ALL = {page.relative_to(ROOT).as_posix(): [*pieces(page)] for page in PAGES}
RUN = {page: some for page, some in ALL.items() if any(one.language in LANGUAGES for one in some)}


# ---------------------------------------------------------------- running it


def is_run(text: str) -> bool:
    return not any(part in text for part in NOT_RUN)


def give(line: str) -> None:
    """Give a command in this process. What it prints goes into the file that the line says, or is shown if it fails."""
    asked, _, target = line.partition(" > ")
    program, *words = shlex.split(asked, comments=True)
    if program == "cd":
        os.chdir(words[0])
        return
    if program == "python" and words[0] == "-c":
        exec(words[1], {})
        return
    assert program == "counterpoise", f"{line}: say in NOT_RUN why it is not run"
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [program, *words])
        patch.setattr(sys, "stdin", io.StringIO("y\n"))
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code, f"{line}\n{said.getvalue()}"
    if target:
        Path(shlex.split(target, comments=True)[0]).write_text(said.getvalue(), encoding="utf-8")


BASE = """
rounds = 2
cohort = 0.3
model = "mlp"
method = "fedavg"
data = { name = "cifar10", partition = { name = "iid", clients = 10 } }
"""
"""The rest of a file of which a page shows a part."""


def run_toml(text: str) -> None:
    """Run a study or an experiment. A block may be a part of a file, and may say in its first line which."""
    named = re.match(r"# (\S+\.toml)\n", text)
    path = Path(named[1]) if named else next(Path().glob("*/mine.toml"), Path("mine.toml"))
    path.parent.mkdir(parents=True, exist_ok=True)
    is_study = "title" in tomllib.loads(text)
    path.write_text(text if named or is_study else f'like = "{Path("base.toml").resolve()}"\n{text}', encoding="utf-8")
    give(f"counterpoise study run {path}" if is_study else f"counterpoise run {path}")


def carry_out(piece: Piece, names: dict[str, Any]) -> None:
    folder = Path.cwd()
    text = re.sub(ELSEWHERE, str(folder), piece.text)
    with contextlib.chdir(folder):
        if piece.language == "console" or (piece.language == "inline" and is_whole(text)):
            for line in text.splitlines():
                if line.strip() and not line.startswith("#") and is_run(line):
                    give(line.strip())
        elif piece.language == "toml" and is_run(text):
            run_toml(text)
        elif piece.language == "python" and is_run(text):
            exec(text, names)


# ---------------------------------------------------------------- what a page supposes that its reader has


def typed(*lines: str) -> Callable[[dict[str, Any]], None]:
    return lambda names: carry_out(Piece("console", "\n".join(lines)), names)


def samples(names: dict[str, Any]) -> None:
    """Data sets and a model."""
    x, y = torch.randn(90, 4), torch.arange(90) % 3
    names |= dict.fromkeys(("one", "other", "north", "south", "dataset", "test"), (x, y))
    names |= {"cp": cp, "torch": torch, "x": x, "y": x[:, 0], "model": torch.nn.Linear(4, 3)}


def data(names: dict[str, Any]) -> None:
    """The same, pictures in folders, and a table."""
    from PIL import Image

    samples(names)
    for number in range(40):
        kind = "monocyte" if number % 2 else "platelet"
        path = Path("photos", f"hospital-{number % 4 // 2}", kind, f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(path)
    rows = [f"{n % 50},{n},{'well' if n % 3 else 'ill'},{n % 2}" for n in range(60)]
    Path("patients.csv").write_text("\n".join(["age,pulse,state,hospital", *rows]))


def regression(names: dict[str, Any]) -> None:
    samples(names)
    x = names["x"]
    names["federation"] = cp.Federation.from_arrays(x, x[:, :1], partition=cp.iid(clients=3), test=(x, x[:, :1]))
    names["model"] = torch.nn.Linear(4, 1)


def own_code(names: dict[str, Any]) -> None:
    """The code of the example, with a metric and what the page itself adds."""
    (added,) = (piece.text for piece in ALL["docs/own.md"] if piece.language == "python")
    metric = "def sure(outputs, targets):\n    return outputs.softmax(1).amax(1)\n"
    rules = Path("experiments", "my_project", "rules.py")
    rules.parent.mkdir(parents=True)
    rules.write_text("\n".join([(ROOT / "examples/own_by_name/my_project/rules.py").read_text(), added, metric]))


def flower_app(names: dict[str, Any]) -> None:
    """The app that the page changes, and a run."""
    typed("counterpoise deploy new first", "counterpoise run quickstart --out /srv/runs/first")(names)
    Path("srv/link").mkdir()
    save_file(cp.models.mlp((64,), 3).state_dict(), "srv/runs/first/model.safetensors")
    exec(Path("first/app.py").read_text(), names)


GIVEN: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "docs/choose.md": typed("counterpoise presets quickstart --toml > mine.toml"),
    "docs/compare.md": typed("counterpoise run quickstart"),
    "docs/data.md": data,
    "docs/deploy.md": flower_app,
    "docs/measures.md": regression,
    "docs/own.md": own_code,
    "docs/report.md": typed(
        "counterpoise compare quickstart --methods fedavg,scaffold",
        *(f"counterpoise run quickstart --out runs/{name}" for name in ("quickstart-fedavg-0", "a", "b")),
    ),
}


# ---------------------------------------------------------------- short runs

MOST = {
    "rounds": 2,
    "epochs": 2,
    "batch": 16,
    "samples": 100,
    "proxy": 40,
    "total": 100,
    "clients": 10,
    "cohort": 5,
    "size": 10,
    "minimum": 1,
    "holders": 2,
}
"""The largest values of settings, whichever table they are in."""


def short(value: Any, key: str = "") -> Any:
    """A configuration, or a value in it, without what makes runs long."""
    if isinstance(value, Mapping):
        return {key: short(inner, key) for key, inner in value.items()}
    return min(value, MOST[key]) if type(value) is int and key in MOST else value


@pytest.fixture
def shortened(monkeypatch: pytest.MonkeyPatch, without_workers: None) -> None:
    """Cut every run to two rounds and few clients, and a study to one of its cells."""
    validate, check, chosen = Config.model_validate, Setup.__post_init__, performing.chosen

    def limited(setup: Setup) -> None:
        object.__setattr__(setup, "rounds", min(setup.rounds, 2))
        check(setup)

    def one_cell(study: Any, cells: Sequence[str], seeds: int | None = None, methods: Sequence[str] = ()) -> Any:
        part = chosen(study, cells, 1, methods)
        own = [cell for cell in part.cells if not cell.runs_of]
        first = next((cell for cell in own if not cell.cannot), own[0])
        return replace(part, cells=(first,), averages=(), claims=())

    monkeypatch.setattr(Config, "model_validate", lambda values: validate(short(values)))
    monkeypatch.setattr(Setup, "__post_init__", limited)
    monkeypatch.setattr(performing, "chosen", one_cell)
    monkeypatch.setattr(arms, "first_seeds", lambda config, count: (0, 1)[:count])


@pytest.fixture(scope="session")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with noise in place of the published data sets."""
    folder, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name, size, shape in (
        ("mnist", 200, (28, 28)),
        ("fashion-mnist", 200, (28, 28)),
        ("cifar10", 60, (3, 32, 32)),
    ):
        x, y = draw.integers(0, 256, (size, *shape), dtype=np.uint8), np.arange(size) % 10
        np.savez(folder / f"{name}.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    text, roles = draw.integers(1, 128, (200, 81)), np.arange(200) % 20
    parts = {"x_train": text[:, :80], "y_train": text[:, 1:], "x_test": text[:40, :80], "y_test": text[:40, 1:]}
    np.savez(folder / "shakespeare.npz", identity_train=roles, **parts)
    return folder


def forget_own_code() -> None:
    """Another test, or an earlier page, may have imported the same name from its own folder."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_project"]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of MLflow
@pytest.mark.usefixtures("shortened")
@pytest.mark.parametrize("page", RUN)
def test_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_up: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COUNTERPOISE_DATA", str(made_up))
    monkeypatch.setattr("counterpoise.own._folders", {})
    monkeypatch.setattr("counterpoise.own._tops", {})
    shutil.copytree(ROOT / "studies", "studies", ignore=shutil.ignore_patterns("*.json"))
    Path("base.toml").write_text(BASE)
    names: dict[str, Any] = {"__name__": "page"}
    if page in GIVEN:
        GIVEN[page](names)
    forget_own_code()
    for piece in RUN[page]:
        carry_out(piece, names)
    forget_own_code()


def test_what_is_not_run_stands_on_a_page() -> None:
    texts = [piece.text for some in ALL.values() for piece in some]
    assert [part for part in NOT_RUN if not any(part in text for text in texts)] == []
    assert [page for page in GIVEN if page not in RUN] == []


def test_every_target_on_a_page_is_in_the_makefile() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    texts = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    asked = {*re.findall(r"(?:^ {4,}|`)make ([a-z-]+)", texts, re.M)}
    assert len(asked) > 5
    assert asked <= {*targets}
