"""Comparisons on executors: threads, a real Dask cluster and a real Ray cluster on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from kept import keep

from counterpoise.cli import main
from counterpoise.comparisons import abroad, far
from counterpoise.comparisons import perform as performing
from counterpoise.comparisons.abroad import conduct_abroad
from counterpoise.comparisons.arms import compared
from counterpoise.comparisons.clusters import _Ray, _shares, opened
from counterpoise.comparisons.conduct import News, open_pieces
from counterpoise.comparisons.contents import SIGN, of_comparison
from counterpoise.comparisons.far import carry_out, order
from counterpoise.comparisons.perform import Workers, crew, perform
from counterpoise.comparisons.plan import Plan, write_plan
from counterpoise.comparisons.sign import gone, signed
from counterpoise.comparisons.watching import Watch
from counterpoise.errors import CounterpoiseError
from counterpoise.runs.saved import status_of

SMALL = ["local.epochs=1", "data.partition.clients=6", "cohort=3", "engine.threads=1", "engine.backend=per-client"]


def plan(rounds: int = 3, seeds: int = 1, methods: tuple[str, ...] = ("fedavg", "scaffold")) -> Plan:
    return compared("quickstart", list(methods), SMALL, seeds, rounds, "")


def numbers(folder: Path) -> dict[str, Any]:
    """Each round's line, without times and memory."""
    found = {}
    for path in sorted(folder.rglob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        drop = ("seconds", "memory")
        found[str(path.relative_to(folder))] = [{k: v for k, v in line.items() if k not in drop} for line in lines]
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The numbers of the plan, run by this machine's own workers."""
    folder = tmp_path_factory.mktemp("here")
    assert [group.runs[0].status for group in perform(plan(), folder, jobs=1)] == ["finished", "finished"]
    return numbers(folder)


def test_threads_make_the_same_runs_and_every_round_and_end_is_told(here: dict[str, Any], tmp_path: Path) -> None:
    told: list[News] = []
    with ThreadPoolExecutor(2) as threads:
        found = perform(plan(), tmp_path, executor=threads, jobs=2, tell=lambda news: told.append(news) if news else 0)
    assert [group.runs[0].status for group in found] == ["finished", "finished"]
    assert numbers(tmp_path) == here
    for label in ("fedavg", "scaffold"):
        its = [news for news in told if news.piece.label == label]
        assert [news.round for news in its if not news.end] == [1, 2, 3]
        assert [news.end for news in its if news.end] == ["finished"]
        assert "accuracy" in (its[2].metrics or {})
    assert not (tmp_path / SIGN).exists()
    assert of_comparison(SIGN)


def test_an_executor_needs_the_number_of_its_workers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads, pytest.raises(CounterpoiseError, match="how many workers the executor has"):
        perform(plan(), tmp_path, executor=threads)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [{"jobs": -1}, {"jobs": 0}, {"jobs": True}, {"together": 0}, {"together": 1.0}])
def test_a_number_of_workers_or_runs_that_makes_no_sense_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CounterpoiseError, match="must be a whole number from 1 on"):
        perform(plan(), tmp_path, **wrong)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- the sign


def test_the_sign_is_gone_with_its_word_its_lock_or_its_folder(tmp_path: Path) -> None:
    with signed(tmp_path) as (word, take_down):
        assert not gone(tmp_path, word)
        assert gone(tmp_path, "another")
        assert gone(tmp_path / "elsewhere", word)
        take_down()
        assert gone(tmp_path, word)
    (tmp_path / SIGN).write_text(word)  # left by a command that was killed
    assert gone(tmp_path, word)
    with signed(tmp_path) as (now, _):
        assert not gone(tmp_path, now)
        assert gone(tmp_path, word)


