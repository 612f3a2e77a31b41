"""Every figure of a report as PNG, SVG and PDF files, drawn by the installed Chromium."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote_to_bytes

from counterpoise.errors import CounterpoiseError, unknown
from counterpoise.reports.chromium import Browser, address, browser, find
from counterpoise.reports.page import figures
from counterpoise.reports.report import charts, render
from counterpoise.reports.study import study
from counterpoise.runs.files import replace_bytes

__all__ = ["FORMATS", "WIDTHS", "export"]

FORMATS = ("png", "svg", "pdf")
WIDTHS = ("page", "column")
"""18.2 and 8.9 cm: a page of two columns, and one of them."""
_SHEET = (
    "<!doctype html><meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    "<style>@page {{ size: {}px {}px; margin: 0 }} body {{ margin: 0 }} svg {{ display: block }}</style>{}"
)


def export(
    folders: str | Path | Iterable[str | Path],
    into: str | Path,
    formats: Sequence[str] = ("png", "svg"),
    metric: str = "",
    width: str = "page",
) -> list[Path]:
    """Write the figures of these folders' report into a folder, one file for every choice of a chart's switches.

    PNG files have three times a screen's resolution; SVG and PDF files hold text as text. `width` is that of a page of
    two columns, or of a column. No figure has a title, because a paper's caption says it.
    """
    if width not in WIDTHS:
        raise unknown("width", width, WIDTHS)
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
        drawn = [(chart.key, numbers, name) for chart, numbers, _, name in figures(charts(found))]
        return _draw(program, render(found), drawn, place, formats, width)
    except OSError as error:
        raise CounterpoiseError(f"The figures cannot be written to {place}: {error.strerror or error}.") from None


def _draw(
    program: str, page: str, drawn: Sequence[tuple[str, str, str]], into: Path, formats: Sequence[str], width: str
) -> list[Path]:
    written = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="counterpoise-report-"))
        chromium = stack.enter_context(browser(program))
        source = Path(folder, "report.html")
        source.write_text(page, encoding="utf-8")
        chromium.open(address(source), "Runtime")
        chromium.evaluate("counterpoise.ready.then(() => true)")
        press = stack.enter_context(browser(program)) if "pdf" in formats else None
        if press is not None:
            press.open("about:blank", "Runtime")
        for key, numbers, name in drawn:
            for form in formats:
                arguments = ", ".join(map(json.dumps, (key, numbers, "svg" if form == "pdf" else form, width)))
                content = _content(str(chromium.evaluate(f"counterpoise.image({arguments})")))
                path = into / f"{name}.{form}"
                replace_bytes(path, _printed(press, content.decode()) if form == "pdf" and press else content)
                written.append(path)
    return written


def _printed(press: Browser, drawing: str) -> bytes:
    """An SVG drawing as a PDF page of its own size."""
    across, down = (re.findall(rf'<svg[^>]*?\s{side}="([\d.]+)"', drawing)[0] for side in ("width", "height"))
    sheet = json.dumps(_SHEET.format(across, down, drawing))
    press.evaluate(f"document.open(), document.write({sheet}), document.close()")
    return base64.b64decode(press.send("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])


def _content(url: str) -> bytes:
    """What a data URL holds."""
    head, _, body = url.partition(",")
    return base64.b64decode(body) if head.endswith(";base64") else unquote_to_bytes(body)
