"""The parts that go around any method by name, each alone, against plain loops."""

from __future__ import annotations

from dataclasses import replace
from math import lgamma

import numpy as np
import pytest
import torch
from helpers import blobs, descend, double, points, run, small
from worlds import FixedWorld, cohort, server

from counterpoise import parts
from counterpoise.engine import Simulation
from counterpoise.engine.rounds.lockstep import Lockstep, why_apart
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, sgd
from counterpoise.method import Part, Verdict
from counterpoise.methods import (
    METHODS,
    averaged,
    avg,
    bounded,
    capped,
    counterpoise,
    fedavg,
    feddyn,
    median,
    pace,
    steady,
)
from counterpoise.parts.bounded import clip_rows

SIZE = 5


def names(method):
    return [part.name for part in METHODS.make(method).parts]


def test_the_name_says_in_which_order_parts_act():
    assert names("memory:bounded:fedavg") == ["memory", "bounded", "by-data", "mean", "server-step"]
    assert names("bounded:memory:median")[:3] == ["bounded", "memory", "median"]
    assert names("consensus-trust:capped:steady:fedavg") == (
        ["consensus-trust", "by-data", "capped", "mean", "steady", "server-step"]
    )
    assert names("feddua:counterpoise")[:3] == ["consensus-trust", "counts", "memory"]
    assert names("averaged:steady:fedavg")[-2:] == ["server-step", "averaged"]
    assert names("counterpoise") == (
        ["consensus-trust", "memory", "bounded", "by-data", "capped", "mean", "pace", "server-step"]
    )


# ---------------------------------------------------------------- bounded


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([1, 2, 3, 30], [1, 2, 3, 5]),  # the middle two: 2 and 3
        ([1, 2, 30], [1, 2, 4]),
        ([0, 0, 0, 0, 1, 2, 30], [0, 0, 0, 0, 1, 2, 4]),  # who sends nothing does not count
        ([0, 0, 1, 30], [0, 0, 1, 30]),  # two that moved
        ([1, 100], [1, 100]),
        ([7], [7]),
        ([0, 0, 0], [0, 0, 0]),
    ],
)
def test_updates_are_clipped_to_twice_the_median_of_those_that_moved(lengths, expected):
    made = server(bounded(avg()), SIZE)
    direction = np.ones(SIZE) / np.sqrt(SIZE)
    made.receive(cohort(range(len(lengths)), np.outer(lengths, direction)), FixedWorld(SIZE))
    assert made.model.numpy() == pytest.approx(np.mean(expected) * direction, abs=1e-12)


def test_two_clients_do_not_bound_each_other():
    made = server(bounded(avg(), longest=1.0), SIZE)
    made.receive(cohort([0, 1], [np.ones(SIZE), 5 * np.ones(SIZE)]), FixedWorld(SIZE))
    assert made.model.numpy() == pytest.approx(3 * np.ones(SIZE), abs=1e-12)


def test_an_update_within_the_bound_keeps_its_bits():
    rows = torch.randn(9, 40)
    assert torch.equal(clip_rows(rows, 50.0), rows)


# ---------------------------------------------------------------- capped


@pytest.mark.parametrize(
    ("counts", "believed"),
    [([10, 20, 30, 400], [10, 20, 30, 75]), ([10, 20, 400], [10, 20, 60]), ([10, 30], [10, 30]), ([5], [5])],
)
def test_a_count_counts_for_at_most_three_medians(counts, believed):
    made = server(capped(), SIZE)
    updates = np.random.default_rng(0).normal(size=(len(counts), SIZE))
    outcome = made.receive(cohort(range(len(counts)), updates, counts), FixedWorld(SIZE))
    shares = np.array(believed) / sum(believed)
    assert list(outcome.weights.values()) == pytest.approx(shares, abs=1e-12)
    assert made.model.numpy() == pytest.approx(shares @ updates, abs=1e-12)
    assert list(outcome.claims.values()) == counts


