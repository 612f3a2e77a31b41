"""The reference pages, written from the code whenever the site is built.

A page holds a line such as ``<!-- generated: methods -->``, which is replaced before the page is parsed. Commands come
from the command line itself, choices and their options from the registries, keys from the model that checks a file.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import typer
from pydantic.fields import FieldInfo

import counterpoise
from counterpoise.cli.app import app as command_line
from counterpoise.cli.listing import GROUPS
from counterpoise.engine import Engine, Evaluation, Limits
from counterpoise.engine.scores import METRICS
from counterpoise.federation.catalogue import DATASETS
from counterpoise.measures.stopping import When
from counterpoise.methods import METHODS
from counterpoise.registry import Entry
from counterpoise.runs.config import Config
from counterpoise.runs.places import CHOICES

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SOURCES = {"engine": Engine, "evaluation": Evaluation, "limits": Limits, "stop": When}
"""The tables of a TOML file whose keys are the fields of a class elsewhere, where each is explained."""

TITLES = {
    "model": "Models",
    "data.partition": "Partitions",
    "cohort": "Who takes part",
    "data.features": "Feature skews",
    "local.optimizer": "Local optimisers",
    "local.schedule": "Schedules of the learning rate",
    "local.augment": "Augmentations",
    "loss": "Losses",
    "adversary": "Adversaries",
}


# Markdown


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [[_cell(text) for text in row] for row in ([*heads], *rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: object) -> str:
    """Inline code, also if it is empty or holds a backtick."""
    return f"`` {text} ``" if "`" in str(text) else f"`{text}`" if str(text) else ""


def _written(value: object) -> str:
    """A value as a TOML file has it; nothing and empty values as nothing."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_written(v)}" for k, v in value.items()) + " }" if value else ""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]" if value else ""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) and value else "" if value is None else str(value)


# Commands


def commands() -> str:
    """Every command with its arguments and options."""
    root = typer.main.get_command(command_line)
    return "\n\n".join(_command(name, command) for name, command in _walk("counterpoise", root))


def _walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for key in command.list_commands(click.Context(command)):  # in the order of the help
            yield from _walk(f"{name} {key}", command.commands[key])
    else:
        yield name, command


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    rows = [_parameter(p, command, context) for p in command.params if not getattr(p, "hidden", False)]
    parts = [
        f"## {name.removeprefix('counterpoise ')}",
        f"```text\n{name} {usage}\n```",
        inspect.cleandoc(command.help or ""),
    ]
    return "\n\n".join([*parts, *([_table(("", "meaning"), rows)] if rows else [])])


def _parameter(parameter: click.Parameter, command: click.Command, context: click.Context) -> tuple[str, str]:
    """An argument or option as it is typed, and what it means."""
    option, flag = isinstance(parameter, click.Option), getattr(parameter, "is_flag", False)
    takes = "" if flag else parameter.make_metavar(context).replace(" RANGE", "")
    default = "" if flag or parameter.default in (None, "") else f" Default: {_code(parameter.default)}."
    shown = f"{', '.join(parameter.opts) if option else ''} {takes}".strip()
    return _code(shown), f"{_help(parameter, command)}{default}"


def _help(parameter: click.Parameter, command: click.Command) -> str:
    """What the function says of its parameter: click from 8.5 on drops what typer says of arguments."""
    hints = typing.get_type_hints(inspect.unwrap(command.callback), include_extras=True)  # type: ignore[arg-type]
    return next(one.help or "" for one in hints[parameter.name].__metadata__ if hasattr(one, "help"))


# Choices


def methods() -> str:
    """Every method, group by group."""
    groups: dict[str, list[Entry[Any]]] = {name: [] for name in GROUPS}
    for entry in METHODS:
        groups.setdefault(entry.group, []).append(entry)
    return "\n\n".join(
        f"## {group.capitalize()}\n\n" + "\n\n".join(_entry(entry) for entry in entries)
        for group, entries in groups.items()
        if entries
    )


def choices() -> str:
    """Everything else that is chosen by name."""
    kinds = {TITLES[place]: (f"Key {_code(place)}.", CHOICES[place]) for place in TITLES}
    kinds["Metrics"] = (f"Entries of the list {_code('metrics')}.", METRICS)
    return "\n\n".join(
        f"## {title}\n\n{said}\n\n" + "\n\n".join(_entry(entry) for entry in registry)
        for title, (said, registry) in kinds.items()
    )


PUBLISHERS = {"arXiv": "https://arxiv.org/abs/", "doi": "https://doi.org/"}


def _entry(entry: Entry[Any]) -> str:
    paper = f"\n\n{entry.paper}." if entry.paper is not None else ""
    if entry.paper is not None and entry.paper.link:
        scheme, _, place = entry.paper.link.partition(":")
        paper += f" [{entry.paper.link}]({PUBLISHERS.get(scheme, f'{scheme}:')}{place})"
    around = f" Write {_code(entry.name + ':NAME')} to put it around another one." if entry.wraps else ""
    parts = [f"### {_code(entry.name)}", f"{entry.summary}{around}{paper}", _options(entry, inner=False)]
    if numbers := _options(entry, inner=True):
        parts += ["Numbers inside its parts, which nobody needs to set:", numbers]
    return "\n\n".join(filter(None, parts))


def _options(entry: Entry[Any], inner: bool) -> str:
    rows = [
        (_code(p.name), "required" if p.required else _code(_written(p.default)), p.option.meaning, p.kind())
        for p in entry.parameters.values()
        if p.option.inner is inner
    ]
    return _table(("option", "default", "meaning", "takes"), rows) if rows else ""


