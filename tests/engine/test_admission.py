"""What a server does with replies it cannot use: left out, with a reason, and the model stays finite."""

import math

import numpy as np
import pytest
import torch
from helpers import (
    BACKENDS,
    H,
    M,
    Point,
    blobs,
    descend,
    double,
    flat,
    half_square,
    points,
    quadratics,
    run,
    small,
    without_probe,
)
from worlds import FixedWorld

from counterpoise.adversary import not_a_number
from counterpoise.engine import Limits, Simulation
from counterpoise.engine.rounds.admission import admit, finite
from counterpoise.engine.rounds.divergence import Streak
from counterpoise.engine.rounds.lengths import Lengths
from counterpoise.engine.rounds.reasons import BROKEN
from counterpoise.engine.rounds.server import Server
from counterpoise.errors import CounterpoiseError, Diverged
from counterpoise.federation import Federation
from counterpoise.local import Local, sgd
from counterpoise.method import Cohort, Part
from counterpoise.methods import METHODS, avg, fedavg, fedavgm, fednova, qffl


def pushed(adversary=None, method=None, counts=(1, 2, 3, 4, 5), limits=None, start=0.0, **settings):
    """Five clients that each move by its number plus one: +1, +2, ... +5."""
    n = len(counts)
    federation = quadratics([1.0] * n, [start + i + 1 for i in range(n)], counts=list(counts))
    return Simulation(
        method or fedavg(),
        federation,
        Point(start),
        loss=half_square,
        local=Local(batch=100, steps=1, optimizer=sgd(1.0)),
        adversary=adversary,
        limits=limits,
        engine=double(),
        **settings,
    )


def changing(place, *, update=None, claim=None, report=None):
    """An adversary that is one client of the cohort."""

    def adversary(round, cohort):
        updates, examples = cohort.updates.clone(), cohort.examples.clone()
        if update is not None:
            updates[place] = update
        if claim is not None:
            examples[place] = claim
        reports = cohort.reports
        if report is not None:
            reports = {part: {k: v.clone() for k, v in named.items()} for part, named in reports.items()}
            for named in reports.values():
                for value in named.values():
                    value[place] = report
        return Cohort(cohort.ids, updates, examples, cohort.steps, reports)

    return adversary


def mean_without(*left_out, counts=(1, 2, 3, 4, 5)):
    n = np.array([0.0 if i in left_out else c for i, c in enumerate(counts)])
    return float((n * (np.arange(len(n)) + 1)).sum() / n.sum())


BAD = [
    ({"update": math.nan}, "its update holds NaN or infinity"),
    ({"update": math.inf}, "its update holds NaN or infinity"),
    ({"update": -math.inf}, "its update holds NaN or infinity"),
    ({"update": 1e9}, "its update is over 50 times as long as the cohort's median"),
    ({"claim": 0.0}, "it claims no data"),
    ({"claim": -3.0}, "it claims no data"),
    ({"claim": 2.5}, "the data count it claims is not whole"),
    ({"claim": math.nan}, "the data count it claims is not a number"),
    ({"claim": math.inf}, "the data count it claims is not a number"),
]


@pytest.mark.parametrize(
    ("lie", "reason", "name"),
    [
        *((*BAD[0], name) for name in without_probe(clients=4)),
        *((*bad, name) for bad in BAD[1:] for name in ("fedavg", "scaffold")),  # without and with reports of its own
    ],
)
def test_a_bad_reply_is_left_out_and_the_others_weigh_on(lie, reason, name):
    simulation = pushed(changing(1, **lie), method=METHODS.make(name))
    honest = pushed(method=METHODS.make(name), cohort=lambda seed, round, n: torch.tensor([0, 2, 3, 4]))
    for _ in range(2):
        record, expected = simulation.advance(), honest.advance()
        assert record.outcome.excluded == {1: reason}
        assert record.outcome.weights == expected.outcome.weights
        assert 1 in record.outcome.claims
        assert torch.equal(simulation.server.model, honest.server.model)
        assert bool(simulation.server.model.isfinite().all())


def test_the_mean_is_over_those_that_are_left():
    simulation = pushed(changing(1, update=math.nan))
    simulation.advance()
    assert float(simulation.server.model) == pytest.approx(mean_without(1), abs=1e-13)


