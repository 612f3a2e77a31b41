"""A simulation on two processes is the simulation on one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import ranked
import torch
from helpers import blobs, double, small
from hypothesis import given
from hypothesis import strategies as st

import counterpoise as cp
from counterpoise.cli import main
from counterpoise.engine import Simulation
from counterpoise.engine.backends.distributed import Distributed
from counterpoise.engine.backends.settings import Engine
from counterpoise.errors import CounterpoiseError
from counterpoise.methods import avg
from counterpoise.trees import pack, row_size, select, unpack

TESTS = Path(ranked.__file__).parent


def on_ranks(folder: Path, *cases: str, ranks: int = 2) -> list[str]:
    """Run cases on so many processes; how each ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join([str(TESTS), str(Path(cp.__file__).parents[1])])
    processes = [
        subprocess.Popen(
            [sys.executable, ranked.__file__, str(folder), *cases],
            env={**os.environ, **shared, "PYTHONPATH": path, "RANK": str(rank)},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]
    try:
        for process in processes:
            process.wait(600)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(folder / f"{rank}.end").read_text() for rank in range(ranks)]


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> list[dict]:
    """What each of two ranks saw of every case."""
    folder = tmp_path_factory.mktemp("ranks")
    assert on_ranks(folder, *ranked.CASES) == ["finished", "finished"]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def assert_like(a, b, where=""):
    """Equal but for rounding."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_like(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_like(x, y, f"{where}/{i}")
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=1e-7, abs=1e-9, nan_ok=True), where
    else:
        assert a == b, where


@pytest.mark.parametrize("case", ranked.CASES)
def test_two_ranks_agree_with_each_other_and_with_one_process(both, case):
    alone = json.loads(json.dumps(ranked.history(case)))
    assert json.dumps(both[0][case]) == json.dumps(both[1][case])
    assert_like(both[0][case], alone)
    assert any(alone["cohorts"])


def test_a_rank_that_fails_ends_all_with_its_sentence(tmp_path):
    first, second = on_ranks(tmp_path, "failing")
    assert first.startswith("CounterpoiseError: Rank 1 failed, and with it the run: the disc is full of eels")
    assert "ValueError: the disc is full of eels" in second


def test_a_rank_that_is_stopped_stops_all_after_the_same_round(tmp_path):
    assert on_ranks(tmp_path, "stopping") == ["Interrupted: Stopped after round 2 of 4."] * 2


def test_ranks_that_do_not_hold_the_same_model_are_refused(tmp_path):
    for end in on_ranks(tmp_path, "drifting"):
        assert end.startswith("CounterpoiseError: The ranks do not hold the same model any more.")


@pytest.mark.parametrize(("others", "refused"), [("0123456789abcdef", False), ("f123456789abcdef", True), ("", True)])
def test_ranks_with_other_frozen_weights_are_refused(others, refused):
    simulation = Simulation(avg(), blobs([4, 4]), small(), engine=double(backend="per-client"))
    opened = simulation.open()
    job = simulation.make_job(opened, simulation.prepare(opened))
    packets: list[torch.Tensor | None] = [None, None]
    both = threading.Barrier(2)

    def on_rank(rank, frozen):
        def gather(packet):
            packets[rank] = packet
            both.wait(60)
            return torch.stack(packets)

        group = SimpleNamespace(rank=rank, size=2, gather=gather)
        return Distributed(simulation.backend, simulation.trainer.program, group, frozen).train(job)

    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(on_rank, rank, frozen) for rank, frozen in enumerate(("0123456789abcdef", others))]
        for end in ends:
            if refused:
                with pytest.raises(CounterpoiseError, match=r"The ranks begin with different frozen weights\. Load"):
                    end.result()
            else:
                assert len(end.result().update) == 2


def test_cores_are_shared_among_the_ranks_of_a_machine(monkeypatch):
    alone = Engine(device="cpu").resolve(1, 1).threads
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert Engine(device="cpu").resolve(1, 1).threads == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert Engine(device="cpu").resolve(1, 1).threads == alone
    assert double(threads=3).resolve(1, 1).threads == 3


@given(st.integers(1, 5), st.integers(0, 4))
def test_packing_is_undone_by_unpacking(clients, width):
    tree = {
        "a": torch.randn(clients, width, dtype=torch.float64),
        "b": {"c": torch.arange(clients), "d": torch.randn(clients, 2, 3).transpose(1, 2)},
        "e": torch.arange(clients) % 2 == 0,
    }
    rows = pack(tree)
    like = select(tree, 0)
    assert rows.shape == (clients, row_size(like))
    again = unpack(rows, like)
    assert torch.equal(again["a"], tree["a"])
    assert torch.equal(again["b"]["c"], tree["b"]["c"])
    assert torch.equal(again["b"]["d"], tree["b"]["d"])
    assert torch.equal(again["e"], tree["e"])


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line on two ranks, as torchrun starts them."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(cp.__file__).parents[1])}
    line = [sys.executable, *launcher, "-m", "counterpoise", *arguments]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_the_command_line_runs_and_resumes_on_two_ranks(tmp_path, monkeypatch):
    """One folder, one report, and the lines of a run on one process."""
    setting = ("run", "quickstart", "--set", "engine.dtype=float64", "--set", "evaluation.clients_every=1", "--rounds")
    ran = command(tmp_path, *setting, "2")
    assert ran.stdout.count("kept in: runs/quickstart-fedavg-0") == 1, ran.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["quickstart-fedavg-0"]
    resumed = command(tmp_path, "resume", "runs/quickstart-fedavg-0", "--rounds", "3")
    assert resumed.stdout.count("after 3 rounds") == 1, resumed.stderr
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["counterpoise", *setting, "3", "--out", "alone"])
    with pytest.raises(SystemExit):
        main()
    together, alone = (
        [json.loads(line) for line in (tmp_path / folder / "clients.jsonl").read_text().splitlines()]
        for folder in ("runs/quickstart-fedavg-0", "alone")
    )
    assert len(alone) == 4
    assert_like(together, alone)


@pytest.mark.slow
def test_a_mistake_is_told_once(tmp_path):
    ran = command(tmp_path, "run", "quickstart", "--set", "method=fedagv")
    assert ran.returncode
    assert ran.stderr.count("There is no method 'fedagv'") == 1  # torchrun adds a report of its own
    assert not (tmp_path / "runs").exists()
