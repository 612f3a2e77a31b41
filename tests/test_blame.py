"""An error in a user's own code names the part, the hook and the line it came from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import BACKENDS

import counterpoise as cp
from counterpoise.blame import place_of
from counterpoise.hooks import CLIENT_HOOKS, SERVER_HOOKS


def boom(*given: Any) -> Any:
    raise OverflowError("too much")


def one(start: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"one": start.new_ones(())}


def part(hook: str) -> cp.Part:
    """A part whose other hooks do nothing, so that this one is called, and fails."""
    needs = {"personal": {"client_state": one}, "letters": {"client_record": one}, "scored": {"server_state": one}}
    memo = {"begin": lambda client: one(client.start)} if hook in ("survey", "after_step", "after_epoch") else {}
    lost = {"when_lost": "nothing"} if hook in ("client_state", "personal") else {}
    return cp.Part("mine", **{**needs.get(hook, {}), **memo, **lost, hook: boom})


ON_CLIENTS = [(hook, backend) for hook in CLIENT_HOOKS for backend in BACKENDS]


@pytest.mark.parametrize(("hook", "backend"), [*ON_CLIENTS, *((hook, "auto") for hook in SERVER_HOOKS)])
def test_an_error_names_the_part_the_hook_and_the_line(hook: str, backend: str) -> None:
    fed = cp.load("synthetic", partition=cp.iid(clients=3), heldout=0.2, seed=0)
    fedavg = cp.methods.fedavg()
    mine = cp.Method("m", (part(hook),), weigh=fedavg.weigh, combine=fedavg.combine, update=fedavg.update)
    with pytest.raises(cp.CounterpoiseError) as told:
        cp.simulate(mine, fed, model=cp.models.mlp, rounds=1, cohort=2, engine=cp.Engine(backend=backend))
    line = boom.__code__.co_firstlineno + 1
    where = f"boom in test_blame.py, line {line}"
    assert str(told.value) == f"part mine: its hook {hook} failed ({where}): OverflowError: too much."
    assert isinstance(told.value.__cause__, OverflowError)


SCRIPT = """
import counterpoise as cp

def bad(client, step, w):
    return helper(w)

def helper(w):
    return w.sum() * (1 / len(()))

fed = cp.load("synthetic", partition=cp.iid(clients=3), seed=0)
fedavg = cp.methods.fedavg()
slots = dict(weigh=fedavg.weigh, combine=fedavg.combine, update=fedavg.update)
cp.simulate(cp.Method("m", (cp.Part("mine", loss=bad),), **slots), fed, model=cp.models.mlp, rounds=1, cohort=2)
"""


@pytest.mark.parametrize("debug", ["", "1"])
def test_a_script_ends_with_its_own_lines_and_the_sentence(
    debug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    monkeypatch.setenv("COUNTERPOISE_DEBUG", debug)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    files = [line.split('"')[1] for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert (set(files) == {str(script)}) is not bool(debug)
    sentence = "CounterpoiseError: part mine: its hook loss failed (helper in script.py, line 8): ZeroDivisionError"
    assert sentence in done.stderr
    if not debug:
        assert len(files) == 3  # the call, the hook and its helper


def test_another_error_of_a_script_is_shown_as_ever(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import counterpoise as cp\ncp.CounterpoiseError\n1 / 0\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_the_users_own_line_is_named_and_not_that_of_a_package_it_calls() -> None:
    def own() -> None:
        np.testing.assert_allclose(1, 2)

    with pytest.raises(AssertionError) as raised:
        own()
    assert place_of(raised.value) == f"own in test_blame.py, line {own.__code__.co_firstlineno + 1}"


def test_an_error_that_no_code_of_the_users_led_to_has_no_place() -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        json.loads("no")
    while raised.value.__traceback__ and raised.value.__traceback__.tb_frame.f_code.co_filename == __file__:
        raised.value.__traceback__ = raised.value.__traceback__.tb_next
    assert place_of(raised.value) == ""
