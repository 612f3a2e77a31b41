"""A whole deployment on one machine: SuperLink with TLS and node keys, SuperNodes, each a process on loopback.

Everything it makes lies in ``.deployment`` within the app's folder: certificates, keys, the SuperLink's database, logs.
Leaving the context ends every process that it started. So does the end of this process, however it comes: each program
runs under a keeper that notices it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from counterpoise.comparisons.watching import Watch
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError
from counterpoise.flower.credentials import certify, make_key, write_private
from counterpoise.flower.keeper import descendants, end_descendants
from counterpoise.flower.server import STOPPED
from counterpoise.runs.files import check_no_link, check_plain
from counterpoise.runs.index import read_index

__all__ = ["Deployment", "environment"]

_SECONDS_TO_START = 120.0
_SECONDS_TO_END = 5.0
_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_QUESTIONS = 30.0
_SECONDS_TO_ANSWER = 120.0
_COMPLETED = "finished:completed"
LINK = "superlink"
_KEEPER = Path(__file__).with_name("keeper.py")
_SEVERAL = """
import json, sys
from flwr.cli.app import app
for words in json.loads(sys.argv[1]):
    try:
        app(words)
    except SystemExit as ended:
        if ended.code:
            raise
"""
"""Runs several `flwr` commands in one process until one fails: importing Flower takes longer than most of them."""


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's programs: nothing is sent home, fetched or installed."""
    quiet = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    # Flower's programs start one another by name.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **quiet, "PATH": path}


