"""Several runs driven in one process: each is kept as it would be alone, whatever happens to the others."""

import gc
import json
import logging
import os
import signal
import weakref

import pytest
from helpers import blobs, small
from played import play

import counterpoise as cp
from counterpoise.comparisons.collection import read_run
from counterpoise.engine.backends import batched
from counterpoise.engine.rounds.setup import Setup
from counterpoise.engine.rounds.simulation import Batch
from counterpoise.errors import Diverged, Interrupted
from counterpoise.method import Part
from counterpoise.methods import METHODS
from counterpoise.runs import course, together
from counterpoise.runs.companions import note_batch, noted_batches
from counterpoise.runs.course import pause_between_saves
from counterpoise.runs.starting import resume_course, run_setup, setup_course

LOCAL = cp.Local(epochs=2, batch=4, optimizer=cp.sgd(0.1))


def setup(method="fedavg", seed=0, rounds=3, heldout=0.0, **settings):
    made = METHODS.make(method) if isinstance(method, str) else method
    given = {"cohort": 3, "local": LOCAL, "engine": cp.Engine(backend="per-client", device="cpu")} | settings
    return Setup.of(made, blobs([5, 9, 4, 7], seed=seed, heldout=heldout), small().float(), rounds, seed=seed, **given)


def drive(courses, most=None):
    found = {}
    together.drive_together(courses, found.__setitem__, most)
    return [found[place] for place in range(len(courses))]


def lines(folder):
    """The kept rounds without what the machine says."""
    rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in one.items() if k not in ("seconds", "memory")} for one in rounds]


def test_runs_of_several_groups_and_lengths_are_kept_as_they_are_alone(tmp_path):
    setups = [setup("fedavg", 0), setup("scaffold", 1), setup("fedavgm", 1, rounds=5), setup("scaffold", 2)]
    for place, made in enumerate(setups):
        run_setup(made, out=tmp_path / "alone" / str(place))
    runs = drive([setup_course(made, out=tmp_path / "joint" / str(place)) for place, made in enumerate(setups)])
    assert [len(run.rounds) for run in runs] == [3, 3, 5, 3]
    for place in range(4):
        alone, joint = tmp_path / "alone" / str(place), tmp_path / "joint" / str(place)
        assert lines(alone) == lines(joint)
        assert (alone / "clients.jsonl").read_text() == (joint / "clients.jsonl").read_text()
        assert (alone / "config.toml").read_text() == (joint / "config.toml").read_text()
        assert read_run(joint).status == "finished"
        assert not read_run(joint).doubts
    two = {"from_round": 1, "runs": 2, "clients": 6, "backend": "per-client", "compile": False}
    assert noted_batches(tmp_path / "joint/2") == [two]
    assert not (tmp_path / "alone/2/batch.json").exists()


def test_at_most_so_many_train_together(tmp_path):
    drive([setup_course(setup(seed=seed), out=tmp_path / str(seed)) for seed in range(5)], most=2)
    assert [one["runs"] for seed in range(5) for one in noted_batches(tmp_path / str(seed))] == [2, 2, 2, 2]


def test_what_a_group_held_is_free_before_the_next_one_begins(monkeypatch):
    """Otherwise a GPU holds two groups, and is full although each alone would fit."""
    held, still = [], []

    class Watched(together._Batch):
        def __init__(self, simulations, places):
            still.append(sum(one() is not None for one in held))
            held.extend(weakref.ref(one.trainer) for one in simulations)
            super().__init__(simulations, places)
            held.append(weakref.ref(self._lockstep.backend))

    monkeypatch.setattr(together, "_Batch", Watched)
    engine = cp.Engine(backend="batched", device="cpu")
    gc.disable()
    try:
        together.drive_together(
            [setup_course(setup(seed=seed, engine=engine)) for seed in range(6)], lambda place, run: None, 2
        )
    finally:
        gc.enable()
    assert still == [0, 0, 0]


