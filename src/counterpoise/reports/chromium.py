"""A headless Chromium driven over its debugging pipe: no other package, no port, no network."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from counterpoise.errors import CounterpoiseError

try:
    import fcntl
except ImportError:  # not a POSIX system, so pipes cannot be passed by number
    fcntl = None  # type: ignore[assignment]

__all__ = ["Browser", "address", "browser", "find"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_SECONDS = 120.0
"""How long an answer may take."""


def find() -> str | None:
    """The Chromium or Chrome on the path, if there is one that can be driven here."""
    return None if fcntl is None else next((found for name in _NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page, driven by commands of the DevTools protocol; unsolicited messages are kept in `events`."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._rest = b""
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []

    def open(self, url: str, *domains: str) -> None:
        """Open a page, with events of these domains (Runtime, Network, Log) from the beginning."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", *domains):
            self.send(f"{domain}.enable")
        self.events.clear()
        self.send("Page.navigate", url=url)
        self.until("Page.loadEventFired")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._writing, data) :]
        while True:
            answer = self._receive(method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def until(self, event: str) -> None:
        """Wait for an event."""
        while not any(one.get("method") == event for one in self.events):
            self.events.append(self._receive(event))

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page, awaited."""
        answer = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def _receive(self, waiting_for: str) -> dict[str, Any]:
        end = time.monotonic() + _SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(self._reading, 1 << 20) if ready else b""
            if not piece:
                raise CounterpoiseError(f"Chromium did not answer ({waiting_for}); it may have too little memory here.")
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@contextlib.contextmanager
def browser(program: str, width: int = 1200, height: int = 900) -> Iterator[Browser]:
    """A Chromium of its own, with a profile that is thrown away."""
    to_it, ours = _pipe()
    mine, from_it = _pipe()
    with tempfile.TemporaryDirectory(prefix="counterpoise-chromium-", ignore_cleanup_errors=True) as profile:
        words = [
            program,
            "--headless",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # it refuses to run sandboxed as root
        ]
        null = os.open(os.devnull, os.O_RDWR)
        places = ((null, 0), (null, 1), (null, 2), (to_it, 3), (from_it, 4))
        process = os.posix_spawn(
            program,
            words,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, end, place) for end, place in places],
            setpgroup=0,
        )
        for end in (null, to_it, from_it):
            os.close(end)
        try:
            yield Browser(mine, ours)
        finally:
            os.close(ours)  # which ends it
            os.close(mine)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends avoid the numbers 0 to 4."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]


def address(path: Path) -> str:
    """A file's address."""
    return path.resolve().as_uri()
