"""`counterpoise deploy`, as far as it goes without a deployment; tests/flower/test_deployment.py has one."""

from __future__ import annotations

import logging
import signal
import sys

import pytest
from typer.testing import CliRunner

from counterpoise.cli.app import app
from counterpoise.cli.deploy import _line
from counterpoise.cli.leaving import ended_by_signals
from counterpoise.engine import Outcome, RoundRecord
from counterpoise.engine.rounds.loop import _log_outcome
from counterpoise.errors import CounterpoiseError
from counterpoise.method import Verdict


def test_new_says_what_it_wrote_and_what_to_do_next(tmp_path):
    done = CliRunner().invoke(app, ["deploy", "new", str(tmp_path / "site")])
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        *(f"written: {tmp_path / 'site' / name}" for name in ("app.py", "pyproject.toml", ".gitignore")),
        f"try it: counterpoise deploy local {tmp_path / 'site'}",
    ]


def test_local_without_an_app_says_how_to_make_one(tmp_path):
    with pytest.raises(CounterpoiseError, match="Make one with: counterpoise deploy new"):
        CliRunner().invoke(app, ["deploy", "local", str(tmp_path)], catch_exceptions=False)


@pytest.mark.parametrize("command", ["new", "local"])
def test_without_flower_both_commands_say_how_to_install_it(command, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("counterpoise.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(CounterpoiseError, match=r"Deploying needs Flower: pip install 'counterpoise\[flower\]'"):
        CliRunner().invoke(app, ["deploy", command, str(tmp_path)], catch_exceptions=False)


def test_a_round_is_told_with_who_was_left_out_and_who_lied(caplog):
    lie = Verdict(681.0, 232.0, 224.0, 240.0, 69.2, "corrected", "it claims 2.9 times what its training shows")
    out = {1: "it did not reply", 4: lie.reason}  # told once
    outcome = Outcome({0: 5, 3: 681}, {0: 1.0}, out, verdicts={0: lie, 3: lie, 4: lie})
    record = RoundRecord(
        2, (0, 1, 3, 4), outcome, {"train_loss": 1.0, "loss": 0.51234, "accuracy": 0.875}, seconds=17.2
    )
    assert _line(record, 5).splitlines() == [
        "round 2 of 5: 2 of 4 clients, loss 0.5123, accuracy 0.875, 17 s",
        "  client 1 is left out: it did not reply",
        "  client 4 is left out: it claims 2.9 times what its training shows",
        "  the claim of client 0 to 681 samples is corrected: it claims 2.9 times what its training shows",
        "  the claim of client 3 to 681 samples is corrected: it claims 2.9 times what its training shows",
    ]
    with caplog.at_level(logging.INFO):
        _log_outcome(2, outcome)
    assert [line.split(": ")[1] for line in caplog.messages] == [
        *("client 1 is left out", "client 4 is left out"),
        *(f"the claim of client {client} to 681 samples is corrected" for client in (0, 3)),
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_kill_and_a_closed_terminal_unwind(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), ended_by_signals() as came:
        signal.raise_signal(number)
    assert came == [number]
    assert signal.getsignal(number) is before


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_certificates_and_a_key_are_made_and_their_owner_is_told_who_gets_what(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["deploy", "certify", "link.example.org", "192.0.2.7"])
    assert done.exit_code == 0
    assert "written: certificates/ca.crt (give it to every node)" in done.output
    assert {path.name for path in (tmp_path / "certificates").iterdir()} == {"ca.crt", "server.pem", "server.key"}
    with pytest.raises(CounterpoiseError, match="already holds certificates"):
        CliRunner().invoke(app, ["deploy", "certify", "link.example.org"], catch_exceptions=False)
    assert CliRunner().invoke(app, ["deploy", "certify", "link.example.org", "--renew"]).exit_code == 0
    done = CliRunner().invoke(app, ["deploy", "key"])
    assert done.output == (
        "written: key (it stays on this machine)\nwritten: key.pub (send it to the server's operator)\n"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"certificates", "key", "key.pub"}
