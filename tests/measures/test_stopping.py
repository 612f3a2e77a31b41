"""Rules that end a run early: closed forms of when, and what runs, folders and batches do."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import counterpoise as cp
from counterpoise.comparisons.collection import load_run
from counterpoise.engine.rounds.records import Outcome, RoundRecord
from counterpoise.errors import CounterpoiseError
from counterpoise.measures.stopping import When, when
from counterpoise.runs.build import setup
from counterpoise.runs.config import override, parse, read
from counterpoise.runs.starting import run_setup, setup_course
from counterpoise.runs.together import drive_together


def record(round: int, **metrics: float) -> RoundRecord:
    return RoundRecord(round, [0], Outcome({}, {}, {}, {}), metrics=metrics)


def first(rule: When, values: list[float | None], metric: str = "accuracy") -> tuple[int, str]:
    """The first round after which the rule ends a run with these values, and why; 0 if it never does."""
    records = []
    for number, value in enumerate(values, 1):
        records.append(record(number, **({} if value is None else {metric: value})))
        if why := rule.reason(records):
            return number, why
    return 0, ""


@pytest.mark.parametrize(
    ("rule", "values", "round"),
    [
        (when("accuracy", above=0.5), [0.1, 0.5, 0.6, 0.9], 3),
        (when("loss", below=0.5), [0.9, 0.5, 0.4], 3),
        (when("accuracy", patience=2), [0.1, 0.3, 0.3, 0.2, 0.9], 4),
        (when("accuracy", patience=2), [0.1, None, 0.3, None, 0.3, 0.2], 6),
        (when("accuracy", patience=2, least=0.1), [0.1, 0.15, 0.3, 0.35, 0.39], 5),
        (when("loss", patience=2), [3.0, 2.0, 2.5, 1.0, 1.5, 1.0], 6),
        (when("accuracy", worse=0.2), [0.1, 0.6, 0.4, 0.39], 4),
        (when("loss", worse=0.5), [1.0, 1.4, 0.9, 1.41], 4),
        (when("loss", below=0.1), [1.0, math.nan, 0.0], 2),
        (when("accuracy", above=0.5), [0.1, 0.2], 0),
    ],
)
def test_a_rule_ends_a_run_after_the_round_that_meets_it(rule: When, values: list, round: int) -> None:
    number, why = first(rule, values, rule.metric)
    assert number == round
    assert rule.metric in why or not why


def test_patience_says_since_when() -> None:
    said = "accuracy has not improved in {} since 0.3 in round 2"
    assert first(when("accuracy", patience=2), [0.1, 0.3, 0.3, 0.2]) == (4, said.format("2 measurements"))
    assert first(when("accuracy", patience=1), [0.1, 0.3, 0.3]) == (3, said.format("1 measurement"))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "at least one of above, below, patience and worse"),
        ({"patience": 0}, "patience must be a whole number at least 1, not 0"),
        ({"patience": 2.0}, "patience must be a whole number at least 1, not 2.0"),
        ({"above": math.inf}, "above must be a finite number, not inf"),
        ({"worse": -1}, "worse must be a number above 0, not -1"),
        ({"above": 1, "least": -1}, "least must be at least 0, not -1"),
        ({"abov": 1}, "There is no option 'abov' of when. Did you mean 'above'?"),
    ],
)
def test_a_wrong_rule_is_one_sentence(given: dict, sentence: str) -> None:
    with pytest.raises(CounterpoiseError, match=sentence.replace("?", r"\?")):
        when("accuracy", **given)


def test_a_metric_that_is_not_measured_is_refused() -> None:
    rule = when("acuracy", above=0.5)
    assert not rule.reason([record(1, train_loss=0.3)])
    with pytest.raises(CounterpoiseError, match=r"There is no metric 'acuracy' to stop by\. Did you mean 'accuracy'"):
        rule.reason([record(1, train_loss=0.3), record(2, accuracy=0.3)])


def small(*settings: str) -> cp.engine.rounds.setup.Setup:
    given = ["rounds=8", "data.samples=300", "model=linear", "evaluation.every=1", *settings]
    return setup(parse(override(read("quickstart")[0], given), "it"))


def test_a_run_that_its_rule_ended_is_finished_and_stays_so(tmp_path: Path) -> None:
    made = small("stop.metric=accuracy", "stop.above=0.01")
    run = run_setup(made, out=tmp_path / "run")
    assert (run.status, len(run.rounds)) == ("finished", 1)
    assert run.why.startswith("accuracy is 0.")
    assert run.why.endswith("in round 1, above 0.01")
    assert run.settings["stop"] == {"metric": "accuracy", "above": 0.01, "least": 0.0}
    assert load_run(tmp_path / "run").status == "finished"
    again = cp.resume(tmp_path / "run")
    assert (len(again.rounds), again.why) == (1, run.why)
    assert len(run_setup(made, out=tmp_path / "run").rounds) == 1
    assert len(cp.resume(tmp_path / "run", rounds=4).rounds) == 2  # the rule holds again after the next round


def test_a_rule_counts_from_the_rounds_that_a_run_was_extended_to(tmp_path: Path) -> None:
    rule = ["stop.metric=accuracy", "stop.above=0.01"]
    run = run_setup(small("rounds=1", *rule), out=tmp_path / "run")
    assert (len(run.rounds), run.why) == (1, "")
    for again in (cp.resume(tmp_path / "run"), run_setup(small("rounds=1", *rule), out=tmp_path / "run")):
        assert (len(again.rounds), again.why, again.status) == (1, "", "finished")  # it did all of its rounds
    longer = cp.resume(tmp_path / "run", rounds=4)
    assert len(longer.rounds) == 2
    assert longer.why.endswith("in round 2, above 0.01")


def test_a_run_in_a_batch_that_stops_leaves_the_others() -> None:
    ended: dict[int, cp.Run] = {}
    rules = (["stop.metric=accuracy", "stop.above=0.01"], [])
    courses = [setup_course(small("rounds=3", *rule)) for rule in rules]
    drive_together(courses, lambda place, what: ended.__setitem__(place, what), None, 1)
    assert [len(ended[place].rounds) for place in (0, 1)] == [1, 3]
    assert [bool(ended[place].why) for place in (0, 1)] == [True, False]