def test_a_claim_over_the_maximum_is_left_out_where_one_is_set():
    record = pushed(changing(3, claim=6.0), limits=Limits(max_examples=5)).advance()
    assert record.outcome.excluded == {3: "it claims more than the 5 samples allowed"}
    record = pushed(changing(3, claim=1e6)).advance()
    assert record.outcome.excluded == {}
    assert record.outcome.claims[3] == 1_000_000


@pytest.mark.parametrize(("ratio", "excluded"), [(1000.0, False), (10.0, True), (math.inf, False)])
def test_the_limit_on_the_norm_can_be_set_or_turned_off(ratio, excluded):
    """The median of 1, 2, 3, 4 and 300 is 3: a hundredfold."""
    simulation = pushed(changing(4, update=300.0), limits=Limits(norm_ratio=ratio))
    record = simulation.advance()
    assert (4 in record.outcome.excluded) == excluded
    if excluded:
        assert record.outcome.excluded[4] == "its update is over 10 times as long as the cohort's median"
    simulation = pushed(changing(4, update=1e9), limits=Limits(norm_ratio=math.inf))
    assert simulation.advance().outcome.excluded == {}


def test_the_limit_lies_where_it_says():
    for factor, excluded in ((49.99, False), (50.01, True)):
        record = pushed(changing(4, update=3.0 * factor), start=1e3).advance()
        assert (4 in record.outcome.excluded) == excluded


@pytest.mark.parametrize(("clients", "excluded"), [(2, []), (3, [0]), (4, [0])])
def test_of_two_clients_neither_is_a_majority(clients, excluded):
    record = pushed(changing(0, update=1e6), counts=(1,) * clients, start=1e6).advance()
    assert list(record.outcome.excluded) == excluded


@pytest.mark.parametrize(("name", "part"), [("scaffold", "control-variates"), ("feddc", "drift-correction")])
@pytest.mark.parametrize("far", [1e3, 1e20, 1e200])
def test_a_report_far_longer_than_the_cohorts_leaves_its_client_out(name, part, far):
    simulation = pushed(changing(1, report=far), method=METHODS.make(name))
    honest = pushed(method=METHODS.make(name), cohort=lambda seed, round, n: torch.tensor([0, 2, 3, 4]))
    record, _ = simulation.advance(), honest.advance()
    reason = f"its report {part}/change is over 50 times as long as the cohort's median"
    assert record.outcome.excluded == {1: reason}
    assert torch.equal(simulation.server.state[part]["c"], honest.server.state[part]["c"])
    assert torch.equal(simulation.server.model, honest.server.model)


def test_a_number_that_a_client_reports_has_no_length():
    """A loss of one client may well be a thousand times another's."""
    part = Part("tells", finish=lambda client, reply: type(reply)(reply.update, {"x": client.lr}, reply.state))
    assert pushed(changing(2, report=1e9), method=fedavg().adding(local=part)).advance().outcome.excluded == {}


def stepping(place, steps):
    """An adversary that is one client, which reports a number of steps."""

    def adversary(round, cohort):
        told = cohort.steps.clone()
        told[place] = steps
        return Cohort(cohort.ids, cohort.updates, cohort.examples, told, cohort.reports)

    return adversary


@pytest.mark.parametrize("steps", [1, 7, 50, 51, 999])
def test_fednova_goes_by_the_steps_that_the_server_asked_for(steps):
    """One step was asked for. What is reported changes nothing, and an absurd number leaves its client out."""
    simulation = pushed(stepping(1, steps), method=fednova())
    record = simulation.advance()
    reason = "it reports over 50 times as many steps as it was asked for"
    assert record.outcome.excluded == ({1: reason} if steps > 50 else {})
    expected = mean_without(1) if steps > 50 else mean_without()
    assert float(simulation.server.model) == pytest.approx(expected, abs=1e-13)
    assert set(record.outcome.notes["normaliser"].values()) == {1.0}


