"""Runs that train together on a GPU compute what each computes alone there."""

import pytest
from helpers import ALL_METHODS

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.engine.rounds.lockstep import Lockstep
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.methods import METHODS

pytestmark = pytest.mark.gpu

ROUNDS = 5
WITHIN = {"float32": 1e-4, "float64": 1e-9}


def member(method: str, seed: int, **engine: object) -> Simulation:
    federation = cp.load("digits", partition=cp.dirichlet(0.5, clients=9 + seed), seed=seed, probe=1, proxy=100)
    return Simulation(
        METHODS.make(method),
        federation,
        lambda shape, classes: cp.models.mlp(shape, classes, hidden=8),
        cohort=5,
        seed=seed,
        local=cp.Local(epochs=2, batch=10, optimizer=cp.sgd(0.05, momentum=0.5)),
        evaluation=cp.Evaluation(every=2, clients_every=3),
        engine=cp.Engine(device="cuda", tf32=False, **engine),
    )


def distances(members: list[Simulation], others: list[Simulation]) -> list[float]:
    """How far each model is from the other's, relative to how far it moved."""
    pairs = zip(members, others, strict=True)
    return [
        float((a.server.model - b.server.model).norm() / (a.server.model - a.trainer.start).norm()) for a, b in pairs
    ]


@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize("name", [*ALL_METHODS, "feddua:scaffold"])
def test_every_method_ends_where_it_ends_alone(name: str, dtype: str) -> None:
    alone, joint = ([member(name, seed, dtype=dtype) for seed in (0, 1, 2)] for _ in range(2))
    lockstep = Lockstep(joint)
    for round in range(1, ROUNDS + 1):
        # The first run ends a round early: the others go on, with empty places.
        live = slice(1 if round == ROUNDS else 0, None)
        records = lockstep.advance([(made, round == ROUNDS) for made in joint[live]])
        for made, record in zip(alone[live], records, strict=True):
            own = made.advance(last=round == ROUNDS)
            assert isinstance(record, RoundRecord), record
            assert (own.cohort, own.outcome.claims) == (record.cohort, record.outcome.claims)
            assert own.metrics.keys() == record.metrics.keys()
    assert lockstep.backend.captures
    assert max(distances(alone, joint)) <= WITHIN[dtype]


def test_methods_may_differ_and_runs_may_end_early() -> None:
    names = ["fedavg", "fedavgm", "fedadam", "fedvarp", "feda4", "median"]
    alone, joint = ([member(name, seed, dtype="float64") for seed, name in enumerate(names)] for _ in range(2))
    lockstep = Lockstep(joint)
    for round in range(1, ROUNDS + 1):
        live = slice(len(joint) - round // 2)
        lockstep.advance([(made, False) for made in joint[live]])
        for made in alone[live]:
            made.advance()
    assert len(lockstep.backend._captured) == 1
    assert max(distances(alone, joint)) <= WITHIN["float64"]


def test_two_batches_alternate_on_one_device() -> None:
    """While the device trains one of them, the servers of the other work, each on a stream of its own."""
    names = ["fedavg", "feda4", "fedvarp", "fedbac-soft", "median", "fedadam"]
    alone, joint = ([member(name, seed, dtype="float64") for seed, name in enumerate(names)] for _ in range(2))
    halves = [(Lockstep(some), [(made, False) for made in some]) for some in (joint[::2], joint[1::2])]
    begun = [half.begin(turns) for half, turns in halves]
    for round in range(ROUNDS):
        for place, (half, turns) in enumerate(halves):
            assert all(isinstance(record, RoundRecord) for record in half.finish(begun[place]))
            if round < ROUNDS - 1:
                begun[place] = half.begin(turns)
        for made in alone:
            made.advance()
    assert max(distances(alone, joint)) <= WITHIN["float64"]
