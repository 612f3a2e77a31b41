"""Runs whose clients train as one batch compute what they compute alone, and do not disturb each other."""

import time
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import ALL_METHODS, blobs, differing_on_clients, double, net, small
from played import play
from torch import nn

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.engine.backends.joining import join_jobs
from counterpoise.engine.rounds.lockstep import Lockstep, why_apart
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.method import Part
from counterpoise.methods import METHODS

SIZES = ([1, 9, 4, 13, 6, 9, 9, 5], [7, 3, 8, 8, 2, 12])


def held(sizes, seed=0):
    rng = np.random.default_rng(seed + 100)
    return blobs(
        sizes, seed=seed, probe=1, proxy=12, heldout=0.3, test=(rng.standard_normal((20, 6)), rng.integers(0, 3, 20))
    )


def simulation(method="fedavg", seed=0, backend="per-client", lr=0.1, data=None, **settings):
    given = {"cohort": 4, "engine": double(backend=backend)} | settings
    federation = data or held(SIZES[seed % 2], seed)
    local = cp.Local(epochs=2, batch=4, optimizer=cp.sgd(lr, momentum=0.5))
    made = METHODS.make(method) if isinstance(method, str) else method
    return Simulation(made, federation, small(), seed=seed, **{"local": local} | given)


def alone(made, rounds):
    return [made.advance(last=round == rounds) for round in range(1, rounds + 1)]


def together(members, rounds):
    lockstep = Lockstep(members)
    records = [lockstep.advance([(made, round == rounds) for made in members]) for round in range(1, rounds + 1)]
    assert all(isinstance(record, RoundRecord) for round in records for record in round)
    return [list(of_one) for of_one in zip(*records, strict=True)]


def plain(record):
    """A record without what the machine says."""
    return replace(record, seconds=0.0, memory=0)


@pytest.mark.parametrize("name", [*ALL_METHODS, "feddua:scaffold"])
def test_one_client_at_a_time_gives_the_same_bits(name):
    mine = [simulation(name, seed) for seed in (0, 1, 2)]
    joint = [simulation(name, seed) for seed in (0, 1, 2)]
    for own, records, made, other in zip([alone(m, 3) for m in mine], together(joint, 3), mine, joint, strict=True):
        assert [plain(r) for r in own] == [plain(r) for r in records]
        assert torch.equal(made.server.model, other.server.model)


@pytest.mark.parametrize("captures", [False, True], ids=["plain", "captured"])
@pytest.mark.parametrize("name", differing_on_clients(["fedavg", *ALL_METHODS, "feddua:scaffold"]))
def test_one_batch_gives_the_same_numbers(name, captures, monkeypatch):
    play(monkeypatch)
    mine, joint = ([simulation(name, seed, "batched") for seed in (0, 1, 2)] for _ in range(2))
    lockstep = Lockstep(joint)
    lockstep.backend.captures = captures
    for round in (1, 2, 3):
        # The first run ends a round early: the others go on in a batch with an empty place.
        turns = [(made, False) for made in joint[round == 3 :]]
        assert all(isinstance(record, RoundRecord) for record in lockstep.advance(turns))
        for made in mine[round == 3 :]:
            made.advance()
    for made, other in zip(mine, joint, strict=True):
        assert torch.allclose(made.server.model, other.server.model, rtol=1e-9, atol=1e-12)


def test_methods_rates_seeds_cohorts_and_rounds_may_differ():
    def members():
        return [
            simulation("fedavg", 0, "batched"),
            simulation("fedavgm", 1, "batched", lr=0.02),
            simulation("fedadam", 2, "batched", cohort=2),
            simulation("median", 3, "batched", adversary=cp.adversary.sign_flip(clients=3)),
            simulation("fedvarp", 4, "batched", data=held([15, 15, 15, 15], 9)),
        ]

    mine, joint = members(), members()
    mine[0].advance()
    joint[0].advance()
    assert not any(why_apart(joint[0], other) for other in joint[1:])
    for own, records in zip([alone(made, 3) for made in mine], together(joint, 3), strict=True):
        for a, b in zip(own, records, strict=True):
            assert (a.cohort, a.outcome.claims, a.liars, a.bytes_up, a.bytes_down) == (
                b.cohort,
                b.outcome.claims,
                b.liars,
                b.bytes_up,
                b.bytes_down,
            )
            assert a.metrics == pytest.approx(b.metrics, rel=1e-9)
            assert all(a.clients[name] == pytest.approx(b.clients[name], rel=1e-9) for name in a.clients)


