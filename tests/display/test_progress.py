"""Progress: in a terminal, in a notebook, in a pipe, and while torch loads."""

from __future__ import annotations

import importlib.util
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from notebooks import Notebook

import counterpoise as cp
from counterpoise.display import live
from counterpoise.engine.rounds.records import Outcome, RoundRecord
from counterpoise.loading import noting_slow


def simulate(**settings: Any) -> cp.Run:
    fed = cp.load("digits", partition=cp.iid(clients=4), samples=200)
    return cp.simulate("fedavg", fed, **{"model": cp.models.linear, "rounds": 5, **settings})


def record(round: int, **metrics: float) -> RoundRecord:
    return RoundRecord(round, (), Outcome({}, None), metrics)


def test_a_pipe_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    simulate()
    assert capsys.readouterr() == ("", "")


def test_a_log_gets_lines_if_they_are_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(progress=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"fedavg ━+ 5/5 accuracy [\d.]+ % \d\d:\d\d", line.strip())
    monkeypatch.setattr(live, "_IN_LOG", 0.0)
    simulate(progress=True)
    assert [re.search(r"\d/5", line)[0] for line in capsys.readouterr().err.splitlines()] == [
        *("1/5", "2/5", "3/5", "4/5", "5/5", "5/5")
    ]


def test_a_notebook_shows_a_bar_that_changes_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook(monkeypatch)
    monkeypatch.setattr(live, "_IN_NOTEBOOK", 0.0)
    heard: list[int] = []
    simulate(on_round=lambda record: heard.append(record.round))
    assert heard == [1, 2, 3, 4, 5]
    assert notebook.outputs == 1
    assert [re.search(r"\d/5", text)[0] for text in notebook.text] == [
        *("0/5", "1/5", "2/5", "3/5", "4/5", "5/5", "5/5")
    ]
    assert re.search(r"accuracy [\d.]+ % <span", notebook.html[-1])
    assert notebook.html[-1].startswith("<pre ")


def test_a_notebook_is_not_redrawn_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook(monkeypatch)
    monkeypatch.setattr(live, "_IN_NOTEBOOK", 1e9)
    simulate()
    assert [re.search(r"\d/5", text)[0] for text in notebook.text] == ["0/5", "5/5"]


def test_no_progress_is_shown_if_the_user_does_not_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook(monkeypatch)
    simulate(progress=False)
    thread = threading.Thread(target=simulate)  # several at once would write over each other
    thread.start()
    thread.join()
    assert not notebook.html


def test_ipython_in_a_terminal_is_no_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = Notebook(monkeypatch, kernel=False)
    simulate()
    assert not notebook.html
    assert capsys.readouterr() == ("", "")


def test_names_are_text_wherever_they_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook(monkeypatch)
    own = cp.methods.fedavg().adding("<script>alert(1)</script>\x1b[31m")
    fed = cp.load("digits", partition=cp.iid(clients=4), samples=200)
    cp.simulate(own, fed, model=cp.models.linear, rounds=1)
    assert "<script>" not in notebook.html[-1]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m" in notebook.html[-1]
    assert "\x1b" not in notebook.text[-1]


def test_rounds_done_before_say_nothing_about_the_time_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notebook = Notebook(monkeypatch)
    monkeypatch.setattr(live, "_IN_NOTEBOOK", 0.0)
    simulate(out=tmp_path, rounds=8, on_round=lambda record: record.round == 6)
    notebook.text.clear()
    cp.resume(tmp_path)
    assert [re.search(r"\d/8 .*", text)[0].split()[-1] for text in notebook.text[:2]] == ["--:--", "--:--"]
    assert [re.search(r"\d/8", text)[0] for text in notebook.text] == ["0/8", "7/8", "8/8", "8/8"]


def test_a_run_that_was_finished_before_is_shown_as_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    simulate(out=tmp_path, progress=False)
    notebook = Notebook(monkeypatch)
    simulate(out=tmp_path)
    assert re.search(r"5/5 accuracy", notebook.text[-1])


def test_a_round_without_a_measurement_leaves_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from counterpoise.display.bar import bar

    notebook = Notebook(monkeypatch)
    monkeypatch.setattr(live, "_IN_NOTEBOOK", 0.0)
    with bar("x", 4) as hear:
        for one in (record(1, loss=2.0), record(2, loss=1.0, accuracy=0.25), record(3)):
            hear(one)
    found = [re.search(r"/4 (.*) \S+$", text.strip())[1].strip() for text in notebook.text]
    assert found == ["", "loss 2", "accuracy 25.0 %", "accuracy 25.0 %", "accuracy 25.0 %"]


@pytest.mark.parametrize("progress", ["yes", 1, 0])
def test_what_is_no_answer_is_refused(progress: Any) -> None:
    with pytest.raises(cp.CounterpoiseError, match="progress must be True, False or None"):
        simulate(progress=progress)


def test_without_rich_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook(monkeypatch)
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich" or "counterpoise.display" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert simulate().status == "finished"
    assert not notebook.html
    with pytest.raises(cp.CounterpoiseError, match=r"Progress is drawn by rich\. Install it with: pip install rich"):
        simulate(progress=True)


def test_a_notebook_says_that_torch_is_loaded_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook(monkeypatch)
    monkeypatch.delitem(sys.modules, "torch")
    before = list(sys.meta_path)
    with noting_slow(), noting_slow():
        importlib.util.find_spec("torchvision")
        assert not notebook.text
        importlib.util.find_spec("torch")
        assert notebook.text == ["loading torch ..."]
    assert notebook.text == ["loading torch ...", ""]
    assert sys.meta_path == before


SCRIPT = """
import counterpoise as cp
fed = cp.load("digits", partition=cp.iid(clients=4), samples=200)
run = cp.simulate("fedavg", fed, model=cp.models.linear, rounds=30, on_round=lambda record: print("heard", record.round))
"""


@pytest.mark.slow
def test_a_terminal_shows_that_torch_is_loaded_then_a_bar(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    environment.pop("RANK", None)
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            some = os.read(ours, 4096)
        except OSError:
            break
        shown += some
    os.close(ours)
    assert process.wait(60) == 0
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode())
    assert text.startswith("loading torch ...\r")
    assert [int(n) for n in re.findall(r"heard (\d+)", text)] == list(range(1, 31))
    assert re.search(r"fedavg .*30/30 accuracy [\d.]+ % \d\d:\d\d", text.strip().splitlines()[-1])