def test_a_run_that_goes_on_alone_notes_it(tmp_path):
    setups = [setup(seed=seed, rounds=4) for seed in (0, 1)]
    places = [tmp_path / str(seed) for seed in (0, 1)]
    drive([setup_course(made, lambda r: r.round == 2, place) for made, place in zip(setups, places, strict=True)])
    given = {"federation": setups[0].federation, "model": setups[0].training.model}
    drive([resume_course(places[0], **given)])
    assert [(one["from_round"], one["runs"]) for one in noted_batches(places[0])] == [(1, 2), (3, 1)]
    assert [(one["from_round"], one["runs"]) for one in noted_batches(places[1])] == [(1, 2)]


def test_the_batches_of_a_run_follow_one_another(tmp_path):
    two, three = (Batch(runs, 3 * runs, "per-client", None, False) for runs in (2, 3))

    def noted(batch, round):
        note_batch(tmp_path, batch, round)
        return [(one["from_round"], one["runs"]) for one in noted_batches(tmp_path)]

    assert noted(None, 1) == []
    assert not (tmp_path / "batch.json").exists()  # a run that is always alone
    assert noted(two, 3) == [(3, 2)]
    assert noted(two, 5) == [(3, 2)]
    assert noted(None, 7) == [(3, 2), (7, 1)]
    assert noted(three, 6) == [(3, 2), (6, 3)]  # resumed from round 5: what came later is gone
    assert noted(None, 2) == []
    (tmp_path / "batch.json").write_text("{}")
    assert noted(two, 1) == [(1, 2)]


@pytest.mark.parametrize(
    ("sharing", "most", "could", "there"),
    [(1, 5, "35.6 kB", "60 kB of memory there"), (2, 2, "17.8 kB", "30 kB of memory that each of 2 workers has")],
)
def test_what_runs_keep_for_clients_and_their_updates_must_fit_into_memory(
    sharing, most, could, there, monkeypatch, caplog
):
    # A row of a small model has 53 numbers of 4 bytes. Scaffold keeps one for each of 4 clients, and 3 clients of a
    # round return two each, of which there are four copies: 5,936 bytes for each run.
    monkeypatch.setattr(together, "machine_memory", lambda: 60_000)
    found = {}
    courses = [setup_course(setup("scaffold", seed)) for seed in range(7)]
    together.drive_together(courses, found.__setitem__, sharing=sharing)
    assert all(run.status == "finished" for run in found.values())
    assert [r.getMessage() for r in caplog.records if "train together" in r.getMessage()] == [
        f"At most {most} of these runs train together: with one more, what they keep for their clients and the updates of "
        f"a round could take {could}, which is more than half of the {there}."
    ]


def test_a_run_that_fails_diverges_or_cannot_begin_leaves_the_others_alone(tmp_path):
    def apply(seen):
        if seen.world.round == 2:
            raise RuntimeError("out of luck")
        return seen

    unlucky = METHODS.make("fedavg").adding(trust=Part("unlucky", apply=apply))
    run_setup(setup(seed=7), out=tmp_path / "alone")
    setups = [setup(unlucky), setup(seed=7), setup(METHODS.make("fedavg", lr=1e39), 1)]
    courses = [setup_course(made, out=tmp_path / str(place)) for place, made in enumerate(setups)]
    failed, fine, diverged, missing = drive([*courses, resume_course(tmp_path / "nowhere")])
    assert str(failed).endswith("RuntimeError: out of luck.")
    assert read_run(tmp_path / "0").status == "failed"
    assert len(read_run(tmp_path / "0").records) == 1
    assert fine.status == "finished"
    assert lines(tmp_path / "1") == lines(tmp_path / "alone")
    assert isinstance(diverged, Diverged)
    assert read_run(tmp_path / "2").status == "diverged"
    assert isinstance(missing, cp.CounterpoiseError)


def test_an_interruption_stops_all_with_checkpoints_and_they_can_be_resumed(tmp_path):
    for seed in (0, 1):
        run_setup(setup(seed=seed, rounds=6), out=tmp_path / "alone" / str(seed))

    def stop(record):
        if record.round == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    places = [tmp_path / "joint" / str(seed) for seed in (0, 1)]
    found = {}
    setups = [setup(seed=seed, rounds=6) for seed in (0, 1)]
    courses = [setup_course(setups[0], stop, places[0]), setup_course(setups[1], None, places[1])]
    with pytest.raises(Interrupted) as stopped:
        together.drive_together(courses, found.__setitem__)
    assert stopped.value.signal == signal.SIGTERM
    assert all(isinstance(what, Interrupted) for what in found.values())
    assert [read_run(place).status for place in places] == ["stopped", "stopped"]
    given = {"federation": setups[0].federation, "model": setups[0].training.model}
    others = {"federation": setups[1].federation, "model": setups[1].training.model}
    runs = drive([resume_course(place, **own) for place, own in zip(places, (given, others), strict=True)])
    assert [run.status for run in runs] == ["finished", "finished"]
    for seed, place in enumerate(places):
        assert lines(place) == lines(tmp_path / "alone" / str(seed))


