"""Options that follow other projects' code: SCAFFOLD corrected after the step, FedDyn's score, a server's schedule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import BACKENDS, H, M, Spy, assert_close, blobs, data_of, descend, double, flat, small
from torch.nn import functional as F
from torch.nn.utils import vector_to_parameters

import counterpoise as cp
from counterpoise.engine import Evaluation, Simulation
from counterpoise.engine.clients.batches import client_keys, plan
from counterpoise.engine.rounds.lockstep import Lockstep, why_apart
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, adam, cosine, exponential, sgd
from counterpoise.method import Part
from counterpoise.methods import avg, fedavgm, feddyn, fednova, scaffold
from counterpoise.runs.build import setup
from counterpoise.runs.config import parse

SIZES, BATCH, EPOCHS, SEED = [3, 9, 4, 13, 6], 4, 2, 5
LR, MOMENTUM, DECAY = 0.1, 0.9, 0.05


def batches(client, size, round):
    """A client's batches of a round, by the plan alone."""
    one = torch.tensor([size])
    for epoch in range(EPOCHS):
        planned = plan(client_keys(SEED, round, torch.tensor([client])), one, (one + BATCH - 1) // BATCH, BATCH, epoch)
        yield from (places[real] for places, real in zip(planned.places[0], planned.real[0], strict=True))


def scaffold_by_torch(cohorts, weights, first=None):
    """NIID-Bench's rule in a plain loop: torch's SGD with momentum, then ``w -= lr (c - c_i)``.

    The variates begin at `first`, or at zero. With weights by data every client must take part.
    """
    federation, server = blobs(SIZES), small()
    c = torch.zeros_like(flat(server)) if first is None else first.clone()
    own = [c.clone() for _ in SIZES]
    found = []
    for round, cohort in enumerate(cohorts, 1):
        start, moved, changes = flat(server), [], []
        for client in cohort:
            model, (inputs, targets) = small(), data_of(federation, client)
            vector_to_parameters(start.clone(), model.parameters())
            optimizer = torch.optim.SGD(model.parameters(), LR, momentum=MOMENTUM, weight_decay=DECAY)
            steps = 0
            for rows in batches(client, SIZES[client], round):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
                optimizer.step()
                vector_to_parameters(flat(model) - LR * (c - own[client]), model.parameters())
                steps += 1
            new = own[client] - c + (start - flat(model)) / (steps * LR)
            moved.append(flat(model) - start)
            changes.append(new - own[client])
            own[client] = new
        sizes = torch.tensor([SIZES[client] for client in cohort], dtype=torch.float64)
        by_data, equal = sizes / sizes.sum(), torch.full_like(sizes, 1 / len(cohort))
        step = (equal if weights == "uniform" else by_data) @ torch.stack(moved)
        share = by_data if weights == "data" else equal
        c = c + len(cohort) / len(SIZES) * share @ torch.stack(changes)
        vector_to_parameters(start + step, server.parameters())
        found.append((flat(server), step, c))
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("weights", "cohort", "start"),
    [("uniform", 3, "zero"), ("mixed", 3, "zero"), ("data", 5, "zero"), ("mixed", 5, "zero"), ("mixed", 3, "model")],
)
def test_scaffold_corrected_after_the_step_is_niid_benchs_loop(weights, cohort, start, backend):
    made = Simulation(
        scaffold(weights=weights, correct="step", start=start),
        blobs(SIZES),
        small(),
        local=Local(EPOCHS, BATCH, sgd(LR, momentum=MOMENTUM, weight_decay=DECAY)),
        cohort=cohort,
        seed=SEED,
        engine=double(backend=backend),
    )
    models, variates, cohorts = [], [], []
    for _ in range(4):
        cohorts.append(made.advance().cohort)
        models.append(made.server.model)
        variates.append(made.server.state["control-variates"]["c"])
    first = flat(small()) if start == "model" else None
    found = scaffold_by_torch(cohorts, weights, first)
    for model, variate, (expected, step, c) in zip(models, variates, found, strict=True):
        assert_close(model, expected, step, 1e-10)
        assert_close(variate, c, c, 1e-10)


