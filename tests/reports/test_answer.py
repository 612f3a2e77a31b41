"""The answer at the top of the page: order, best mark, sentence, seeds needed, reasons, and the line of facts."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import kept
import numpy as np
import pytest
from kept import comparison, keep
from scipy import stats

from counterpoise import measures, reports
from counterpoise.charts.style import look
from counterpoise.colours import COLOURS
from counterpoise.comparisons.plan import Arm, Plan
from counterpoise.measures import MOST_SEEDS, Paired, paired, seeds_needed, standings
from counterpoise.method import Verdict
from counterpoise.reports.answer import answer, liars_share, marks
from counterpoise.reports.chart import Chart, Missing, Table
from counterpoise.reports.facts import facts
from counterpoise.reports.figures.response import response
from counterpoise.reports.report import sections
from counterpoise.reports.study import best_first, liars, study, verdicts


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    records = comparison(folder)
    return study([folder]), records


def rows(**values: list[float]):
    """Standings over the seeds 0, 1, ... of methods whose runs ended with these values."""
    found = standings({name: {} for name in values})
    return [
        row._replace(values=dict(enumerate(each)), mean=float(np.mean(each)))
        for row, each in zip(found, values.values(), strict=True)
    ]


# ---------------------------------------------------------------- how many seeds it takes


@pytest.mark.parametrize(("mean", "spread", "seeds"), [(2.0, 1.0, 3), (0.5, 1.0, 3), (0.1, 1.0, 5), (-0.5, 1.0, 4)])
def test_with_as_many_seeds_as_needed_the_test_would_tell_and_with_one_fewer_it_would_not(mean, spread, seeds):
    values = mean + spread * stats.zscore(np.arange(seeds), ddof=1)
    needed = seeds_needed(paired(values, np.zeros(seeds)))

    def p(count: int) -> float:
        return 2 * stats.t.sf(abs(mean) / (spread / math.sqrt(count)), count - 1)

    assert p(needed) < 0.05 <= p(needed - 1)


def test_where_nothing_can_be_reckoned_no_number_of_seeds_is_named():
    assert seeds_needed(paired([1.0], [0.0])) is None
    assert seeds_needed(paired([1.0, 2.0], [1.0, 2.0])) is None
    assert seeds_needed(Paired(3, 1e-6, -1.0, 1.0, 0.9, math.nan)) is None
    assert seeds_needed(Paired(3, 0.2, -0.8, 1.2, 0.9, math.nan)) < MOST_SEEDS


# ---------------------------------------------------------------- order and marks


def test_the_best_is_first_and_what_has_no_result_is_last():
    found = rows(low=[0.1, 0.2], none=[math.nan], high=[0.8, 0.9], mid=[0.5, 0.6])
    assert best_first(found, lower=False) == [2, 3, 0, 1]
    assert best_first(found, lower=True) == [0, 3, 2, 1]


def test_the_order_is_that_over_the_seeds_that_all_have():
    found = rows(a=[0.5, 0.6, 0.1], b=[0.4, 0.5])  # by all its seeds, a would be behind
    assert best_first(found, lower=False) == [0, 1]


def test_rows_are_marked_best_or_not_told_apart_from_it():
    found = rows(best=[0.80, 0.82, 0.81], near=[0.81, 0.78, 0.80], far=[0.50, 0.53, 0.51])
    assert marks(found, lower=False) == ["best", "not told apart", ""]
    assert marks(found, lower=True) == ["", "", "best"]
    assert marks(found[:1], lower=False) == [""]
    assert marks(rows(a=[0.5], b=[0.6]), lower=False) == ["", "best"]


def test_the_table_is_sorted_and_its_best_row_marked(made):
    found, _ = made
    table = next(p for s in sections(found) for p in s.parts if isinstance(p, Table) and p.key == "headline")
    assert [row[0] for row in table.rows] == ["feddua:fedavg", "scaffold", "fedavg"]
    assert table.marks[0] == "best"
    assert "best" not in table.marks[1:]
    assert [arm.label for arm in found.arms] == [row[0] for row in table.rows]


# ---------------------------------------------------------------- the sentences


def test_the_answer_names_best_lead_and_test(made):
    found, records = made
    ends = {name: [run[-1].metrics["accuracy"] for run in runs] for name, runs in records.items()}
    lead = np.subtract(ends["feddua:fedavg"], ends["scaffold"])
    test = stats.ttest_1samp(lead, 0)
    low, high = test.confidence_interval()
    assert answer(found)[0] == (
        f"feddua:fedavg is best: accuracy {100 * np.mean(ends['feddua:fedavg']):.2f} %, {100 * lead.mean():.2f} points "
        f"ahead of scaffold (95 % interval {100 * low:.2f} to {100 * high:.2f}, p = {test.pvalue:.2g}, 3 seeds)."
    )
    assert answer(found)[1].startswith("3 more seeds would allow a test")


def test_a_lead_that_may_be_noise_says_how_many_seeds_it_would_take(tmp_path):
    for seed in range(3):
        keep(tmp_path / f"a{seed}", seed=seed, level=0.8)
        keep(tmp_path / f"b{seed}", seed=seed, level=0.803, method={"name": "scaffold"})
    found = study([tmp_path])
    best, second, beside = measures.best_two(found.standing.rows)
    assert beside.low < 0 < beside.high
    told = answer(found)
    assert f"{best.label} has the best accuracy" in told[0]
    assert f"over {second.label} cannot be told from noise" in told[0]
    needed = seeds_needed(beside)
    needs = f"telling the first two apart would take {needed} seeds, {needed - 3} more."
    assert told[1] == f"If lead and spread stayed as they are, {needs}"


def test_fewer_seeds_than_wilcoxons_test_needs_are_never_said_to_be_enough(tmp_path):
    for seed, lead in enumerate((0.100, 0.115)):  # by Student's factor alone, three seeds would do
        keep(tmp_path / f"a{seed}", seed=seed, level=0.6 + lead)
        keep(tmp_path / f"b{seed}", seed=seed, level=0.6, method={"name": "scaffold"})
    found = study([tmp_path])
    *_, beside = measures.best_two(found.standing.rows)
    assert beside.low < 0
    assert seeds_needed(beside) < 6
    assert "would take 6 seeds, 4 more." in " ".join(answer(found))


def test_a_method_that_cannot_be_told_from_another_is_not_called_best(made):
    """The runner-up may be behind for certain while one that varies more is not."""
    found, _ = made
    label, second, wild = (arm.label for arm in found.arms)
    told = rows(**{label: [0.90, 0.91, 0.92], second: [0.80, 0.81, 0.83], wild: [0.3, 0.9, 0.95]})
    shown = replace(found)
    shown.__dict__["standing"] = replace(found.standing, rows=told)
    first, then, *_ = answer(shown)
    assert first.startswith(f"{label} has the best accuracy, 91.00 %, 9.67 points ahead of {second} ")
    assert then == f"With these seeds it cannot be told from {wild}, whose seeds vary more."


@pytest.mark.parametrize("lower", [False, True])
def test_if_the_first_two_are_level_the_answer_names_the_first_that_is_behind_for_certain(made, lower):
    """A share of 0.9 and a loss of 0.1 are the same lead, the other way round."""
    found, _ = made
    label, second, wild = (arm.label for arm in found.arms)
    far = {label: [0.90, 0.91, 0.92], second: [0.91, 0.90, 0.89], wild: [0.80, 0.82, 0.83], "last": [0.1, 0.2, 0.1]}
    told = rows(**{name: [1 - value for value in values] if lower else values for name, values in far.items()})
    shown = replace(found)
    metric = "loss" if lower else "accuracy"
    shown.__dict__.update(standing=replace(found.standing, rows=told, metric=metric), arms=found.arms)
    low, high = stats.ttest_1samp(np.subtract(far[label], far[wild]), 0).confidence_interval()
    lead = np.mean(far[label]) - np.mean(far[wild])
    interval = f"{low:.4f} to {high:.4f}" if lower else f"{100 * low:.2f} to {100 * high:.2f}"
    by = f"{lead:.4f}" if lower else f"{100 * lead:.2f} points"
    assert f"over {second} cannot be told from noise" in answer(shown)[0]
    assert answer(shown)[1] == f"It is ahead of {wild}, by {by} (95 % interval {interval})."


def test_one_seed_asks_for_more(tmp_path):
    keep(tmp_path / "a")
    keep(tmp_path / "b", method={"name": "scaffold"}, level=0.5)
    told = answer(study([tmp_path]))
    assert told[0].endswith("points ahead of scaffold with one seed.")
    assert told[1] == "That cannot be told from noise: compare at least 6 seeds."


def test_the_answer_says_how_much_weight_liars_had_and_what_was_caught(made):
    found, records = made
    best, other = found.arms[0], found.arms[-1]
    for arm in (best, other):
        every = [(r, r.outcome.weights) for run in records[arm.label] for r in run]
        theirs = sum(w.get(c, 0) for r, w in every for c in (1, 6) if c in r.cohort)
        assert liars_share(arm) == pytest.approx(theirs / sum(sum(w.values()) for _, w in every))
    assert liars_share(best) < liars_share(other)
    shares = [f"{100 * liars_share(arm):.1f} %".replace(".0 %", " %") for arm in (best, other)]
    said = f"With {best.label}, liars had {shares[0]} of the weight, against {shares[1]} with fedavg."
    assert said in answer(found)
    each = [measures.detection(verdicts(run.records), liars(run.records)) for run in best.runs]
    alarms = f"{100 * np.mean([one.false_alarms for one in each]):.1f} %"
    assert f"{best.label} flagged 100 % of lies and {alarms} of honest claims." in answer(found)


def test_liars_who_have_the_same_weight_in_both_explain_nothing(tmp_path):
    for name, level in (("fedprox", 0.6), ("fedyogi", 0.9)):  # `keep` draws the same for names of one length
        for seed in range(3):
            keep(tmp_path / name / f"seed-{seed}", method={"name": name}, seed=seed, level=level, liars=(1, 6))
    found = study([tmp_path])
    assert len({liars_share(arm) for arm in found.arms}) == 1
    told = " ".join(answer(found))
    assert "liars had" not in told
    assert "With fedyogi, the worst served tenth of clients has accuracy " in told
    assert answer(study([tmp_path / "fedyogi"]))[1].startswith("With fedyogi, liars had ")  # nothing stands beside it


def test_that_no_lie_was_caught_is_no_reason_to_be_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "_verdict", lambda *_: Verdict(1.0, 1.0, 1.0, 1.0, 0.0, "accepted"))
    for name, level in (("fedavg", 0.6), ("counterpoise", 0.9)):
        judges = name == "counterpoise"
        for seed in range(3):
            keep(
                tmp_path / name / f"{seed}", method={"name": name}, seed=seed, level=level, verdicts=judges, liars=(1,)
            )
    why = answer(study([tmp_path]))[-2:]
    assert [" ".join(one.split()[:4]) for one in why] == [
        "With counterpoise, liars had",
        "With counterpoise, the worst",
    ]
    alone = answer(study([tmp_path / "counterpoise"]))
    assert alone[2] == "counterpoise flagged 0 % of lies and 0 % of honest claims."


def test_without_liars_the_answer_says_how_the_worst_served_fare(tmp_path):
    ends = {}
    for name, level in (("fedavg", 0.6), ("scaffold", 0.9)):
        runs = [keep(tmp_path / f"{name}{s}", seed=s, level=level, method={"name": name}) for s in range(3)]
        ends[name] = 100 * np.mean([min(run[-1].clients["accuracy"].values()) for run in runs])  # of 8, a tenth is one
    told = answer(study([tmp_path]))
    said = (
        f"With scaffold, the worst served tenth of clients has accuracy {ends['scaffold']:.2f} %, "
        f"against {ends['fedavg']:.2f} % with fedavg."
    )
    assert said in told


def test_a_single_run_is_compared_with_nothing(tmp_path):
    (*_, last) = keep(tmp_path / "run")
    found = study([tmp_path / "run"])
    assert answer(found)[0] == f"fedavg ended with accuracy {100 * last.metrics['accuracy']:.2f} % after 12 rounds."
    table = next(p for s in sections(found) for p in s.parts if isinstance(p, Table))
    assert not any(head == "p" or head.startswith("vs ") for head in table.columns)
    page = reports.write(tmp_path / "run").read_text()
    assert "Paired difference" not in page
    assert "told apart" not in re.sub(r"<style>.*?</style>", "", page, flags=re.S)


def test_all_that_are_level_are_named_and_those_that_cannot_be_told_from_them(made):
    found, _ = made
    three = [arm.label for arm in found.arms]
    told = rows(
        **dict(zip(three, ([0.75, 1.0, 0.5], [0.75, 0.5, 1.0], [0.5, 0.75, 1.0]), strict=True)),
        **{"mu=1, lr=2": [0.74, 0.73, 0.75], "far": [-9, -9, -9]},
    )
    shown = replace(found)
    shown.__dict__.update(standing=replace(found.standing, rows=told), arms=found.arms)
    level, then, *why = answer(shown)
    assert level == f"{three[0]}, {three[1]} and {three[2]} are level: accuracy 75.00 %."
    assert then == "With these seeds they cannot be told from (mu=1, lr=2)."
    assert why
    assert all(three[0] in one and " its " not in f" {one.lower()}" for one in why)


def test_many_that_cannot_be_told_apart_are_named_best_first_and_then_counted(made):
    found, _ = made
    near = {f"m{place}": [0.8 - place / 100, 0.9, 0.7] for place in (5, 2, 4, 1, 3, 6)}
    shown = replace(found)
    told = rows(best=[0.81, 0.9, 0.7], **near)
    shown.__dict__.update(standing=replace(found.standing, rows=told), arms=found.arms)
    assert "Nor can it be told from m2, m3, m4 or 2 more with these seeds." in answer(shown)


def test_methods_that_differ_only_in_personal_models_are_compared_by_those_first(made):
    found, _ = made
    first, second, third = (group.label for group in found.groups)
    level = {label: [0.5, 0.75, 1.0] for label in (first, second, third)}
    own = {first: [0.5, 0.51, 0.52], second: [0.7, 0.71, 0.73], third: [0.6, 0.61, 0.62]}
    shown = replace(found)
    shown.__dict__["standing"] = replace(found.standing, rows=rows(**level), own=rows(**own))
    shown.__dict__["personal"] = True
    told = answer(shown)
    assert told[0].startswith(f"By personal models: {second} is best: accuracy 71.33 %, ")
    assert f"By the server's model: {first}, {second} and {third} are level: accuracy 75.00 %." in told
    assert [arm.label for arm in shown.arms] == [second, third, first]
    assert list(shown.views) == ["personal models", "the server's model"]
    level[first][0] = 0.4
    apart = replace(found)
    apart.__dict__["standing"] = replace(found.standing, rows=rows(**level), own=rows(**own))
    assert not apart.personal_first


def test_nothing_finished_is_said(tmp_path):
    keep(tmp_path / "run", status="stopped")
    assert answer(study([tmp_path])) == ["No run finished, so there is no result."]


# ---------------------------------------------------------------- facts, sections, colours


def test_the_facts_name_alpha_and_liars(tmp_path):
    dealt = {"partition": {"name": "dirichlet", "alpha": 0.3, "clients": 8}}
    keep(tmp_path / "run", data=dealt)
    found = study([tmp_path / "run"])
    assert (
        facts(found) == "1 seed; 12 rounds; 4 of 8 clients a round; linear on digits; dealt by dirichlet (alpha 0.3)."
    )
    run = found.groups[0].runs[0]
    for adversary, said in (
        ([{"name": "sign-flip", "clients": 2}], "2 liars (sign-flip)"),
        ([{"name": "claims", "clients": 2, "factor": 10.0, "often": 1.0, "first": 1}], "2 liars (claims, factor 10)"),
        ([{"name": "claims", "clients": [3], "often": 0.5}], "1 liar (claims, often 0.5)"),
        ([{"name": "claims", "clients": 1}, {"name": "nan", "fraction": 0.1}], "1 liar (claims), 10% liars (nan)"),
    ):
        lying = replace(run, settings={**run.settings, "adversary": adversary})
        one = replace(found, groups=(replace(found.groups[0], runs=(lying,)),))
        assert facts(one).endswith(f"; {said}.")


def test_sections_hold_what_was_measured_and_the_rest_is_listed_last(tmp_path):
    keep(tmp_path / "run", heldout=False, holdings=False)
    *shown, absent = sections(study([tmp_path / "run"]))
    assert absent.key == "absent"
    assert {section.key for section in shown} == {"result", "heard", "cost", "again"}
    assert not any(isinstance(part, Missing) for section in shown for part in section.parts)
    assert all(isinstance(part, Missing) for part in absent.parts)


def test_every_page_begins_with_a_chart(made, tmp_path):
    keep(tmp_path / "run")
    for found, key in ((made[0], "final"), (study([tmp_path / "run"]), "curves")):
        first = sections(found)[0].parts[0]
        assert isinstance(first, Chart)
        assert first.key == key


def swept(tmp_path, settings: list[dict]):
    """A sweep of fedprox over these settings, with three seeds each."""
    arms = []
    for place, its in enumerate(settings):
        method = {"name": "fedprox", **{key.removeprefix("method."): value for key, value in its.items()}}
        for seed in range(3):
            keep(tmp_path / f"{place}-{seed}", seed=seed, level=0.5 + 0.1 * place, method=method)
        arms.append(Arm(f"arm {place}", str(place), its))
    kept = study([tmp_path])
    groups = tuple(
        replace(next(g for g in kept.groups if g.runs[0].settings["method"].items() >= wanted.items()), label=arm.label)
        for arm in arms
        for wanted in ({key.removeprefix("method."): value for key, value in arm.settings.items()},)
    )
    return replace(kept, groups=groups, plan=Plan("sweep", "x", "x", (0, 1, 2), tuple(arms), "", {}))


def test_a_sweep_names_its_method_and_shows_the_response(tmp_path):
    found = swept(tmp_path, [{"method.mu": mu} for mu in (0.1, 0.001, 0.01)])
    assert found.title == "fedprox on digits, by mu"
    first = sections(found)[0].parts[0]
    assert first.key == "response"
    assert first.title.endswith(", by mu")
    (figure,) = first.figures.values()
    assert figure.layout.xaxis.title.text == "mu"
    dots, line, _ = figure.to_plotly_json()["data"]
    ends = {row.label: list(row.values.values()) for row in found.standing.rows}
    assert list(line["x"]) == [0.001, 0.01, 0.1]
    assert line["y"] == pytest.approx([np.mean(ends[f"arm {place}"]) for place in (1, 2, 0)])
    assert dots["y"] == [end for place in (1, 2, 0) for end in ends[f"arm {place}"]]
    assert figure.layout.xaxis.type == "log"


def test_a_sweep_from_zero_spaces_its_values_evenly_and_keeps_the_colours_of_its_settings(tmp_path):
    found = swept(tmp_path, [{"method.mu": mu} for mu in (1.0, 0.0, 0.01)])
    first = response(found)
    (figure,) = first.figures.values()
    dots, line, means = figure.to_plotly_json()["data"]
    assert list(line["x"]) == list(means["x"]) == [0, 1, 2]
    assert list(figure.layout.xaxis.ticktext) == ["0", "0.01", "1"]
    ends = {row.label: np.mean(list(row.values.values())) for row in found.standing.rows}
    assert line["y"] == pytest.approx([ends[f"arm {place}"] for place in (1, 2, 0)])
    assert means["y"] == line["y"]
    assert means["marker"]["color"] == [look(place).colour for place in (1, 2, 0)]
    assert "evenly spaced" in first.caption
    assert dots["customdata"] == [text for text in ("0", "0.01", "1") for _ in range(3)]


def test_a_sweep_of_two_settings_has_a_line_for_each_value_of_the_other(tmp_path):
    found = swept(tmp_path, [{"method.lr": lr, "method.mu": mu} for lr in (0.5, 1.0) for mu in (0.1, 0.2, 0.3)])
    chart = response(found)
    assert chart.switches == {"By": ["mu", "lr"]}  # the one with most values first
    names, places = (["lr=0.5", "lr=1.0"], [0.1, 0.2, 0.3]), (["mu=0.1", "mu=0.2", "mu=0.3"], [0.5, 1.0])
    for along, (named, at) in zip(("mu", "lr"), (names, places), strict=True):
        figure = chart.figures[along,]
        lines = [trace for trace in figure.to_plotly_json()["data"] if trace.get("name")]
        assert [line["name"] for line in lines] == named
        assert [list(line["x"]) for line in lines] == [at] * len(named)
        assert all(line["mode"] == "lines" for line in lines)  # a legend shows no setting's colour
        assert figure.layout.xaxis.type == "linear"
        assert figure.layout.xaxis.title.text == along


def test_a_sweep_shows_where_seeds_ended_only_once(tmp_path):
    found = swept(tmp_path, [{"method.mu": mu} for mu in (0.1, 0.2)])
    assert [part.key for section in sections(found)[:2] for part in section.parts if isinstance(part, Chart)] == [
        "response",
        "curves",
    ]


def test_a_sweep_calls_its_settings_as_its_labels_do(tmp_path):
    points = [{"local": {"lr": 0.1, "epochs": n}, "method": {"name": "fedprox", "lr": 1.0}} for n in (1, 2)]
    arms = tuple(Arm(f"arm {n}", str(n), point) for n, point in enumerate(points))
    keep(tmp_path)
    found = replace(study([tmp_path]), plan=Plan("sweep", "x", "x", (0,), arms, "", {}))
    assert list(found.keys.values()) == ["local.lr", "epochs", "method", "method.lr"]
    assert found.title == "fedavg on digits, by local.lr, epochs and method.lr"  # the methods are named already


def test_a_swept_setting_named_like_an_option_of_the_method_keeps_its_whole_key(tmp_path):
    arms = tuple(Arm(f"arm {rate}", str(rate), {"local.optimizer.lr": rate}) for rate in (0.1, 0.2))
    for seed, arm in enumerate(arms):
        keep(tmp_path / arm.slug, seed=seed)
    kept = study([tmp_path])
    groups = tuple(replace(kept.groups[0], label=arm.label) for arm in arms)
    found = replace(kept, groups=groups, plan=Plan("sweep", "x", "x", (0, 1), arms, "", {}))
    assert found.title == "fedavg on digits, by local.optimizer.lr"
    chart = response(found)
    assert chart.title.endswith(", by local.optimizer.lr")
    assert chart.figures[()].layout.xaxis.title.text == "local.optimizer.lr"


def test_if_all_are_level_none_is_marked_best(tmp_path):
    for name in ("fedavg", "fedbac"):  # of as many letters, so that their numbers are the same
        keep(tmp_path / name, method={"name": name})
    tables = [part for section in sections(study([tmp_path])) for part in section.parts if isinstance(part, Table)]
    headline = next(table for table in tables if table.key == "headline")
    assert headline.rows[0][1] == headline.rows[1][1]
    assert headline.marks == ["", ""]
    assert "Volatility and gap are in percentage points." in headline.caption


def test_all_that_are_level_with_the_best_are_marked_best(tmp_path):
    for name, level in (("fedavg", 0.9), ("fedbac", 0.9), ("scaffold", 0.5)):
        for seed in range(3):
            keep(tmp_path / name / f"{seed}", method={"name": name}, seed=seed, level=level)
    tables = [part for section in sections(study([tmp_path])) for part in section.parts if isinstance(part, Table)]
    headline = next(table for table in tables if table.key == "headline")
    assert dict(zip([row[0] for row in headline.rows], headline.marks, strict=True)) == {
        "fedavg": "best", "fedbac": "best", "scaffold": ""
    }  # fmt: skip


def test_twelve_methods_have_colours_of_their_own():
    assert len({look(place).colour for place in range(12)}) == 12
    ends = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in COLOURS]
    apart = [np.linalg.norm(np.subtract(a, b)) for i, a in enumerate(ends) for b in ends[:i]]
    assert min(apart) > 45
