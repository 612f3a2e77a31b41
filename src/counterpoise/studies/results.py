"""What a study found, as one JSON file that needs no run: every piece's settings, seed, curve, commit and machine.

The file also holds the study itself, so that it can be shown without the study's own file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from counterpoise.errors import CounterpoiseError, no_file
from counterpoise.measures import Curve
from counterpoise.runs.files import replace_text
from counterpoise.runs.kept import Finite, Form, Round, checked
from counterpoise.runs.saved import SavedRun
from counterpoise.studies.measuring import curve_of
from counterpoise.studies.reading import made_study
from counterpoise.studies.study import Study
from counterpoise.texts import parse_json, read_text

__all__ = ["ENDED", "KeptArm", "KeptCell", "Made", "Outcome", "Results", "outcome_of", "read_results", "write_results"]

SCHEMA = 1
ENDED = ("finished", "diverged", "failed")
_MOST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Made:
    """What a piece was run with."""

    commit: str
    """Empty if it is not known."""
    machine: str
    version: str


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    seed: int
    status: str
    """finished, diverged or failed"""
    curve: Curve
    made: Made
    why: str = ""
    """Why it diverged or failed."""
    seconds: float = 0.0
    """What its rounds took; in a batch, its share of them. The seconds of a batch's runs sum to its time."""


@dataclass
class KeptArm:
    """The runs of a method in a cell, by seed."""

    settings: Mapping[str, Any]
    outcomes: dict[int, Outcome] = field(default_factory=dict)


@dataclass
class KeptCell:
    """What a cell found, by the labels of its methods."""

    config: Mapping[str, Any]
    """The configuration that its methods share."""
    measure: str
    """What the curves show."""
    arms: dict[str, KeptArm] = field(default_factory=dict)


Results = dict[str, KeptCell]
"""What a study found, by the names of its cells."""


def outcome_of(run: SavedRun, measure: str, made: Made, seed: int) -> Outcome:
    """What is kept of a run that has ended. Six digits of each value are kept, and of paths what all machines share."""
    curve = [(number, float(f"{value:.6g}")) for number, value in curve_of(run.records, measure)]
    why = run.sentence if run.path is None else run.sentence.replace(str(run.path), "/".join(run.path.parts[-3:]))
    return Outcome(seed, run.status, curve, made, why, round(sum(one.seconds for one in run.records), 3))


# ---------------------------------------------------------------- the file


class _Made(Form):
    commit: str
    machine: str
    version: str


class _Piece(Form):
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    status: Literal["finished", "diverged", "failed"]
    rounds: Annotated[int, Field(ge=0)]
    """Which of the file's lists of rounds belongs to the curve."""
    curve: list[Finite | None]
    made: Annotated[int, Field(ge=0)]
    why: str = ""
    seconds: Annotated[Finite, Field(ge=0)] = 0.0


class _Arm(Form):
    settings: dict[str, Any]
    pieces: list[_Piece]


class _Cell(Form):
    config: dict[str, Any]
    measure: str
    arms: dict[str, _Arm]


class _Document(Form):
    schema_: Literal[1] = Field(alias="schema")
    name: str
    study: dict[str, Any]
    made: list[_Made]
    rounds: list[list[Round]]
    cells: dict[str, _Cell]


def write_results(path: Path, study: Study, results: Results) -> None:
    """Write the file: a line for each piece, so that versions of it can be compared line by line."""
    rounds: list[list[int]] = []
    made: list[Made] = []

    def number(value: Any, known: list[Any]) -> int:
        if value not in known:
            known.append(value)
        return known.index(value)

    cells: dict[str, Any] = {}
    for name, cell in results.items():
        metric = next((one.metric for one in study.cells if one.name == name), None)
        arms = {}
        for label, arm in cell.arms.items():
            pieces = [
                {
                    "seed": one.seed,
                    "status": one.status,
                    **({"value": _plain(metric.value(one.curve))} if metric is not None else {}),
                    **({"why": one.why} if one.why else {}),
                    "seconds": one.seconds,
                    "made": number(one.made, made),
                    "rounds": number([round for round, _ in one.curve], rounds),
                    "curve": [_plain(value) for _, value in one.curve],
                }
                for _, one in sorted(arm.outcomes.items())
            ]
            arms[label] = {"settings": _coded(arm.settings), "pieces": pieces}
        cells[name] = {"config": _coded(cell.config), "measure": cell.measure, "arms": arms}
    document = {
        "schema": SCHEMA,
        "name": study.name,
        "study": _coded(study.values),
        "made": [asdict(one) for one in made],
        "rounds": rounds,
        "cells": cells,
    }
    try:
        replace_text(path, _lines(document, 6) + "\n")
    except OSError as error:
        raise CounterpoiseError(f"The results cannot be written to {path}: {error.strerror or error}.") from None


def read_results(path: Path) -> tuple[Study, Results]:
    """Read the file and check all of it: the study as it was when the file was written, and what it found."""
    try:
        values = parse_json(read_text(path, _MOST_BYTES), str(path))
    except (FileNotFoundError, NotADirectoryError):
        raise no_file(path) from None
    if isinstance(values, dict) and type(schema := values.get("schema")) is int and schema > SCHEMA:
        raise CounterpoiseError(f"{path} was written by a newer version of counterpoise. Upgrade counterpoise.")
    found = checked(_Document, values, str(path))
    made = [Made(one.commit, one.machine, one.version) for one in found.made]
    results: Results = {}
    for name, cell in found.cells.items():
        kept = results[name] = KeptCell(_decoded(cell.config), cell.measure)
        for label, arm in cell.arms.items():
            outcomes = {piece.seed: _outcome(piece, made, found.rounds, path) for piece in arm.pieces}
            kept.arms[label] = KeptArm(_decoded(arm.settings), outcomes)
    return made_study(_decoded(found.study), found.name, str(path)), results


def _outcome(piece: _Piece, made: Sequence[Made], rounds: Sequence[Sequence[int]], path: Path) -> Outcome:
    if piece.made >= len(made) or piece.rounds >= len(rounds) or len(rounds[piece.rounds]) != len(piece.curve):
        raise CounterpoiseError(f"{path} is damaged: a piece names rounds or a machine that it does not hold.")
    values = (math.nan if value is None else value for value in piece.curve)
    curve = list(zip(rounds[piece.rounds], values, strict=True))
    return Outcome(piece.seed, piece.status, curve, made[piece.made], piece.why, piece.seconds)


def _plain(value: float) -> float | None:
    """None for NaN and infinity, which JSON does not have. Six digits are enough for a reader."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _coded(values: Any) -> Any:
    """Settings for JSON, which has no infinity; a bound in a configuration may be infinite."""
    if isinstance(values, Mapping):
        return {str(key): _coded(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_coded(value) for value in values]
    return str(values) if values in (math.inf, -math.inf) else values


def _decoded(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {key: _decoded(value) for key, value in values.items()}
    if isinstance(values, list):
        return [_decoded(value) for value in values]
    return float(values) if values in ("inf", "-inf") else values


def _lines(value: Any, depth: int) -> str:
    """JSON with line breaks down to this depth, and none below it."""
    items: Iterable[str]
    inner_ones = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    if not depth or not any(isinstance(one, Mapping | list) for one in inner_ones):
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    if isinstance(value, Mapping):
        items = (f"{json.dumps(str(key))}: {_lines(inner, depth - 1)}" for key, inner in value.items())
        return "{\n" + ",\n".join(items) + "\n}"
    return "[\n" + ",\n".join(_lines(inner, depth - 1) for inner in value) + "\n]"