def test_with_plain_sgd_both_corrections_are_one():
    runs = [
        Simulation(scaffold(correct=correct), blobs(SIZES), small(), local=Local(2, 4, sgd(0.1)), engine=double())
        for correct in ("gradient", "step")
    ]
    for _ in range(3):
        for made in runs:
            made.advance()
        moved = runs[0].server.model - runs[0].trainer.start
        assert_close(runs[0].server.model, runs[1].server.model, moved, 1e-12)


def test_corrected_after_the_step_scaffold_takes_any_optimiser():
    local = Local(2, 4, adam(0.01, keep=True), cosine(5, each="epoch"))
    Simulation(scaffold(correct="step"), blobs(SIZES), small(), local=local, engine=double()).advance()
    with pytest.raises(CounterpoiseError, match="SCAFFOLD's option II needs a local optimiser that is linear"):
        Simulation(scaffold(), blobs(SIZES), small(), local=local, engine=double())


def test_random_variates_do_nothing_if_everyone_takes_part_and_fade_as_clients_are_seen():
    """NIID-Bench starts all variates, the server's too, from one random model.

    They cancel in every step of the first round. A client's next variate does not depend on them, so if all take part
    they are gone. Otherwise clients not yet seen, whose share is u, hold the start c0: they are pulled by ``(1 - u) c0``
    and the others by ``-u c0``, until all have been seen.
    """
    first = flat(small(6, 3)).flip(0)
    everyone = [range(5)] * 3
    for (plain, step, c), (model, _, other) in zip(
        scaffold_by_torch(everyone, "mixed"), scaffold_by_torch(everyone, "mixed", first), strict=True
    ):
        assert_close(model, plain, step, 1e-10)
        assert_close(other, c, c, 1e-10)
    some = [(0, 1), (2, 3), (0, 4), (1, 2)]
    pairs = zip(scaffold_by_torch(some, "mixed"), scaffold_by_torch(some, "mixed", first), strict=True)
    shares = [float((other - c) @ first / (first @ first)) for (_, _, c), (_, _, other) in pairs]
    assert shares[0] == pytest.approx(3 / 5, abs=1e-12)  # three of five clients still hold the start
    assert abs(shares[2]) < 0.2  # everyone has been seen; what is left is what the other steps changed


# ---------------------------------------------------------------- hooks


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_hook_move_sees_the_step_and_changes_the_model_after_it(backend):
    """w <- w - lr h (w - m), then half of the way back to where the step began."""

    def move(client, step, w):
        return (w + step.w) / 2

    made = descend(avg().adding(local=Part("halved", move=move)), H, M, [3, 5], start=2.0, backend=backend)
    made.advance()
    ends = [2.0, 2.0]
    for client, steps in enumerate((3, 5)):
        for _ in range(steps):
            ends[client] -= 0.5 * 0.02 * H[client] * (ends[client] - M[client])
    assert float(made.server.model) == pytest.approx(np.mean(ends), abs=1e-13)


def test_hooks_that_return_something_else_are_told():
    wrong = avg().adding(local=Part("wrong", move=lambda client, step, w: w.sum()))
    with pytest.raises(CounterpoiseError, match="part wrong: its hook move must return a vector of the model's"):
        descend(wrong, H, M, [3, 5]).advance()
    wrong = avg().adding(update=Part("wrong", scored=lambda model, state: model.float()))
    with pytest.raises(CounterpoiseError, match="part wrong: its hook scored must return a vector of the model's"):
        descend(wrong, H, M, [3, 5]).advance()


def test_runs_that_move_otherwise_stay_apart():
    def made(factor):
        scaled = Part("scaled", move=lambda client, step, w: factor * w)
        return Simulation(avg().adding(local=scaled), blobs(SIZES), small(), engine=double())

    assert why_apart(made(0.5), made(0.5)) == ""
    assert why_apart(made(0.5), made(0.6)) == "their methods do different things on clients"


# ---------------------------------------------------------------- FedDyn


def scoring(score, cohort=None, **settings):
    rng = np.random.default_rng(1)
    test = (rng.standard_normal((40, 6)), rng.integers(0, 3, 40))
    return Simulation(
        feddyn(0.1, score=score),
        blobs(SIZES, test=test),
        small(),
        local=Local(2, 4, sgd(0.3)),
        cohort=cohort,
        engine=double(),
        evaluation=Evaluation(every=1),
        **settings,
    )


