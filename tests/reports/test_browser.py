"""The page in a real browser: drawn, switched, quiet, alone, and as narrow as a phone."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from kept import comparison, keep

from counterpoise import reports
from counterpoise.reports.chromium import Browser, address, browser, find

PROGRAM = find()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="needs Chromium or Chrome on the path: apt-get install chromium"
)

EVIL = "<img src=x onerror=window.harmed=1>"
CHARTS = {"final", "curves", "served", "gap", "labels", "weights", "couplings", "claims", "detection", "cost"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A comparison with one method whose name holds markup, and one whose name is very long."""
    folder = tmp_path_factory.mktemp("compare")
    comparison(folder)
    for place, called in enumerate((EVIL, "a-rule-as-long-as-settings-make-it" * 4)):
        own = {"name": "own", "called": called, "parts": ""}
        for seed in range(2):
            keep(folder / f"own-{place}" / f"seed-{seed}", method=own, seed=seed, weights=False)
    return folder


@pytest.fixture(scope="module")
def page(folder) -> Iterator[Browser]:
    path = reports.write(folder)
    with browser(str(PROGRAM)) as chromium:
        chromium.open(address(path), "Runtime", "Log", "Network")
        chromium.evaluate("counterpoise.ready.then(() => true)")
        yield chromium


