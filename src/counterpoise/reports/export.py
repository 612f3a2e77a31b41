"""Every figure of a report as PNG and SVG files, drawn by the installed Chromium."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote_to_bytes

from counterpoise.errors import CounterpoiseError, unknown
from counterpoise.reports.chromium import address, browser, find
from counterpoise.reports.page import figures
from counterpoise.reports.report import charts, render
from counterpoise.reports.study import study
from counterpoise.runs.files import replace_bytes

__all__ = ["FORMATS", "export"]

FORMATS = ("png", "svg")


def export(
    folders: str | Path | Iterable[str | Path],
    into: str | Path,
    formats: Sequence[str] = FORMATS,
    metric: str = "",
) -> list[Path]:
    """Write the figures of these folders' report into a folder, one file for every choice of a chart's switches.

    PNG files have three times the page's resolution; SVG files hold text as text.
    """
    for name in formats:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    program = find()
    if program is None:
        raise CounterpoiseError(
            "Figures are drawn by Chromium or Chrome, but neither is on the path. Install one, or open the report and "
            "save figures with the buttons beside them."
        )
    found = study([folders] if isinstance(folders, str | Path) else folders, metric)
    place = Path(into)
    try:
        place.mkdir(parents=True, exist_ok=True)
        return _draw(
            program, render(found), [(c.key, n, name) for c, n, _, name in figures(charts(found))], place, formats
        )
    except OSError as error:
        raise CounterpoiseError(f"The figures cannot be written to {place}: {error.strerror or error}.") from None


def _draw(
    program: str, page: str, drawn: Sequence[tuple[str, str, str]], into: Path, formats: Sequence[str]
) -> list[Path]:
    written = []
    with tempfile.TemporaryDirectory(prefix="counterpoise-report-") as folder, browser(program) as chromium:
        source = Path(folder, "report.html")
        source.write_text(page, encoding="utf-8")
        chromium.open(address(source), "Runtime")
        chromium.evaluate("counterpoise.ready.then(() => true)")
        for key, numbers, name in drawn:
            for form in formats:
                arguments = ", ".join(map(json.dumps, (key, numbers, form)))
                url = str(chromium.evaluate(f"counterpoise.image({arguments})"))
                path = into / f"{name}.{form}"
                replace_bytes(path, _content(url))
                written.append(path)
    return written


def _content(url: str) -> bytes:
    """What a data URL holds."""
    head, _, body = url.partition(",")
    return base64.b64decode(body) if head.endswith(";base64") else unquote_to_bytes(body)
