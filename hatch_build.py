"""Make the README's links absolute in the package: a package index has no files beside it to link to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURES = (".gif", ".jpg", ".png", ".svg")


def absolute(text: str, root: Path, repository: str) -> str:
    """A Markdown text in which links to files of the repository name their place on its site."""

    def place(link: re.Match[str]) -> str:
        path = link[1].partition("#")[0]
        if not path or not (root / path).exists():
            return link[0]  # a URL, an anchor on the page, or brackets in code
        return f"]({repository}/{'raw' if path.endswith(PICTURES) else 'blob'}/main/{link[1]})"

    return re.sub(r"\]\(([^)\s]+)\)", place, text)


class Readme(MetadataHookInterface):
    """Hatch calls this when it writes the package's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README as the package's description."""
        root = Path(self.root)
        text = (root / "README.md").read_text(encoding="utf-8")
        repository = metadata["urls"]["Repository"].rstrip("/")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, root, repository)}
