"""Walls of the house: who may import what, who catches every error, and how long a piece of code may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

import counterpoise

ROOT = Path(counterpoise.__file__).parent
CORE = [
    "randomness",
    "registry",
    "options",
    "choices",
    "own",
    "adopting",
    "flat",
    "schedules",
    "local",
    "hooks",
    "method",
    "errors",
    "blame",
    "hashing",
    "verdict",
    "texts",
    "memory",
    "augment",
    "lazy",
    "loading",
    "screens",
    "colours",
    "sketch",
    "portraits",
    "replicas",
    "signatures",
    "trees",
]
ALLOWED = {"torch", "numpy", "counterpoise", *sys.stdlib_module_names}
INNER = {
    "flower/mods.py": {"flwr.app.message"},
    "flower/replies.py": {"flwr.common.constant"},
    "flower/wire.py": {
        "flwr.proto.message_pb2",
        "flwr.proto.runtime_pb2",
        "flwr.supercore.inflatable.inflatable_object",
        "flwr.supercore.inflatable.inflatable_protobuf_utils",
        "flwr.supercore.inflatable.inflatable_utils",
        "flwr.superlink.grid",
    },
}
"""Modules that Flower does not document, by the files that cannot do without them; pyproject.toml bounds its version for them."""
EXTRAS = {"federation/catalogue.py": {"sklearn"}, "federation/flower.py": {"flwr_datasets", "datasets"}}
EXTRAS |= {"federation/bringing/tables.py": {"pandas", "pyarrow"}, "federation/bringing/hub.py": {"datasets"}}
EXTRAS |= {"federation/bringing/pictures.py": {"PIL"}, "federation/bringing/samples.py": {"PIL"}}
EXTRAS |= {"screens.py": {"IPython"}}
EXTRAS |= {f"charts/{name}.py": {"plotly"} for name in ("style", "holdings")}
EXTRAS |= {f"federation/{name}.py": {"plotly", "pandas"} for name in ("federation", "pictures")}
EXTRAS |= {"measures/significance.py": {"scipy"}, "engine/acceleration/convolution/kernels.py": {"triton"}}
"""Who may ask for more, and does so only when it is used."""
LEVELS = {
    **dict.fromkeys(CORE, 0),
    "parts": 1,
    "charts": 1,
    "methods": 2,
    "models": 2,
    "federation": 2,
    "adversary": 2,
    "engine": 3,
    "measures": 3,
    "logs": 4,
    "runs": 4,
    "presets": 4,
    "display": 4,
    "comparisons": 5,
    "flower": 5,
    "reports": 6,
    "studies": 7,
    "cli": 8,
}
FORMER = {"runs/collection.py": {"counterpoise.comparisons.collection"}}
"""Former homes of names that the docs gave, for one version, and where these live now. No other file may import them."""
ROOMS = {
    **{name: {} for name in ("devices", "scores")},
    "clients": {"devices", "scores"},
    "acceleration": {"devices", "scores"},
    "backends": {"devices", "scores", "clients", "acceleration"},
    "rounds": {"devices", "scores", "clients", "acceleration", "backends"},
}
"""The engine's rooms, each with those below it: clients and acceleration stand side by side."""


PACKAGES = {
    ".".join(("counterpoise", *path.relative_to(ROOT).parent.parts)): {
        *(one.stem for one in path.parent.glob("*.py")),
        *(one.parent.name for one in path.parent.glob("*/__init__.py")),
    }
    for path in ROOT.rglob("__init__.py")
}
"""For each package, the names of the modules and packages in it."""