def bent(factor):
    return METHODS.make("fedavg").adding(local=Part("bent", gradient=lambda client, step, g: factor * g))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, ""),
        ({"seed": 5, "lr": 0.3, "method": "fedavgm", "cohort": 2}, ""),
        ({"method": "fedprox"}, "their methods do different things on clients"),
        ({"method": bent(2.0)}, "their methods do different things on clients"),
        ({"engine": double(backend="batched")}, "their engines differ"),
        ({"local": cp.Local(epochs=2, batch=5, optimizer=cp.sgd(0.1, momentum=0.5))}, "their batch sizes differ"),
        (
            {"local": cp.Local(2, 4, cp.sgd(0.1, momentum=0.5), memory=[1.0] * 8)},
            "their clients have different memories",
        ),
        ({"local": cp.Local(epochs=3, batch=4, optimizer=cp.sgd(0.1, momentum=0.5))}, "their numbers of passes differ"),
        ({"local": cp.Local(epochs=2, batch=4, optimizer=cp.sgd(0.1, momentum=0.6))}, "their optimisers differ"),
        ({"local": cp.Local(epochs=2, batch=4, optimizer=cp.sgd(0.1, 0.5, weight_decay=1e-3))}, "their optimisers"),
        ({"loss": lambda outputs, targets: outputs.square().mean(1)}, "their losses differ"),
    ],
)
def test_why_runs_cannot_train_together(settings, reason):
    assert why_apart(simulation(), simulation(**settings)).startswith(reason)
    assert bool(why_apart(simulation(), simulation(**settings))) == bool(reason)


def test_models_and_samples_of_other_forms_stay_apart():
    def made(module, data=None):
        return Simulation(METHODS.make("fedavg"), data or blobs(SIZES[0]), module, engine=double())

    first = made(small())
    assert why_apart(first, made(net(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))) == "their models differ"
    frozen = small()
    next(frozen.parameters()).requires_grad_(False)
    moved = small()
    next(moved.parameters()).requires_grad_(False).add_(1.0)
    assert why_apart(made(frozen), made(moved)) == "their models differ"
    single = blobs(SIZES[0])
    single = replace(single, base=replace(single.base, inputs=single.base.inputs.float()))
    assert why_apart(first, made(small(), single)) == "their samples differ in shape, type or scaling"


def test_own_hooks_stay_with_their_learning_rate():
    """A user's hook may read ``client.local.optimizer.lr``; ours read ``client.lr``, of which every row has its own."""
    assert why_apart(simulation(bent(2.0)), simulation(bent(2.0))) == ""
    assert "learning rates" in why_apart(simulation(bent(2.0)), simulation(bent(2.0), lr=0.2))
    assert why_apart(simulation("scaffold"), simulation("scaffold", lr=0.2)) == ""


def failing(round):
    def apply(seen):
        if seen.world.round == round:
            raise RuntimeError("out of luck")
        return seen

    return METHODS.make("fedavg").adding(trust=Part("failing", apply=apply))


def test_a_run_that_fails_does_not_disturb_the_others():
    own, joint = simulation(seed=1), [simulation(failing(2)), simulation(seed=1)]
    lockstep = Lockstep(joint)
    assert all(isinstance(record, RoundRecord) for record in lockstep.advance([(made, False) for made in joint]))
    failed, fine = lockstep.advance([(made, False) for made in joint])
    assert str(failed).endswith("RuntimeError: out of luck.")
    assert joint[0].round == 1
    assert joint[0].server.whole
    assert plain(fine) == plain(alone(own, 2)[1])
    assert isinstance(lockstep.advance([(joint[1], True)])[0], RoundRecord)


