"""Cohorts, batches and dropout follow from the seed alone; a run repeats bit for bit."""

import numpy as np
import pytest
import torch
from helpers import ALL_METHODS, ENGINES, blobs, double, fresh, joined, net, on_backends, run, small
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from counterpoise.engine import Simulation
from counterpoise.engine.backends.interface import Job
from counterpoise.engine.clients.batches import Plan, _plan, client_keys, plan
from counterpoise.local import Local, sgd
from counterpoise.methods import METHODS, fedavg
from counterpoise.randomness import counter

SIZES = [3, 8, 5, 9, 2, 6, 7]


class Logger(nn.Module):
    """A linear model that writes down every training batch it is shown, by its first feature."""

    seen: list

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs):
        if self.training and Logger.seen is not None:
            Logger.seen.append(sorted(inputs[:, 0].tolist()))
        return self.layer(inputs)

    def features(self, inputs):
        return inputs


def batches_seen(method, engine, seed=0, rounds=2):
    Logger.seen = None
    simulation = Simulation(
        method,
        blobs(SIZES, probe=1),
        fresh(Logger()),
        local=Local(batch=4),
        cohort=4,
        seed=seed,
        engine=double(**engine),
    )
    Logger.seen = []
    cohorts = [simulation.advance().cohort for _ in range(rounds)]
    return cohorts, sorted(map(tuple, Logger.seen))


def test_cohorts_and_batches_do_not_depend_on_the_method():
    first = batches_seen(fedavg(), ENGINES[-2])
    assert len(first[1]) > 6
    for name in ALL_METHODS:
        cohorts, batches = batches_seen(METHODS.make(name), ENGINES[-2])
        assert (cohorts, set(batches)) == (first[0], set(first[1]))  # some methods look at a batch twice


def test_cohorts_and_batches_do_not_depend_on_threads():
    assert batches_seen(fedavg(), ENGINES[-2]) == batches_seen(fedavg(), ENGINES[-1])


@pytest.mark.parametrize("engine", ENGINES)
def test_cohorts_do_not_depend_on_the_engine(engine):
    def cohorts(engine):
        simulation = Simulation(fedavg(), blobs(SIZES), small(), cohort=3, seed=4, engine=double(**engine))
        return [simulation.advance().cohort for _ in range(3)]

    assert cohorts(engine) == cohorts(ENGINES[-1])


def test_seeds_and_rounds_have_cohorts_and_batches_of_their_own():
    (first, second), seen = batches_seen(fedavg(), ENGINES[-2])
    assert first != second
    (other, _), others = batches_seen(fedavg(), ENGINES[-2], seed=1)
    assert other != first
    assert seen != others


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    batch=st.integers(1, 5) | st.integers(6, 1000),
    epoch=st.integers(0, 2),
    data=st.data(),
)
def test_a_clients_batches_are_its_own_whoever_trains_beside_it(sizes, batch, epoch, data):
    steps = [data.draw(st.integers(1, 9)) for _ in sizes]
    keys = client_keys(1, 2, torch.arange(len(sizes)))
    together = plan(keys, torch.tensor(sizes), torch.tensor(steps), batch, epoch)
    narrow = Job(*[None] * 3, torch.tensor(sizes), *[None] * 4).width(batch)
    assert narrow <= min(batch, 2 * max(sizes))
    narrower = plan(keys, torch.tensor(sizes), torch.tensor(steps), narrow, epoch)
    assert not bool(together.real[:, :, narrow:].any())
    for one, other in zip(narrower, together, strict=True):
        assert torch.equal(one, other[:, :, :narrow] if other.ndim == 3 else other)
    for i, (n, k) in enumerate(zip(sizes, steps, strict=True)):
        alone = plan(keys[i : i + 1], torch.tensor([n]), torch.tensor([k]), batch, epoch)
        width = alone.real.shape[2]
        assert torch.equal(together.real[i, :k, :width], alone.real[0])
        assert not bool(together.real[i, :, width:].any())
        assert torch.equal(together.places[i, :k, :width], alone.places[0])
        assert torch.equal(together.model_keys[i, :k], alone.model_keys[0])
        assert not bool(together.real[i, k:].any())
        shown = [p[r].tolist() for p, r in zip(alone.places[0], alone.real[0], strict=True)]
        per_lap = -(-n // batch)
        for lap in range(0, k - per_lap + 1, per_lap):
            whole = shown[lap : lap + per_lap]
            assert sorted(joined(whole)) == list(range(n))
            assert [len(b) for b in whole[:-1]] == [batch] * (per_lap - 1)


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    steps=st.lists(st.integers(1, 9), min_size=5, max_size=5),
    batch=st.integers(1, 5),
)
def test_a_gpus_plan_is_the_cpus(sizes, steps, batch):
    keys, epochs = client_keys(1, 2, torch.arange(len(sizes))), torch.arange(len(sizes))
    counts = np.array(sizes), np.array(steps[: len(sizes)])
    theirs = Plan(*_plan(torch, counter, torch.from_numpy, keys, epochs, *counts, batch))
    for name, ours in plan(keys, *map(torch.from_numpy, counts), batch, epochs)._asdict().items():
        assert torch.equal(ours, getattr(theirs, name)), name