# ---------------------------------------------------------------- a worker's half


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(far, "_SEEN", 0.0)
    monkeypatch.setattr(far, "_SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(abroad, "_SECONDS_BETWEEN_LOOKS", 0.01)
    (tmp_path / "c").mkdir()
    write_plan(tmp_path / "c", plan())
    return tmp_path / "c"


def test_a_worker_that_cannot_see_the_folder_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = open_pieces(folder, plan())
    with signed(folder) as (word, _):
        unseen = carry_out(order(folder.parent / "other", word, pieces, None, 1))["sentence"]
        another = carry_out(order(folder, "another", pieces, None, 1))["sentence"]
        older = carry_out({**order(folder, word, pieces, None, 1), "version": "0.0.1"})["sentence"]
    assert "cannot see the folder" in unseen
    assert "a file system that all workers share" in unseen
    assert "does not see that this command is at work" in another
    assert "this command is of 0.0.1. Install the same version" in older
    assert not (folder / "workers.log").exists()


class EndlessWorker:
    """A worker process that does one round after another until it is dismissed, or dies after some seconds."""

    made: list[EndlessWorker]
    status = 0

    def __init__(self, heard: Any, log: Any, lock: Any, place: Any, environment: Mapping[str, str], where: str) -> None:
        self.heard, self.environment, self.where = heard, environment, where
        self.pieces: dict[int, Any] = {}
        self.over = threading.Event()
        self.made.append(self)

    def give(self, folder: Path, pieces: Any, together: int | None, sharing: int = 1, own: Any = None) -> None:
        self.sharing = sharing
        self.pieces = dict(enumerate(pieces))
        threading.Thread(target=self._go).start()

    def _go(self) -> None:
        end = time.monotonic() + 5
        while not self.over.wait(0.001) and time.monotonic() < end:  # news come faster than the sign is looked at
            self.heard.put((self, {"piece": 0, "round": 1}))
        self.heard.put((self, {"warning": "Take care."}))
        self.heard.put((self, {"piece": 1, "end": "finished", "sentence": ""}))
        self.heard.put((self, None))

    def dismiss(self) -> None:
        self.over.set()

    def wait(self) -> int:
        return self.status


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> type[EndlessWorker]:
    EndlessWorker.made = []
    monkeypatch.setattr(far, "Worker", EndlessWorker)
    return EndlessWorker


def test_a_worker_stops_when_the_sign_is_gone(folder: Path, endless: type[EndlessWorker]) -> None:
    with signed(folder) as (word, take_down):
        threading.Timer(0.1, take_down).start()
        found = carry_out(order(folder, word, open_pieces(folder, plan()), None, 1))
    ends = {"1": {"end": "finished", "sentence": ""}}
    assert found == {"ends": ends, "warnings": ["Take care."], "sentence": ""}


def test_a_process_that_dies_on_a_worker_is_told_with_its_status(
    folder: Path, endless: type[EndlessWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endless, "status", -9)
    with signed(folder) as (word, _):
        threading.Timer(0.1, lambda: endless.made[0].over.set()).start()
        found = carry_out(order(folder, word, open_pieces(folder, plan()), None, 1))
    assert "ended with status -9 in the middle of the run" in found["sentence"]


def test_an_order_is_plain_and_takes_the_data_folder_along(
    folder: Path, endless: type[EndlessWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERPOISE_DATA", "/shared/data")
    monkeypatch.chdir(folder.parent)
    with signed(folder) as (word, take_down):
        sent = order(folder, word, open_pieces(folder, plan()), None, 4)
        assert json.loads(json.dumps(sent)) == sent
        monkeypatch.delenv("COUNTERPOISE_DATA")
        threading.Timer(0.1, take_down).start()
        carry_out(sent)
    assert endless.made[0].environment == {"COUNTERPOISE_DATA": "/shared/data"}
    assert endless.made[0].where == str(folder.parent)
    assert endless.made[0].sharing == -(-4 // max(torch.cuda.device_count(), 1))


def test_lists_on_one_machine_share_its_memory_or_that_of_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpus, device, shared in ((0, "auto", 8), (4, "auto", 2), (3, "cuda", 3), (4, "cpu", 8)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert far._sharing({"device": device, "sharing": 8}) == shared


def test_an_executors_workers_are_taken_to_share_one_machine(folder: Path) -> None:
    sent: list[Mapping[str, Any]] = []
    executor = Pretended(lambda order: sent.append(order) or finished(order))
    with crew(folder, open_pieces(folder, plan()), None, Workers(2), executor) as found:
        found.work(lambda _: None)
    assert [order["sharing"] for order in sent] == [2, 2]


def test_what_workers_warn_of_is_shown_once_in_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(performing, "_SHOWN", 1)
    executor = Pretended(lambda order: finished(order) | {"warnings": ["Take care.", "Take care.", "And this."]})
    with crew(folder, open_pieces(folder, plan()), None, Workers(2), executor) as found:
        found.work(lambda _: None)
        assert not caplog.messages
    assert caplog.messages == ["Take care.", f"1 more warnings of workers are in {folder / 'workers.log'}."]


# ---------------------------------------------------------------- the command's half


class Pretended:
    """An executor that answers with what a function returns or raises, or does not answer at all."""

    def __init__(self, answer: Callable[[Mapping[str, Any]], Any]) -> None:
        self.answer, self.futures, self.most = answer, list[Future[Any]](), 0

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.futures.append(future)
        self.most = max(self.most, sum(not one.done() for one in self.futures))

        def answer() -> None:
            try:
                found = self.answer(args[0])
            except Exception as error:
                future.set_exception(error)
            else:
                if found is not None:
                    future.set_result(found)

        threading.Timer(0.05, answer).start()
        return future


def finished(sent: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "ends": {str(n): {"end": "finished", "sentence": ""} for n in range(len(sent["pieces"]))},
        "warnings": [],
        "sentence": "",
    }


@pytest.mark.parametrize("looks", [0, 2])
def test_a_lost_worker_is_told_and_its_runs_are_tried_again(
    folder: Path, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of a lost worker may still be writing its checkpoint."""
    busy = iter([True] * looks)
    monkeypatch.setattr(abroad, "in_use", lambda _: next(busy, False))

    def lost(sent: Mapping[str, Any]) -> Any:
        if sent["pieces"][0]["label"] == "fedavg":
            raise RuntimeError("gone\naway")
        return finished(sent)

    told: list[News] = []
    pieces = open_pieces(folder, plan())
    conduct_abroad(Pretended(lost), folder, pieces, 2, lambda news: told.append(news) if news else 0)
    ends = {news.piece.label: (news.end, news.sentence) for news in told}
    assert ends["scaffold"] == ("finished", "")
    sentence = "Its worker was lost (RuntimeError: gone away). The same command tries again."
    assert ends["fedavg"] == ("failed", sentence)
    assert (folder / "fedavg/seed-0/failure.txt").read_text() == sentence + "\n"
    assert open_pieces(folder, plan())[0].label == "fedavg"


def test_an_executor_that_takes_no_more_is_told_like_a_lost_worker(folder: Path) -> None:
    class Shut:
        def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
            raise ModuleNotFoundError("No module named 'counterpoise'")

    told: list[News] = []
    conduct_abroad(Shut(), folder, open_pieces(folder, plan()), 2, lambda news: told.append(news) if news else 0)
    assert len(told) == 2
    assert all("Install counterpoise where the workers run." in news.sentence for news in told)


@pytest.mark.parametrize("most", [1, 2, None])
def test_all_lists_are_sent_at_once_unless_jobs_bound_them(folder: Path, most: int | None) -> None:
    executor = Pretended(finished)
    conduct_abroad(executor, folder, open_pieces(folder, plan(seeds=3)), 6, lambda _: None, 1, most)
    assert (len(executor.futures), executor.most) == (6, most or 6)


def test_an_interruption_waits_for_those_at_work_and_takes_back_the_rest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = Pretended(lambda sent: None)
    words: list[str] = []
    busy = iter([True, True, True, False, False, False])

    def in_use(place: Path) -> bool:
        assert gone(folder, words[0]), "workers are waited for before they are asked to stop"
        return "fedavg" in str(place) and next(busy)

    def tell(news: News | None) -> None:
        words.append((folder / SIGN).read_text())
        raise KeyboardInterrupt

    monkeypatch.setattr(abroad, "in_use", in_use)
    with pytest.raises(KeyboardInterrupt):
        conduct_abroad(executor, folder, open_pieces(folder, plan()), 2, tell)
    assert next(busy) is False
    assert next(busy, None) is False  # three looks found it at work, and the fourth ended the wait
    assert all(future.cancelled() for future in executor.futures)


def test_rounds_are_read_as_they_are_written_and_once(tmp_path: Path) -> None:
    keep(tmp_path / "whole", rounds=4)
    texts = {name: (tmp_path / "whole" / name).read_text() for name in ("metrics.jsonl", "clients.jsonl")}
    watch = Watch(tmp_path / "run")
    assert list(watch.rounds()) == []  # it has not begun
    (tmp_path / "run").mkdir()

    def write(lines: int, more: int = 0, clients: int = 0) -> None:
        for name, text in texts.items():
            count = lines + (clients if name.startswith("c") else 0)
            kept = text.splitlines(keepends=True)
            (tmp_path / "run" / name).write_text("".join(kept[: 1 + count]) + kept[-1][:more])

    def read() -> list[int]:
        return [record.round for record in watch.rounds()]

    write(1)
    assert read() == [1]
    write(2, more=9)
    assert read() == [2]
    write(3, clients=-1)  # metrics are written first
    assert read() == []
    write(3)
    assert read() == [3]
    (tmp_path / "run/metrics.jsonl").unlink()
    (tmp_path / "run/clients.jsonl").unlink()
    write(2)  # it went on from an older checkpoint
    assert read() == [1, 2]


# ---------------------------------------------------------------- clusters by name


@pytest.mark.parametrize(
    ("on", "sentence"),
    [
        ("slurm", "--on takes dask:ADDRESS, ray or ray:ADDRESS, not 'slurm'."),
        ("dask", "--on takes dask:ADDRESS, ray or ray:ADDRESS, not 'dask'."),
        ("dask:here", "the address of a Dask scheduler is HOST:PORT, not 'here'."),
        ("dask:127.0.0.1:FREE", "no Dask scheduler answers at 127.0.0.1:FREE: "),
        ("dask:tcp://127.0.0.1:FREE", "Start a scheduler with `dask scheduler`, or correct the address."),
        ("dask:none.json", "none.json is not a file that a Dask scheduler wrote."),
        ("ray:127.0.0.1:FREE", "no Ray cluster answers at 127.0.0.1:FREE: "),
        ("ray:ray://127.0.0.1:FREE", "Start a cluster with `ray start --head`, or correct the address"),
    ],
)
def test_a_wrong_address_is_told_in_a_sentence(
    on: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def init(*_: Any, **__: Any) -> None:
        raise AssertionError("Ray would wait for minutes")

    monkeypatch.setattr("ray.init", init)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody listens there
        port = str(free.getsockname()[1])
        monkeypatch.chdir(tmp_path)
        words = ["compare", "quickstart", "--methods", "fedavg", "--rounds", "1", "--on", on.replace("FREE", port)]
        monkeypatch.setattr(sys, "argv", ["counterpoise", *words])
        with pytest.raises(SystemExit) as left:
            main()
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert sentence.replace("FREE", port) in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("on", "extra"), [("dask:127.0.0.1:1", "dask"), ("ray", "ray")])
def test_a_missing_extra_is_told_with_the_command_that_installs_it(
    on: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("distributed", "ray"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(CounterpoiseError, match=rf"pip install 'counterpoise\[{extra}\]'"), opened(on, []):
        pass


def test_a_list_of_pieces_takes_a_gpu_of_a_ray_cluster_or_its_share_of_the_cores(tmp_path: Path) -> None:
    pieces = open_pieces(tmp_path, plan(seeds=9))  # one thread each
    assert _shares(pieces, [16, 32], gpus=0) == (1, 48)
    assert _shares(pieces[:2], [16, 32], gpus=0) == (8, 6)
    assert _shares(pieces, [16, 32], gpus=3) == (None, 3)
    assert _shares(
        open_pieces(tmp_path, compared("quickstart", ["fedavg"], ["engine.device=cpu"], 1, 1, "")), [4], 3
    ) == (4, 1)
    asked: list[dict[str, Any]] = []

    class Ray:
        def remote(self, *_: Any) -> Ray:
            return self

        def options(self, **needs: Any) -> Ray:
            asked.append(needs)
            return self

        def future(self) -> None: ...

    executor = _Ray(Ray(), 4, 3)
    for device in ("auto", "cpu"):
        executor.submit(carry_out, {"device": device})
    _Ray(Ray(), 4, 0).submit(carry_out, {"device": "auto"})
    assert [(needs["num_cpus"], needs["num_gpus"]) for needs in asked] == [(1, 1), (4, 0), (4, 0)]


@pytest.mark.parametrize(("option", "value"), [("--on", "ray"), ("--jobs", "2"), ("--together", "3")])
def test_a_run_is_not_resumed_on_a_cluster_or_by_workers(
    option: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["counterpoise", "resume", str(tmp_path), option, value])
    with pytest.raises(SystemExit):
        main()
    assert f"{option} is for comparisons and sweeps" in capsys.readouterr().err


# ---------------------------------------------------------------- real clusters

DASK = """
import sys, dask
from distributed import LocalCluster
if __name__ == "__main__":
    dask.config.set({"distributed.scheduler.allowed-failures": 0})
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    script = tmp_path_factory.mktemp("dask") / "cluster.py"
    script.write_text(DASK)
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as it:
        assert it.stdin is not None
        assert it.stdout is not None
        yield f"dask:{it.stdout.readline().strip()}"
        it.stdin.close()


def start(folder: Path, on: str, rounds: int) -> subprocess.Popen[str]:
    settings = [word for setting in SMALL for word in ("--set", setting)]
    words = ["compare", "quickstart", "--methods", "fedavg,scaffold", "--seeds", "1", "--rounds", str(rounds)]
    command = [sys.executable, "-m", "counterpoise", *words, "--out", "c", "--json", "--on", on, *settings]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def begun(folder: Path) -> bool:
    """Whether both runs have written some rounds."""
    found = list(folder.rglob("metrics.jsonl"))
    return len(found) == 2 and all(path.read_bytes().count(b"\n") > 3 for path in found)


def statuses(folder: Path) -> set[str]:
    return {status_of(folder / "c" / name / "seed-0") for name in ("fedavg", "scaffold")}


@pytest.mark.slow
def test_a_dask_cluster_makes_the_same_runs(here: dict[str, Any], dask: str, tmp_path: Path) -> None:
    out, err = (going := start(tmp_path, dask, 3)).communicate()
    assert going.returncode == 0, err
    assert err == f"The runs train on the Dask cluster at {dask.removeprefix('dask:')}, which has 2 workers now.\n"
    assert json.loads(out)["open"] == 0
    assert numbers(tmp_path / "c") == here


@pytest.mark.slow
def test_ctrl_c_and_a_kill_stop_the_work_on_a_dask_cluster_with_checkpoints(dask: str, tmp_path: Path) -> None:
    going = start(tmp_path, dask, 4000)
    until(lambda: begun(tmp_path))
    going.send_signal(signal.SIGINT)
    _, err = going.communicate()
    assert going.returncode == 130, err
    assert f"Continue with: counterpoise resume c --on {dask}" in err
    assert statuses(tmp_path) == {"stopped"}
    written = len((tmp_path / "c/fedavg/seed-0/metrics.jsonl").read_bytes())
    again = start(tmp_path, dask, 4000)
    until(lambda: len((tmp_path / "c/fedavg/seed-0/metrics.jsonl").read_bytes()) > written)
    second = start(tmp_path, dask, 4000)
    _, err = second.communicate()
    assert (second.returncode, "Another process is at work in c" in err) == (2, True)
    again.kill()
    again.communicate()
    until(lambda: statuses(tmp_path) == {"stopped"})
    assert (tmp_path / "c" / SIGN).exists()  # a killed command leaves it, and it means nothing


@pytest.mark.slow
def test_a_lost_dask_worker_is_told_and_the_same_command_goes_on(dask: str, tmp_path: Path) -> None:
    going = start(tmp_path, dask, 4000)
    until(lambda: begun(tmp_path))
    parents = {_parent(pid) for pid in _workers(tmp_path / "c")}
    os.kill(parents.pop(), signal.SIGKILL)
    until(lambda: bool(list(tmp_path.rglob("failure.txt"))))
    going.send_signal(signal.SIGINT)
    going.communicate()
    (failed,) = tmp_path.rglob("failure.txt")
    assert "Its worker was lost (KilledWorker: " in failed.read_text()
    assert "The same command tries again." in failed.read_text()
    again = start(tmp_path, dask, 4000)
    until(lambda: not failed.exists())
    again.send_signal(signal.SIGINT)
    again.communicate()
    assert again.returncode == 130


def _workers(folder: Path) -> list[int]:
    """The processes whose working folder is this one's parent and that run pieces."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (place / "cmdline").read_bytes()
            if b"counterpoise.comparisons.worker" in command and (place / "cwd").resolve() == folder.parent:
                found.append(int(place.name))
    return found


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.slow
def test_a_local_ray_cluster_makes_the_same_runs(here: dict[str, Any], tmp_path: Path) -> None:
    out, err = (going := start(tmp_path, "ray", 3)).communicate()
    assert going.returncode == 0, err
    assert err.startswith("The runs train on the Ray cluster of 1 machine, with ")
    assert json.loads(out)["open"] == 0
    assert numbers(tmp_path / "c") == here


@pytest.mark.slow
def test_ctrl_c_stops_the_work_on_a_ray_cluster_with_checkpoints(tmp_path: Path) -> None:
    going = start(tmp_path, "ray", 4000)
    until(lambda: begun(tmp_path))
    going.send_signal(signal.SIGINT)
    _, err = going.communicate()
    assert going.returncode == 130, err
    assert statuses(tmp_path) == {"stopped"}
