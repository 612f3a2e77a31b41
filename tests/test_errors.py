"""What is exported refuses arguments that it does not take in plain words, and looks as it did."""

from __future__ import annotations

import inspect
import pickle
import re
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import counterpoise as cp
from counterpoise.errors import CounterpoiseError, like_named, no_file, no_folder, takes_only_its_options, unknown

RECEIVED = {"Client", "Comparison", "Report", "Curve", "Run", "Step", "World"}
"""A hook or a user receives these and never makes one."""


def exported(room: types.ModuleType = cp) -> Iterator[object]:
    """Every function and class that a person may call, in the package and in the rooms it exports."""
    for name in room.__all__:
        found = getattr(room, name)
        if isinstance(found, types.ModuleType):
            yield from exported(found)
        elif name in RECEIVED or (inspect.isclass(found) and issubclass(found, BaseException | tuple)):
            continue  # measures return tuples
        elif callable(found):
            yield pytest.param(found, id=f"{room.__name__}.{name}")


CALLED = [
    *exported(),
    cp.Federation.from_arrays,
    cp.Federation.from_datasets,
    lambda **given: cp.Federation.from_clients([([[1.0]], [0])], **given),
]


@pytest.mark.parametrize("called", CALLED)
def test_an_unknown_argument_is_answered_with_what_there_is(called) -> None:
    with pytest.raises(
        CounterpoiseError, match=r"There is no (option|hook) 'nonsense'.* (Known: |Did you mean )|takes no options"
    ):
        called(nonsense=1)


def test_the_nearest_name_is_suggested() -> None:
    with pytest.raises(
        CounterpoiseError, match=r"There is no option 'norm_ration' of Limits\. Did you mean 'norm_ratio'"
    ):
        cp.Limits(norm_ration=3)
    with pytest.raises(CounterpoiseError, match=r"of from_arrays\. Did you mean 'heldout'\?$"):
        cp.Federation.from_clients([([[1.0]], [0])], held_out=0.1)
    with pytest.raises(CounterpoiseError, match=r"There is no option 'update' of Cohort\. Did you mean 'updates'"):
        replace(cp.Cohort((), *3 * [None]), update=1)
    with pytest.raises(CounterpoiseError, match=r"from_clients: missing a required argument: 'clients'\."):
        cp.Federation.from_clients()
    with pytest.raises(CounterpoiseError, match=r"Limits: too many positional arguments\."):
        cp.Limits(2.0, 3, 4)


def test_a_mistake_inside_a_function_is_not_taken_for_a_wrong_call() -> None:
    @takes_only_its_options()
    def broken(value: int) -> int:
        return value + "text"

    with pytest.raises(TypeError, match="unsupported operand"):
        broken(3)


def test_signatures_help_and_pickles_stay() -> None:
    assert list(inspect.signature(cp.Limits).parameters) == ["norm_ratio", "max_examples"]
    assert list(inspect.signature(cp.parts.proximal).parameters) == ["mu"]
    assert cp.measures.best.__doc__ == cp.measures.best.__wrapped__.__doc__
    assert pickle.loads(pickle.dumps(cp.measures.best)) is cp.measures.best


def test_a_long_list_of_known_names_is_left_out_if_one_of_them_is_near():
    names = [f"name-{number:02}" for number in range(41)]
    assert str(unknown("thing", "nam-07", names)) == "There is no thing 'nam-07'. Did you mean 'name-07'?"
    assert str(unknown("thing", "nam-07", names[:14])).endswith("?")
    assert str(unknown("thing", "nam-07", names[:13])) == (
        f"There is no thing 'nam-07'. Did you mean 'name-07'? Others: {', '.join([*names[:7], *names[8:13]])}."
    )
    assert str(unknown("thing", "quite another", names[:40])).endswith(f" Known: {', '.join(names[:40])}.")
    assert str(unknown("thing", "quite another", names)).endswith("name-38, name-39 and 1 more.")


def test_names_that_are_equally_near_are_suggested_three_at_most() -> None:
    names = [f"some-rather-long-name-{letter}" for letter in "abcde"] + ["some-rather-short-one"]
    told = str(unknown("thing", "some-rather-long-name", names))
    assert re.findall("some-rather-long-name-(.)'", told) == ["e", "d", "c"]
    assert str(unknown("thing", "alpa", ["alpha", "alphabet"])).endswith("Did you mean 'alpha'? Others: alphabet.")


def test_a_missing_file_is_told_with_the_nearest_name_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").touch()
    (tmp_path / "mine.csv").touch()
    (tmp_path / "runs").mkdir()
    meant = tmp_path / "mine.toml"
    assert str(no_file(tmp_path / "mien.toml")) == f"There is no file {tmp_path / 'mien.toml'}. Did you mean {meant}?"
    assert str(no_file(tmp_path / "zzz.toml")) == f"There is no file {tmp_path / 'zzz.toml'}."
    assert str(no_file("no/such/place.toml")) == "There is no file no/such/place.toml."
    assert str(no_folder(tmp_path / "rums")).endswith(f"Did you mean {tmp_path / 'runs'}?")
    assert like_named(tmp_path / "mine.tom", ".toml") == [str(meant)]


def test_names_with_commas_are_quoted_in_a_list() -> None:
    assert str(unknown("cell", "zz", ["a", "a, late"])) == "There is no cell 'zz'. Known: a, 'a, late'."
