"""The keys of a TOML file, read from the source: importing it would load torch, which takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import counterpoise

__all__ = ["setting_keys"]

_TABLES = {
    "": ("runs/config.py", "Config"),
    "data.": ("runs/config.py", "DataConfig"),
    "local.": ("runs/config.py", "LocalConfig"),
    "engine.": ("engine/backends/settings.py", "Engine"),
    "evaluation.": ("engine/rounds/evaluation.py", "Evaluation"),
    "limits.": ("engine/rounds/admission.py", "Limits"),
    "stop.": ("measures/stopping.py", "When"),
}
"""For each table, the class that holds its keys, and the file of that class."""
_CHOICES = {
    "method": ("METHODS", "methods"),
    "model": ("MODELS", "models"),
    "loss": ("LOSSES", "engine/scores.py"),
    "cohort": ("AVAILABILITIES", "federation"),
    "adversary": ("ADVERSARIES", "adversary"),
    "data.partition": ("PARTITIONS", "federation"),
    "data.features": ("SKEWS", "federation"),
    "local.optimizer": ("OPTIMIZERS", "local.py"),
    "local.schedule": ("SCHEDULES", "schedules.py"),
    "local.augment": ("AUGMENTS", "augment.py"),
}
"""The settings that are choices: the registry that each chooses from, and where in the source its entries are."""
_WRITTEN = ("schema_", "frozen", "own", "code", "objects", "paper", "data.fingerprint")
"""What only runs and presets write."""
_FACTS = ("method.method", "model.shape", "model.classes")
"""Parameters that are no settings: the method inside another one, and what the data says."""


def setting_keys(beginning: str) -> dict[str, str]:
    """The keys that begin so, each with its meaning if it has one. Options of a choice come after its name and a dot."""
    found = {prefix + name: about for prefix in _TABLES for name, about in _fields(prefix)}
    tables = {prefix.removesuffix(".") for prefix in _TABLES}
    keys = {key: about for key, about in found.items() if key not in tables and key not in _WRITTEN}
    for choice, (registry, place) in _CHOICES.items():
        if beginning.startswith(f"{choice}."):
            keys |= {f"{choice}.{name}": "" for name in sorted({*_options(registry, place)})}
    return {key: about for key, about in keys.items() if key.startswith(beginning) and key not in _FACTS}


def _source(place: str) -> Path:
    return Path(counterpoise.__file__).parent / place


def _fields(prefix: str) -> Iterator[tuple[str, str]]:
    """The annotated names of a table's class, with the first sentence of the string below each."""
    file, name = _TABLES[prefix]
    body = next(
        node.body
        for node in ast.parse(_source(file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    for line, below in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and not line.target.id.startswith("_"):
            said = below.value if isinstance(below, ast.Expr) else None
            words = " ".join(str(said.value).split()) if isinstance(said, ast.Constant) else ""
            yield line.target.id, words.partition(". ")[0].rstrip(".")


def _options(registry: str, place: str) -> Iterator[str]:
    """The parameters of a registry's entries."""
    found = _source(place)
    for file in sorted(found.rglob("*.py")) if found.is_dir() else [found]:
        if f"@{registry}.register" in (text := file.read_text(encoding="utf-8")):
            for made in ast.parse(text).body:
                if isinstance(made, ast.FunctionDef | ast.ClassDef) and any(
                    registry in ast.unparse(one) for one in made.decorator_list
                ):
                    yield from _parameters(made)


def _parameters(made: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    if isinstance(made, ast.ClassDef):
        inits = [one for one in made.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        yield from (name for one in inits for name in _parameters(one) if name != "self")
        return
    yield from (argument.arg for argument in (*made.args.args, *made.args.kwonlyargs))
