"""What is said at the end of a run that finished and whose model should not be used without a look."""

import logging
import math

import pytest
from helpers import blobs, small

import counterpoise as cp
from counterpoise.engine.rounds.records import Outcome, RoundRecord
from counterpoise.federation.absence import AWAY, DROPPED, FAILED
from counterpoise.method import Cohort, Verdict
from counterpoise.runs.ending import doubts, left_out, untrained

LONG = "its update is over 50 times as long as the cohort's median"
UNUSUAL = "its report a/b is over 50 times as long as the median of the last rounds"


def record(round, skipped="", excluded=None, **metrics):
    return RoundRecord(round, (0, 1), Outcome({0: 1, 1: 1}, {}, excluded or {}, skipped), metrics)


def skipping(*rounds):
    return [record(number, "of rain" if skipped else "") for number, skipped in enumerate(rounds, 1)]


def test_rounds_skipped_at_the_end_are_told_from_the_third_on():
    assert doubts([], 50) == doubts(skipping(0, 1, 1, 0, 1, 1), 50) == doubts(skipping(1, 1, 1, 0), 50) == []
    sentence = "The last 3 rounds were skipped, so the model is that of round 2; the last was skipped because of rain."
    assert doubts(skipping(1, 0, 1, 1, 1), 50) == [sentence]


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ([2.0, 1.0, 200.0], ""),
        ([2.0, 1.0, 200.1], "loss of 200.1, over 100 times that of its first round (2): its model is of no use"),
        ([2.0, math.nan], "loss of nan: its model is of no use"),
        ([math.nan], "loss of nan: its model"),
        ([2.0, math.inf], "loss of inf: its model"),
        ([math.nan, 2.0], ""),
        ([0.0, 2.0], ""),
        ([-2.0, 1.0], ""),
        ([7.0], ""),
    ],
)
@pytest.mark.parametrize("name", ["loss", "train_loss"])
def test_a_last_loss_that_is_absurd_is_told(losses, told, name):
    found = doubts([record(number, **{name: loss}) for number, loss in enumerate(losses, 1)], 50)
    assert (told in found[0]) if told else found == []


def test_a_loss_in_training_counts_only_without_losses_on_the_test_set():
    assert doubts([record(1, loss=1.0, train_loss=1.0), record(2, loss=1.0, train_loss=1e9)], 50) == []
    assert doubts([record(1, train_loss=1.0), record(2, loss=1e33, train_loss=1e33)], 50) != []


def test_a_model_lost_in_the_first_round_is_held_against_the_untrained_one():
    """The training loss of the first round is that of the model as it was before; the loss on the test set is not."""
    assert "over 100 times that of its first round (2)" in doubts([record(1, loss=1e9, train_loss=2.0)], 50)[0]


def test_clients_that_were_mostly_left_out_for_length_are_named_with_the_option():
    half = [record(1, excluded={0: LONG}), record(2, excluded={1: "it claims no data"})]
    assert doubts(half, 50) == []
    assert doubts([*half, record(3, excluded={0: UNUSUAL})], 20) == [
        "Replies of these clients were mostly left out because they were too long: 0. "
        "They may be faulty or dishonest; raise limits.norm_ratio (20) only if you know that they are not."
    ]


def test_many_clients_are_named_in_part():
    outcome = Outcome(dict.fromkeys(range(12), 1), {}, dict.fromkeys(range(12), LONG))
    assert ": 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more." in doubts([RoundRecord(1, (), outcome, {})], 50)[0]


def test_a_finished_run_says_what_to_doubt_once(caplog):
    def adversary(round, cohort):
        updates = cohort.updates.clone()
        updates[0] *= 1e9
        return Cohort(cohort.ids, updates, cohort.examples, cohort.steps)

    with caplog.at_level(logging.WARNING):
        run = cp.simulate("fedavg", blobs([4, 6, 5], heldout=0.2), model=small, rounds=2, adversary=adversary)
    assert run.status == "finished"
    assert caplog.messages == doubts(run.rounds, 50) != []


def test_a_run_that_left_everybody_out_for_length_names_the_option():
    skipped = [record(1, "no reply could be used", {0: LONG, 1: LONG})]
    assert untrained(skipped).endswith("If these clients are neither faulty nor dishonest, raise limits.norm_ratio.")
    assert "norm_ratio" not in untrained([record(1, "no reply could be used", {0: "it claims no data"})])


def test_an_absurd_loss_of_a_classifier_is_told_even_if_training_began_with_it():
    told = doubts([record(1, loss=5e30, accuracy=0.1, train_loss=5e30)], 50)
    assert "loss of 5e+30: its model is of no use. Lower the learning rate." in told[0]
    assert doubts([record(1, loss=1000.0, accuracy=0.1, train_loss=1000.0)], 50) == []
    assert doubts([record(1, loss=5e30, train_loss=5e30)], 50) == []


def test_a_model_that_never_moved_is_told():
    assert "was 2 in every round" in doubts([record(number, loss=2.0) for number in (1, 2, 3)], 50)[0]
    assert doubts([record(number, loss=2.0) for number in (1, 2)], 50) == []
    assert doubts([record(number, loss=2.0 + number) for number in (1, 2, 3)], 50) == []


@pytest.mark.parametrize("metric", [5, None])
def test_a_metric_that_is_no_name_is_told(metric):
    with pytest.raises(cp.CounterpoiseError, match="A metric is given by its name, such as 'accuracy', not"):
        cp.Run("fedavg", 0, small()).curve(metric)


def test_clients_whose_machines_never_answered_are_named():
    never = [record(n, excluded={1: AWAY if n == 2 else FAILED}) for n in (1, 2, 3)]
    told = "The model knows nothing of these clients, which were never heard: {}."
    assert doubts(never, 50) == [told.format("1")]
    assert doubts(never, 50, ["north", "south"]) == [told.format("south")]
    assert left_out(never) == [(1, 3, 3, FAILED)]
    assert doubts([*never, record(4)], 50) == []
    assert doubts([record(1, excluded={1: DROPPED})], 50) == []  # a simulated client's absence is part of the setting
    both = [record(1, excluded={0: "a", 1: "b"}), record(2, excluded={1: "c"}), record(3, excluded={1: "c"})]
    assert left_out(both) == [(1, 3, 3, "c"), (0, 1, 3, "a")]


def test_a_run_in_which_nobody_was_judged_says_so():
    def judged(z, reason=""):
        verdicts = {0: Verdict(30.0, 10.0, None, None, z, "accepted", reason)}
        return RoundRecord(1, (0,), Outcome({0: 30}, {}, {}, "", verdicts=verdicts), {})

    why = "fewer than 5 clients have been seen"
    assert doubts([judged(None, why)], 50)[0].startswith(f"No client was judged in this run ({why}): all claims were")
    assert doubts([judged(None, why), judged(0.1)], 50) == []