def weights_of(method, claims, local=None, reports=None, limits=None):
    """What clients whose updates are all 1 weigh on a server."""
    server = Server(method, torch.zeros(1, dtype=torch.float64), limits or Limits())
    given = Cohort(
        tuple(range(len(claims))),
        torch.ones(len(claims), 1, dtype=torch.float64),
        torch.tensor(claims, dtype=torch.float64),
        torch.ones(len(claims), dtype=torch.float64),
        reports or {},
    )
    return np.array([*server.receive(given, FixedWorld(1, local=local)).weights.values()])


@pytest.mark.parametrize("claim", [400, 5_000, 7_000, 10**9])
def test_a_false_claim_changes_the_length_of_fednovas_step_only_so_far(claim):
    """A client with over 50 times the median's steps, which are 4, does not count in the step's length."""
    claims = [claim] + [100] * 15 + [60] * 4
    n, a = np.array(claims), np.ceil(np.array(claims) / 32)
    p = n / n.sum()
    counted = slice(1 if claim > 200 * 32 else 0, None)
    q = p[counted] / p[counted].sum()
    length = (q * a[counted]).sum() * (q / a[counted]).sum()
    found = weights_of(fednova(), claims, Local(batch=32))
    assert found == pytest.approx(length * (p / a) / (p / a).sum(), rel=1e-12)
    assert 1 <= found.sum() < 9.3
    assert found[0] < 1.3 * found[1]
    assert weights_of(fednova(), claims, Local(batch=32), limits=Limits(norm_ratio=math.inf)) == pytest.approx(
        (p * a).sum() * p / a, rel=1e-12
    )


def told(losses):
    return {"fair-mean": {"loss": torch.tensor(losses, dtype=torch.float64)}}


