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


def test_methods_and_rates_may_differ_and_nothing_is_captured_again() -> None:
    names = ["fedavg", "fedavgm", "fedadam", "fedvarp", "feda4", "median"]
    alone, joint = ([member(name, seed, dtype="float64") for seed, name in enumerate(names)] for _ in range(2))
    lockstep = Lockstep(joint)
    captured = []
    for round in range(1, ROUNDS + 1):
        lockstep.advance([(made, False) for made in joint[: len(joint) - round // 2]])
        captured.append({id(chunk) for chunk in lockstep.backend._captured.values()})
        for made in alone[: len(joint) - round // 2]:
            made.advance()
    assert captured[-1] == captured[0]
    assert max(distances(alone, joint)) <= WITHIN["float64"]


def test_runs_alone_give_way_to_each_other_in_one_process() -> None:
    """Two batches of runs alternate on one device."""
    alone, joint = ([member("fedavg", seed, dtype="float64") for seed in range(4)] for _ in range(2))
    halves = [Lockstep(joint[:2]), Lockstep(joint[2:])]
    for _ in range(ROUNDS):
        for half, members in zip(halves, (joint[:2], joint[2:]), strict=True):
            half.advance([(made, False) for made in members])
        for made in alone:
            made.advance()
    assert max(distances(alone, joint)) <= WITHIN["float64"]