@pytest.mark.parametrize("cohort", [None, 2])
def test_feddyn_can_be_measured_at_the_mean_of_its_clients(cohort):
    spy = Spy()
    server, mean = scoring("server", cohort), scoring("mean", cohort, adversary=spy)
    for _ in range(3):
        before = mean.server.model
        one, other = server.advance(), mean.advance()
        assert torch.equal(server.server.model, mean.server.model)
        assert one.metrics["loss"] != other.metrics["loss"]
        model = small()
        vector_to_parameters(before + spy.cohorts[-1].updates.mean(0), model.parameters())
        test = mean.trainer.federation.test
        inputs, targets = test.take(torch.arange(len(test)), torch.float64)
        with torch.no_grad():
            assert other.metrics["loss"] == pytest.approx(float(F.cross_entropy(model(inputs), targets)), abs=1e-12)
    joint = [scoring("server", cohort), scoring("mean", cohort)]
    lockstep = Lockstep(joint)
    for round in range(3):
        records = lockstep.advance([(made, False) for made in joint])
        if round == 2:
            assert [r.metrics["loss"] for r in records] == [one.metrics["loss"], other.metrics["loss"]]


# ---------------------------------------------------------------- a schedule on the server


def test_fedavgm_under_a_schedule_is_heavy_ball_with_falling_rates():
    beta, lr, w, v = 0.6, 0.8, 3.0, 0.0
    made = descend(fedavgm(beta=beta, lr=lr, schedule=exponential(0.5)), H, M, [3, 5], counts=[1, 3], start=w)
    for round in range(5):
        pulls = 1 - (1 - 0.02 * np.array(H)) ** np.array([3, 5])
        v = beta * v + float(np.array([0.25, 0.75]) @ (pulls * (np.array(M) - w)))
        w += lr * 0.5**round * v
        made.advance()
        assert float(made.server.model) == pytest.approx(w, abs=1e-13)


def test_a_servers_schedule_is_read_from_a_configuration():
    values = {
        "rounds": 2,
        "data": {"name": "digits", "partition": {"name": "iid", "clients": 4}},
        "model": "linear",
        "method": {"name": "fedavgm", "beta": 0.6, "schedule": {"name": "cosine", "rounds": 50, "floor": 0.9}},
    }
    made = setup(parse(values, "here")).training.method
    assert made.spec.plain()["schedule"] == {"name": "cosine", "rounds": 50, "floor": 0.9, "each": "round"}
    values["method"]["schedule"] = {"name": "cosine", "round": 50}
    with pytest.raises(CounterpoiseError, match="There is no option 'round' of schedule cosine"):
        setup(parse(values, "here"))


# ---------------------------------------------------------------- FedNova as Flower's baseline computes it


def test_flowers_baseline_of_fednova_is_a_plain_mean_if_all_take_equally_many_epochs():
    """It divides by the sum of its factors ``tau p_i / |a_i|``. With |a_i| proportional to p_i they are all equal.

    FedNova itself goes further, by ``tau sum_i p_i / |a_i|``, here ``N sum_i n_i^2 / n^2``.
    """
    sizes = [4, 12, 8, 16]  # whole batches, so that steps are proportional to them
    local = Local(2, 4, sgd(0.1))
    runs = [Simulation(method, blobs(sizes), small(), local=local, engine=double()) for method in (fednova(), avg())]
    nova, mean = ((made.advance(), made.server.model - made.trainer.start)[1] for made in runs)
    longer = 4 * sum(n * n for n in sizes) / sum(sizes) ** 2
    assert longer == pytest.approx(1.2)
    assert_close(nova, longer * mean, nova, 1e-12)


def test_the_options_are_reached_by_name():
    assert cp.methods.METHODS.make("scaffold", correct="step", weights="mixed").spec.options["correct"] == "step"
    with pytest.raises(CounterpoiseError, match="option correct must be one of gradient, step, not 'model'"):
        scaffold(correct="model")
    with pytest.raises(CounterpoiseError, match='start="model" is for weights="uniform" or "mixed"'):
        scaffold(weights="data", start="model")
    with pytest.raises(CounterpoiseError, match="option score must be one of server, mean, not 'both'"):
        feddyn(score="both")