def test_a_rule_without_weights_is_not_capped():
    updates = np.random.default_rng(0).normal(size=(4, SIZE))
    models = []
    for method in (capped(median()), median()):
        made = server(method, SIZE)
        made.receive(cohort(range(4), updates, [1, 1, 1, 500]), FixedWorld(SIZE))
        models.append(made.model)
    assert torch.equal(*models)


# ---------------------------------------------------------------- averaged


@pytest.mark.parametrize("latest", [0, 1, 10, 2.5])
def test_the_mean_counts_models_by_a_power_of_their_round(latest):
    """Written out, the t-th model counts as gamma(t + latest)/gamma(t), and all weights sum to 1."""
    made, plain, models = server(averaged(avg(), latest), SIZE), server(avg(), SIZE), []
    rng = np.random.default_rng(3)
    for round in range(1, 31):
        replies = cohort([0, 1], rng.normal(size=(2, SIZE)))
        for one in (made, plain):
            one.receive(replies, FixedWorld(SIZE, round))
        models.append(plain.model.numpy())
        weights = np.exp([lgamma(t + latest) - lgamma(t) for t in range(1, round + 1)])
        expected = weights / weights.sum() @ models
        assert made.scored(made).numpy() == pytest.approx(expected, abs=1e-12)
        assert torch.equal(made.model, plain.model)


def test_a_round_without_a_model_does_not_count_in_the_mean():
    begun, steps = np.random.default_rng(4).normal(size=SIZE), np.random.default_rng(4).normal(size=(2, 1, SIZE))
    made, lost = server(averaged(avg()), SIZE, begun), cohort([], np.empty((0, SIZE)))
    made.receive(lost, FixedWorld(SIZE, 1))
    assert made.scored(made).tolist() == begun.tolist()
    made.receive(cohort([0], steps[0]), FixedWorld(SIZE, 1))
    made.receive(lost, FixedWorld(SIZE, 2))
    made.receive(cohort([0], steps[1]), FixedWorld(SIZE, 3))
    first, second = begun + np.cumsum(steps[:, 0], axis=0)
    assert made.scored(made).numpy() == pytest.approx((first + 11 * second) / 12, abs=1e-12)


def test_the_mean_moves_a_model_that_another_part_measures():
    made, plain = server(averaged(feddyn(score="mean")), SIZE), server(feddyn(score="mean"), SIZE)
    rng, models = np.random.default_rng(5), []
    for round in (1, 2):
        replies = cohort([0, 1], rng.normal(size=(2, SIZE)))
        for one in (made, plain):
            one.receive(replies, FixedWorld(SIZE, round))
        models.append(plain.model.numpy())
    moved = (models[0] + 11 * models[1]) / 12 - models[1]
    assert made.scored(made).numpy() == pytest.approx(plain.scored(plain).numpy() + moved, abs=1e-12)


def test_counterpoise_averages_the_models_that_it_makes():
    inside, around = server(counterpoise(averaged=3), SIZE), server(averaged(counterpoise(), 3), SIZE)
    rng = np.random.default_rng(6)
    for round in (1, 2, 3):
        replies = cohort(range(3), rng.normal(size=(3, SIZE)))
        for one in (inside, around):
            one.receive(replies, FixedWorld(SIZE, round))
    assert torch.equal(inside.scored(inside), around.scored(around))
    assert not torch.equal(inside.scored(inside), inside.model)


@pytest.mark.parametrize("method", [averaged(avg()), counterpoise(averaged=10), feddyn(score="mean")])
def test_the_model_handed_out_is_the_one_that_was_measured(method):
    simulation = Simulation(method, blobs([4, 5, 6]), small(), local=Local(optimizer=sgd(0.3)), engine=double())
    for _ in range(3):
        simulation.advance()
    loop = simulation.loop
    handed = torch.cat([p.detach().flatten() for p in simulation.trained().parameters()])
    assert torch.equal(handed, loop.scored())
    assert not torch.equal(handed, loop.server.model)


