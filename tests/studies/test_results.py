"""What a study found, from a file of results alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest
import tomli_w

from counterpoise.errors import CounterpoiseError
from counterpoise.runs.saved import SavedRun
from counterpoise.studies import tables
from counterpoise.studies.beside import beside
from counterpoise.studies.drawing import drawing
from counterpoise.studies.figures import against_published, by_cell
from counterpoise.studies.finding import Finding, found_in
from counterpoise.studies.pages import render, write_pages
from counterpoise.studies.reading import made_study
from counterpoise.studies.results import (
    KeptArm,
    KeptCell,
    Made,
    Outcome,
    Results,
    outcome_of,
    read_results,
    write_results,
)
from counterpoise.studies.study import Study
from counterpoise.studies.tables import as_plain, filled, matrix

MADE = Made("abc123", "1 x GPU, 2 cores", "0.1.0")
ELSEWHERE = Made("def456", "2 cores", "0.1.0")


def study(seeds: int = 5, **more: Any) -> Study:
    cell = {"like": "quickstart", "published": {"a": 50.0}}
    values = {
        "title": "Ours & theirs",
        "methods": ["a", "b"],
        "seeds": seeds,
        "cell": [
            {"name": "one", **cell},
            {"name": "two", **cell, "set": {"limits": {"norm_ratio": math.inf}}},
            {"name": "three", **cell, "cannot": "no data"},
        ],
        "claim": [{"better": "b", "than": "a", "cells": ["one", "two"], "by": 2.0}],
    }
    return made_study(values | more, "both", "both.toml")


def outcomes(*values: float, made: Made = MADE) -> dict[int, Outcome]:
    """Finished runs with these last values in points; NaN stands for one that diverged."""
    found = {}
    for seed, value in enumerate(values):
        status, why = ("diverged", "It diverged after round 1.") if math.isnan(value) else ("finished", "")
        found[seed] = Outcome(seed, status, [(1, 0.1), (2, value / 100)], made, why, 1.5)
    return found


def results(a: dict[int, Outcome], b: dict[int, Outcome]) -> Results:
    arms = {"a": KeptArm({"method": {"name": "a"}}, a), "b": KeptArm({"method": {"name": "b"}}, b)}
    config = {"rounds": 2, "limits": {"norm_ratio": math.inf}}
    return {"one": KeptCell(config, "accuracy", arms), "two": KeptCell(config, "accuracy", dict(arms))}


FIVE = (48.0, 49.0, 50.0, 51.0, 52.0)
APART = tuple(value + shift for value, shift in zip(FIVE, (2.0, 2.1, 1.9, 2.0, 2.0), strict=True))


def test_a_file_of_results_holds_everything_that_the_tables_show(tmp_path: Path) -> None:
    found = results(outcomes(*FIVE), outcomes(*APART, made=ELSEWHERE))
    found["one"].arms["b"].outcomes[5] = Outcome(5, "failed", [(3, math.nan)], MADE, "no memory")
    write_results(tmp_path / "both.json", study(), found)
    again, kept = read_results(tmp_path / "both.json")
    assert again == study()
    assert repr(kept) == repr(found)  # NaN is not equal to itself
    text = (tmp_path / "both.json").read_text()
    line = '{"seed":1,"status":"finished","value":49.0,"seconds":1.5,"made":0,"rounds":0,"curve":[0.1,0.49]},'
    assert text.splitlines().count(line) == 2
    assert json.loads(text)["made"] == [vars(MADE), vars(ELSEWHERE)]
    assert json.loads(text)["rounds"] == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d.update(schema=2), "was written by a newer version"),
        (lambda d: d["rounds"].clear(), "a piece names rounds or a machine that it does not hold"),
        (lambda d: d["made"].clear(), "a piece names rounds or a machine that it does not hold"),
        (lambda d: d["cells"]["one"]["arms"]["a"]["pieces"][0].update(seed=-1), "seed"),
        (lambda d: d["cells"]["one"]["arms"]["a"]["pieces"][0].update(curve=["x"]), "curve"),
        (lambda d: d["cells"]["one"]["arms"]["a"]["pieces"][0].update(status="running"), "status"),
        (lambda d: d.pop("study"), "study"),
    ],
)
def test_a_file_that_somebody_changed_is_refused_in_a_sentence(tmp_path: Path, change: Any, sentence: str) -> None:
    path = tmp_path / "both.json"
    write_results(path, study(), results(outcomes(*FIVE), outcomes(*APART)))
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(CounterpoiseError, match=sentence):
        read_results(path)


def verdicts(found: Finding) -> list[str]:
    return [row.verdict for row in found.rows]


def test_verdicts_stand_beside_what_was_published() -> None:
    found = Finding(study(), results(outcomes(*FIVE), outcomes(*APART)))
    assert verdicts(found) == ["agrees", "", "agrees", "", "cannot be run", "cannot be run"]
    assert [row.verdict for row in found.claims] == ["agrees"]
    assert found.claims[0].found is not None
    assert found.claims[0].found.paired.difference == pytest.approx(2.0)
    higher = Finding(study(), results(outcomes(*(value + 10 for value in FIVE)), outcomes(*APART)))
    assert verdicts(higher)[0] == "higher"
    assert [row.verdict for row in higher.claims] == ["contradicted"]


def test_a_claim_over_cells_is_about_their_mean_seed_by_seed() -> None:
    found = results(outcomes(*FIVE), outcomes(*APART))
    found["two"].arms["b"] = KeptArm({}, outcomes(*(value - 2 for value in FIVE)))  # behind by as much as ahead
    (claim,) = Finding(study(), found).claims
    assert claim.found is not None
    assert claim.found.paired.difference == pytest.approx(0.0)
    assert claim.verdict == "not shown"


def test_for_a_loss_the_lower_one_beats() -> None:
    kept = results(outcomes(*APART), outcomes(*FIVE))
    for cell in kept.values():
        cell.measure = "loss"
    found = Finding(study(measure="loss"), kept)
    assert [row.verdict for row in found.claims] == ["agrees"]
    assert verdicts(found)[0] == "(not in points)"


def test_collapsed_runs_show_every_seed_and_no_verdict() -> None:
    found = Finding(study(), results(outcomes(*FIVE[:4], math.nan), outcomes(*APART)))
    assert verdicts(found)[0] == "(collapsed)"
    assert found.claims[0].verdict == "(collapsed)"
    text = found.markdown()
    assert "| one | a | 48.00, 49.00, 50.00, 51.00, diverged | 4 | 50 |" in text
    assert "- one, a: It diverged after round 1." in text
    failed = outcomes(*FIVE)
    failed[4] = Outcome(4, "failed", [(1, 0.1), (2, 0.52)], MADE, "no memory")
    assert verdicts(Finding(study(), results(failed, outcomes(*APART))))[0] == "(collapsed)"


def test_runs_of_which_some_ended_at_chance_show_every_seed_and_no_verdict() -> None:
    def judged(*values: float, **more: Any) -> Finding:
        return Finding(study(chance=48.5, **more), results(outcomes(*values), outcomes(*APART)))

    some = judged(*FIVE)  # 48, at chance, and four others
    assert (verdicts(some)[0], some.claims[0].verdict) == ("(collapsed)", "(collapsed)")
    assert "| one | a | 48.00, 49.00, 50.00, 51.00, 52.00 | 5 | 50 |" in some.markdown()
    assert matrix(some.rows)[1][0] == ["one", "48 49 50 51 52", "52.00"]
    assert verdicts(judged(*(value + 0.5 for value in FIVE)))[0] == "agrees"  # one at the bound is not below it
    assert verdicts(judged(40.0, 41.0, 42.0, 43.0, 44.0))[0] == "lower"
    assert verdicts(judged(*FIVE, metric="best"))[0] == "(collapsed)"  # by the last accuracy, whatever the metric
    other = results(outcomes(*FIVE), outcomes(*APART))
    for cell in other.values():
        cell.measure = "train_accuracy"
    assert verdicts(Finding(study(chance=48.5, measure="train_accuracy"), other))[0] == "agrees"


def test_a_view_has_the_chance_of_its_cell() -> None:
    view = {"name": "best", "runs_of": "one", "metric": "best"}
    cells = [{"name": "one", "like": "quickstart", "chance": 20.0}, view, {"name": "two", "like": "quickstart"}]
    made = made_study({"title": "x", "methods": ["a"], "chance": 11.0, "cell": cells}, "x", "x.toml")
    assert [cell.chance for cell in made.cells] == [20.0, 20.0, 11.0]
    with pytest.raises(CounterpoiseError, match="chance is that of the cell 'one'"):
        made_study({"title": "x", "methods": ["a"], "cell": [cells[0], view | {"chance": 5.0}]}, "x", "x.toml")


def test_fewer_seeds_than_five_or_than_were_fixed_have_no_verdict() -> None:
    four = Finding(study(seeds=4), results(outcomes(*FIVE[:4]), outcomes(*APART[:4])))
    assert verdicts(four)[0] == "(fewer than 5 seeds)"
    assert four.claims[0].verdict == "(fewer than 5 seeds)"
    assert four.rows[0].judged is not None
    assert four.rows[0].judged.difference == pytest.approx(-0.5)
    assert "| one | a | 49.50 ± 1.29 | 4 | 50 | -0.50 ± 4.59 | (fewer than 5 seeds) |" in four.markdown()
    more = Finding(study(seeds=6), results(outcomes(*FIVE), outcomes(*APART)))
    assert verdicts(more)[:2] == ["(1 of 6 seeds to run)"] * 2
    assert more.claims[0].verdict == "(seeds to run)"


def test_an_average_is_over_cells_seed_by_seed() -> None:
    average = {"name": "both", "cells": ["two", "one"], "published": {"a": 50.0, "b": 60.0}}
    found = results(outcomes(*FIVE), outcomes(*APART))
    found["two"].arms["a"] = KeptArm({}, outcomes(*(100 - value for value in FIVE)))
    rows = Finding(study(average=[average]), found).rows
    assert [(row.cell.name, row.entry.label) for row in rows[4:6]] == [("both", "a"), ("both", "b")]
    assert rows[4].values == pytest.approx(dict.fromkeys(range(5), 50.0))  # one cell rises with the seed, one falls
    assert [row.verdict for row in rows[4:6]] == ["agrees", "lower"]
    assert "| both | b | 52.00 ± 1.57 | 5 | 60 |" in Finding(study(average=[average]), found).markdown()
    beyond = Finding(study(seeds=6, average=[average]), found).rows[4]
    assert (beyond.lacking, beyond.verdict) == (1, "(1 of 6 seeds to run)")
    fallen = results(outcomes(*FIVE), outcomes(*APART[:4], math.nan))
    assert Finding(study(average=[average]), fallen).rows[5].verdict == "(collapsed)"
    lost = average | {"cells": ["one", "three"]}
    assert Finding(study(average=[lost]), found).rows[6].verdict == "cannot be run"


def claimed(found: Results, **claim: Any) -> tuple[float, str]:
    (row,) = Finding(study(claim=[{"cells": ["one"], **claim}]), found).claims
    assert row.found is not None
    return row.found.paired.difference, row.verdict


def test_the_second_method_of_a_claim_may_be_in_other_cells() -> None:
    found = results(outcomes(*FIVE), outcomes(*APART))
    found["two"].arms["b"] = KeptArm({}, outcomes(*(value + 1 + value / 100 for value in FIVE)))
    assert claimed(found, better="b", than="b", than_cells=["two"]) == (pytest.approx(0.5), "agrees")
    assert claimed(found, better="b", than="a", than_cells=["two"]) == (pytest.approx(2.0), "agrees")


def test_a_claim_may_say_that_a_lead_is_larger_than_elsewhere() -> None:
    found = results(outcomes(*FIVE), outcomes(*APART))
    found["two"].arms = {
        "a": KeptArm({}, outcomes(*APART)),
        "b": KeptArm({}, outcomes(*(value + 1.5 + value / 1000 for value in APART))),
    }
    lead, verdict = claimed(found, better="b", than="a", smaller_in=["two"])
    assert (lead, verdict) == (pytest.approx(0.448), "agrees")
    assert claimed(found, better="b", than="a", cells=["two"], smaller_in=["one"])[1] == "contradicted"


def test_a_claim_may_have_a_metric_of_its_own() -> None:
    """The curves begin at 10 points, so that the higher end is the more volatile."""
    found = results(outcomes(*FIVE), outcomes(*APART))
    assert claimed(found, better="a", than="b", metric="volatility") == (pytest.approx(2.0), "agrees")
    assert claimed(found, better="b", than="a", metric="volatility") == (pytest.approx(-2.0), "contradicted")


def test_a_claim_that_methods_are_alike() -> None:
    found = results(outcomes(*FIVE), outcomes(*APART))
    assert claimed(found, alike=["b", "a"]) == (pytest.approx(2.0), "contradicted")
    assert claimed(found, alike=["b", "a"], within=2.05)[1] == "not shown"
    assert claimed(found, alike=["b", "a"], within=2.2)[1] == "agrees"
    text = Finding(study(claim=[{"alike": ["b", "a"], "cells": ["one"]}]), found).markdown()
    assert "| b is like a within 1 | one | +2.00 [+1.91, +2.09] | contradicted |" in text


@pytest.mark.parametrize(
    ("by", "leads", "d", "half", "verdict"),
    [  # t(.975, 4) = 2.776, times the deviation of the leads, times sqrt(1 + 1/5)
        (2.4, (1.9, 1.95, 2.0, 2.05, 2.1), -0.4, 0.24, "agrees"),  # within a fifth of 2.4
        (2.5, (1.89, 1.94, 1.99, 2.04, 2.09), -0.51, 0.24, "lower"),
        (0.04, (1.99, 1.99, 2.0, 2.01, 2.01), 1.96, 0.03, "higher"),
        (-0.9, (1.2, 1.6, 2.0, 2.4, 2.8), 2.9, 1.92, "higher"),
        (4.5, (1.9, 1.95, 2.0, 2.05, 2.1), -2.5, 0.24, "lower"),
        (0.5, (1.9, 1.95, 2.0, 2.05, 2.1), 1.5, 0.24, "higher"),
        (0.5, (0.0, 1.0, 2.0, 3.0, 4.0), 1.5, 4.81, "undecided"),
    ],
)
def test_a_published_lead_is_held_against_ours_and_what_counts_as_none_is_a_fifth_of_it(
    by: float, leads: tuple[float, ...], d: float, half: float, verdict: str
) -> None:
    second = outcomes(*(value + lead for value, lead in zip(FIVE, leads, strict=True)))
    found = Finding(
        study(claim=[{"better": "b", "than": "a", "cells": ["one"], "by": by}]), results(outcomes(*FIVE), second)
    )
    (row,) = found.claims
    assert row.judged is not None
    assert (row.judged.difference, row.judged.half) == (pytest.approx(d), pytest.approx(half, abs=0.005))
    assert row.lead_verdict == verdict
    assert f"| {by:+g} | {d:+.2f} ± {half:.2f} | {verdict} |" in found.markdown()
    assert as_plain(found.rows, found.claims)["claims"][0]["lead_verdict"] == verdict
    (drawn,) = beside([], found.claims)
    assert drawn[0] == "one: b over a"
    assert drawn[1:4] == (pytest.approx(by + d), pytest.approx(half / math.sqrt(6), abs=0.005), by)
    assert drawn[4:] == (0.0, verdict, "lead by accuracy, last round")
    assert not [one for one in beside(found.rows, found.claims) if "over" in one.label]


def test_a_published_lead_waits_for_all_seeds_and_is_none_of_swings() -> None:
    claim = {"better": "b", "than": "a", "cells": ["one"], "by": 1.0}
    some = results(outcomes(*FIVE), outcomes(*APART))
    (row,) = Finding(study(seeds=6, claim=[claim]), some).claims
    assert row.lead_verdict == "(seeds to run)"
    assert row.judged is not None
    assert row.judged.verdict == ""
    (row,) = Finding(study(claim=[claim | {"metric": "volatility"}]), some).claims
    assert (row.judged, row.lead_verdict) == (None, "(not in points)")
    (row,) = Finding(study(claim=[claim | {"cells": ["three"]}]), some).claims
    assert row.lead_verdict == "cannot be run"
    assert (
        "| b beats itself in two | one |"
        in Finding(study(claim=[claim | {"than": "b", "than_cells": ["two"]}]), some).markdown()
    )


def test_methods_that_are_still_to_run_are_listed_below_the_table() -> None:
    cells = [{"name": name, "like": "quickstart"} for name in ("one", "two", "four", "five", "six")]
    claim = {"better": "b", "than": "a", "cells": ["one"]}
    some = results(outcomes(*FIVE), outcomes(*APART))
    del some["two"].arms["b"]
    some["five"] = some["two"]
    cells.append({"name": "best", "runs_of": "four", "metric": "best"})
    found = Finding(study(cell=cells, claim=[claim]), some)
    assert tables.waiting(found.rows) == {"two; five": "b", "four; six": "every method"}
    text = found.markdown()
    assert "Still to run:\n\n- two; five: b\n- four; six: every method" in text
    assert "| two | b |" not in text
    assert "| one | b | 52.00 ± 1.57 | 5 |" in text
    assert "four; six, still to run" in render(found)
    nothing = Finding(study(cell=cells, claim=[claim]), {})
    assert tables.waiting(nothing.rows) == {}
    assert "| four | b |" in nothing.markdown()


def test_studies_without_published_values_show_views_apart_and_how_many_seeds_are_there() -> None:
    view = {"name": "best", "runs_of": "one", "metric": "best", "methods": ["b"]}
    own = [{"name": name, "like": "quickstart"} for name in ("one", "two")]
    found = Finding(study(cell=[*own, view], claim=[], seeds=6), results(outcomes(*FIVE), outcomes(*APART)))
    first, second = tables.results(found.rows, found.claims)
    assert first[0] == ["cell", "a", "b"]
    assert first[1][0] == ["one", "50.00 (5 of 6)", "52.00 (5 of 6)"]
    assert (second[0], [line[0] for line in second[1]]) == (["cell", "b"], ["best"])


def test_a_cell_that_somebody_could_run_is_shown_like_others() -> None:
    found = results(outcomes(*FIVE), outcomes(*APART))
    found["three"] = found["one"]
    done = Finding(study(), found)
    assert verdicts(done)[4:] == ["agrees", ""]
    assert "Cannot be run" not in done.markdown()
    assert "Cannot be run:\n\n- three: no data" in Finding(study(), results({}, {})).markdown()


def test_a_published_range_is_shown_and_drawn_as_one() -> None:
    cells = [{"name": "one", "like": "quickstart", "published": {"a": {"value": 40.0, "to": 44.0}}}]
    found = Finding(study(cell=cells, claim=[]), results(outcomes(*FIVE), outcomes(*APART)))
    assert "| 40 to 44 | +6.00 ± 4.81 | higher |" in found.markdown()
    chart = against_published(found.rows)
    assert chart is not None
    published = chart.figures[()].data[1]
    assert (list(published.x), list(published.error_x.array)) == ([42.0], [2.0])


def test_nothing_has_been_run_yet() -> None:
    found = Finding(study(), {})
    assert verdicts(found)[0] == "(5 of 5 seeds to run)"
    assert found.claims[0].verdict == "(seeds to run)"
    assert (drawing(found.rows, (), "x"), against_published(found.rows), by_cell(found.rows)) == ("", None, None)
    assert "Ours &amp; theirs" in render(found)


def test_the_page_shows_emphasis_and_code_and_lets_no_markup_in() -> None:
    about = "Of *two words* and `a < b`.\n\nNot 2 * 3 * 4, nor <b>this</b>."
    text = render(Finding(study(about=about), results(outcomes(*FIVE), outcomes(*APART))))
    assert "Of <em>two words</em> and <code>a &lt; b</code>." in text
    assert "Not 2 * 3 * 4, nor &lt;b&gt;this&lt;/b&gt;." in text
    assert "Published values: 3 agrees, 1 cannot be run. Claims: 1 agrees." in text
    text = render(Finding(study(about="Cells `a *`, `b *` and *c*."), {}))
    assert "Cells <code>a *</code>, <code>b *</code> and <em>c</em>." in text
    assert "Published values: 3 without a verdict, 1 cannot be run." in text


def test_results_of_another_measure_do_not_count() -> None:
    found = Finding(study(measure="personal accuracy"), results(outcomes(*FIVE), outcomes(*APART)))
    assert verdicts(found)[0] == "(5 of 5 seeds to run)"


def test_the_charts_hold_our_means_their_intervals_and_the_published_values(tmp_path: Path) -> None:
    found = Finding(study(), results(outcomes(*FIVE), outcomes(*APART)))
    chart, other = against_published(found.rows), by_cell(found.rows)
    assert chart is not None
    assert other is not None
    ours, published = chart.figures[()].data
    assert list(ours.x) == pytest.approx([50.0, 50.0])
    half = 2.7764451051977987 * math.sqrt(2.5) / math.sqrt(5)
    assert list(ours.error_x.array) == pytest.approx([half, half])
    assert list(published.x) == [50.0, 50.0]
    assert [list(trace.x) for trace in other.figures[()].data] == [pytest.approx([50, 50]), pytest.approx([52, 52])]
    svg = drawing(found.rows, found.claims, found.study.title)
    assert svg.count("<circle") == 3  # two lines, and the legend
    assert "Ours & theirs" in {text.text for text in ElementTree.fromstring(svg)}
    nothing = drawing([row for row in found.rows if row.entry.label == "b"], (), "x")
    assert (nothing.count("<circle"), nothing.count(">52.00<")) == (2, 2)
    written = write_pages(found, tmp_path, "counterpoise study run both.toml")
    assert [path.name for path in written] == ["both.html", "both.md", "both.svg"]
    assert "](both.svg)" in (tmp_path / "both.md").read_text()
    assert "    counterpoise study run both.toml" in (tmp_path / "both.md").read_text()


def test_cells_that_the_study_now_defines_otherwise_are_named(tmp_path: Path) -> None:
    write_results(tmp_path / "both.json", study(), results(outcomes(*FIVE), outcomes(*APART)))
    values = dict(study().values)
    (tmp_path / "both.toml").write_text(tomli_w.dumps(values))
    assert found_in(tmp_path / "both.toml").doubts == ()
    assert verdicts(found_in(tmp_path / "both.json")) == verdicts(found_in(tmp_path / "both.toml"))
    cells = [dict(cell) for cell in values["cell"]]
    cells[0]["rounds"] = 3
    cells[1]["published"] = {"a": 70.0}  # which changes no run
    (tmp_path / "both.toml").write_text(tomli_w.dumps(values | {"cell": cells}))
    found = found_in(tmp_path / "both.toml")
    assert found.doubts == ("The cell 'one' has other settings now than its results. Run the study again.",)
    assert verdicts(found)[2] == "lower"


def test_a_paragraph_is_broken_before_the_number_of_a_per_cent_sign() -> None:
    text = filled("- " + "x" * 115 + " 86 % and more", "  ")
    assert text == "- " + "x" * 115 + "\n  86 % and more"


def test_a_paragraph_is_not_broken_at_a_hyphen() -> None:
    assert filled("x" * 110 + " `fmnist-lq2-sparse`") == "x" * 110 + "\n`fmnist-lq2-sparse`"


def test_a_figure_says_that_something_was_published_only_if_it_was() -> None:
    done, own = results(outcomes(*FIVE), outcomes(*APART)), [{"name": "one", "like": "quickstart"}]
    told = [Finding(one, done).markdown(figure="f.svg") for one in (study(), study(cell=own, claim=[]))]
    assert "![Ours & theirs: published against ours](f.svg)" in told[0]
    assert "![Ours & theirs: every method in every cell](f.svg)" in told[1]


def test_a_diverged_runs_sentence_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "one" / "a" / "seed-3"
    run = SimpleNamespace(
        path=path, sentence=f"The rounds before it are kept in {path}.", status="diverged", records=[]
    )
    kept = outcome_of(cast(SavedRun, run), "accuracy", MADE, 3)
    assert kept.why == "The rounds before it are kept in one/a/seed-3."