def test_runs_train_apart_in_a_round_in_which_the_batch_fails(monkeypatch, caplog):
    own, joint = [simulation(seed=s) for s in (0, 1)], [simulation(seed=s) for s in (0, 1)]
    lockstep = Lockstep(joint)

    def burst(job, planned=None):
        raise RuntimeError("too large")

    monkeypatch.setattr(lockstep.backend, "train", burst)
    found = lockstep.advance([(made, True) for made in joint])
    assert [plain(record) for record in found] == [plain(made.advance(last=True)) for made in own]
    runs = "fedavg with seed 0 in round 1, fedavg with seed 1 in round 1"
    assert f"{runs} train one by one, because together they failed: too large" in caplog.text


def bursting(lockstep, monkeypatch, calls=1, kind=MemoryError, words="out of memory"):
    """Let the first calls of the batch's training fail. Returns weak references to what each call had in its frame."""
    train, held = lockstep.backend.train, []

    def burst(job, planned=None):
        results = train(job) if len(held) >= calls else torch.zeros(3)
        held.append(weakref.ref(getattr(results, "update", results)))
        if len(held) <= calls:
            raise kind(words)
        return results

    monkeypatch.setattr(lockstep.backend, "train", burst)
    return held


@pytest.mark.parametrize("backend", ["per-client", "batched"])
def test_runs_that_ran_out_of_memory_together_stay_apart(backend, monkeypatch, caplog):
    own, joint = ([simulation("scaffold", s, backend) for s in (0, 1)] for _ in range(2))
    lockstep = Lockstep(joint)
    assert all(made.batch.runs == 2 for made in joint)
    lockstep.advance([(made, False) for made in joint])
    tried = bursting(lockstep, monkeypatch, 1, RuntimeError, "DefaultCPUAllocator: can't allocate memory: you tried")
    for round in (2, 3):
        found = lockstep.advance([(made, round == 3) for made in joint])
    for made, record in zip(own, found, strict=True):
        assert plain(record).metrics == pytest.approx(alone(made, 3)[-1].metrics, rel=1e-12)
    assert len(tried) == 1 + 2 * 2  # together once, then each of two runs in two rounds
    said = [r.getMessage() for r in caplog.records if "one by one" in r.getMessage()]
    assert len(said) == 1
    assert "from now on: together they need more memory than there is (DefaultCPUAllocator: can't" in said[0]
    assert "--together N" in said[0]
    assert all(made.batch is None for made in joint)


def test_runs_that_train_apart_hold_neither_the_batch_nor_each_others_updates(monkeypatch):
    joint = [simulation(seed=s) for s in (0, 1)]
    lockstep = Lockstep(joint)
    held = bursting(lockstep, monkeypatch)
    alive, train = [], lockstep.backend.train
    spy = lambda job: alive.append([ref() is not None for ref in held]) or train(job)  # noqa: E731
    monkeypatch.setattr(lockstep.backend, "train", spy)
    assert all(isinstance(found, RoundRecord) for found in lockstep.advance([(made, False) for made in joint]))
    assert alive == [[], [False], [False, False]]


def test_a_run_that_runs_out_of_memory_alone_leaves_it_to_the_others(monkeypatch):
    joint = [simulation(seed=s) for s in (0, 1)]
    lockstep = Lockstep(joint)
    held = bursting(lockstep, monkeypatch, calls=2)
    failed, fine = lockstep.advance([(made, False) for made in joint])
    assert isinstance(failed, MemoryError)
    assert isinstance(fine, RoundRecord)
    assert [ref() for ref in held] == [None, None, None]


def test_a_batch_holds_what_a_run_sends_once():
    lockstep = Lockstep(joint := [simulation(seed=s) for s in (0, 1)])
    members = lockstep.begin([(made, False) for made in joint])
    jobs = [m.simulation.make_job(m.opened, m.ready) for m in members]
    job = join_jobs(jobs, lockstep.samples, [0, 0], [])
    assert job.shared.start.shape == (2, len(joint[0].server.model))
    assert job.of.tolist() == [0] * len(jobs[0].sizes) + [1] * len(jobs[1].sizes)
    assert torch.equal(job.sent.start[-1], joint[1].server.model)


def test_the_run_at_fault_is_the_one_that_fails(monkeypatch):
    joint = [simulation(seed=s) for s in (0, 1)]
    lockstep = Lockstep(joint)

    def burst(job, planned=None):
        raise RuntimeError("mine")

    monkeypatch.setattr(lockstep.backend, "train", burst)
    monkeypatch.setattr(joint[0].backend, "train", burst)
    failed, fine = lockstep.advance([(made, False) for made in joint])
    assert str(failed).endswith("RuntimeError: mine.")
    assert isinstance(fine, RoundRecord)


