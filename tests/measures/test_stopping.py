"""Rules that end a run early: closed forms of when, and what runs, folders and batches do."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import counterpoise as cp
from counterpoise.comparisons import abroad
from counterpoise.comparisons.board import Board, shown
from counterpoise.comparisons.collection import load_run
from counterpoise.comparisons.conduct import News
from counterpoise.comparisons.plan import Piece
from counterpoise.comparisons.watching import Watch
from counterpoise.engine.rounds.evaluation import Evaluator
from counterpoise.engine.rounds.records import Outcome, RoundRecord
from counterpoise.engine.rounds.simulation import Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.measures import metrics_of
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


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            ["stop.metric=acuracy"],
            "There is no metric 'acuracy' to stop by. Did you mean 'accuracy'? Others: client_accuracy, ",
        ),
        (
            ["stop.metric=accuracy", "evaluation.every=0"],
            "Did you mean 'client_accuracy'? Others: client_loss, personal_accuracy, personal_loss, train_loss.",
        ),
        (
            ["stop.metric=personal_loss", "evaluation.clients_every=0"],
            "Did you mean 'train_loss'? Others: accuracy, loss.",
        ),
        (
            ["stop.metric=train_accuracy"],
            "or 'personal_accuracy'? Others: client_loss, loss, personal_loss, train_loss.",
        ),
    ],
)
def test_a_metric_that_is_not_measured_is_refused_before_the_first_round(
    settings: list[str], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(CounterpoiseError, match="to stop by") as refused:
        run_setup(small("stop.above=0.5", *settings), out=tmp_path / "run")
    assert sentence in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_every_metric_that_a_round_measures_can_end_a_run() -> None:
    made = small("rounds=1", "evaluation.train_every=1", "method=ditto")
    measured = metrics_of(run_setup(made).rounds)
    assert Simulation.of(made).trainer.evaluator.names == measured


SELDOM = ["evaluation.every=5", "evaluation.clients_every=5", "evaluation.train_every=5", "method=ditto"]


def measured(records: Sequence[RoundRecord]) -> list[tuple]:
    return [(record.metrics, record.clients) for record in records]


def test_a_run_that_its_rule_ended_ends_with_an_evaluation(tmp_path: Path) -> None:
    heard: list[RoundRecord] = []
    rule = ["stop.metric=train_loss", "stop.below=1000"]
    run = run_setup(small(*rule, *SELDOM), on_round=heard.append, out=tmp_path / "run")
    as_a_last_round = run_setup(small("rounds=1", *SELDOM)).rounds
    assert {"accuracy", "train_accuracy"} <= run.rounds[0].metrics.keys()
    assert {"accuracy", "personal_accuracy"} <= run.rounds[0].clients.keys()
    for records in (run.rounds, heard, load_run(tmp_path / "run").records):
        assert measured(records) == measured(as_a_last_round)


def test_what_was_measured_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    found = Evaluator.measure
    monkeypatch.setattr(
        Evaluator,
        "measure",
        lambda self, models, on, *more: counted.append(len(on.rows)) or found(self, models, on, *more),
    )
    made = small("stop.metric=accuracy", "stop.above=0.01", "evaluation.clients_every=5")
    run_setup(made)
    heldout = int(made.federation.heldout.sizes(torch.arange(made.federation.clients)).sum())
    assert counted == [len(made.federation.test), heldout]


def test_why_a_run_ended_is_said_everywhere(tmp_path: Path) -> None:
    run = run_setup(small("stop.metric=accuracy", "stop.above=0.01"), out=tmp_path / "run")
    assert repr(run).startswith("Run(fedavg, seed 0, 1 round, finished early, accuracy 0.")
    assert run.summary()["why"] == run.why
    assert f"ended early</td><td>{run.why}" in re.sub(r" style='[^']*'| style=\"[^\"]*\"", "", run._repr_html_())
    assert load_run(tmp_path / "run").why == run.why
    assert f"Its rule ended it early: with seed 0, {run.why}." in cp.report(tmp_path / "run").page
    whole = run_setup(small("rounds=1", "stop.metric=accuracy", "stop.above=0.01"), out=tmp_path / "whole")
    assert (whole.why, load_run(tmp_path / "whole").why) == ("", "")


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


def test_a_log_is_told_now_and_then_how_far_everything_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [Piece("a", seed, f"a/seed-{seed}", {"rounds": 8}) for seed in (0, 1)]
    lines: list[str] = []
    for seconds in (3600.0, 0.0):
        monkeypatch.setattr("counterpoise.comparisons.board._BETWEEN_LINES", seconds)
        with shown(Board("method", "it", {"a": pieces}, 1), log=lines.append) as hear:
            hear(None)
            hear(News(pieces[0], 2, {}, 60.0))
            hear(News(pieces[0], end="finished"))
    assert lines == [
        "it: 0 of 2 runs done, 1 worker",
        "it: 0 of 2 runs done, 1 worker, about 14 minutes left",
        "it: 1 of 2 runs done, 1 worker, about 8 minutes left",
    ]


def test_the_time_left_goes_by_earlier_runs_until_a_row_has_rounds_of_its_own() -> None:
    rows = {name: [Piece(name, seed, f"{name}/{seed}", {"rounds": 10}) for seed in (0, 1)] for name in "abc"}
    board = Board("cell", "it", rows, 4, paces={"a": 1.0, "b": 3.0})
    assert [board.left(name) for name in "abc"] == [5.0, 15.0, 10.0]  # without earlier runs, as the others on average
    board.hear(News(rows["a"][0], 1, {}, 7.0))
    assert [board.left(name) for name in "abc"] == [19 * 7 / 4, 15.0, 20 * 7 / 4]


def test_workers_without_a_run_do_not_shorten_the_time_left() -> None:
    pieces = [Piece("a", seed, f"a/{seed}", {"rounds": 10}) for seed in (0, 1)]
    board = Board("method", "it", {"a": pieces}, 8)
    for piece in pieces:
        board.hear(News(piece, 5, {}, 2.0))
    assert board.left() == 10 * 2.0 / 2
    board.hear(News(pieces[0], end="finished"))
    assert board.left() == 5 * 2.0
    board.hear(News(pieces[1], end="finished"))
    assert board.left() == 0.0


def test_the_bar_of_a_row_is_full_when_rules_ended_its_runs() -> None:
    values = {"rounds": 8}
    pieces = [Piece("a", seed, f"a/seed-{seed}", values) for seed in (0, 1, 2)]
    board = Board("method", "it", {"a": pieces}, 1)
    for piece, round in zip(pieces, (3, 8, 4), strict=True):
        board.hear(News(piece, round, {}, 1.0))
    board.hear(News(pieces[0], end="finished"))
    board.hear(News(pieces[1], end="finished"))
    assert [run.rounds for run in board.runs.values()] == [3, 8, 8]
    board.hear(News(pieces[2], end="failed"))
    assert [run.rounds - run.done for run in board.runs.values()] == [0, 0, 4]


def test_a_cluster_tells_an_early_end_when_it_is_written(tmp_path: Path) -> None:
    rule = ["stop.metric=accuracy", "stop.above=0.01"]
    run = run_setup(small(*rule), out=tmp_path / "a" / "seed-0")
    piece = Piece("a", 0, "a/seed-0", run.settings)
    watched = {0: (piece, Watch(tmp_path / "a" / "seed-0"))}
    index = tmp_path / "a" / "seed-0" / "checkpoint" / "checkpoint.json"
    ended = index.read_text()
    index.write_text(ended.replace('"finished"', '"running"'))
    assert [(news.round, news.end) for news in abroad._rounds(tmp_path, watched)] == [(1, "")]
    assert list(abroad._rounds(tmp_path, watched)) == []
    index.write_text(ended)
    assert [(news.round, news.end) for news in abroad._rounds(tmp_path, watched)] == [(0, "finished")]
    assert watched == {}