def datasets() -> str:
    """The named data sets."""
    rows = [(_code(one.name), one.summary, one.licence) for one in DATASETS.values()]
    return _table(("name", "what it is", "licence"), rows)


# Keys of a TOML file


def keys() -> str:
    """Every key of a TOML file, table by table."""
    top, tables = [], []
    for name, field in Config.model_fields.items():
        inner = _inner(field)
        if inner is None:
            top.append(_key(field.alias or name, name, field, meanings(Config)))
        else:
            known = meanings(SOURCES.get(name, inner))
            rows = [_key(f"{name}.{key}", key, one, known) for key, one in inner.model_fields.items()]
            said = " ".join(meanings(Config)[name].split())
            tables.append(f"## `[{name}]`\n\n{said}\n\n{_table(HEADS, rows)}")
    top.insert(0, (_code("like"), "", "text", LIKE))
    return "\n\n".join(["## At the top", _table(HEADS, top), *tables])


HEADS = ("key", "default", "takes", "meaning")

LIKE = "A preset, or a TOML file beside this one. All settings that this file does not have are taken from it."


def _inner(field: FieldInfo) -> Any:
    """The table that a key holds, if it holds one."""
    kinds = [kind for kind in (typing.get_args(field.annotation) or (field.annotation,)) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 and hasattr(kinds[0], "model_fields") else None


def _key(place: str, name: str, field: FieldInfo, known: dict[str, str]) -> tuple[str, ...]:
    default = "required" if field.is_required() else _code(_written(field.default))
    bounds = " and ".join(
        f"{word} {getattr(one, bound)}"
        for one in field.metadata
        for bound, word in BOUNDS.items()
        if hasattr(one, bound)
    )
    takes = LINKS.get(place, f"{_takes(field.annotation)} {bounds}")
    return _code(place), default, takes, known[name]


BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}

LINKS = {place: f"[a choice](choices.md#{title.lower().replace(' ', '-')})" for place, title in TITLES.items()} | {
    "method": "[a choice](methods.md)",
    "metrics": "a list of [choices](choices.md#metrics)",
    "data.name": "text: [a data set](choices.md#data-sets)",
}
"""What a key takes, if another page lists it."""


def _takes(kind: Any) -> str:
    """A type in the words of TOML."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _takes(inside[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_takes(one) for one in inside if one is not type(None)))
    if origin is typing.Literal:
        return " or ".join(f'`"{one}"`' for one in inside)
    if origin is list:
        return f"a list of {_takes(inside[0])}"
    words = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        dict: "a table",
        typing.Any: "any value",
    }
    return words[origin or kind]


def meanings(kind: type) -> dict[str, str]:
    """What each field of a class means: the text below it, or else what the class says of it."""
    tree = ast.parse(Path(inspect.getfile(kind)).read_text(encoding="utf-8"))
    (body,) = [node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind.__name__]
    found = {}
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[field.target.id] = below.value.value
    return found


# The public API


def api() -> str:
    """What `counterpoise.__all__` names, but for its modules, and what a run's rounds are."""
    names = [name for name in counterpoise.__all__ if not inspect.ismodule(getattr(counterpoise, name))]
    return "\n\n".join(
        [_documented("counterpoise", names), _documented("counterpoise.engine", ["RoundRecord", "Outcome"])]
    )


def modules() -> str:
    """The public modules of the package, less those whose functions are chosen by name and listed elsewhere."""
    parts = []
    for name in ("parts", "measures", "augment", "logs", "flower"):
        module = import_module(f"counterpoise.{name}")
        called = "counterpoise.flower" if name == "flower" else f"cp.{name}"  # which `import counterpoise` leaves out
        parts.append(
            f"## `{called}`\n\n{inspect.getdoc(module)}\n\n" + _documented(f"counterpoise.{name}", module.__all__)
        )
    keys = _documented("counterpoise.flower.credentials", ["certify", "make_key"])
    return "\n\n".join([*parts, "### `counterpoise.flower.credentials`", keys])


def _documented(module: str, names: Iterable[str]) -> str:
    """Directives for the classes and functions of a module; its constants are left out."""
    lines = []
    for name in names:
        value = getattr(import_module(module), name)
        if inspect.isclass(value):
            lines += [f".. autoclass:: {module}.{name}", "   :members:", ""]
        elif callable(value):
            lines += [f".. autofunction:: {module}.{name}", ""]
    return "\n".join(["```{eval-rst}", *lines, "```"])


PAGES: dict[str, Callable[[], str]] = {
    made.__name__: made for made in (commands, methods, choices, datasets, keys, api, modules)
}


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Put what is generated into a page, before it is parsed."""
    source[0] = re.sub(r"<!-- generated: (\w+) -->", lambda found: PAGES[found[1]](), source[0])


def as_restructured(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Our docstrings' list of options as a list that Sphinx understands, and pages that they name as links."""
    lines[:] = [re.sub(r"\bdocs/([a-z-]+)\.md", r":doc:`/docs/\1`", line) for line in lines]
    if "Options:" in lines:
        at = lines.index("Options:") + 1
        lines[at:] = ["", *(re.sub(r"^ +(\w+): ", r"* ``\1``: ", line) for line in lines[at:])]


def shorter(app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, result: Any) -> Any:
    """A signature that Sphinx can parse, with types by their last name."""
    if signature is None:
        return None
    return re.sub(r"~(?:[A-Za-z_]\w*\.)+", "", signature).replace("<factory>", "..."), result


def setup(app: Sphinx) -> dict[str, bool]:
    """Generate the reference when the site is built."""
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", as_restructured)
    app.connect("autodoc-process-signature", shorter)
    return {"parallel_read_safe": True}
