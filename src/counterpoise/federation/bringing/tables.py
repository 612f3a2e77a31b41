"""Tables with named columns: CSV and Parquet files, and frames of pandas or pyarrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.errors import CounterpoiseError, brief, unknown
from counterpoise.federation.bringing.pictures import PICTURES
from counterpoise.federation.bringing.source import TARGETS, Columns, Source
from counterpoise.federation.naming import texts
from counterpoise.memory import bytes_in_words, machine_memory

__all__ = ["TABLES", "check_names", "from_columns", "from_frame", "from_table", "is_frame"]

TABLES = (".csv", ".tsv", ".parquet")
_EITHER = "targets and identities are numbers or names"
_NEEDS = "Reading {} needs pandas or pyarrow. Install one of them: pip install pyarrow"


def from_table(path: Path, where: str, columns: Columns) -> Source:
    """The rows of a file as samples."""
    most = (machine_memory() or 2**36) // 2
    if path.stat().st_size > most:
        raise CounterpoiseError(
            f"{where}: {path} has {bytes_in_words(path.stat().st_size)}, more than half of this machine's memory. Use a "
            "folder of .npy files, which are mapped and may be larger."
        )
    try:
        found = _read_parquet(path, most) if path.suffix.lower() == ".parquet" else _read_csv(path)
    except CounterpoiseError:
        raise
    except UnicodeDecodeError:
        raise CounterpoiseError(
            f"{where}: {path} cannot be read as a table (it is not UTF-8 text). Save it as UTF-8."
        ) from None
    except Exception as error:  # each reader has errors of its own
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CounterpoiseError(f"{where}: {path} cannot be read as a table ({said}). Mend or replace it.") from None
    return from_columns(found, where, columns, path.name)


def _separator(path: Path) -> str:
    """What separates the columns of a file: the commonest of three signs in its first line."""
    with path.open(encoding="utf-8-sig") as file:
        head = file.readline(1 << 20)
    return max((",", ";", "\t"), key=head.count)


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    sign = _separator(path)
    try:
        import pandas
    except ImportError:
        try:
            from pyarrow import csv
        except ImportError:
            raise CounterpoiseError(_NEEDS.format(path.name)) from None
        table = csv.read_csv(path, parse_options=csv.ParseOptions(delimiter=sign))
        return _plain(table)
    return _plain(pandas.read_csv(path, sep=sign, encoding="utf-8-sig"))


def _read_parquet(path: Path, most: int) -> dict[str, np.ndarray]:
    try:
        from pyarrow import parquet
    except ImportError:
        try:
            import pandas

            return _plain(pandas.read_parquet(path))
        except ImportError:
            raise CounterpoiseError(_NEEDS.format(path.name)) from None
    with parquet.ParquetFile(path) as file:
        cells = file.metadata.num_rows * file.metadata.num_columns
        if cells * 8 > most:
            raise CounterpoiseError(
                f"{path} holds {cells:,} numbers, more than half of this machine's memory. Use a folder of .npy files, "
                "which are mapped and may be larger."
            )
        return _plain(file.read())


def is_frame(given: Any) -> bool:
    """Whether it is a frame of pandas or a table of pyarrow, neither of which need be installed."""
    return type(given).__module__.partition(".")[0] in ("pandas", "pyarrow") and hasattr(given, "columns")


def from_frame(frame: Any, where: str, columns: Columns) -> Source:
    """The rows of a frame as samples."""
    return from_columns(_plain(frame), where, columns, "the table")


def _plain(table: Any) -> dict[str, np.ndarray]:
    """The columns of a frame of pandas or a table of pyarrow as arrays of numbers or text."""
    if hasattr(table, "column_names"):
        return {name: _from_arrow(table[name]) for name in table.column_names}
    return {str(name): _from_pandas(table[name]) for name in table.columns}


def _from_pandas(column: Any) -> np.ndarray:
    kind = str(column.dtype).lower()
    if kind.startswith(("int", "uint", "float")):
        whole = not kind.startswith("float") and not column.isna().any()
        return np.asarray(
            column.to_numpy(dtype=None if whole else np.float64, **({} if whole else {"na_value": np.nan}))
        )
    return np.asarray(column.astype(bool) if kind.startswith("bool") and not column.isna().any() else column)


def _from_arrow(column: Any) -> np.ndarray:
    if str(column.type).startswith("dictionary"):
        column = column.cast(column.type.value_type)
    return np.asarray(column.to_numpy())


def from_columns(table: Mapping[str, np.ndarray], where: str, columns: Columns, name: str) -> Source:
    """Samples from columns: `columns` says which are inputs, targets and identity.

    Unless it does, the targets are in a column with a usual name, and all other columns are inputs.
    """
    for column in (one for given in columns.values() for one in ([given] if isinstance(given, str) else given)):
        if column not in table:
            raise unknown("column", column, table, f"in {name}")
    target = columns.get("targets") or next((usual for usual in TARGETS if usual in table), None)
    if target is not None and not isinstance(target, str):
        raise CounterpoiseError(
            f"{where}: {name} has one column of targets. For several, give arrays: (x, y) with y=table[[...]].to_numpy()."
        )
    if target is None:
        raise CounterpoiseError(
            f"{where}: which column of {name} holds the targets? It has {_listed(table)}. Say columns={{'targets': ...}}."
        )
    who = columns.get("identity")
    named = columns.get("inputs")
    chosen = [named] if isinstance(named, str) else list(named or (c for c in table if c not in (target, who)))
    if not chosen:
        raise CounterpoiseError(f"{where}: {name} has no column for the inputs, only {_listed(table)}.")
    inputs = np.stack([_numbers(table[column], column, where) for column in chosen], axis=1)
    targets = check_names(table[target], target, where)
    identities = None if who is None else check_names(table[str(who)], str(who), where)
    return Source(where, len(targets), lambda a, b: (inputs[a:b], targets[a:b]), identities=identities)


def _numbers(values: np.ndarray, column: str, where: str) -> np.ndarray:
    """A column of inputs. Whole numbers become fractions, because a model would take them for tokens."""
    if not len(values):
        return np.empty(0, np.float32)
    if values.dtype.kind not in "buif":
        found = "text" if texts(values) is not None else f"values such as {brief(values[0])}"
        if str(values[0]).lower().endswith(PICTURES):
            raise CounterpoiseError(
                f"{where}: the column {column} names pictures, {brief(str(values[0]))} for example, and a table is read for "
                "its numbers alone. Put pictures into a folder for each class, or give a torch Dataset that opens them."
            )
        raise CounterpoiseError(
            f"{where}: the column {column} holds {found}. If it says who each row comes from, say "
            f"columns={{'identity': {column!r}}}; otherwise name the columns of numbers, columns={{'inputs': [...]}}, or "
            "turn it into numbers first (pandas.get_dummies)."
        )
    _no_gaps(np.isnan(values) if values.dtype.kind == "f" else None, column, where)
    with np.errstate(over="ignore"):  # infinity is refused later
        return values.astype(np.float32)


def check_names(values: np.ndarray, column: str, where: str) -> np.ndarray:
    """A column of targets or identities: numbers or text, without gaps."""
    if not len(values):
        return np.empty(0, np.int64)
    found = texts(values)
    if found is not None:
        return found
    if values.dtype == object:
        _no_gaps(np.array([value is None or value != value for value in values]), column, where)
        raise CounterpoiseError(f"{where}: the column {column} holds values such as {brief(values[0])}; {_EITHER}.")
    if values.dtype.kind not in "buif":
        raise CounterpoiseError(f"{where}: the column {column} is of type {values.dtype}; {_EITHER}.")
    _no_gaps(np.isnan(values) if values.dtype.kind == "f" else None, column, where)
    return values


def _no_gaps(missing: np.ndarray | None, column: str, where: str) -> None:
    if missing is not None and missing.any():
        raise CounterpoiseError(
            f"{where}: the column {column} has no value in {int(missing.sum())} of {len(missing)} rows, row "
            f"{int(missing.argmax()) + 1} for example. Fill them in, or drop these rows."
        )


def _listed(names: Mapping[str, Any] | Sequence[str], most: int = 12) -> str:
    found = list(names)
    return ", ".join(found[:most]) + (", ..." if len(found) > most else "")
