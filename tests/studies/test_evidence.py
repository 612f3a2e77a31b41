"""The page of evidence is what its results say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_evidence_is_what_the_results_say(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "studies/evidence.py", "--out", tmp_path], check=True)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.*")}
    there = {name: path.read_text() if (path := ROOT / "docs" / name).exists() else "" for name in made}
    assert there == made, "run `make evidence`"
    figures = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs/figures").glob("study-*.svg")}
    assert figures <= made.keys(), "the figures of studies that are gone"
