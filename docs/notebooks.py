"""Notebooks as pages of the site: their text and their code, as they lie in `examples/notebooks`, without outputs.

The tests run them in a kernel; the site does not.
"""

from __future__ import annotations

import json
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx


def as_markdown(book: dict[str, Any]) -> str:
    """The cells of a notebook as one page of Markdown."""
    cells = [("".join(cell["source"]), cell["cell_type"]) for cell in book["cells"]]
    return "\n\n".join(text if kind == "markdown" else f"```python\n{text}\n```" for text, kind in cells)


class NotebookParser(MystParser):
    """Parses a notebook as the Markdown that it amounts to."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(as_markdown(json.loads(inputstring)), document)


def setup(app: Sphinx) -> dict[str, bool]:
    """Read `.ipynb` files as pages."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True}
