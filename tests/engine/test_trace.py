"""What a part with `trace_every` sees: a client's displacements after its own steps 1, 1 + s, 1 + 2s, ..."""

from __future__ import annotations

import pytest
import torch
from helpers import BACKENDS, Point, Spy, blobs, double, half_square, quadratics, small, tracing

from counterpoise.engine import Simulation
from counterpoise.local import Local, sgd
from counterpoise.method import Part, Reply
from counterpoise.methods import fedavg

ENGINES = [{"backend": "batched", "chunk": chunk} for chunk in (1, 2, 3, 5)] + [{"backend": "per-client", "threads": 2}]
both = pytest.mark.parametrize("backend", BACKENDS)
H, M, LR, START = (1.0, 10.0, 3.0, 0.5, 2.0), (4.0, -1.0, 2.0, 7.0, -3.0), 0.05, 2.5
COUNTS, BATCH, EPOCHS, MOST = [5, 9, 14, 2, 9], 4, 3, 12
STEPS = [-(-n // BATCH) * EPOCHS for n in COUNTS]  # 6, 9, 12, 3, 9


def displacement(client: int, k: int, start: float) -> float:
    """Where a client is after k steps, less where it began: all of its samples have the same loss."""
    return ((1 - LR * H[client]) ** k - 1) * (start - M[client])


def expected(client: int, every: int, steps: int, start: float) -> list[float]:
    """Algorithm 2, lines 3-9: after step k, counted from 0, if k mod s is 0."""
    return [displacement(client, k + 1, start) for k in range(steps) if k % every == 0]


def trace(engine, *parts, local=None, rounds=1, cohort=None) -> tuple[list[float], Spy]:
    """The server's models before each round, and the cohorts with what the parts saw."""
    method = fedavg()
    for part in parts:
        method = method.adding(upload=part)
    spy = Spy()
    simulation = Simulation(
        method,
        quadratics(H, M, COUNTS),
        Point(START),
        loss=half_square,
        local=local or Local(batch=BATCH, epochs=EPOCHS, optimizer=sgd(LR)),
        engine=double(**engine),
        adversary=spy,
        cohort=cohort,
    )
    starts = []
    for _ in range(rounds):
        starts.append(float(simulation.server.model))
        simulation.advance()
    return starts, spy


def assert_traced(cohort, name, every, steps, start) -> None:
    told = cohort.reports[name]
    for place, client in enumerate(cohort.ids):
        rows = expected(client, every, steps[client], start)
        assert int(told["traced"][place]) == len(rows)
        assert int(told["length"][place]) >= len(rows)
        seen = told["trace"][place].squeeze(1)
        assert seen[: len(rows)].tolist() == pytest.approx(rows, abs=1e-13)
        assert torch.equal(seen[len(rows) :], torch.zeros(MOST - len(rows), dtype=seen.dtype))
        assert float(told["raw"][place]) == pytest.approx(displacement(client, steps[client], start), abs=1e-13)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("every", [1, 2, 5, 100])
def test_a_trace_follows_a_clients_own_steps_over_epochs(every, engine) -> None:
    """Clients of 1 to 4 batches an epoch, three epochs: their counts drift apart while they wait for each other."""
    starts, spy = trace(engine, tracing(every, MOST), rounds=2)
    assert starts[0] != starts[1]
    for start, cohort in zip(starts, spy.cohorts, strict=True):
        assert_traced(cohort, "tracing", every, STEPS, start)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("every", [1, 2, 4])
def test_a_trace_follows_steps_that_are_set_for_each_client(every, engine) -> None:
    steps = [1, 12, 7, 2, 5]
    (start,), spy = trace(engine, tracing(every, MOST), local=Local(batch=9, steps=steps, optimizer=sgd(LR)))
    assert_traced(spy.cohorts[0], "tracing", every, steps, start)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_parts_with_periods_of_their_own_each_see_theirs(engine) -> None:
    parts = [tracing(s, MOST, f"by-{s}") for s in (2, 3, 1)] + [tracing(3, MOST, "again-by-3")]
    (start,), spy = trace(engine, *parts)
    for every, name in ((2, "by-2"), (3, "by-3"), (1, "by-1"), (3, "again-by-3")):
        assert_traced(spy.cohorts[0], name, every, STEPS, start)


@both
def test_a_trace_follows_a_cohort_that_changes(backend) -> None:
    starts, spy = trace({"backend": backend, "chunk": 2}, tracing(2, MOST), rounds=6, cohort=3)
    assert len({cohort.ids for cohort in spy.cohorts}) > 1
    for start, cohort in zip(starts, spy.cohorts, strict=True):
        assert_traced(cohort, "tracing", 2, STEPS, start)


def test_one_client_alone_has_no_padding() -> None:
    for engine in ({"backend": "per-client"}, {"backend": "batched", "chunk": 1}):
        _, spy = trace(engine, tracing(4, MOST))
        told = spy.cohorts[0].reports["tracing"]
        assert told["length"].tolist() == told["traced"].tolist() == [-(-k // 4) for k in STEPS]


@both
def test_a_trace_is_what_after_step_saw_bit_for_bit(backend) -> None:
    """On a real model, with batches and momentum."""
    most, every = 12, 2

    def begin(client):
        return {"rows": client.start.new_zeros(most, len(client.start))}

    def after_step(client, step):
        here = torch.arange(most) == step.count - 1
        return {"rows": torch.where(here[:, None], step.w - client.start, client.memo["rows"])}

    diary = Part(
        "diary",
        begin=begin,
        after_step=after_step,
        finish=lambda client, reply: Reply(reply.update, dict(client.memo), reply.state),
    )
    spy = Spy()
    Simulation(
        fedavg().adding(local=diary).adding(upload=tracing(every, most)),
        blobs([5, 9, 14, 3]),
        small(),
        local=Local(batch=4, epochs=3, optimizer=sgd(0.1, momentum=0.9)),
        engine=double(backend=backend, chunk=3),
        adversary=spy,
    ).advance()
    told, all_rows = spy.cohorts[0].reports["tracing"], spy.cohorts[0].reports["diary"]["rows"]
    for place, count in enumerate(told["traced"].tolist()):
        assert torch.equal(told["trace"][place, :count], all_rows[place, ::every][:count])
        assert told["trace"][place, :count].norm(dim=1).min() > 0


@both
def test_a_part_without_a_period_sees_no_trace(backend) -> None:
    seen = []

    def finish(client, reply):
        seen.append((client.trace, client.traced))
        return reply

    trace({"backend": backend}, Part("plain", finish=finish), tracing(2, MOST))
    assert set(seen) == {(None, None)}


@both
def test_a_trace_changes_nothing_of_the_training(backend) -> None:
    _, traced = trace({"backend": backend}, tracing(1, MOST), rounds=3)
    _, plain = trace({"backend": backend}, rounds=3)
    for a, b in zip(traced.cohorts, plain.cohorts, strict=True):
        assert torch.equal(a.updates, b.updates)
