"""Running statistics on the server, and numbers that stay on a client, whatever the method."""

from dataclasses import replace

import pytest
import torch
from helpers import ALL_METHODS, BACKENDS, assert_close, blobs, double, net, on_backends, run
from torch import nn
from worlds import FixedWorld, cohort

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.engine.clients.likeness import alike, client_hooks
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, sgd
from counterpoise.method import Part, Reply, Round
from counterpoise.methods import METHODS, fedavg
from counterpoise.parts.statistics import averaged_statistics, plausible_statistics

SIZES = [9, 6, 12, 7, 10, 8]


def model():
    return net(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


NORM = slice(35, 45)
"""The places of its scales and shifts."""


def simulate(norm, method, **settings):
    local = Local(epochs=2, batch=4, optimizer=sgd(0.1, momentum=0.5))
    federation = blobs(SIZES, probe=1, proxy=20)
    given = {"local": local, "engine": double(), "seed": 3} | settings
    made = METHODS.make(method) if isinstance(method, str) else method
    return Simulation(made, federation, cp.models.with_norm(model(), norm), **given)


# ---------------------------------------------------------------- averages


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([0.25, 0.75], [0.25, 0.75]),
        ([1.0, 3.0], [0.25, 0.75]),  # FedNova's weights need not sum to 1
        ([-0.5, 1.5], [0.0, 1.0]),
        ([-1.0, 0.0], [0.5, 0.5]),
        (None, [0.5, 0.5]),  # a median has none
        ([[0.1, 0.2], [0.9, 0.8]], [0.5, 0.5]),  # weights per layer
    ],
)
def test_the_server_takes_the_mean_by_the_updates_weights(weights, expected):
    reports = {"mean": [[1.0, -2.0], [3.0, 4.0]], "variance": [[1.0, 2.0], [5.0, 4.0]], "batches": [[3.0], [6.0]]}
    reports = {name: torch.tensor(values).double() for name, values in reports.items()}
    part = averaged_statistics({name: values[0] for name, values in reports.items()})
    given = Round(
        cohort([4, 7], torch.zeros(2, 3)),
        torch.zeros(3).double(),
        FixedWorld(3),
        weights=None if weights is None else torch.tensor(weights).double(),
        reports=reports,
    )
    a = torch.tensor(expected).double()
    found = part.apply(given).state
    assert {name: values.tolist() for name, values in found.items()} == {
        name: pytest.approx((a @ values).tolist()) for name, values in reports.items()
    }


@pytest.mark.parametrize(
    "name", ["fedavg", "fedavgm", "fedadam", "median", "trimmed-mean", "krum", "counterpoise", "rfa"]
)
def test_no_rule_and_no_momentum_moves_them(name):
    """After every round they are the mean of what clients sent, by the weights on record, or equally without."""
    seen = []
    simulation = simulate("average", name, adversary=lambda round, cohort: seen.append(cohort) or cohort)
    before = simulation.server.state["batch-norm"]
    for _ in range(3):
        outcome = simulation.advance().outcome
        assert not outcome.skipped
        assert not outcome.excluded
        a = torch.ones(6).double() / 6
        if outcome.weights:
            a = torch.tensor([outcome.weights[client] for client in seen[-1].ids], dtype=torch.float64)
        for key, values in seen[-1].reports["batch-norm"].items():
            mean = (a / a.sum()) @ values
            assert_close(simulation.server.state["batch-norm"][key], mean, mean - before[key], 1e-10)


@pytest.mark.parametrize(("name", "backend"), on_backends([*ALL_METHODS, "feddua:scaffold"]))
def test_every_method_runs_with_averaged_statistics(name, backend):
    simulation = simulate("average", name, engine=double(backend=backend))
    first = [simulation.advance().outcome for _ in range(2)]
    assert not any(outcome.skipped for outcome in first)
    assert bool((simulation.server.state["batch-norm"]["batches"] > 0).all())


# ---------------------------------------------------------------- forged statistics


