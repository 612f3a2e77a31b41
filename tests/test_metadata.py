"""What the package says of itself agrees with what it is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import counterpoise as cp
from counterpoise.methods import METHODS

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def field(name: str) -> str:
    """A plain field of the citation file, without its comment."""
    return re.search(rf"^{name}: (.+?)(?: #.*)?$", CITATION, re.MULTILINE)[1]


def test_the_citation_names_this_version_licence_and_repository() -> None:
    assert field("version") == cp.__version__
    assert field("license") == PROJECT["license"]
    assert field("repository-code") == PROJECT["urls"]["Repository"]


def test_our_own_methods_are_cited_as_the_library_is() -> None:
    paper = METHODS["counterpoise"].paper
    assert paper is not None
    assert paper.title == field("title").strip('"')
    assert METHODS["memory"].paper == paper


def test_placeholders_are_marked_and_only_there() -> None:
    texts = (ROOT / "pyproject.toml").read_text(encoding="utf-8"), CITATION
    for text in texts:
        assert ("example.org" in text or "The Counterpoise authors" in text) == ("PLACEHOLDER" in text)


def test_the_lowest_python_is_one_that_is_promised() -> None:
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {lowest}" in PROJECT["classifiers"]