class Deployment:
    """The processes of a deployment, by name: ``superlink``, ``site-0``, ``site-1``, ..."""

    def __init__(self, app: Path, nodes: int) -> None:
        if not (app / "pyproject.toml").is_file():
            raise CounterpoiseError(f"{app} holds no Flower app. Make one with: counterpoise deploy new {app}")
        if nodes < 1:
            raise CounterpoiseError(f"A deployment needs at least one node, not {nodes}.")
        self.app, self.nodes = app.resolve(), nodes
        self.work = self.app / ".deployment"
        self.certificates, self.keys, self.logs = (self.work / name for name in ("certificates", "keys", "logs"))
        self.environment = environment(self.work / "home")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = 0

    def __enter__(self) -> Deployment:
        check_no_link(self.work, self.work / "home", self.certificates, self.keys, self.logs)
        check_plain(self.logs)
        self.work.mkdir(mode=0o700, exist_ok=True)
        self.logs.mkdir(mode=0o700, exist_ok=True)
        # Each time a new SuperLink: an old one's database lists nodes that are gone. The run is in its own folder.
        for old in self.work.glob("state.db*"):
            old.unlink()
        certify(self.certificates, renew=True)
        try:
            self.start_link()
            self._register()
            for node in range(self.nodes):
                self.start_node(node)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    # ------------------------------------------------------------ processes

    def start_link(self) -> None:
        """Start the SuperLink, on the port it had before if there was one, and wait until it answers."""
        self.port = self.port or free_port()
        ca, own, key = (str(self.certificates / name) for name in ("ca.crt", "server.pem", "server.key"))
        home = f'[superlink]\ndefault = "dep"\n\n[superlink.dep]\naddress = "127.0.0.1:{self.port}"\nroot-certificates = "{ca}"\n'
        write_private(self.work / "home" / "config.toml", home.encode())
        self._start(
            LINK,
            "flower-superlink",
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            **{"host": "127.0.0.1", "port": self.port, "database": self.work / "state.db"},
            **{"ssl-ca-certfile": ca, "ssl-certfile": own, "ssl-keyfile": key},
        )
        self._until(lambda: _answers(self.port), LINK)

    def start_node(self, node: int) -> None:
        """Start a SuperNode; one that ran before comes back under its key, without its state."""
        self._start(
            f"site-{node}",
            "flower-supernode",
            **{"superlink": f"127.0.0.1:{self.port}", "root-certificates": self.certificates / "ca.crt"},
            **{"auth-supernode-private-key": self.keys / f"site-{node}", "host": "127.0.0.1", "port": free_port()},
            **{"node-config": f"partition-id={node} num-partitions={self.nodes}"},
        )

    def kill(self, name: str) -> None:
        """Kill a process and its children at once, as a crash of its machine would."""
        keeper = self.processes.pop(name)
        end_descendants(keeper.pid)
        self._let_go(keeper)

    def end(self) -> None:
        """End every process: politely first, then by force."""
        for keeper in self.processes.values():
            cast(IO[bytes], keeper.stdin).close()  # the keeper takes this for our end
        for name in list(self.processes):
            self._let_go(self.processes[name])
            del self.processes[name]

    def _let_go(self, keeper: subprocess.Popen[bytes]) -> None:
        """Wait for a keeper to end its processes; end them here if it does not, or if a second Ctrl-C comes."""
        try:
            keeper.wait(3 * _SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            pass
        finally:
            cast(IO[bytes], keeper.stdin).close()
            end_descendants(keeper.pid)
            keeper.kill()
            keeper.wait()

    def _start(self, name: str, program: str, *flags: str, **options: object) -> None:
        command = [program, *flags, *(word for key, value in options.items() for word in (f"--{key}", str(value)))]
        if shutil.which(program, path=self.environment["PATH"]) is None:
            raise CounterpoiseError(
                f"{program} is not installed beside this Python. Install it with: pip install 'counterpoise[flower]'"
            )
        log = os.open(self.logs / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.fchmod(log, 0o600)  # an earlier version's log may be there, readable by all
        try:
            # In a session of its own, so that Ctrl-C reaches only us.
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-I", str(_KEEPER), *command],
                cwd=self.work,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=0o077,
            )
        finally:
            os.close(log)

    def _until(self, ready: Callable[[], bool], name: str) -> None:
        since = time.monotonic()
        while not ready():
            if self.processes[name].poll() is not None or time.monotonic() - since > _SECONDS_TO_START:
                raise CounterpoiseError(
                    f"{name} did not start. The last lines of {self.logs / name}.log: {self.last(name)}"
                )
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def last(self, name: str) -> str:
        """The last lines of a process's log."""
        path = self.logs / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-5:]) if path.exists() else ""

    # ------------------------------------------------------------ Flower's command line

    def flwr(self, *arguments: str) -> str:
        """The output of a `flwr` command. If the command fails, the error gives the end of what it printed."""
        return self._answer(["flwr", *arguments], f"flwr {arguments[0]}")

    def _answer(self, command: list[str], name: str) -> str:
        try:
            done = subprocess.run(
                command,
                cwd=self.work,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS_TO_ANSWER,
            )
        except subprocess.TimeoutExpired:
            self._check_link()
            raise CounterpoiseError(
                f"{name} had not ended after {_SECONDS_TO_ANSWER:g} s and was killed. The SuperLink may be overloaded: "
                f"its log is {self.logs / LINK}.log. Try again."
            ) from None
        if done.returncode:
            self._check_link()
            said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()
            raise CounterpoiseError(f"{name} failed: {' '.join(said)[-500:]}")
        return done.stdout

    def _register(self) -> None:
        """Make a key for every node that has none, and register it under the node's name."""
        keys = [self.keys / f"site-{node}" for node in range(self.nodes)]
        for key in keys:
            if not key.with_name(f"{key.name}.pub").exists():  # written last
                key.unlink(missing_ok=True)
                make_key(key)
        commands = [["supernode", "register", f"{key}.pub", "dep", "--name", key.name] for key in keys]
        self._answer([sys.executable, "-P", "-c", _SEVERAL, json.dumps(commands)], "flwr supernode register")

    def submit(self, config: Mapping[str, str | int | float]) -> int:
        """Submit the app as a run; returns the run's number."""
        settings = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        said = self.flwr("run", str(self.app), "dep", "--format", "json", "--run-config", settings)
        if "run-id" not in (answer := _json(said)):
            raise CounterpoiseError(f"The SuperLink did not take the run: {answer.get('error-message', said[-300:])}")
        return int(answer["run-id"])

    def status(self, run: int) -> str:
        """A run's status according to the SuperLink, such as ``running`` or ``finished:failed``."""
        said = _json(self.flwr("list", "dep", "--run-id", str(run), "--format", "json"))
        if not said.get("runs"):
            self._check_link()
            raise CounterpoiseError(
                f"The SuperLink does not know run {run}: {said.get('error-message', 'it lists none')}"
            )
        return str(said["runs"][0]["status"])

    def log(self, run: int) -> str:
        """The log of the run's server."""
        return self.flwr("log", str(run), "dep", "--show")

    def rounds(self, run: int, out: Path, last: int) -> Iterator[RoundRecord]:
        """The rounds of a run, read from its folder as they come until the run has ended; earlier rounds come first."""
        kept, seen, asked, ended = _SavedRounds(out), 0, time.monotonic(), ""
        before = running = self._below_link()
        while True:
            for found in kept.new():
                if seen < found.round:
                    seen, asked = found.round, time.monotonic()
                    yield found
            done = kept.status == "finished" and kept.round >= last
            if done and ended == _COMPLETED:
                return
            if ended:
                raise CounterpoiseError(_why(ended, self.log(run)))
            self._check_link()
            # The folder may hold an earlier run that finished, so this run has ended only when the SuperLink says so.
            # Asking costs seconds of processor time, so we ask mostly when a process of the SuperLink, such as the run's
            # server, has ended.
            if done or before - running or time.monotonic() - asked > _SECONDS_BETWEEN_QUESTIONS:
                status, asked = self.status(run), time.monotonic()  # timed after the answer, which may take long
                ended = status if status.startswith("finished") else ""  # then look once more at what it left
            before, running = running, self._below_link()
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _below_link(self) -> set[int]:
        return set(descendants(self.processes[LINK].pid)) if LINK in self.processes else set()

    def _check_link(self) -> None:
        link = self.processes.get(LINK)
        if link is not None and link.poll() is not None:
            raise CounterpoiseError(
                f"The SuperLink ended with status {link.returncode}; its log is {self.logs / LINK}.log. All processes "
                "are being ended. The same command starts them again and continues from the last round."
            )


