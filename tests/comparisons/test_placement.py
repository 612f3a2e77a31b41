"""Which worker runs where, on machines whose GPUs are pretended."""

from __future__ import annotations

import logging
import os
import queue
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoise.comparisons import conduct as conducted
from counterpoise.comparisons.conduct import News, conduct, seats_here
from counterpoise.comparisons.placement import Place, Seats, cpu_workers, gpu_names, seats_for
from counterpoise.comparisons.plan import Piece
from counterpoise.comparisons.process import Worker
from counterpoise.comparisons.worker import _Telling

VALUES = {
    "rounds": 2,
    "data": {"name": "digits", "partition": {"name": "iid", "clients": 4}},
    "model": {"name": "mlp"},
    "method": {"name": "fedavg"},
}


def pieces(*devices: str, **values: Any) -> list[Piece]:
    made = [VALUES | {"seed": seed, "engine": {"device": device}, **values} for seed, device in enumerate(devices)]
    return [Piece("fedavg", seed, f"fedavg/seed-{seed}", one) for seed, one in enumerate(made)]


def test_a_cpu_takes_two_threads_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)

    def at_once(count: int = 100, gpus: int = 0, **engine: Any) -> int:
        cohort = engine.pop("cohort", 100)
        return seats_for(pieces(*["cpu"] * count, engine={"device": "cpu", **engine}, cohort=cohort), gpus).most

    assert at_once() == at_once(gpus=4) == 2
    assert at_once(cohort=4) == 8
    assert at_once(threads=1) == 16
    assert at_once(threads=1, count=3) == 3
    assert seats_for(pieces("cpu", "auto", "cuda", "gpu"), gpus=0, jobs=3)[2:] == (3, 3, 3)
    assert cpu_workers(pieces("cpu", "cpu", "cpu", cohort=1), cores=2) == 2


@pytest.mark.parametrize(
    ("devices", "gpus", "jobs", "used", "each", "most"),
    [
        (["auto"] * 9, 4, None, (0, 1, 2, 3), 1, 4),
        (["cuda"] * 9, 1, None, (0,), 1, 1),
        (["auto"] * 2, 4, None, (0, 1, 2, 3), 1, 2),  # a third worker would have nothing to do
        (["cuda:2"] * 9, 4, None, (2,), 1, 1),
        (["cuda:2", "cuda:0", "cuda:2"], 4, None, (0, 2), 1, 2),
        (["auto"] * 9, 2, 6, (0, 1), 3, 6),
        (["auto"] * 9, 4, 2, (0, 1, 2, 3), 1, 2),
    ],
)
def test_every_gpu_gets_one_worker_unless_jobs_or_the_pieces_say_otherwise(
    devices: list[str], gpus: int, jobs: int | None, used: tuple[int, ...], each: int, most: int
) -> None:
    found = seats_for(pieces(*devices), gpus, jobs)
    assert (found.used, found.each, found.most) == (used, each, most)


def test_places_go_to_the_gpu_with_the_fewest_workers_and_named_ones_are_kept() -> None:
    seats = Seats(gpus=3, used=(0, 1, 2), each=1, cpus=1, most=4)
    assert seats.free("auto", []) == Place(0, alone=True)
    assert seats.free("cuda", [0, 2]) == Place(1, alone=True)
    assert seats.free("auto", [0, 1, 2]) is None
    assert seats.free("cuda:1", [0, 2]) == Place(1)  # it sees all GPUs, so that its number is right
    assert seats.free("cuda:1", [1]) is None
    assert seats.free("cpu", [0, 1, 2]) == Place(None)
    assert seats.free("cpu", [None, 0]) is None
    assert seats.free("cuda:7", [0]) == Place(None)  # the worker says that there is none
    assert seats.free("auto", [0, 0, None, 1]) is None  # as many as there may be
    assert Seats(1, (0,), 1, 0, 1).free("auto", []) == Place(0)  # nothing to hide
    assert seats._replace(each=2, most=6).free("auto", [0, 1, 1, 2]) == Place(0, alone=True)


def test_an_outer_choice_of_gpus_is_respected() -> None:
    assert gpu_names({"CUDA_VISIBLE_DEVICES": "5,GPU-1a, 2"}, 3) == ["5", "GPU-1a", "2"]
    assert gpu_names({"CUDA_VISIBLE_DEVICES": "5,2,-1,3"}, 2) == ["5", "2"]  # CUDA stops at -1
    assert Place(1, alone=True).environment(["5", "2"]) == {"CUDA_VISIBLE_DEVICES": "2"}
    assert Place(1).environment(["5", "2"]) == Place().environment([]) == {}


def test_the_number_of_gpus_is_told_only_if_there_are_several() -> None:
    assert seats_for(pieces(*["auto"] * 9), 4).sentence() == "The runs train on 4 GPUs, with one worker on each."
    assert (
        seats_for(pieces(*["auto"] * 9), 2, 6).sentence() == "The runs train on 2 GPUs, with up to 3 workers on each."
    )
    assert not seats_for(pieces("auto", "auto"), 1).sentence()
    assert not seats_for(pieces("cpu", "cpu"), 4).sentence()


