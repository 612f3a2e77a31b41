"""Download a public file: resume where it stopped, and check it before it gets its name."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.progress import bar

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

__all__ = ["Remote", "Unfetched", "download", "md5", "verify"]

_BLOCK = 1 << 18
_TRIES = 4
"""How many connections in a row may break without bringing a byte."""
_CONNECTIONS = 1000
"""How many connections to make in all, because a server may promise more for ever."""
_PATIENCE = 30.0
"""Seconds to wait for a byte."""


@dataclass(frozen=True)
class Remote:
    """A file that somebody publishes, and its place below the data folder."""

    path: str
    urls: tuple[str, ...]
    """Where to fetch it from, in this order."""
    md5: str
    """As its publisher or the usual loaders state it: it guards against damage, not malice."""
    members: tuple[str, ...] = ()
    """The wanted members of an archive."""
    most: int = 4 * 10**9
    """Most bytes to fetch: a round number above the published file's length."""


class Unfetched(CounterpoiseError):
    """No address gives the file; the text says why for each of them."""


def verify(path: Path, published: str) -> None:
    """Refuse a file that is not the published one."""
    if (found := md5(path)) != published:
        raise CounterpoiseError(
            f"{path} is not the published file: its MD5 is {found} and should be {published}. "
            "Remove it, and fetch it again."
        )


def download(remote: Remote, target: Path) -> None:
    """Fetch the file from the first address that gives all of it; remove folders that were made in vain."""
    if not remote.urls:
        raise Unfetched("nobody publishes it in this form")
    part = target.with_name(f"{target.name}.part")
    failures = []
    made = [folder for folder in target.parents if not folder.exists()]
    try:
        with _alone(part):
            if target.is_file():  # another process brought it while this one waited
                return
            for url in remote.urls:
                try:
                    _bring(url, part, remote)
                except (OSError, http.client.HTTPException, _Failed) as error:
                    if isinstance(error, OSError) and error.filename is not None and not _from_network(error):
                        raise
                    failures.append(f"{url}: {_reason(error)}")
                else:
                    part.replace(target)
                    return
    except OSError as error:
        raise CounterpoiseError(
            f"{target} cannot be written: {error.strerror or error}. Set COUNTERPOISE_DATA to a writable folder."
        ) from None
    with contextlib.suppress(OSError):  # a folder that holds a resumable part stays
        for folder in made:
            folder.rmdir()
    raise Unfetched("; ".join(failures))


class _Failed(Exception):
    """An address does not give the file."""


class _TooLong(_Failed):
    """An address gives more than the file can hold."""

    def __init__(self, most: int) -> None:
        super().__init__(f"it gives more than {most} bytes, but the published file has fewer")


def _from_network(error: OSError) -> bool:
    return isinstance(error, urllib.error.URLError | TimeoutError | ConnectionError)


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        error = error.reason if isinstance(error.reason, Exception) else error
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")


def _bring(url: str, part: Path, remote: Remote) -> None:
    """Complete `part`, in as many connections as make progress, and check it."""
    fresh = not part.exists()  # if not, its beginning may come from an older version of the file
    tries = 0
    for _ in range(_CONNECTIONS):
        if tries == _TRIES:
            break
        before = _size(part)
        try:
            whole = _connect(url, part, before, remote.most)
        except (TimeoutError, ConnectionError, http.client.HTTPException):
            whole = False
        except _TooLong:
            part.unlink(missing_ok=True)
            raise
        if not whole:
            tries = 0 if _size(part) > before else tries + 1
        elif md5(part) == remote.md5:
            return
        else:
            part.unlink()
            if fresh:
                raise _Failed(f"the MD5 of what it gives is not {remote.md5}")
            fresh = True
    raise _Failed(f"the connection broke after {_size(part)} bytes; run the same command to go on from there")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _connect(url: str, part: Path, start: int, most: int) -> bool:
    """Append what one connection gives, up to `most` bytes in all; return whether the file is then complete."""
    request = urllib.request.Request(url, headers={"User-Agent": "counterpoise"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        answer = urllib.request.urlopen(request, timeout=_PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing follows `start`: the part is whole, or of another file
            return True
        raise
    with answer, part.open("ab") as file:
        if start and answer.status != 206:  # the server starts over
            file.truncate(start := 0)
        left = getattr(answer, "length", None)  # also None if the server does not say
        total = None if left is None else start + left
        if (total or 0) > most:
            raise _TooLong(most)
        with bar(part.name.removesuffix(".part"), total, "MB", 1e6) as show:
            done = start
            while block := answer.read(_BLOCK):
                if done + len(block) > most:
                    raise _TooLong(most)
                file.write(block)
                show(done := done + len(block))
    return total is None or done >= total


def md5(path: Path) -> str:
    """The MD5 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextlib.contextmanager
def _alone(part: Path) -> Iterator[None]:
    """Make the folder, and let only one process write the part at a time, if the system has locks."""
    if fcntl is None:
        part.parent.mkdir(parents=True, exist_ok=True)
        yield
        return
    lock, mine = part.with_name(f".{part.name}.lock"), False
    while not mine:
        part.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # The previous owner may have removed the file; then this lock keeps nobody out.
            with contextlib.suppress(FileNotFoundError):
                mine = os.path.samestat(os.fstat(file.fileno()), lock.stat())
            if mine:
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)
