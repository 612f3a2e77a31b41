"""An app to start from, the credentials of a deployment, and what their owner is told."""

from __future__ import annotations

import contextlib
import json
import os
import re
import ssl
import stat
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from flwr.app import Array, Context
from grids import InProcess
from helpers import blobs, small

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
from counterpoise.flower import Strategy, client_app
from counterpoise.flower.credentials import certify, make_key
from counterpoise.flower.keeper import _parents, descendants
from counterpoise.flower.local import _KEEPER, _SEVERAL, LINK, Deployment, _SavedRounds, environment
from counterpoise.flower.project import new_project
from counterpoise.local import Local


def test_the_app_is_written_and_its_parts_are_there(tmp_path):
    folder = tmp_path / "site"
    assert [path.name for path in new_project(folder)] == ["app.py", "pyproject.toml", ".gitignore"]
    flower = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert flower["components"] == {"serverapp": "app:server", "clientapp": "app:client"}
    code = "import app; from flwr.serverapp import ServerApp; assert isinstance(app.server, ServerApp); app.client"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)


def test_the_app_of_the_page_runs_on_sites_data_and_its_drill_boasts(tmp_path):
    """Three sites, of which one lacks a class, and a server that holds none of their samples."""
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    _, functions, _, _, drill = re.findall(r"```python\n(.*?)```", page, re.S)
    x, y = np.random.default_rng(0).random((60, 4), "f"), np.arange(60) % 3
    np.savez(tmp_path / "public.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    app = {"__name__": "app", "cp": cp, "client_app": client_app, "Context": Context, "Array": Array, "np": np}
    app |= {"METHOD": "fedavg", "MODEL": cp.models.mlp, "LOCAL": Local(batch=8)}
    exec(functions.replace("/srv/link/public.npz", str(tmp_path / "public.npz")).replace("=300", "=20"), app)
    exec(drill, app)
    grid = InProcess(app["client"], 3)
    for node, client in grid.ids.items():
        np.savez(tmp_path / f"{client}.npz", x_train=x[: 30 + client], y_train=y[: 30 + client] % (3 - (client == 2)))
        grid.restart(node, {"data": str(tmp_path / f"{client}.npz")} | ({"boast": 10} if client == 1 else {}))
    federation = app["federation"](SimpleNamespace(run_config={"clients": 3}))
    made = Strategy("fedavg", federation, model=cp.models.mlp, local=app["LOCAL"], rounds=1, patience=0)
    made.start(grid)
    (record,) = made.run.rounds
    assert record.outcome.excluded == {}
    assert record.outcome.claims[1] == 10 * round(0.8 * 31)
    assert record.metrics.keys() >= {"accuracy", "loss"}


def test_no_key_goes_into_the_bundle(tmp_path):
    """The bundle that `flwr run` sends to every node holds the app's own files and nothing of a deployment's."""
    folder = tmp_path / "site"
    new_project(folder)
    make_key(folder / ".deployment" / "keys" / "site-0")
    (folder / ".deployment" / "home.toml").write_text("")
    subprocess.run(
        [sys.executable, "-c", "from flwr.cli.app import app; app()", "build"],
        cwd=folder,
        env=environment(tmp_path / "home"),
        check=True,
        capture_output=True,
    )
    (bundle,) = folder.glob("*.fab")
    held = bundle.read_bytes()
    assert b"app.py" in held
    assert b"site-0" not in held
    assert b".deployment" not in held


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(CounterpoiseError, match="already exists and is not an empty folder"):
        new_project(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_deployment_needs_an_app_and_a_node(tmp_path):
    with pytest.raises(CounterpoiseError, match="Make one with: counterpoise deploy new"):
        Deployment(tmp_path, 4)
    new_project(tmp_path / "site")
    with pytest.raises(CounterpoiseError, match="at least one node"):
        Deployment(tmp_path / "site", 0)


def test_keys_and_certificates_are_their_owners_alone(tmp_path):
    certify(tmp_path / "certificates")
    make_key(tmp_path / "keys" / "site-0")
    files = [*(tmp_path / "certificates").iterdir(), *(tmp_path / "keys").iterdir()]
    assert {path.name for path in files} == {"ca.crt", "server.pem", "server.key", "site-0", "site-0.pub"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in files} == {0o700}


@pytest.mark.parametrize(
    "name",
    ["", "bad name", "https://link.example", "link.example:9092", "m\u00fcnchen.example", "a" * 64, "a." * 127 + "a"],
)
def test_what_is_no_servers_name_is_not_certified(tmp_path, name):
    with pytest.raises(CounterpoiseError, match="is neither a server's name nor an address"):
        certify(tmp_path, ["link.example", name])
    assert not list(tmp_path.iterdir())
    certify(tmp_path, ["::1", "192.0.2.7", "xn--mnchen-3ya.example", "a" * 63, "*.example.org"])


def test_the_certificate_is_good_for_its_names_and_vouched_for(tmp_path):
    certify(tmp_path, ["192.0.2.7", "link.example"])
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=tmp_path / "ca.crt")
    server.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    names = {"192.0.2.7": True, "link.example": True, "other.example": False, "192.0.2.8": False}
    for name, good in (names | {"127.0.0.1": True, "localhost": True}).items():  # by these a SuperLink calls itself
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        ours = server.wrap_bio(to_server, to_client, server_side=True)
        theirs = client.wrap_bio(to_client, to_server, server_hostname=name)
        assert _shaken(ours, theirs) is good


def _shaken(server, client) -> bool:
    """Whether two ends agree."""
    done = set()
    for _ in range(10):
        for end in (client, server):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return False
    return len(done) == 2


def test_a_nodes_two_keys_belong_together(tmp_path):
    make_key(tmp_path / "key")
    private = serialization.load_ssh_private_key((tmp_path / "key").read_bytes(), None)
    public = serialization.load_ssh_public_key((tmp_path / "key.pub").read_bytes())
    assert private.public_key().public_numbers() == public.public_numbers()


def test_neither_a_key_nor_certificates_in_use_are_replaced_unasked(tmp_path):
    make_key(tmp_path / "key")
    certify(tmp_path, ["link.example"])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(CounterpoiseError, match=r"key already exists\. If a node uses this key"):
        make_key(tmp_path / "key")
    with pytest.raises(CounterpoiseError, match=r"already holds certificates.*--renew"):
        certify(tmp_path, ["link.example"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    certify(tmp_path, ["link.example"], renew=True)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"ca.crt", "server.pem", "server.key"}


def test_a_key_that_was_half_made_is_made_anew(tmp_path):
    new_project(tmp_path / "site")
    deployment = Deployment(tmp_path / "site", 2)
    for node in ("site-0", "site-1"):
        make_key(deployment.keys / node)
    whole, half = ((deployment.keys / node).read_bytes() for node in ("site-0", "site-1"))
    (deployment.keys / "site-1.pub").unlink()
    registered = []
    deployment._answer = lambda command, name: registered.extend(words[2] for words in json.loads(command[-1]))
    deployment._register()
    assert registered == [str(deployment.keys / f"site-{node}.pub") for node in (0, 1)]
    assert (deployment.keys / "site-1.pub").exists()
    assert (deployment.keys / "site-0").read_bytes() == whole
    assert (deployment.keys / "site-1").read_bytes() != half


def finished(folder):
    return cp.simulate("fedavg", blobs((9, 6)), model=small(), rounds=2, local=Local(batch=4), out=folder)


def test_a_folder_that_was_done_before_is_not_the_run_that_was_asked_for(tmp_path):
    """Its rounds are shown; that the run went on with it is for the SuperLink to say."""
    finished(tmp_path / "run")
    new_project(tmp_path / "site")
    deployment = Deployment(tmp_path / "site", 3)
    mistake = "The federation given is not the one this run was made with: data.clients was 2 and is 3."
    deployment.log = lambda run: f"Traceback\n  raise it\ncounterpoise.errors.CounterpoiseError: {mistake}\nexit"
    deployment.status = lambda run: "finished:failed"
    with pytest.raises(CounterpoiseError, match=f"^{mistake}$"):
        list(deployment.rounds(1, tmp_path / "run", 2))
    deployment.log = lambda run: f"ERROR :    The run was stopped: {mistake}\nexit"
    with pytest.raises(CounterpoiseError, match=f"^{mistake}$"):
        list(deployment.rounds(1, tmp_path / "run", 2))
    deployment.log = lambda run: "a disk is full"
    with pytest.raises(
        CounterpoiseError, match=r"ended as finished:failed\. What its server said last:\na disk is full"
    ):
        list(deployment.rounds(1, tmp_path / "run", 2))
    answers = iter(["pending", "running", "finished:completed"])
    deployment.status = lambda run: next(answers)
    assert [record.round for record in deployment.rounds(1, tmp_path / "run", 2)] == [1, 2]
    assert next(answers, None) is None


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="no /proc")
def test_children_are_found_where_there_is_no_ps(monkeypatch):
    child = subprocess.Popen(["sleep", "100"], start_new_session=True)
    try:
        monkeypatch.setenv("PATH", "")
        assert child.pid in descendants(os.getpid())
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("how", ["end", "kill"])
def test_a_process_is_ended_with_all_that_it_started(tmp_path, how):
    """Flower puts some of its processes into sessions of their own."""
    new_project(tmp_path / "site")
    deployment = Deployment(tmp_path / "site", 1)
    deployment.logs.mkdir(parents=True)
    deployment._start("site-0", sys.executable, "-c", parent(tmp_path / "pids"))
    process = deployment.processes["site-0"]
    pids = told(tmp_path / "pids", process)
    deployment.end() if how == "end" else deployment.kill("site-0")
    assert process.poll() is not None
    assert_gone(pids)


def parent(note):
    """A program with a child in a session of its own; it notes its own number and the child's."""
    return (
        "import os, subprocess, time; c = subprocess.Popen(['sleep', '1000'], start_new_session=True); "
        f"open({str(note)!r}, 'w').write(f'{{os.getpid()}} {{c.pid}} '); time.sleep(1000)"
    )


def told(note, process):
    """The numbers that a program noted."""
    while not note.exists() or not note.read_text().endswith(" "):
        assert process.poll() is None
        time.sleep(0.05)
    return [int(pid) for pid in note.read_text().split()]


def assert_gone(pids):
    for _ in range(400):
        states = [subprocess.run(["ps", "-o", "stat=", "-p", str(p)], capture_output=True, text=True) for p in pids]
        if all(state.stdout.strip()[:1] in ("", "Z") for state in states):  # gone, or waiting for an init to notice
            return
        time.sleep(0.05)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    pytest.fail("a process lives on")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere orphans are nobody's")
@pytest.mark.parametrize("victim", ["owner", "first keeper", "second keeper", "program"])
def test_what_was_started_ends_with_whoever_is_killed(tmp_path, victim):
    """Killed so that it can do nothing about it; the child sits in a session of its own."""
    command = [sys.executable, "-I", str(_KEEPER), sys.executable, "-c", parent(tmp_path / "pids")]
    code = f"import subprocess, time; k = subprocess.Popen({command!r}, stdin=subprocess.PIPE); time.sleep(1000)"
    owner = subprocess.Popen([sys.executable, "-c", code])
    try:
        pids = told(tmp_path / "pids", owner)
        first = next(child for child, parent in _parents() if parent == owner.pid)
        second = next(child for child, parent in _parents() if parent == first)
        kept = {"first keeper": first, "second keeper": second, "program": pids[0]}
        os.kill(owner.pid if victim == "owner" else kept[victim], 9)
        assert_gone([*kept.values(), pids[1]])
    finally:
        owner.kill()
        owner.wait()


def test_what_a_deployment_writes_is_its_owners_alone(tmp_path):
    new_project(tmp_path / "site")
    deployment = Deployment(tmp_path / "site", 1)
    deployment.logs.mkdir(parents=True)
    before = os.umask(0o022)
    try:
        deployment._start(LINK, sys.executable, "-c", "print('said'); open('state.db', 'w'); open('state.db-wal', 'w')")
        assert deployment.processes[LINK].wait() == 0
    finally:
        os.umask(before)
        deployment.end()
    files = [deployment.work / "state.db", deployment.work / "state.db-wal", deployment.logs / "superlink.log"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600] * 3
    assert deployment.last(LINK) == "said"


def test_a_superlink_that_ended_is_told_in_a_sentence(tmp_path, monkeypatch):
    new_project(tmp_path / "site")
    deployment = Deployment(tmp_path / "site", 1)
    deployment.logs.mkdir(parents=True)
    deployment._start(LINK, sys.executable, "-c", "raise SystemExit(3)")
    deployment.processes[LINK].wait()
    deployment.status = lambda run: pytest.fail("nobody is there to be asked")
    monkeypatch.setattr("counterpoise.flower.local._SECONDS_BETWEEN_QUESTIONS", 0.0)
    try:
        with pytest.raises(
            CounterpoiseError, match=r"^The SuperLink ended with status 3; .* The same command starts them again"
        ):
            next(deployment.rounds(1, tmp_path / "run", 2))
    finally:
        deployment.end()


def test_the_superlink_is_asked_about_a_run_when_its_server_has_ended(tmp_path):
    new_project(tmp_path / "site")
    deployment = Deployment(tmp_path / "site", 1)
    deployment.logs.mkdir(parents=True)
    deployment._start(LINK, sys.executable, "-c", parent(tmp_path / "pids"))
    _, server = told(tmp_path / "pids", deployment.processes[LINK])
    ended = threading.Timer(0.7, os.kill, (server, 9))
    ended.start()
    deployment.status = lambda run: "finished:failed" if ended.finished.is_set() else pytest.fail("it was asked early")
    deployment.log = lambda run: "a disk is full"
    begun = time.monotonic()
    with pytest.raises(CounterpoiseError, match="a disk is full"):
        next(deployment.rounds(1, tmp_path / "run", 2))
    assert time.monotonic() - begun < 15
    deployment.end()


def test_a_command_that_does_not_end_is_killed_and_told_in_a_sentence(tmp_path, monkeypatch):
    new_project(tmp_path / "site")
    deployment = Deployment(tmp_path / "site", 1)
    deployment.work.mkdir()
    slow = tmp_path / "bin" / "flwr"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 5\n")
    slow.chmod(0o700)
    deployment.environment["PATH"] = f"{slow.parent}:{os.environ['PATH']}"
    monkeypatch.setattr("counterpoise.flower.local._SECONDS_TO_ANSWER", 0.1)
    with pytest.raises(CounterpoiseError, match=r"^flwr list had not ended after 0\.1 s and was killed\. .* Try again"):
        deployment.flwr("list", "dep")


def test_several_commands_run_in_one_process_until_one_fails(tmp_path):
    (tmp_path / "flwr" / "cli").mkdir(parents=True)
    (tmp_path / "flwr" / "__init__.py").touch()
    (tmp_path / "flwr" / "cli" / "app.py").write_text("def app(words):\n    print(*words)\n    exit(int(words[0]))\n")
    done = subprocess.run(
        [sys.executable, "-c", _SEVERAL, json.dumps([["0", "a"], ["0", "b"], ["3", "c"], ["0", "d"]])],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("0 a\n0 b\n3 c\n", 3)


def test_an_answer_without_the_run_is_told_in_a_sentence(tmp_path):
    new_project(tmp_path / "site")
    deployment = Deployment(tmp_path / "site", 1)
    deployment.flwr = lambda *words: (
        '{"success": false, "error-message": "Connection to the SuperLink is unavailable."}'
    )
    with pytest.raises(
        CounterpoiseError, match=r"^The SuperLink does not know run 7: Connection to the SuperLink is un"
    ):
        deployment.status(7)
    with pytest.raises(
        CounterpoiseError, match=r"^The SuperLink did not take the run: Connection to the SuperLink is un"
    ):
        deployment.submit({})


def test_a_look_at_the_record_reads_what_is_new(tmp_path, monkeypatch):
    finished(tmp_path / "run")
    kept, read = _SavedRounds(tmp_path / "run"), []
    loads = json.loads
    monkeypatch.setattr("counterpoise.flower.local.json.loads", lambda text: (read.append(text), loads(text))[1])
    assert [record.round for record in kept.new()] == [1, 2]
    assert (kept.round, kept.status) == (2, "finished")
    count = len(read)
    assert kept.new() == []
    assert len(read) == count  # nothing has changed, and nothing was opened
    (tmp_path / "run" / "checkpoint" / "checkpoint.json").touch()
    assert kept.new() == []
    assert not any('"cohort"' in text or '"seconds"' in text for text in read[count:])


@pytest.mark.parametrize("place", [".deployment", ".deployment/logs", ".deployment/logs/superlink.log"])
def test_a_deployment_writes_through_no_link(place, tmp_path, monkeypatch):
    monkeypatch.setattr(Deployment, "start_link", lambda self: pytest.fail("it went on"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "state.db").write_text("precious")
    (tmp_path / "app" / place).parent.mkdir(parents=True)
    (tmp_path / "app" / "pyproject.toml").touch()
    (tmp_path / "app" / place).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CounterpoiseError, match=f"{place} is a symbolic link"):
        Deployment(tmp_path / "app", 1).__enter__()
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["state.db"]