class _SavedRounds:
    """The rounds of a run that its checkpoint counts, read as its folder grows: each look reads only what is new."""

    def __init__(self, out: Path) -> None:
        self.out, self.status, self.round = out, "", 0
        self._watch = Watch(out)
        self._seen: tuple[int, ...] = ()

    def new(self) -> list[RoundRecord]:
        """The rounds that the checkpoint has added since the last look."""
        index = self.out / "checkpoint" / "checkpoint.json"
        if not index.exists() or (now := _version(index)) == self._seen:
            return []
        found = read_index(index.parent)
        self._seen, self.status, self.round = now, str(found["status"]), int(found["round"])
        return list(self._watch.rounds(self.round))


def _version(path: Path) -> tuple[int, ...]:
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


def _why(ended: str, said: str) -> str:
    """Why a run ended: the last error of ours in its server's log, or else the log's last lines."""
    told = re.findall(rf"(?:counterpoise\.errors\.\w+|{STOPPED}): (.+)", said)
    return (
        told[-1]
        if told
        else f"The run ended as {ended}. What its server said last:\n" + "\n".join(said.splitlines()[-15:])
    )


def free_port() -> int:
    """A port that nobody is using at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _json(said: str) -> dict[str, Any]:
    """The JSON that a command of `flwr` printed, among other lines."""
    try:
        found = json.loads(said[said.index("{") : said.rindex("}") + 1])
    except ValueError:
        raise CounterpoiseError(f"flwr did not answer in JSON: {said[-300:]}") from None
    return dict(found)