# ---------------------------------------------------------------- steady


@pytest.mark.parametrize(("mean", "agreement"), [(0.8, 0.9), (0.5, 0.7)])
def test_momentum_follows_how_much_updates_agree(mean, agreement):
    made = server(steady(avg(), steady_mean=mean, steady_agreement=agreement), SIZE)
    rng = np.random.default_rng(1)
    w, m, v, s, betas = np.zeros(SIZE), np.zeros(SIZE), np.zeros(SIZE), 0.0, []
    for round in range(1, 41):
        u = rng.normal(size=SIZE) + (1.5 if round < 25 else -1.5)
        s = agreement * s + (1 - agreement) * (u @ m / np.sqrt(u @ u * (m @ m)) if m.any() else 0.0)
        beta = 0.9 * max(0.0, s)
        m, v = mean * m + (1 - mean) * u, beta * v + u
        w = w + u + beta * v
        betas.append(beta)
        outcome = made.receive(cohort([0], [u]), FixedWorld(SIZE, round))
        assert made.model.numpy() == pytest.approx(w, abs=1e-12)
        assert outcome.facts["momentum"] == pytest.approx(beta, abs=1e-12)
    assert betas[0] == 0
    assert max(betas) > 0.3
    assert betas[-1] < max(betas)


def test_updates_that_keep_turning_get_no_momentum():
    made = server(steady(avg()), SIZE)
    for round in range(1, 9):
        outcome = made.receive(cohort([0], [np.ones(SIZE) * (-1) ** round]), FixedWorld(SIZE, round))
        assert outcome.facts["momentum"] == 0
    assert made.model.numpy() == pytest.approx(np.zeros(SIZE), abs=1e-12)


def test_steady_needs_one_update():
    early = fedavg().replacing(combine=(parts.steady(), parts.mean()))
    with pytest.raises(CounterpoiseError, match="steady needs one update"):
        server(early, SIZE).receive(cohort([0], np.ones((1, SIZE))), FixedWorld(SIZE))


# ---------------------------------------------------------------- pace


def test_the_pace_follows_whether_clients_agree_with_the_step_before():
    """Of four clients, one always opposes the others and one sends zeros; they have no say."""
    rng, made = np.random.default_rng(2), server(pace(avg()), SIZE)
    w, m, v, step, alpha, paces = np.zeros(SIZE), np.zeros(SIZE), np.zeros(SIZE), np.zeros(SIZE), 1.0, []
    scales = 10.0 ** rng.uniform(-3, 1, size=SIZE)
    for round in range(1, 61):
        turn = 1.0 if round < 25 else (-1.0) ** round
        d = [scales * (0.5 * rng.normal(size=SIZE) + turn * side) for side in (1.0, 2.0, -0.5)]
        u = (d[0] + d[1] + d[2]) / 4
        cosines = [x @ step / np.sqrt(x @ x * (step @ step)) if step.any() else 0.0 for x in d]
        alpha = min(12.0, max(0.5, alpha * np.exp(sorted(cosines)[1])))
        m, v = 0.8 * m + 0.2 * u, 0.99 * v + 0.01 * u * u
        r = np.sqrt(v.sum() / SIZE)
        z = 1.3 * r * m / (1 - 0.8**round) / (np.sqrt(v) + 0.3 * r)
        step = 0.4 * (0.9744 + 0.0256 * np.sqrt(alpha)) * u + 0.6 * alpha * z
        w = w + step
        paces.append(alpha)
        outcome = made.receive(cohort([0, 1, 2, 3], [*d, np.zeros(SIZE)]), FixedWorld(SIZE, round))
        assert outcome.facts["pace"] == pytest.approx(alpha, rel=1e-10)
        assert made.model.numpy() == pytest.approx(w, rel=1e-9, abs=1e-12)
    assert max(paces) == 12.0
    assert min(paces) == 0.5, "it should fall to its least where updates turn"