def forge(part, value, client=2):
    """An adversary that replaces a statistic of one client."""

    def reply(round, cohort):
        values = cohort.reports["batch-norm"][part].clone()
        values[cohort.ids.index(client), 0] = value
        forged = {**cohort.reports["batch-norm"], part: values}
        return replace(cohort, reports={**cohort.reports, "batch-norm": forged})

    return reply


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        ("mean", float("nan"), "its report batch-norm/mean is not finite"),
        ("variance", float("inf"), "its report batch-norm/variance is not finite"),
        ("variance", -1e-3, "a variance among its batch norms' statistics is below 0"),
        ("mean", 1e6, "its batch norms' statistics are over 50 times larger than usual"),
        ("mean", -1e200, "its batch norms' statistics are over 50 times larger than usual"),
        ("variance", 1e9, "its batch norms' statistics are over 50 times larger than usual"),
        ("batches", 1e9, "its batch norms count other batches than its steps"),
        ("batches", -1.0, "its batch norms count other batches than its steps"),
    ],
)
def test_a_forged_statistic_excludes_the_client_and_is_not_averaged(part, value, reason):
    seen = []

    def adversary(round, cohort):
        seen.append(cohort)
        return forge(part, value)(round, cohort)

    simulation = simulate("average", "fedavg", adversary=adversary)
    outcome = simulation.advance().outcome
    assert outcome.excluded == {2: reason}
    rest = [0, 1, 3, 4, 5]
    a = seen[0].examples[rest]
    (sent,) = seen
    for key, values in sent.reports["batch-norm"].items():
        assert torch.allclose(
            simulation.server.state["batch-norm"][key], (a / a.sum()) @ values[rest], rtol=0, atol=1e-12
        )


def statistics(means, variances, batches=3.0):
    rows = len(means)
    return {
        "mean": torch.tensor(means).double().view(rows, 1),
        "variance": torch.tensor(variances).double().view(rows, 1),
        "batches": torch.full((rows, 1), batches).double(),
    }


@pytest.mark.parametrize(
    ("known", "sizes", "ratio", "excluded"),
    [
        ((0.0, 1.0, 0.0), [1, 1, 51], 50.0, {7}),
        ((0.0, 1.0, 0.0), [1, 1, 49], 50.0, set()),
        ((0.0, 1.0, 0.0), [1, 60], 50.0, set()),  # of two clients neither is usual
        ((0.0, 1.0, 2.0), [1, 60], 50.0, {6}),  # but the server knows
        ((3.0, 0.0, 2.0), [151, 151, 149], 50.0, {5, 6}),
        ((0.0, 0.0, 2.0), [1, 1, 49], 50.0, set()),
        ((0.0, 1.0, 2.0), [1, 1, 1e9], float("inf"), set()),
    ],
)
def test_activations_are_compared_with_the_cohorts_and_the_servers(known, sizes, ratio, excluded):
    mean, variance, batches = known
    reports = statistics([float(size) for size in sizes], [0.0] * len(sizes), batches + 1)
    given = Round(
        cohort(range(5, 5 + len(sizes)), torch.zeros(len(sizes), 3), reports={"batch-norm": reports}),
        torch.zeros(3).double(),
        FixedWorld(3),
        shared={"batch-norm": {name: rows[0] for name, rows in statistics([mean], [variance], batches).items()}},
        norm_ratio=ratio,
    )
    assert {*plausible_statistics().apply(given).excluded} == excluded


# ---------------------------------------------------------------- what stays on a client


