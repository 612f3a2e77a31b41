"""Read and write a run's files so that they survive a kill, a full disk and a folder that somebody else made.

A file that is being replaced is at any time either the old one or the new one. Nothing is read or written through a
symbolic link, and nothing waits for a pipe: if a file is not an ordinary one, an error names it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from counterpoise.errors import CounterpoiseError

__all__ = [
    "Unsafe",
    "Unwritten",
    "append_bytes",
    "check_no_link",
    "check_plain",
    "is_partial",
    "make_folder",
    "open_plain",
    "push",
    "replace_bytes",
    "replace_file",
    "replace_text",
]


class Unwritten(CounterpoiseError):
    """The disk is full or not writable. What was kept before is intact."""


class Unsafe(CounterpoiseError):
    """There is a link, a pipe or a device among a run's files. Nothing was changed."""


_PARTIAL = re.compile(r"(.+?)(\.[0-9a-f]{16})?\.partial")
"""The name of a file while it is being written; earlier versions added no number."""


def is_partial(name: str, of: Callable[[str], bool]) -> bool:
    """Whether a name is the temporary name of a file whose own name satisfies `of`."""
    found = _PARTIAL.fullmatch(name)
    return found is not None and of(found[1])


def check_plain(folder: Path) -> None:
    """Refuse a folder that holds anything other than ordinary files and folders. The folder itself may be a link."""
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    elif not entry.is_file(follow_symlinks=False):
                        raise _unsafe(Path(entry.path), entry.stat(follow_symlinks=False).st_mode, folder)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it never existed, or has just been removed
        except OSError as error:
            raise CounterpoiseError(f"{folder} cannot be searched: {_why(error)}.") from None


def make_folder(folder: Path) -> None:
    """Make a folder, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        file = next((place for place in (folder, *folder.parents) if place.is_file()), None)
        why = f"{file} is a file" if file else error.strerror or error
        raise CounterpoiseError(f"The folder {folder} cannot be made: {why}. Choose another one.") from None


def check_no_link(*paths: Path) -> None:
    """Refuse these paths if any is a symbolic link."""
    for path in paths:
        if path.is_symlink():
            raise _unsafe(path, stat.S_IFLNK)


def _unsafe(path: Path, mode: int, folder: Path | None = None) -> Unsafe:
    kind = "a symbolic link" if stat.S_ISLNK(mode) else "not an ordinary file"
    inside = f"{folder} is left alone: " if folder else ""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(path))
    return Unsafe(
        f"{inside}{shown} is {kind}, and counterpoise creates only ordinary files and folders. Remove it, or put the "
        "file or folder itself in its place."
    )


def open_plain(path: Path, flags: int) -> int:
    """Open an ordinary file and return its descriptor, never through a link and never waiting at a pipe.

    A file that is appended to must not have a second name (a hard link), because the other file would change too.
    """
    try:
        file = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)
    except OSError:
        mode = _mode(path)
        if mode is None or stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            raise
        raise _unsafe(path, mode) from None
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and (found.st_nlink == 1 or not flags & os.O_APPEND):
        return file
    os.close(file)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise _unsafe(path, found.st_mode)
    raise Unsafe(
        f"{path} has a second name (a hard link), so appending to it would change both. Replace it with a copy."
    )


def _mode(path: Path) -> int | None:
    try:
        return path.lstat().st_mode
    except OSError:
        return None


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write under an unpredictable name beside the file, flush to the disk, then move the new file into place."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    if path.exists() and not path.is_file():
        raise Unwritten(f"{path} is not a file, so it is not replaced by one. Give another name.")
    try:
        os.close(open_plain(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        write(partial)
        push(partial)
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise Unwritten(f"{path} could not be written: {_why(error)}. What was there before is unchanged.") from error


def replace_bytes(path: Path, content: bytes) -> None:
    """Replace a file with these bytes."""

    def write(partial: Path) -> None:
        with os.fdopen(open_plain(partial, os.O_WRONLY), "wb") as file:
            file.write(content)

    replace_file(path, write)


def replace_text(path: Path, text: str) -> None:
    """Replace a file with this text."""
    replace_bytes(path, text.encode())


def append_bytes(path: Path, content: bytes) -> None:
    """Append to an existing file."""
    try:
        with os.fdopen(open_plain(path, os.O_WRONLY | os.O_APPEND), "ab") as file:
            file.write(content)
    except OSError as error:
        raise Unwritten(f"{path} could not be written: {_why(error)}.") from error


def push(path: Path) -> None:
    """Flush what was written to the disk."""
    with os.fdopen(open_plain(path, os.O_RDWR), "rb") as file:
        os.fsync(file.fileno())