def test_steps_scale_with_the_updates():
    updates = np.random.default_rng(3).normal(size=(8, SIZE))

    def walked(scale):
        made = server(pace(avg()), SIZE)
        for round, u in enumerate(updates, 1):
            made.receive(cohort([0], [scale * u]), FixedWorld(SIZE, round))
        return made.model.numpy()

    assert walked(1e-4) == pytest.approx(1e-4 * walked(1.0), rel=1e-9)


def test_coordinates_that_move_alike_take_the_mean_update_and_no_update_takes_no_step():
    made = server(pace(avg()), SIZE)
    signs = np.where(np.arange(SIZE) % 2, 1.0, -1.0)
    made.receive(cohort([0], [np.zeros(SIZE)]), FixedWorld(SIZE, 1))
    assert not made.model.numpy().any()
    made = server(pace(avg()), SIZE)
    outcome = made.receive(cohort([0], [0.3 * signs]), FixedWorld(SIZE, 1))
    assert outcome.facts["pace"] == 1
    assert made.model.numpy() == pytest.approx(0.3 * signs, rel=1e-12)


def test_the_more_of_the_population_is_heard_the_longer_is_the_update_itself():
    """If all of eight are heard, the step is sqrt(alpha) u; if one is excluded, an eighth of it is alpha z."""
    judge = Part("judge", apply=lambda round: round.but(excluded={7: "no"} if round.world.round == 6 else {}))
    rng, made = np.random.default_rng(5), server(pace(avg()).adding(trust=judge), SIZE)
    w, m, v, step, alpha = np.zeros(SIZE), np.zeros(SIZE), np.zeros(SIZE), np.zeros(SIZE), 1.0
    for round in range(1, 7):
        d = np.linspace(0.2, 2, SIZE) + 0.3 * rng.normal(size=(8, SIZE))
        heard = d[: 7 if round == 6 else 8]
        u, turns = heard.mean(0), heard @ step / np.linalg.norm(heard, axis=1)
        alpha = min(12.0, alpha * np.exp(np.median(turns) / np.sqrt(step @ step) if round > 1 else 0.0))
        m, v = 0.8 * m + 0.2 * u, 0.99 * v + 0.01 * u * u
        r = np.sqrt(v.mean())
        z = 1.3 * r * m / (1 - 0.8**round) / (np.sqrt(v) + 0.3 * r)
        step = 7 / 8 * (1 + 2401 / 4096 * (alpha**0.5 - 1)) * u + alpha * z / 8 if round == 6 else alpha**0.5 * u
        w = w + step
        outcome = made.receive(cohort(range(8), d), FixedWorld(SIZE, round, 8))
        assert outcome.facts["pace"] == pytest.approx(alpha, rel=1e-12)
        assert made.model.numpy() == pytest.approx(w, rel=1e-11)
    assert alpha > 10


def test_pace_needs_one_update():
    early = fedavg().replacing(combine=(parts.pace(), parts.mean()))
    with pytest.raises(CounterpoiseError, match="pace needs one update"):
        server(early, SIZE).receive(cohort([0], np.ones((1, SIZE))), FixedWorld(SIZE))


# ---------------------------------------------------------------- consensus-trust


def replies(rng, ids, liars, noise=0.6):
    """Clients that go the same way up to noise, but for the liars, who go the other way."""
    return [(-1 if i in liars else 1) * (np.ones(12) + noise * rng.normal(size=12)) for i in ids]