class PretendedWorker:
    """It does what it is given at once, when it is next heard."""

    made: list[PretendedWorker]
    most_at_once = 0

    def __init__(
        self, heard: queue.Queue[Any], log: Any, lock: int | None, place: Place, environment: Mapping[str, str]
    ) -> None:
        self.heard, self.place, self.environment = heard, place, environment
        self.pieces: dict[int, Piece] = {}
        self.did: list[str] = []
        self.young = self.here = True
        self.made.append(self)

    def give(self, folder: Path, given: Sequence[Piece], together: int | None, sharing: int) -> None:
        self.pieces = dict(enumerate(given))
        busy = [worker.place.gpu for worker in self.made if worker.pieces and worker.here]
        assert len(busy) == len({*busy}), "two workers are busy on one GPU"
        assert sharing == 1
        type(self).most_at_once = max(self.most_at_once, len(busy))
        for number, piece in self.pieces.items():
            self.did.append(piece.place)
            self.heard.put((self, {"piece": number, "end": "finished", "sentence": ""}))

    def dismiss(self) -> None:
        self.here = False
        self.heard.put((self, None))

    def wait(self) -> int:
        return 0


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> type[PretendedWorker]:
    def opened() -> None:
        raise AssertionError("the parent has opened a GPU")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "_lazy_init", opened)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,3")
    monkeypatch.setattr(conducted, "Worker", PretendedWorker)
    PretendedWorker.made, PretendedWorker.most_at_once = [], 0
    return PretendedWorker


def test_a_comparison_uses_every_gpu_at_once_and_opens_none_itself(
    two_gpus: type[PretendedWorker], tmp_path: Path
) -> None:
    given, told = pieces(*["auto"] * 4), list[News]()
    conduct(tmp_path, given, seats_here(given), lambda news: told.append(news) if news else None, None, 1)
    assert {news.piece.place for news in told if news.end == "finished"} == {piece.place for piece in given}
    first, second = two_gpus.made
    assert (first.environment, second.environment) == ({"CUDA_VISIBLE_DEVICES": "6"}, {"CUDA_VISIBLE_DEVICES": "3"})
    assert two_gpus.most_at_once == 2
    assert len(first.did) + len(second.did) == 4


def test_named_gpus_and_the_cpu_are_honoured_and_no_gpu_has_two_workers(
    two_gpus: type[PretendedWorker], tmp_path: Path
) -> None:
    given = pieces("cuda:1", "cpu", "auto", "cuda:1", "cuda", "auto")
    conduct(tmp_path, given, seats_here(given), lambda _: None, None, 1)
    where = {place: worker for worker in two_gpus.made for place in worker.did}
    assert where.keys() == {piece.place for piece in given}
    for piece in given:
        worker, device = where[piece.place], piece.values["engine"]["device"]
        if device == "cuda:1":
            assert (worker.place, worker.environment) == (Place(1), {})
        elif device == "cpu":
            assert worker.place == Place(None)
        else:
            assert worker.environment == {"CUDA_VISIBLE_DEVICES": ("6", "3")[worker.place.gpu]}


def test_a_workers_warnings_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Warning(PretendedWorker):
        def give(self, *given: Any) -> None:
            self.heard.put((self, {"warning": "Take care."}))
            super().give(*given)

    Warning.made = []
    monkeypatch.setattr(conducted, "Worker", Warning)
    warned: list[str] = []
    some = pieces("cpu")
    conduct(tmp_path, some, seats_for(some, 0, 1), lambda _: None, None, warn=warned.append)
    assert warned == ["Take care."]


def test_a_worker_tells_its_warnings() -> None:
    told: list[dict[str, Any]] = []
    logger = logging.Logger("some")
    logger.addHandler(_Telling(lambda **what: told.append(what)))
    logger.info("Nothing of note.")
    logger.warning("%d runs", 3)
    assert told == [{"warning": "3 runs"}]


def test_a_worker_process_gets_the_environment_of_its_place(tmp_path: Path) -> None:
    place = Place(1, alone=True)
    with open(tmp_path / "log", "ab") as log:
        worker = Worker(queue.Queue(), log, None, place, place.environment(["6", "3"]))
    until = time.monotonic() + 30
    while not (its := Path(f"/proc/{worker._process.pid}/environ").read_bytes()) and time.monotonic() < until:
        time.sleep(0.01)  # it is only just being started
    worker.dismiss()
    assert b"CUDA_VISIBLE_DEVICES=3" in its.split(b"\0")
    assert worker.wait() == 0


def test_workers_share_the_memory_of_their_gpu_or_of_the_machine() -> None:
    seats = Seats(gpus=2, used=(0, 1), each=3, cpus=4, most=10)
    assert (seats.sharing(Place(1)), seats.sharing(Place())) == (3, 4)
    assert Seats(0, (), 1, 0, 1).sharing(Place()) == 1