@pytest.mark.parametrize(
    ("name", "backend"), on_backends([name for name in ALL_METHODS if name not in ("fedbac", "fedbac-soft", "feda4")])
)
def test_the_servers_norms_never_move_and_clients_do(name, backend):
    seen = []
    simulation = simulate(
        "local", name, engine=double(backend=backend), adversary=lambda round, cohort: seen.append(cohort) or cohort
    )
    start = simulation.trainer.start.clone()
    run(simulation, 3)
    assert torch.equal(simulation.server.model[NORM], start[NORM])
    assert not torch.equal(simulation.server.model, start)
    for sent in seen:
        assert not bool(sent.updates[:, NORM].any())
        assert "batch-norm" not in sent.reports
    kept = simulation.client_state["batch-norm"]
    for client in range(6):
        assert bool((kept[client]["private"] != start[NORM]).all())


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_stays_on_a_client_follows_its_own_gradient(backend):
    """Parts that change gradients and updates change nothing there, and the next round starts from it."""
    meddling = Part(
        "meddling",
        gradient=lambda client, step, g: g + 5,
        move=lambda client, step, w: w + 1,
        finish=lambda client, reply: Reply(reply.update + 1, {"trained": reply.trained, "start": client.start}),
    )
    seen, one = [], Local(batch=100, optimizer=sgd(0.1))
    plain = simulate("local", "fedavg", local=one, engine=double(backend=backend))
    changed = simulate(
        "local",
        fedavg().adding(local=meddling),
        local=one,
        engine=double(backend=backend),
        adversary=lambda round, cohort: seen.append(cohort) or cohort,
    )
    for each in (plain, changed):
        each.advance()
    start, kept = plain.trainer.start, plain.client_state["batch-norm"]
    after = {client: changed.client_state["batch-norm"][client]["private"] for client in range(6)}
    for client in range(6):
        assert torch.allclose(after[client], kept[client]["private"], rtol=0, atol=1e-12)
    (first,) = seen
    assert not bool(first.updates[:, NORM].any())
    assert not bool(first.reports["meddling"]["trained"][:, NORM].any())
    assert torch.equal(first.reports["meddling"]["start"], start.expand(6, -1))
    changed.advance()
    for client in range(6):
        assert torch.equal(seen[1].reports["meddling"]["start"][client, NORM], after[client])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_trace_shows_nothing_of_what_stays(backend):
    tracing = Part(
        "tracing",
        trace_every=1,
        finish=lambda client, reply: Reply(reply.update + client.trace.sum(0), {"last": client.trace[-1]}),
    )
    seen = []
    run(
        simulate(
            "local",
            fedavg().adding(upload=tracing),
            local=Local(batch=4, steps=2, optimizer=sgd(0.1)),
            engine=double(backend=backend),
            adversary=lambda round, cohort: seen.append(cohort) or cohort,
        )
    )
    for sent in seen:
        last = sent.reports["tracing"]["last"]
        assert not bool(last[:, NORM].any())
        assert bool(last.any(1).all())
        assert not bool(sent.updates[:, NORM].any())


def test_a_client_that_is_not_accepted_goes_back_to_what_it_had():
    def break_one(round, cohort):
        broken = (torch.tensor(cohort.ids) == 2) & (round == 2)
        return replace(cohort, updates=torch.where(broken[:, None], float("nan"), cohort.updates))

    simulation = simulate("local", "fedavg", adversary=break_one)
    simulation.advance()
    before = [simulation.client_state["batch-norm"][client] for client in range(3)]
    assert [*simulation.advance().outcome.excluded] == [2]
    after = [simulation.client_state["batch-norm"][client] for client in range(3)]
    same = [
        all(torch.equal(new[name], values) for name, values in old.items())
        for old, new in zip(before, after, strict=True)
    ]
    assert same == [False, False, True]


def test_norms_without_scales_keep_statistics_alone():
    federation = blobs(SIZES, heldout=0.2)
    plain = net(nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False), nn.Tanh(), nn.Linear(5, 3))
    simulation = Simulation(fedavg(), federation, cp.models.with_norm(plain, "local"), engine=double())
    record = simulation.advance(last=True)
    assert {*simulation.client_state["batch-norm"][0]} == {"mean", "variance", "batches"}
    assert len(record.clients["personal_loss"]) == 6


def test_frozen_scales_are_nobodys_own():
    frozen = model()
    frozen[1].weight.requires_grad_(False)
    simulation = Simulation(fedavg(), blobs(SIZES), cp.models.with_norm(frozen, "local"), engine=double())
    simulation.advance()
    assert simulation.client_state["batch-norm"][0]["private"].shape == (5,)
    assert torch.equal(simulation.trained()[1].weight, frozen[1].weight)


def test_parts_with_other_private_places_are_not_alike():
    def method(places):
        part = Part(
            "keeps",
            private=torch.tensor(places),
            client_state=lambda start: {"private": start[:2].clone()},
            when_lost="it starts anew",
            finish=lambda client, reply: reply,
        )
        return client_hooks(fedavg().adding(local=part))

    assert alike(method([0, 1]), method([0, 1]))
    assert not alike(method([0, 1]), method([0, 2]))


def test_private_places_need_a_state():
    with pytest.raises(CounterpoiseError, match="part keeps: private must be a tensor of places in the model"):
        Part("keeps", private=torch.tensor([1]))