def test_seconds_add_up_to_the_time_that_the_batch_took():
    joint = [simulation(seed=s) for s in range(4)]
    lockstep = Lockstep(joint)
    begun = time.perf_counter()
    records = lockstep.advance([(made, True) for made in joint])
    took = time.perf_counter() - begun
    assert 0.8 * took < sum(record.seconds for record in records) <= took
    assert all(record.seconds > 0 for record in records)


def test_equal_samples_are_held_once_and_others_are_joined():
    same = Lockstep([simulation("fedavg", 0), simulation("fedavgm", 0)])
    assert len(same.samples) == len(simulation().trainer.federation.base)
    two = [simulation("fedavg", 0), simulation("fedavgm", 1)]
    assert len(Lockstep(two).samples) == sum(len(made.trainer.federation.base) for made in two)


@pytest.mark.parametrize("backend", ["per-client", "batched"])
def test_hooks_that_differ_in_a_number_train_together(backend):
    mine, joint = (
        [simulation(METHODS.make("fedprox", mu=mu), seed, backend) for seed, mu in enumerate((0.1, 2.0))]
        for _ in range(2)
    )
    assert why_apart(*joint) == ""
    lockstep = Lockstep(joint)
    lockstep.advance([(made, False) for made in joint])
    for _ in range(2):  # the run whose number the program holds has ended
        lockstep.advance([(joint[1], False)])
    for made, other, rounds in zip(mine, joint, (1, 3), strict=True):
        alone(made, rounds)
        assert torch.allclose(made.server.model, other.server.model, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("backend", ["per-client", "batched"])
def test_models_measured_on_the_same_samples_keep_their_own_metrics(backend, monkeypatch):
    mine, joint = ([simulation(name, 0, backend) for name in ("fedavg", "fedavgm", "avg")] for _ in range(2))
    lockstep = Lockstep(joint)
    stacks = []
    outputs = lockstep.backend.outputs
    monkeypatch.setattr(lockstep.backend, "outputs", lambda m, x: stacks.append(len(m)) or outputs(m, x))
    for round in (1, 2):
        records = lockstep.advance([(made, round == 2) for made in joint])
    own = [alone(made, 2)[-1] for made in mine]
    assert len({record.metrics["loss"] for record in own}) == 3
    for a, b in zip(own, records, strict=True):
        assert a.metrics == pytest.approx(b.metrics, rel=1e-9)
        assert all(a.clients[name] == pytest.approx(b.clients[name], rel=1e-9) for name in a.clients)
    assert {*stacks} == {3}


def test_on_a_gpu_the_place_of_a_run_that_ended_is_filled_in_evaluation(monkeypatch):
    play(monkeypatch)
    mine, joint = ([simulation(name, 0, "batched") for name in ("fedavg", "fedavgm", "avg", "fedadam")] for _ in "ab")
    lockstep = Lockstep(joint)
    lockstep.backend.captures = True
    stacks = []
    outputs = lockstep.backend.outputs
    monkeypatch.setattr(lockstep.backend, "outputs", lambda m, x: stacks.append(len(m)) or outputs(m, x))
    lockstep.advance([(made, False) for made in joint])
    records = lockstep.advance([(made, True) for made in joint[1:]])
    assert {*stacks} == {4}
    for made, record in zip(mine[1:], records, strict=True):
        assert record.metrics == pytest.approx(alone(made, 2)[-1].metrics, rel=1e-9)


def test_a_trace_begins_at_its_own_runs_model():
    def finish(client, reply):
        return replace(reply, update=reply.update + client.trace[1])

    tracing = METHODS.make("fedavg").adding(local=Part("tracing", finish=finish, trace_every=1))
    mine, joint = ([simulation(tracing, seed, "batched") for seed in (0, 1, 2)] for _ in range(2))
    together(joint, 3)
    for made, other in zip(mine, joint, strict=True):
        alone(made, 3)
        assert torch.allclose(made.server.model, other.server.model, rtol=1e-9, atol=1e-12)