def test_laps_epochs_rounds_and_clients_have_orders_of_their_own():
    size, steps = torch.tensor([30]), torch.tensor([2])

    def order(seed, round, client, epoch):
        keys = client_keys(seed, round, torch.tensor([client]))
        return [tuple(lap.tolist()) for lap in plan(keys, size, steps, 30, epoch).places[0]]

    settings = [(0, 1, 0, 0), (1, 1, 0, 0), (0, 2, 0, 0), (0, 1, 1, 0), (0, 1, 0, 1)]
    found = [lap for setting in settings for lap in order(*setting)]
    assert len(set(found)) == 10


def dropping():
    return net(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.parametrize(("name", "backend"), on_backends(ALL_METHODS))
def test_two_equal_simulations_are_equal_bit_for_bit(name, backend):
    engine = {"batched": ENGINES[2], "per-client": ENGINES[-1]}[backend]

    def again():
        torch.rand(3)  # a run does not depend on torch's own generator
        simulation = Simulation(
            METHODS.make(name),
            blobs(SIZES, probe=1, proxy=5),
            dropping(),
            local=Local(batch=4, epochs=2, optimizer=sgd(0.2, momentum=0.9)),
            cohort=4,
            seed=6,
            engine=double(**engine),
        )
        records = [simulation.advance() for _ in range(3)]
        return simulation, records

    (one, first), (two, second) = again(), again()
    assert torch.equal(one.server.model, two.server.model)
    assert [(r.cohort, r.outcome, r.metrics, r.bytes_up, r.bytes_down) for r in first] == [
        (r.cohort, r.outcome, r.metrics, r.bytes_up, r.bytes_down) for r in second
    ]
    for part, named in one.server.state.items():
        for key, value in named.items():
            assert torch.equal(value, two.server.state[part][key])


def test_other_seeds_give_other_models():
    models = [
        run(Simulation(fedavg(), blobs(SIZES), dropping(), local=Local(batch=4), seed=seed, engine=double()), 1)
        for seed in (0, 1)
    ]
    assert not torch.allclose(*models)


def test_a_run_leaves_torchs_generator_alone():
    model = dropping()
    before = torch.get_rng_state()
    run(Simulation(fedavg(), blobs(SIZES), model, local=Local(batch=4), engine=double()), 1)
    assert torch.equal(torch.get_rng_state(), before)


class Unkeyed(nn.Module):
    """Randomness that the engine does not replace."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs):
        if self.training:
            inputs = inputs + torch.empty_like(inputs).normal_()
        return self.layer(inputs)


def test_other_randomness_in_a_model_repeats_for_one_engine_and_is_warned_of(caplog):
    def model():
        torch.rand(1)
        simulation = Simulation(
            fedavg(),
            blobs(SIZES),
            fresh(Unkeyed()),
            local=Local(batch=4),
            engine=double(backend="per-client", threads=2),
        )
        assert simulation.engine.threads == 1
        return run(simulation)

    assert torch.equal(model(), model())
    assert "draws random numbers that cannot be keyed by client" in caplog.text
