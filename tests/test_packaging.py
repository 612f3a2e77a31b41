"""The wheel and the sdist install and run in a clean environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
PRESETS = {f"counterpoise/presets/{name}.toml" for name in ("quickstart", "fedbac/figure-3", "feda4/table-2-small")}
ASSETS = {f"counterpoise/reports/assets/page.{kind}" for kind in ("css", "html", "js")}
UNREACHABLE = re.compile("NewConnectionError|NameResolutionError|ConnectTimeoutError|ProxyError|Connection refused")


def call(*command: str | Path, cwd: Path) -> str:
    """What a command prints on standard output; a test that needs it fails when it does."""
    # The checkout must not leak into the clean environment. How pip finds packages stays as it is. Bytecode is written,
    # or every program would compile torch anew.
    leaks = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    environment = {key: value for key, value in os.environ.items() if key not in leaks}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}", pytrace=False)
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def _network(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("network")
    patience = ("--retries", "1", "--timeout", "15")  # pip names the cause only when it tries again
    command = [sys.executable, "-m", "pip", "download", *patience, "--no-deps", "--dest", str(folder), "hatchling"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and UNREACHABLE.search(done.stdout + done.stderr):
        pytest.skip("no package index can be reached, so nothing can be installed in a clean environment")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist; the wheel is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def clean(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment that holds the wheel and its dependencies alone."""
    folder = tmp_path_factory.mktemp("clean")
    call(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    pins = ROOT / "constraints.txt"
    call(programs / "python", "-m", "pip", "install", "--no-compile", "-c", pins, built[0], cwd=folder)
    return programs


def check(programs: Path, elsewhere: Path) -> None:
    """The command line works, from a folder that has nothing to do with the checkout."""
    where = call(programs / "python", "-c", "import counterpoise; print(counterpoise.__file__)", cwd=elsewhere)
    assert Path(where.strip()).is_relative_to(programs.parent)
    methods = json.loads(call(programs / "counterpoise", "methods", "--json", cwd=elsewhere))
    assert {"fedavg", "avg", "fedprox", "fedavgm"} <= {method["name"] for method in methods}
    out = call(programs / "counterpoise", "run", "quickstart", "--rounds", "2", "--json", cwd=elsewhere)
    result = json.loads(out.splitlines()[-1])
    assert {"method", "rounds", "accuracy", "seconds"} <= result.keys()
    assert result["rounds"] == 2
    assert 0 <= result["accuracy"] <= 1


def test_wheel_holds_the_marker_and_the_presets_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
    assert {"counterpoise/py.typed", *PRESETS, *ASSETS} <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"counterpoise"}


def test_sdist_holds_what_the_tests_need_and_no_output(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {
        "LICENSE",
        "README.md",
        "CITATION.cff",
        "hatch_build.py",
        "CHANGELOG.md",
        "Makefile",
        "constraints.txt",
        "tests/mutants/engine.toml",
    }
    assert wanted | {"src/counterpoise/py.typed", *(f"src/{preset}" for preset in PRESETS)} <= names
    assert not {name.split("/")[0] for name in names} & {".venv", "build", "data", "dist", "runs"}


def test_the_page_of_the_package_index_has_absolute_links(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = wheel.read(name).decode()
    head, _, page = metadata.partition("\n\n")
    assert "Description-Content-Type: text/markdown" in head
    home = re.search(r"Project-URL: Repository, (.+)", head)[1]
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert any(link.startswith(f"{home}/blob/main/docs/") for link in links)
    assert not [link for link in links if (ROOT / link.partition("#")[0]).exists() and not link.startswith("#")]


def test_wheel_runs_in_a_clean_environment(clean: Path, tmp_path: Path) -> None:
    check(clean, tmp_path)


def test_sdist_runs_in_a_clean_environment(clean: Path, built: tuple[Path, Path], tmp_path: Path) -> None:
    again = ("--no-deps", "--force-reinstall", "--no-compile")
    call(clean / "python", "-m", "pip", "install", *again, built[1], cwd=tmp_path)
    check(clean, tmp_path)