class Judge:
    """The test in plain loops."""

    def __init__(self, clip=2.0, spread=0.02, most=6.0):
        self.clip, self.spread, self.most = clip, spread, most
        self.total, self.rounds, self.flagged = {}, {}, set()

    def round(self, ids, updates):
        lengths = [np.sqrt(u @ u) for u in updates]
        ordered = sorted(lengths)
        bound = self.clip * (ordered[(len(ids) - 1) // 2] + ordered[len(ids) // 2]) / 2
        short = [u * min(1, bound / n) for u, n in zip(updates, lengths, strict=True)]
        standing = [i not in self.flagged for i in ids]
        if sum(standing) < 5:
            return None
        cosines = []
        for place, u in enumerate(short):
            others = sum(o for j, o in enumerate(short) if standing[j] and j != place)
            cosines.append(u @ others / np.sqrt(u @ u * (others @ others)))
        centre = np.median([x for x, stands in zip(cosines, standing, strict=True) if stands])
        far = np.median([abs(x - centre) for x, stands in zip(cosines, standing, strict=True) if stands])
        scores = {}
        for i, x in zip(ids, cosines, strict=True):
            z = min(self.most, max(-self.most, (x - centre) / max(self.spread, 1.4826 * far)))
            self.total[i], self.rounds[i] = self.total.get(i, 0) + z, self.rounds.get(i, 0) + 1
            scores[i] = self.total[i] / self.rounds[i] / np.sqrt(0.5 + 0.5 / self.rounds[i])
            if i in self.flagged:
                self.flagged -= {i} if scores[i] >= -1.5 else set()
            elif scores[i] < -3 and x < 0 and self.rounds[i] >= 3:
                self.flagged |= {i}
        return scores


@pytest.mark.parametrize(
    ("exclude", "numbers"), [(False, {}), (True, {}), (True, {"clip": 0.9, "spread": 0.3, "most": 2.5})]
)
def test_consensus_is_the_sequential_test_in_plain_loops(exclude, numbers):
    rng, judge = np.random.default_rng(2), Judge(**numbers)
    flags = {f"flag_{name}": number for name, number in numbers.items()}
    made = server(METHODS.make("consensus-trust:avg", exclude_opposed=exclude, **flags), 12)
    ever = set()
    for round in range(1, 91):
        ids = sorted(rng.choice(14, size=9 if round % 7 else 4, replace=False).tolist())
        updates = replies(rng, ids, {1, 2} if round < 9 else set())  # the liars repent
        updates = [20 * u if i == 5 else u for i, u in zip(ids, updates, strict=True)]
        before, scores = made.model.numpy().copy(), judge.round(ids, updates)
        outcome = made.receive(cohort(ids, updates), FixedWorld(12, round))
        flagged = {i for i, v in outcome.verdicts.items() if v.action != "accepted"}
        if scores is None:
            assert {*outcome.verdicts} == flagged == judge.flagged & {*ids}
        else:
            assert flagged == judge.flagged & {*ids}
            assert {i: v.z for i, v in outcome.verdicts.items()} == pytest.approx(
                {i: max(0.0, -s) for i, s in scores.items()}
            )
            assert {v.action for i, v in outcome.verdicts.items() if i in flagged} <= {
                "excluded" if exclude else "warned"
            }
        heard = [u for i, u in zip(ids, updates, strict=True) if not (exclude and i in flagged)]
        assert set(outcome.excluded) == (flagged if exclude else set())
        assert made.model.numpy() - before == pytest.approx(np.mean(heard, axis=0), abs=1e-12)
        ever |= flagged
    assert ever == {1, 2}
    assert not judge.flagged, "whoever goes with the others long enough is heard again"


def test_nobody_is_flagged_before_the_third_round_or_by_four_others():
    made = server(METHODS.make("consensus-trust:avg"), 12)
    rng, actions = np.random.default_rng(0), []
    for round in (1, 2, 3):
        outcome = made.receive(cohort(range(8), replies(rng, range(8), {0}, 0.1)), FixedWorld(12, round))
        actions.append(outcome.verdicts[0].action)
    assert actions == ["accepted", "accepted", "warned"]
    assert "over 3 rounds its updates point against the others'" in outcome.verdicts[0].reason
    outcome = made.receive(cohort(range(5), replies(rng, range(5), {0}, 0.1)), FixedWorld(12, 4))
    assert {*outcome.verdicts} == {0}, "a flag stays while nobody is judged"


def test_a_verdict_on_updates_does_not_hide_one_on_counts():
    told = Verdict(1.0, 0.5, 0.0, 1.0, 9.0, "corrected", "too many")
    first = Part("first", apply=lambda round: round.but(verdicts=dict.fromkeys(round.cohort.ids, told)))
    made = server(avg().adding(trust=first).adding(trust=parts.consensus_trust()), 12)
    for round in (1, 2, 3):
        outcome = made.receive(
            cohort(range(8), replies(np.random.default_rng(round), range(8), {0}, 0.1)), FixedWorld(12, round)
        )
    assert outcome.verdicts[0].action == "warned"
    assert outcome.verdicts[1] == told
    assert outcome.verdicts[0].concerns(0) == "client 0"
    assert told.concerns(3) == "the claim of client 3 to 1 samples"


def test_a_verdict_names_the_count_claimed_not_the_one_believed():
    halves = Part("halves", apply=lambda r: r.but(cohort=replace(r.cohort, examples=r.cohort.examples / 2)))
    made = server(avg().adding(trust=halves).adding(trust=parts.consensus_trust()), 12)
    rows = replies(np.random.default_rng(0), range(8), {0}, 0.1)
    outcome = made.receive(cohort(range(8), rows, [10] * 8), FixedWorld(12))
    assert {verdict.claimed for verdict in outcome.verdicts.values()} == {10}


# ---------------------------------------------------------------- memory


def test_a_client_that_is_excluded_is_forgotten():
    def judge(round):
        return round.but(excluded={1: "no"} if round.world.round == 3 else {})

    held = [1.0, 2.0, 4.0], [0.0, 1.0, 2.0]
    method = METHODS.make("memory:fedavg", memory_coefficient=1.0, memory_clip=0)
    simulation = descend(method.adding(trust=Part("judge", apply=judge)), *held, 2, start=3.0, counts=[1, 2, 3])
    points(simulation, 2)
    records, state = simulation.server.records["memory"], simulation.server.state["memory"]
    mean = sum(n * float(records[i]["y"]) for i, n in enumerate((1, 2, 3))) / 6
    assert float(state["sum"]) / float(state["count"]) == pytest.approx(mean, abs=1e-12)
    points(simulation, 1)
    state = simulation.server.state["memory"]
    assert [float(records[i]["n"]) for i in range(3)] == [1, 0, 3]
    mean = (float(records[0]["y"]) + 3 * float(records[2]["y"])) / 4
    assert float(state["sum"]) / float(state["count"]) == pytest.approx(mean, abs=1e-12)
    assert float(simulation.server.letters([1])["memory"]["correction"]) == 0


def test_if_the_only_client_remembered_is_excluded_the_mean_is_of_the_others():
    judge = Part("judge", apply=lambda round: round.but(excluded={0: "no"} if round.world.round == 2 else {}))
    simulation = descend(
        METHODS.make("memory:avg").adding(trust=judge),
        [1.0, 3.0],
        [0.3, 0.7],
        2,
        start=3.0,
        cohort=lambda s, r, n: torch.tensor([0] if r == 1 else [0, 1]),
    )
    points(simulation, 2)
    state, records = simulation.server.state["memory"], simulation.server.records["memory"]
    assert float(state["count"]) == 1
    assert float(state["sum"]) == pytest.approx(float(records[1]["y"]), abs=1e-12)


def test_when_everyone_is_excluded_the_round_is_skipped_and_memories_stay():
    judge = Part("judge", apply=lambda round: round.but(excluded={0: "no", 1: "no"} if round.world.round == 2 else {}))
    simulation = descend(METHODS.make("memory:avg").adding(trust=judge), [1.0, 3.0], [0.3, 0.7], 2, start=3.0)
    points(simulation, 1)

    def kept():
        server = simulation.server
        rows = server.records["memory"].gather([0, 1])
        return [server.model, *server.state["memory"].values(), *rows.values()]

    before = [tensor.clone() for tensor in kept()]
    assert simulation.advance().outcome.skipped == "no client could be trusted"
    assert all(map(torch.equal, before, kept()))


@pytest.mark.parametrize("reported", [1, 4, 400])
def test_nobody_has_more_steps_than_the_server_asked_for(reported):
    """64 samples in batches of 32 are two steps."""
    made = server(METHODS.make("memory:avg", memory_coefficient=1.0, memory_share=0.0), SIZE)
    one = cohort([0], np.ones((1, SIZE)), [64])
    made.receive(
        type(one)(one.ids, one.updates, one.examples, torch.tensor([reported])),
        FixedWorld(SIZE, local=Local(optimizer=sgd(0.1))),
    )
    assert made.records["memory"][0]["y"].numpy() == pytest.approx(-np.ones(SIZE) / (0.1 * min(reported, 2)))


def test_a_memory_of_the_server_alone_sends_nothing_and_runs_nothing_on_clients():
    alone, usual = (METHODS.make("memory:fedavg", memory_share=share) for share in (0, None))
    assert not alone.part("memory").on_client
    assert usual.part("memory").on_client

    def down(method):
        made = Simulation(method, blobs([4, 5, 6]), small(), engine=double())
        return made.advance().bytes_down, len(made.server.model)

    (with_letters, size), (without, _), (plain, _) = map(down, (usual, alone, fedavg()))
    assert without == plain
    assert with_letters - plain == 3 * 8 * size


def test_a_median_of_corrected_updates_is_one_of_corrected_updates():
    """Coefficient 1 on the server: e_i = d_i - d_i' + mean d', with d' the updates of the round before."""
    made = server(METHODS.make("memory:median", memory_coefficient=1.0, memory_share=0.0, memory_clip=0), SIZE)
    rng = np.random.default_rng(5)
    first, second = rng.normal(size=(2, 5, SIZE))
    world = {"local": Local(optimizer=sgd(0.1))}
    made.receive(cohort(range(5), first), FixedWorld(SIZE, 1, **world))
    assert made.model.numpy() == pytest.approx(np.median(first, axis=0), abs=1e-12)
    made.receive(cohort(range(5), second), FixedWorld(SIZE, 2, **world))
    corrected = second - first + first.mean(0)
    assert made.model.numpy() == pytest.approx(np.median(first, axis=0) + np.median(corrected, axis=0), abs=1e-12)


def test_runs_that_differ_in_the_memorys_numbers_train_together():
    def made(coefficient, seed):
        method = METHODS.make("memory:fedavg", memory_coefficient=coefficient)
        return Simulation(method, blobs([4, 5, 6, 7]), small(), seed=seed, cohort=3, engine=double(backend="batched"))

    mine, joint = ([made(c, seed) for seed, c in enumerate((1.0, 0.3))] for _ in range(2))
    assert why_apart(*joint) == ""
    lockstep = Lockstep(joint)
    for _ in range(4):
        lockstep.advance([(one, False) for one in joint])
    for one, other in zip(mine, joint, strict=True):
        assert torch.allclose(run(one, 4), other.server.model, rtol=1e-10, atol=1e-12)


def test_cosines_that_hardly_differ_are_taken_for_equal():
    """Cosines of 1 and one of 0.999: with their own spread, that client would lie six deviations away."""
    made = server(METHODS.make("consensus-trust:avg"), 12)
    updates = np.ones((8, 12)) + 1e-3 * np.arange(12)
    updates[0, :6] += 0.1
    outcome = made.receive(cohort(range(8), updates), FixedWorld(12))
    assert outcome.verdicts[0].z < 0.2