def resize(page: Browser, width: int) -> None:
    page.send("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
    page.evaluate("counterpoise.settled()")


def test_every_chart_is_drawn(page):
    found = page.evaluate(
        """[...document.querySelectorAll('figure[data-chart]')].map(figure => {
            const box = figure.querySelector('.main-svg').getBoundingClientRect();
            const marks = figure.querySelectorAll('.scatterlayer path, .barlayer path, .boxlayer path, .heatmaplayer image').length;
            return [figure.dataset.chart, box.width > 300 && box.height > 100 && marks > 0];
        })"""
    )
    assert dict(found) == dict.fromkeys(CHARTS, True)
    assert page.evaluate("document.querySelectorAll('table tbody tr').length") == 6  # five methods; one that judges


def test_the_contents_mark_the_first_section_at_the_top(page):
    assert page.evaluate("[...document.querySelectorAll('nav a[aria-current]')].map(one => one.hash)") == ["#result"]


def test_charts_have_titles_axes_and_legends(page):
    words = page.evaluate("document.querySelector('[data-chart=curves]').innerText")
    assert all(word in words for word in ("Learning curves", "test accuracy", "rounds", "fedavg", "feddua:fedavg"))
    assert page.evaluate("document.querySelector('#chart-curves .xtitle').textContent") == "rounds"


def test_every_switch_switches(page):
    seen = page.evaluate(
        """(async () => {
            const seen = [];
            for (const button of document.querySelectorAll('.switch button[aria-pressed=false]')) {
                const place = button.closest('figure').querySelector('.chart');
                const before = place.querySelector('.main-svg').outerHTML;
                const first = button.parentElement.querySelector('[aria-pressed=true]');
                button.click();
                await counterpoise.settled();
                const changed = before !== place.querySelector('.main-svg').outerHTML;
                seen.push([button.closest('figure').dataset.chart + ' ' + button.textContent, changed && button.ariaPressed === 'true' && first.ariaPressed === 'false']);
                first.click();
                await counterpoise.settled();
            }
            return seen;
        })()"""
    )
    assert len(seen) == 11
    assert [name for name, changed in seen if not changed] == []


def test_the_first_chart_and_the_answer_are_on_the_first_screen(page):
    resize(page, 1280)
    ends = page.evaluate(
        """['.lead', '.facts', '#chart-final'].map(one => document.querySelector(one).getBoundingClientRect().bottom)"""
    )
    assert max(ends) < 800
    resize(page, 390)
    assert page.evaluate("document.querySelector('#chart-final').getBoundingClientRect().top") < 800
    resize(page, 1200)


def test_panels_stand_side_by_side_on_a_screen_and_below_one_another_on_a_phone(page):
    boxes = """[...document.querySelectorAll('#chart-cost .barlayer')]
        .map(one => one.getBoundingClientRect()).map(box => [Math.round(box.left), Math.round(box.top)])"""
    resize(page, 1280)
    wide = page.evaluate(boxes)
    assert len(wide) == 4
    assert len({left for left, _ in wide}) == 4
    resize(page, 390)
    narrow = page.evaluate(boxes)
    assert len({left for left, _ in narrow}) == 1
    assert len({top for _, top in narrow}) == 4
    resize(page, 1200)


def test_tables_fit_the_page_on_a_screen(page):
    """But for the one with a name as long as no page is wide, which has break points."""
    resize(page, 1280)
    over = page.evaluate(
        "[...document.querySelectorAll('.wide')].filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.parentElement.id)"
    )
    assert over == []
    resize(page, 1200)


@pytest.mark.parametrize("width", [1280, 680])
def test_a_table_of_long_names_and_every_column_fits_screen_and_paper(tmp_path, width):
    """As in the demo: six seeds, so that Wilcoxon's p has a column, and a name with a mark beside it."""
    comparison(tmp_path, seeds=6)
    for name, level in (("counterpoise", 0.95), ("feddua:counterpoise(lr=0.5)", 0.949)):
        own = {"name": "own", "called": name, "parts": ""}
        for seed in range(6):
            keep(tmp_path / name[:6] / f"seed-{seed}", method=own, seed=seed, level=level, verdicts=True, liars=(1, 6))
    with browser(str(PROGRAM)) as chromium:
        chromium.open(address(reports.write(tmp_path)))
        chromium.evaluate("counterpoise.ready.then(() => true)")
        chromium.send("Emulation.setEmulatedMedia", media="" if width > 1000 else "print")
        resize(chromium, width)
        widths = chromium.evaluate(
            "[...document.querySelectorAll('.wide')].map(one => [one.scrollWidth, one.clientWidth])"
        )
        marks = chromium.evaluate("[...document.querySelectorAll('#table-headline .mark')].map(one => one.innerText)")
    assert "not told apart" in marks
    assert len(widths) == 2
    assert all(inside <= outside + 1 for inside, outside in widths), widths


def test_no_legend_scrolls_on_a_phone(page):
    """One that scrolls hides names, and takes half of the plot."""
    resize(page, 390)
    bars, names = page.evaluate(
        """[[...document.querySelectorAll('.legend .scrollbar')].map(bar => bar.getBoundingClientRect().height),
            document.querySelectorAll('#chart-curves .legendtext').length]"""
    )
    assert names == 5
    assert len(bars) > 1
    assert max(bars) == 0
    resize(page, 1200)


def test_tables_fit_the_paper_with_every_column(page):
    page.send("Emulation.setEmulatedMedia", media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    resize(page, 680)
    over = page.evaluate(
        """[...document.querySelectorAll('.wide')].map(one => [one.firstChild.getBoundingClientRect().width - one.clientWidth,
            getComputedStyle(one).overflowX, getComputedStyle(one.querySelector('td'), '::before').printColorAdjust])"""
    )
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.send("Emulation.setEmulatedMedia", media="")
    resize(page, 1200)
    assert len(over) == 2
    assert all(wide <= 1 and (cut, dots) == ("visible", "exact") for wide, cut, dots in over), over


def test_names_at_the_ends_of_lines_can_be_read_in_both_themes(page):
    """Letters need more contrast than lines: at least 4.5 to 1."""
    contrast = """(() => {
        const light = (text) => {
            const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(v => v / 255)
                .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const paper = light(getComputedStyle(document.documentElement).backgroundColor);
        return [...document.querySelectorAll('#chart-curves .annotation-text')].map(text => {
            const pair = [light(getComputedStyle(text).fill), paper].sort((a, b) => b - a);
            return (pair[0] + 0.05) / (pair[1] + 0.05);
        });
    })()"""
    for theme in ("dark", "light"):
        page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        page.evaluate("counterpoise.settled()")
        found = page.evaluate(contrast)
        assert len(found) == 5
        assert min(found) >= 4.5, theme


def test_a_line_that_is_pointed_at_shows_its_band(page):
    shown = """document.getElementById('chart-curves').data.filter(t => t.fill && t.opacity !== 0).map(t => t.legendgroup)"""
    before = page.evaluate(shown)
    assert len(before) == 2  # of five methods, the two best
    group = "fedavg"
    assert group not in before
    event = "{points: [{data: {legendgroup: 'fedavg'}}]}"
    page.evaluate(f"document.getElementById('chart-curves').emit('plotly_hover', {event})")
    assert set(page.evaluate(shown)) == {*before, group}
    page.evaluate("document.getElementById('chart-curves').emit('plotly_unhover', {})")
    assert page.evaluate(shown) == before


def test_the_axes_say_what_the_switches_say(page):
    titles = page.evaluate(
        """(async () => {
            const figure = document.querySelector('[data-chart=curves]');
            const press = async (text) => {
                [...figure.querySelectorAll('.switch button')].find(b => b.textContent === text).click();
                await counterpoise.settled();
            };
            const title = (axis) => figure.querySelector(`.${axis}title`).textContent;
            await press('test loss'); await press('bytes');
            const first = [title('x'), title('y')];
            await press('seconds');
            const second = [title('x'), title('y')];
            await press('test accuracy'); await press('rounds');
            return [first, second];
        })()"""
    )
    assert titles == [["sent both ways (kB)", "test loss"], ["wall-clock time (s)", "test loss"]]


def test_light_and_dark_by_the_system_and_by_hand(page):
    def ink() -> tuple[str, str, str]:
        page.evaluate("counterpoise.settled()")
        return tuple(
            page.evaluate(
                """[getComputedStyle(document.documentElement).backgroundColor,
                    getComputedStyle(document.querySelector('#chart-final .xtick text')).fill,
                    document.getElementById('theme').textContent]"""
            )
        )

    def system(theme: str) -> None:
        page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    system("light")
    light = ink()
    system("dark")
    dark = ink()
    assert light[2:] + dark[2:] == ("Dark", "Light")
    assert all(a != b for a, b in zip(light, dark, strict=True))
    page.evaluate("document.getElementById('theme').click()")
    assert ink() == light
    page.evaluate("document.getElementById('theme').click()")
    assert ink() == dark
    system("light")
    assert ink() == light


@pytest.mark.parametrize("width", [380, 768, 1400])
def test_no_width_makes_the_page_scroll_sideways(page, width):
    resize(page, width)
    shrunk = """new Promise((done, fail) => {
        const end = Date.now() + 20000;
        const look = () => {
            const over = [...document.querySelectorAll('.main-svg')].filter(s => s.getBoundingClientRect().right > innerWidth);
            if (!over.length) done(true); else if (Date.now() > end) done(false); else setTimeout(look, 100);
        };
        look();
    })"""
    assert page.evaluate(shrunk)
    wide, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window == width
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_on_paper_everything_is_light_open_and_within_the_sheet(page):
    resize(page, 1200)
    page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.evaluate("counterpoise.settled()")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    dark, shut, widest = page.evaluate(
        """[document.documentElement.classList.contains('dark'), document.querySelectorAll('details:not([open])').length,
            Math.max(...[...document.querySelectorAll('.main-svg')].map(s => s.getBoundingClientRect().width))]"""
    )
    assert (dark, shut) == (False, 0)
    assert widest <= 680
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.evaluate("counterpoise.settled()")
    assert page.evaluate("document.documentElement.classList.contains('dark')") is True
    back = page.evaluate("document.querySelector('#chart-final .main-svg').getBoundingClientRect().width")
    assert back > 900  # not as narrow as on paper
    page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    printed = base64.b64decode(page.send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"])
    assert printed.startswith(b"%PDF")
    assert 4 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 20


def test_markup_in_a_name_is_read_as_text(page):
    assert page.evaluate("window.harmed") is None
    assert EVIL in page.evaluate("document.querySelector('#table-headline').innerText")
    names = page.evaluate("[...document.querySelectorAll('#chart-curves .annotation-text')].map(t => t.textContent)")
    assert any(name.startswith("<img ") for name in names)
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0


def test_the_console_is_quiet_and_nothing_leaves_the_file(page):
    """Last, when everything above has been done to the page."""
    page.evaluate("counterpoise.settled()")
    kinds = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
    assert [event for event in page.events if event["method"] in kinds] == []
    asked = [e["params"]["request"]["url"] for e in page.events if e["method"] == "Network.requestWillBeSent"]
    assert asked[0].startswith("file:")
    assert {url.partition(":")[0] for url in asked[1:]} <= {"data", "blob"}


def test_figures_become_files(tmp_path):
    keep(tmp_path / "run", rounds=3, verdicts=True, liars=(1,))
    written = reports.export(tmp_path / "run", tmp_path / "figures")
    names = {path.name for path in written}
    assert {
        "curves-test-accuracy-rounds.svg",
        "weights.png",
        "claims.svg",
        "cost.svg",
        "detection-over-thresholds.png",
    } <= names
    assert {path.name for path in (tmp_path / "figures").iterdir()} == names
    drawing = (tmp_path / "figures" / "curves-test-accuracy-rounds.svg").read_text()
    assert ElementTree.fromstring(drawing).tag == "{http://www.w3.org/2000/svg}svg"
    assert "Learning curves" not in drawing  # a paper's caption says it
    assert ">test accuracy</text>" in drawing
    picture = (tmp_path / "figures" / "weights.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert struct.unpack(">I", picture[16:20]) == (3 * 688,)


def test_a_pdf_is_one_page_as_wide_as_a_column(tmp_path):
    keep(tmp_path / "run", rounds=3, heldout=False, holdings=False, weights=False)
    written = reports.export(tmp_path / "run", tmp_path / "figures", ["pdf"], width="column")
    assert {path.suffix for path in written} == {".pdf"}
    drawing = next(path for path in written if path.stem == "curves-test-accuracy-rounds").read_bytes()
    assert len(re.findall(rb"/Type\s*/Page\b", drawing)) == 1
    (wide,) = re.findall(rb"/MediaBox\s*\[0 0 ([\d.]+)", drawing)
    assert float(wide) == pytest.approx(336 * 72 / 96, abs=1)