def imports(path: Path, modules: Collection[str] = ()) -> set[str]:
    """Full names of the modules a file imports, wherever in it; of a package, those of its `modules` that it names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            known = inner & {*modules, *(f"{node.module}.{name}" for name in PACKAGES.get(node.module, ()))}
            found |= known | ({node.module} if inner - known else set())
    return found


def files() -> list[Path]:
    return [path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem not in ("__init__", "__main__")]


def room(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    for name in imports(path) - FORMER.get(path.relative_to(ROOT).as_posix(), set()):
        head, _, rest = name.partition(".")
        assert name != "counterpoise" or LEVELS[room(path)] > 5, "it offers what is above: name the module instead"
        if head == "counterpoise" and rest:
            assert LEVELS[rest.partition(".")[0]] <= LEVELS[room(path)], name


def test_nobody_relies_on_a_former_home() -> None:
    former = {f"counterpoise.{path.removesuffix('.py').replace('/', '.')}" for path in FORMER}
    assert not {path for path in files() if imports(path, former) & former}


def test_the_engines_rooms_are_on_top_of_each_other() -> None:
    """Imports inside functions and for types alone count as well."""
    for path in (ROOT / "engine").rglob("*.py"):
        home = path.relative_to(ROOT / "engine").parts[0].removesuffix(".py")
        asked = {name.split(".")[2] for name in imports(path) if name.startswith("counterpoise.engine.")}
        assert home == "__init__" or asked <= {home, *ROOMS[home]}, path


def test_no_module_imports_itself_through_others() -> None:
    """Not for types alone either, and not late."""
    modules = {".".join(("counterpoise", *path.relative_to(ROOT).with_suffix("").parts)): path for path in files()}
    modules = {module.removesuffix(".__init__"): path for module, path in modules.items()}
    graph = {module: imports(path, modules.keys()) for module, path in modules.items()}
    waiting = {module: asked & graph.keys() - {module} for module, asked in graph.items()}
    while free := {module for module, asked in waiting.items() if not asked}:
        waiting = {module: asked - free for module, asked in waiting.items() if module not in free}
    assert not waiting


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_core_and_the_engine_need_torch_and_numpy_alone(path: Path) -> None:
    if LEVELS[room(path)] > 3:
        return
    others = {name.partition(".")[0] for name in imports(path)} - ALLOWED
    assert others <= EXTRAS.get(path.relative_to(ROOT).as_posix(), set())


def test_flower_is_asked_for_by_its_public_packages_and_in_its_room_alone() -> None:
    public = {"flwr.app", "flwr.clientapp", "flwr.clientapp.mod", "flwr.serverapp", "flwr.serverapp.strategy"}
    for path in files():
        asked = {name for name in imports(path) if name.partition(".")[0] == "flwr"}
        inner = INNER.get(path.relative_to(ROOT).as_posix(), set())
        assert asked <= (public | inner if room(path) == "flower" else set()), path


def test_simulating_without_a_folder_needs_no_more_either() -> None:
    code = """
import sys
for name in ("pydantic", "safetensors", "tomli_w", "typer", "rich", "sklearn", "scipy", "pandas", "plotly"):
    sys.modules[name] = None
import counterpoise as cp
fed = cp.load("synthetic", partition=cp.iid(clients=4))
assert cp.simulate("fedprox", fed, model=cp.models.linear, rounds=1).status == "finished"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