def test_runs_stay_apart_quietly(caplog):
    with caplog.at_level(logging.WARNING):
        drive([setup_course(setup(name, heldout=0.2)) for name in ("fedavg", "scaffold")])
    assert not caplog.records


def test_a_large_batch_saves_less_often_but_at_least_once_a_minute():
    assert pause_between_saves(0.01, 1) == 5
    assert pause_between_saves(0.01, 30) == pytest.approx(15)
    assert pause_between_saves(0.4, 30) == 60


def test_the_pause_between_saves_follows_from_the_last_save_and_the_size_of_the_batch(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(course, "pause_between_saves", lambda seconds, runs: asked.append((seconds, runs)) or -1.0)
    drive([setup_course(setup(seed=seed, rounds=2), None, tmp_path / str(seed)) for seed in (0, 1, 2)])
    assert [runs for _, runs in asked] == [1, 1, 1] + 6 * [3]
    assert all(seconds > 0 for seconds, _ in asked[3:])


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Backends that capture, as on a GPU, with graphs that play on a CPU."""
    play(monkeypatch)
    monkeypatch.setattr(batched, "use_cuda_graphs", lambda device: True)


BATCHED = {"engine": cp.Engine(backend="batched", device="cpu", dtype="float64")}


def test_on_a_gpu_one_batch_trains_while_the_servers_of_another_work(on_a_gpu, monkeypatch, tmp_path):
    told = []

    def spied(phase, real):
        return lambda self, given: told.append((phase, id(self))) or real(self, given)

    for phase in ("begin", "finish"):
        monkeypatch.setattr(together.Lockstep, phase, spied(phase, getattr(together.Lockstep, phase)))
    setups = [setup(seed=seed, rounds=2 + seed % 2, **BATCHED) for seed in range(5)]
    runs = drive([setup_course(made, out=tmp_path / str(place)) for place, made in enumerate(setups)])
    assert [len(run.rounds) for run in runs] == [2, 3, 2, 3, 2]
    a, b = dict.fromkeys(batch for _, batch in told)
    rounds = [("finish", a), ("begin", a), ("finish", b), ("begin", b)]
    assert told == [("begin", a), ("begin", b), *rounds, *rounds[:1], *rounds[2:], rounds[2]]
    for seed, run in enumerate(runs):
        own = run_setup(setup(seed=seed, rounds=2 + seed % 2, **BATCHED))
        assert run.rounds[-1].metrics == pytest.approx(own.rounds[-1].metrics, rel=1e-9)
        assert noted_batches(tmp_path / str(seed))[0]["runs"] == (2 if seed % 2 else 3)


def test_three_runs_on_a_gpu_are_one_batch(on_a_gpu, tmp_path):
    drive([setup_course(setup(seed=seed, **BATCHED), out=tmp_path / str(seed)) for seed in range(3)])
    assert [(one["runs"], one["chunk"]) for one in noted_batches(tmp_path / "0")] == [(3, 9)]


def test_an_interruption_on_a_gpu_stops_both_batches_with_checkpoints(on_a_gpu, tmp_path):
    def stop(record):
        if record.round == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    setups = [setup(seed=seed, rounds=6, **BATCHED) for seed in range(4)]
    courses = [setup_course(made, None if place else stop, tmp_path / str(place)) for place, made in enumerate(setups)]
    found = {}
    with pytest.raises(Interrupted):
        together.drive_together(courses, found.__setitem__)
    assert all(isinstance(found[place], Interrupted) for place in range(4))
    kept = [read_run(tmp_path / str(place)) for place in range(4)]
    assert {run.status for run in kept} == {"stopped"}
    assert all(1 <= len(run.records) <= 2 for run in kept)