@pytest.mark.parametrize(
    ("losses", "counted"),
    [
        ([1.0, 2.0, 3.0, 1e20], [1.0, 2.0, 3.0, 150.0]),
        ([0.0, 0.0, 1.0, 49.0], [0.0, 0.0, 1.0, 49.0]),  # those that have none do not count in the median
        ([0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]),
        ([0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_a_loss_that_a_client_reports_counts_at_most_fifty_times_the_median(losses, counted):
    """A loss may well be a thousand times another's, so its client is heard; the upper median is that of losses above 0."""
    found = weights_of(qffl(), [1] * 4, reports=told(losses))
    unbounded = Limits(norm_ratio=math.inf)
    assert found == pytest.approx(weights_of(qffl(), [1] * 4, reports=told(counted), limits=unbounded), rel=1e-12)


def test_a_report_that_is_not_finite_leaves_its_client_out():
    part = Part(
        "tells",
        finish=lambda client, reply: type(reply)(reply.update, {"x": client.lr, "v": reply.update}, reply.state),
    )
    record = pushed(changing(2, report=math.nan), method=fedavg().adding(local=part)).advance()
    assert list(record.outcome.excluded) == [2]
    assert record.outcome.excluded[2] in {"its report tells/x is not finite", "its report tells/v is not finite"}


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"norm_ratio": 1.0}, "limits: norm_ratio must be above 1, not 1.0"),
        ({"norm_ratio": math.nan}, "limits: norm_ratio must be above 1, not nan"),
        ({"norm_ratio": "big"}, "limits: norm_ratio must be"),
        ({"max_examples": 0}, "limits: max_examples must be at least 1, not 0"),
        ({"max_examples": "many"}, "limits: max_examples must be"),
    ],
)
def test_bad_limits_are_refused_with_a_sentence(limits, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        Limits(**limits)


# ---------------------------------------------------------------- divergence


def broken(since, *places):
    """An adversary: from a round on, these places of the cohort send NaN."""

    def adversary(round, cohort):
        updates = cohort.updates.clone()
        if round >= since:
            updates[list(places)] = math.nan
        return Cohort(cohort.ids, updates, cohort.examples, cohort.steps)

    return adversary


def test_most_updates_of_one_round_are_bad_replies_like_any_others():
    simulation = pushed(broken(1, 0, 1, 2))
    record = simulation.advance()
    assert record.outcome.excluded == dict.fromkeys((0, 1, 2), BROKEN)
    assert record.outcome.skipped == ""
    assert float(simulation.server.model) == pytest.approx(mean_without(0, 1, 2), abs=1e-13)


def test_a_round_without_a_usable_reply_is_skipped_and_says_why():
    record = pushed(broken(1, 0, 1, 2, 3, 4)).advance()
    assert record.outcome.skipped == "no reply could be used: 5 of 5 because its update holds NaN or infinity"


def test_when_most_clients_send_nan_for_three_rounds_the_run_has_diverged_and_nothing_changes():
    simulation = pushed(broken(2, 0, 1, 2), method=fedavgm())
    run(simulation, 3)
    model = simulation.server.model.clone()
    velocity = simulation.server.state["server-momentum"]["velocity"].clone()
    sentence = (
        r"Training diverged: in the last 3 rounds the updates of 3 of the 5 clients heard were NaN or infinite\. "
        r"Lower the learning rate \(local\.optimizer\.lr\)"
    )
    with pytest.raises(Diverged, match=sentence):
        simulation.advance()
    assert torch.equal(simulation.server.model, model)
    assert torch.equal(simulation.server.state["server-momentum"]["velocity"], velocity)
    assert simulation.round == 3


def streak(*rounds):
    """Of rounds given as (clients that sent NaN, clients that did not)."""
    found = Streak()
    for bad, good in rounds:
        found = found.after([*bad, *good], bad)
    return found


@pytest.mark.parametrize(
    ("rounds", "population", "diverged"),
    [
        ([([0, 1], [2])] * 3, 3, True),
        ([([0, 1], [2])] * 2, 3, False),
        ([([0, 1], [2])] * 50, 4, False),  # the same two of four
        ([([0, 1], [2])] * 2 + [([0], [1, 2])] + [([0, 1], [2])] * 2, 3, False),  # not in a row
        ([([0, 1], [2]), ([0, 1], [3]), ([0, 1], [4]), ([0, 1], [5])], 3, False),  # most clients are well
        ([([0, 1], [2]), ([], []), ([0, 1], [2]), ([], []), ([0, 1], [2])], 3, True),  # silence says nothing
        ([(range(29), [])] * 9, 1000, False),
        ([(range(30), [])] * 3, 1000, True),
        ([(range(30), range(30, 33))] * 3, 1000, True),
        ([(range(30), range(30, 34))] * 3, 1000, False),
        ([(range(48), range(48, 85))] * 9, 100, False),  # 48 of 100, of whom 85 were heard
        ([(range(51), range(51, 100))] * 3, 100, True),
    ],
)
def test_only_a_majority_of_distinct_clients_over_several_rounds_is_divergence(rounds, population, diverged):
    assert bool(streak(*rounds).sentence(population)) == diverged


@pytest.mark.parametrize("seed", range(5))
def test_a_sampled_minority_that_sends_nan_never_ends_a_run(seed):
    """Three of thirty clients, three a round: two of them are often sampled together."""
    centres = [float(i) for i in range(30)]
    simulation = Simulation(
        fedavg(),
        quadratics([1.0] * 30, centres, counts=[1] * 30),
        Point(0.0),
        loss=half_square,
        local=Local(batch=100, steps=1, optimizer=sgd(1.0)),
        cohort=3,
        seed=seed,
        adversary=not_a_number(fraction=0.1),
        engine=double(),
    )
    records = [simulation.advance() for _ in range(100)]
    most = [record for record in records if sum(why == BROKEN for why in record.outcome.excluded.values()) > 1]
    assert most, "no round of this seed would have ended the run"
    assert all(record.outcome.skipped == "" for record in records if len(record.outcome.excluded) < 3)


def test_half_of_the_updates_is_not_most():
    def adversary(round, cohort):
        updates = cohort.updates.clone()
        updates[:2] = math.inf
        return Cohort(cohort.ids, updates, cohort.examples, cohort.steps)

    simulation = pushed(adversary, counts=(1, 1, 1, 1))
    assert set(simulation.advance().outcome.excluded) == {0, 1}
    assert float(simulation.server.model) == 3.5


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_learning_rate_that_is_too_high_is_told(backend):
    simulation = descend(avg(), (10.0, 10.0), (4.0, -1.0), 160, lr=10.0, start=1.0, backend=backend)
    with pytest.raises(Diverged, match="Lower the learning rate"):
        run(simulation, 6)
    assert bool(simulation.server.model.isfinite().all())


def test_a_server_model_that_overflows_has_diverged_and_the_old_one_stays():
    limits = Limits(norm_ratio=math.inf)
    simulation = pushed(changing(0, update=1e300), method=avg(lr=1e10), limits=limits)
    with pytest.raises(Diverged, match="the server's new model is not finite"):
        simulation.advance()
    assert float(simulation.server.model) == 0.0
    assert simulation.round == 0


def test_a_diverged_round_keeps_the_clients_old_state():
    part = Part(
        "counts",
        client_state=lambda start: {"n": start.new_zeros(())},
        client_record=lambda start: {"m": start.new_zeros(())},
        when_lost="starts at 0",
        finish=lambda client, reply: type(reply)(reply.update, {}, {"n": client.state["n"] + 1}),
        apply=lambda round: round.but(records={"m": round.records["m"] + 1}),
    )

    simulation = pushed(broken(2, 0, 1, 2, 3, 4), method=fedavg().adding(local=part))
    run(simulation, 3)
    before = [float(simulation.client_state["counts"][i]["n"]) for i in range(5)]
    with pytest.raises(Diverged):
        simulation.advance()
    assert [float(simulation.client_state["counts"][i]["n"]) for i in range(5)] == before
    assert {float(simulation.server.records["counts"][i]["m"]) for i in range(5)} == {1.0}


# ---------------------------------------------------------------- rounds that leave the model as it is


@pytest.mark.parametrize("name", without_probe())
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_cohort_leaves_model_and_state_as_they_are(name, backend):
    calls = [[0, 1], [0, 1], []]
    simulation = descend(
        METHODS.make(name),
        H,
        M,
        [3, 3],
        start=2.0,
        backend=backend,
        cohort=lambda seed, round, n: torch.tensor(calls[round - 1], dtype=torch.int64),
    )
    points(simulation, 2)
    model, state = simulation.server.model, simulation.server.state
    record = simulation.advance()
    assert simulation.server.model is model
    assert simulation.server.state is state
    assert record.outcome.skipped == "no client could be heard"
    assert record.outcome.weights == {}
    assert record.cohort == ()
    assert (record.bytes_up, record.bytes_down) == (0, 0)
    assert simulation.round == 3


def test_a_cohort_of_nobody_can_be_asked_for():
    simulation = pushed(cohort=0)
    record = simulation.advance()
    assert record.outcome.skipped == "no client could be heard"
    assert float(simulation.server.model) == 0.0


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_weights_that_are_all_nothing_skip_the_round_with_a_reason(value):
    nothing = Part(
        "nothing", apply=lambda round: round.but(weights=torch.full((len(round.cohort),), value, dtype=torch.float64))
    )
    simulation = pushed(method=fedavgm().replacing(weigh=nothing))
    record = simulation.advance()
    assert "weight" in record.outcome.skipped
    assert float(simulation.server.model) == 0.0
    assert float(simulation.server.state["server-momentum"]["velocity"]) == 0.0
    assert record.outcome.weights == {}


@pytest.mark.parametrize(
    ("value", "reason"), [(0.0, "the weight 0"), (math.nan, "part useless gave client 0 the weight nan and 4 more")]
)
def test_weights_that_are_all_nothing_skip_the_round_whatever_the_rule(value, reason):
    def apply(round):
        weights = torch.full((len(round.cohort),), value, dtype=torch.float64)
        return round.but(weights=weights, combined=weights @ round.cohort.updates)

    simulation = pushed(method=fedavgm().replacing(combine=Part("useless", apply=apply)))
    record = simulation.advance()
    assert reason in record.outcome.skipped
    assert record.outcome.weights == {}
    assert float(simulation.server.model) == 0.0
    assert float(simulation.server.state["server-momentum"]["velocity"]) == 0.0


def test_a_rule_without_weights_that_fails_skips_the_round_and_is_not_taken_for_a_learning_rate():
    def apply(round):
        return round.but(weights=None, combined=round.cohort.updates.sum(0) * math.nan)

    simulation = pushed(method=METHODS.make("median").replacing(combine=Part("fails", apply=apply)))
    record = simulation.advance()
    assert record.outcome.skipped.startswith("what the method made of the updates is NaN or infinite")
    assert float(simulation.server.model) == 0.0


def test_a_learning_rate_of_the_server_that_overflows_a_rule_without_weights_has_diverged():
    simulation = pushed(changing(0, update=1e300), method=METHODS.make("median", lr=1e308), limits=Limits(math.inf))
    with pytest.raises(Diverged, match="the server's new model is not finite"):
        simulation.advance()


def test_weights_need_not_sum_to_one():
    loose = Part("loose", apply=lambda round: round.but(weights=round.cohort.examples * 10))
    simulation = pushed(method=fedavg().replacing(weigh=loose))
    record = simulation.advance()
    assert float(simulation.server.model) == pytest.approx(mean_without(), abs=1e-13)
    assert sum(record.outcome.weights.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_client_without_data_is_left_out(backend):
    federation = blobs([4, 6, 5])
    rows = [federation.train.rows(torch.tensor([i]))[0].tolist() for i in range(3)]
    holed = Federation.from_arrays(
        federation.base.inputs, federation.base.targets, partition=[rows[0], [], rows[2]], heldout=0
    )
    simulation = Simulation(fedavg(), holed, small(), local=Local(batch=4), engine=double(backend=backend))
    record = simulation.advance()
    assert record.outcome.excluded == {1: "it has no data"}
    assert record.outcome.weights == pytest.approx({0: 4 / 9, 2: 5 / 9})
    assert record.cohort == (0, 1, 2)
    assert not torch.equal(simulation.server.model, flat(small()))


def test_a_round_in_which_nobody_has_data_is_skipped():
    federation = blobs([4, 6])
    holed = Federation.from_arrays(
        federation.base.inputs, federation.base.targets, partition=[[], range(10), []], heldout=0
    )
    record = Simulation(
        fedavg(), holed, small(), cohort=lambda s, r, n: torch.tensor([0, 2]), engine=double()
    ).advance()
    assert record.outcome.excluded == {0: "it has no data", 2: "it has no data"}
    assert record.outcome.skipped == "no client could be heard"


def test_one_that_moves_among_clients_at_rest_is_heard():
    updates = torch.zeros(5, 3, dtype=torch.float64)
    updates[2] = 1.0
    ones = torch.ones(5, dtype=torch.float64)
    cohort = Cohort((0, 1, 2, 3, 4), updates, ones, ones)
    found = admit(cohort, Limits(), Local(), 1, Lengths(), updates[0], 5)
    assert found[:3] == (cohort, {}, dict.fromkeys(range(5), 1))


@pytest.mark.parametrize(("losses", "mean"), [([1.7e308, 1.7e308], math.inf), ([math.inf, -math.inf], math.nan)])
def test_losses_beyond_all_numbers_do_not_cost_the_round(losses, mean):
    simulation = pushed(counts=(1, 1))
    opened = simulation.open()
    heard = simulation.train(opened)._replace(results=None, losses=dict(enumerate(losses)))
    record = simulation.loop.commit(simulation.loop.close(opened, heard))
    assert record.metrics["train_loss"] == pytest.approx(mean, nan_ok=True)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 2, 2)])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_are_finite_where_all_their_numbers_are(shape, bad, dtype):
    values = torch.full(shape, torch.finfo(dtype).max, dtype=dtype)
    assert finite(values).tolist() == [True, True, True]
    values[1].view(-1)[-1] = bad
    assert finite(values).tolist() == [True, False, True]


def test_rows_of_nothing_and_of_whole_numbers_are_finite():
    for values in (torch.zeros(2, 0), torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool)):
        assert finite(values).tolist() == [True, True]


def test_updates_that_an_adversary_did_not_detach_are_read():
    def adversary(round, cohort):
        return Cohort(cohort.ids, cohort.updates.requires_grad_(), cohort.examples, cohort.steps, cohort.reports)

    assert pushed(adversary).advance().outcome.excluded == {}


def test_a_limit_beyond_all_numbers_is_none():
    assert pushed(limits=Limits(max_examples=10**400)).advance().outcome.excluded == {}
