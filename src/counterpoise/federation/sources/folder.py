"""The local data folder, and how the files of a data set get into it."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.sources.download import Remote, Unfetched, download, verify

__all__ = ["data_folder", "ensure", "here"]

VARIABLE = "COUNTERPOISE_DATA"


def data_folder() -> Path:
    """``COUNTERPOISE_DATA``, or the user's cache folder."""
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "counterpoise"


def here(remote: Remote, folder: Path) -> bool:
    """Whether the folder holds the file, or every wanted member of the archive."""
    return all(path.is_file() for path in _list_wanted(remote, folder))


def ensure(remotes: Sequence[Remote], folder: Path, instead: str = "") -> None:
    """Fetch and check every missing file, and unpack the wanted members of archives.

    If that fails, one sentence names all missing files, and the file that the folder could hold `instead`.
    """
    for remote in remotes:
        if here(remote, folder):
            continue
        archive = folder / remote.path
        brought = not archive.is_file()
        if brought:
            try:
                download(remote, archive)
            except Unfetched as error:
                raise _fetch_error([r for r in remotes if not here(r, folder)], folder, instead, str(error)) from None
        elif remote.members:  # a person put it there; `DataSet.provenance` checks whole files
            verify(archive, remote.md5)
        if remote.members:
            _unpack(archive, remote.members)
            if brought:
                archive.unlink()


def _fetch_error(missing: Sequence[Remote], folder: Path, instead: str, why: str) -> CounterpoiseError:
    """`why` is about the first missing file; the others were not tried."""
    names = [Path(remote.path).name for remote in missing]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
    are, them, first = ("are", "them", "the first ") if names[1:] else ("is", "it", "")
    return CounterpoiseError(
        f"{listed} {are} not in {(folder / missing[0].path).parent} and {first}could not be fetched ({why}): "
        f"put {them} there, {f'or put {instead} into {folder}, ' if instead else ''}"
        f"or set {VARIABLE} to a data folder that has {them}."
    )


def _list_wanted(remote: Remote, folder: Path) -> list[Path]:
    path = folder / remote.path
    return [path.parent / Path(member).name for member in remote.members] if remote.members else [path]


def _unpack(archive: Path, members: Sequence[str]) -> None:
    """Write the members beside the archive, without their folders; extract nothing else."""
    missing = set(members)
    try:
        with tarfile.open(archive, "r|*") as tar:
            for entry in tar:
                if entry.name not in missing or not entry.isfile():
                    continue
                target = archive.parent / Path(entry.name).name
                part = target.with_name(f"{target.name}.part")
                content = tar.extractfile(entry)
                assert content is not None
                with content, part.open("wb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
                part.replace(target)
                missing.remove(entry.name)
                if not missing:
                    return
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise CounterpoiseError(f"{archive} is not a whole archive ({error}). Remove it, and fetch it again.") from None
    except OSError as error:
        raise CounterpoiseError(f"{archive} cannot be unpacked: {error.strerror or error}.") from None
    raise CounterpoiseError(f"{archive} lacks {min(missing)}. Remove it, and fetch it again.")
