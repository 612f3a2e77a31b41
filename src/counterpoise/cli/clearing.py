"""Remove runs from the disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from counterpoise.cli.screen import echo
from counterpoise.comparisons.collection import run_folders
from counterpoise.studies.removal import check_removable, remove
from counterpoise.texts import clean, counted

__all__ = ["remove_all"]


def remove_all(folders: Sequence[Path], yes: bool) -> None:
    """Remove what these folders hold, after a question."""
    for folder in folders:
        check_removable(folder)
    count = len(run_folders(folders))
    if not yes and not typer.confirm(
        f"Remove {counted(count, 'run')} in {', '.join(clean(str(folder)) for folder in folders)}?"
    ):
        echo("Nothing was removed.")
        raise typer.Exit(1)
    left = [path for folder in folders if folder.is_dir() for path in remove(folder)]
    stay = len(run_folders(folder for folder in folders if folder.is_dir()))
    echo(f"removed: {counted(count - stay, 'run')}")
    if left:
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        echo(f"left, because they do not belong to what was removed: {', '.join(map(str, left[:5]))}{more}")