CAUGHT = {
    "adopting.py": ["a user's factory may raise anything: raised again as a sentence with its file and line"],
    "own.py": ["a user's module may raise anything when it is imported: raised again as such a sentence"],
    "comparisons/abroad.py": [
        "an executor may refuse work with any error: told and written down, and the others go on",
        "a worker may be lost with any error: told and written down, and the others go on",
    ],
    "engine/acceleration/scripted.py": ["torch may raise anything for a user's step: logged, and steps stay plain"],
    "engine/backends/distributed.py": ["the other ranks are told of the failure, then it is raised again"],
    "engine/backends/perclient.py": ["the other threads are stopped, then it is raised again"],
    "engine/backends/refusals.py": ["a user's hook, model or loss may raise anything: raised again as a sentence"],
    "engine/backends/stacking.py": [
        "a user's model or hook may raise anything: the reason is logged",
        "a user's model or hook may raise anything: the reason is returned, and the caller raises or logs it",
        "a mistake of the user's: logged here, raised again by training",
    ],
    "engine/rounds/lockstep.py": [
        "the error of one run of a batch: raised again in that run, and the others go on",
        "a batch that fails: logged, and its runs train apart, so that the error comes back in the run at fault",
        "an evaluation that fails: logged, and its runs are evaluated apart",
    ],
    "engine/rounds/simulation.py": [
        "a user's availability may raise anything: logged, raised again if that round runs"
    ],
    "federation/bringing/hub.py": [
        "Arrow and Hugging Face's library raise many types: raised again as a sentence",
        "so do flwr-datasets, the hub and the network",
    ],
    "federation/bringing/mapped.py": ["a user's data set may raise anything: raised again as a sentence"],
    "federation/bringing/pictures.py": ["every format has errors of its own: raised again as a sentence"],
    "federation/bringing/tables.py": ["pandas and pyarrow have many errors: raised again as a sentence"],
    "federation/flower.py": [
        "hub, network and files raise many types: raised again as a sentence",
        "checks of flwr-datasets raise many types: raised again as a sentence",
    ],
    "federation/readers/arrays.py": ["each decompressor has errors of its own: raised again as a sentence"],
    "flower/local.py": ["the processes are ended, then it is raised again"],
    "flower/mods.py": ["a user's hook may raise anything in the trial: raised again as a sentence"],
    "flower/node.py": [
        "a site's loading may raise anything: raised again as a sentence that names none of its files",
        "a user's model may raise anything on a node: raised again as a sentence with the reason",
        "a message of another version may break anything: raised again as a sentence that names both versions",
    ],
    "flower/records.py": ["a stranger's bytes make NumPy raise anything: raised again as a sentence"],
    "flower/wire.py": ["a stranger's bytes make Flower raise anything: logged, and the reply is left out"],
    "logs/base.py": [
        "a user's logger may raise anything: logged, and the run goes on",
        "the loggers are told that the run failed, then it is raised again",
    ],
    "blame.py": ["a user's hook may raise anything: marked with its name and raised again"],
    "cli/app.py": ["a user's own code may raise anything: told in a sentence; what is ours is raised again"],
    "runs/course.py": [
        "what stopped a round is raised again inside the run, which knows what to save",
        "the good rounds are saved, then it is raised again",
    ],
    "runs/together.py": [
        "what stopped the training is raised again in every run of the batch, each of which saves what it has",
        "so is what stopped the servers' half",
        "a run that fails is told of, and the others go on",
    ],
}
"""By file, why each place that catches every error does so. All of them log it, write it down or raise it again."""
EVERY_ERROR = {"Exception", "BaseException"}


def names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def catches_all(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return "suppress" in ast.unparse(node.func) and bool(names(node) & EVERY_ERROR)
    return isinstance(node, ast.ExceptHandler) and (node.type is None or bool(names(node.type) & EVERY_ERROR))


def test_every_error_is_caught_in_few_places_and_never_dropped() -> None:
    """What is caught is raised again, or at least looked at."""
    found: dict[str, int] = {}
    for path in ROOT.rglob("*.py"):
        for node in filter(catches_all, ast.walk(ast.parse(path.read_text()))):
            assert isinstance(node, ast.ExceptHandler), f"{path} drops what it suppresses"
            used = {name for line in node.body for name in names(line)}
            assert node.name in used or any(isinstance(one, ast.Raise) for one in ast.walk(node)), path
            file = path.relative_to(ROOT).as_posix()
            found[file] = found.get(file, 0) + 1
    assert found == {file: len(reasons) for file, reasons in CAUGHT.items()}


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def prose(tree: ast.AST) -> set[int]:
    """The lines of docstrings."""
    texts = [
        one
        for node in ast.walk(tree)
        for one in (node.body if isinstance(getattr(node, "body", None), list) else ())
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str)
    ]
    return {line for text in texts for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)}


def test_files_functions_and_constructors_are_short() -> None:
    """Without docstrings and Triton's kernels."""
    for path in ROOT.rglob("*.py"):
        tree = ast.parse(path.read_text())
        kernels = [one for one in functions(tree) if any("jit" in ast.unparse(name) for name in one.decorator_list)]
        skipped = prose(tree) | {line for one in kernels for line in range(one.lineno, one.end_lineno + 1)}
        assert len(path.read_text().splitlines()) - len(skipped) <= 350, path
        for function in functions(tree):
            lines = {*range(function.lineno, function.end_lineno + 1)} - skipped
            most = 40 if function.name in ("__init__", "__post_init__") else 60
            assert len(lines) <= most, (path, function.name, len(lines))
