"""A small Flower app, written into a folder for its owner to change."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from counterpoise.errors import CounterpoiseError

__all__ = ["new_project"]

FILES = {"app.py": "app.py.txt", "pyproject.toml": "pyproject.toml.txt", ".gitignore": "gitignore.txt"}


def new_project(folder: Path) -> list[Path]:
    """Write the app into a new or empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CounterpoiseError(f"{folder} already exists and is not an empty folder. Choose another one for the app.")
    templates = resources.files("counterpoise.flower").joinpath("template")
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, template in FILES.items():
            text = templates.joinpath(template).read_text(encoding="utf-8")
            written.append(folder / name)
            written[-1].write_text(text, encoding="utf-8")
    except OSError as error:
        raise CounterpoiseError(f"The app cannot be written into {folder}: {error.strerror or error}.") from None
    return written
