"""The real thing: a SuperLink with TLS and node keys, four SuperNodes, one of them a liar, and what can go wrong.

Takes some minutes: `make test-deploy`.
"""

from __future__ import annotations

import os
import stat
import subprocess
import time

import pytest
import torch
from helpers import assert_close
from safetensors.torch import load_file

import counterpoise as cp
from counterpoise.engine import Engine, Simulation
from counterpoise.federation.availability import AWAY, SILENT
from counterpoise.flower.credentials import make_key
from counterpoise.flower.local import LINK, Deployment, free_port
from counterpoise.flower.project import new_project
from counterpoise.method import Cohort
from counterpoise.methods import METHODS
from counterpoise.runs.folder import Folder
from counterpoise.runs.setup import build_model

NODES, ROUNDS, LIAR, VICTIM, SEED = 4, 5, 3, 1, 7
MINUTES = 20
"""How long the whole may take; on two idle cores it takes five."""
METHOD = {"prior": "proxy", "factor": "direct"}
LOCAL = cp.Local(epochs=1, batch=16, optimizer=cp.sgd(0.1))

APP = '''
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, Context

import counterpoise as cp
from counterpoise.flower import client_app, server_app
from counterpoise.methods import METHODS

METHOD = METHODS.make("feddua:fedavg", prior="proxy", factor="direct")
LOCAL = cp.Local(epochs=1, batch=16, optimizer=cp.sgd(0.1))
ENGINE = cp.Engine(dtype="float64", device="cpu", threads=1)
SIGNS = Path({signs!r})


def federation(context: Context) -> cp.Federation:
    return cp.load("digits", partition=cp.iid(clients=int(context.run_config["clients"])), proxy=300, seed=0)


def data(context: Context) -> cp.Federation:
    return federation(context).only(int(context.node_config["partition-id"]))


def misbehave(message, context, call_next):
    """One node claims three times its data; another can be told to hang in its training."""
    node = context.node_config["partition-id"]
    if message.metadata.message_type != "train":
        return call_next(message, context)
    if node == {victim} and (SIGNS / "hang").exists():
        (SIGNS / "hangs").touch()
        time.sleep(3600)
    reply = call_next(message, context)
    if node == {liar}:
        arrays = reply.content["arrays"]
        arrays["examples"] = Array(np.array(3 * int(arrays["examples"].numpy())))
    return reply


server = server_app(METHOD, federation, model=cp.models.mlp, local=LOCAL, engine=ENGINE)
client = client_app(METHOD, cp.models.mlp, data, local=LOCAL, engine=ENGINE, mods=[misbehave])
'''


def records(out):
    return list(Folder.open(out).records()) if (out / "config.toml").exists() else []


class Clock:
    """Waits for things, all together no longer than it was given."""

    def __init__(self, minutes):
        self.end = time.monotonic() + 60 * minutes

    def until(self, ready, what, deployment):
        while not (found := ready()):
            for name, process in deployment.processes.items():
                assert process.poll() is None, f"{name} ended while waiting for {what}:\n{deployment.last(name)}"
            assert time.monotonic() < self.end, f"no time left, waiting for {what}"
            time.sleep(0.5)
        return found


def supernode(deployment, *options):
    """A SuperNode that gives up soon."""
    where = ["--superlink", f"127.0.0.1:{deployment.port}", "--host", "127.0.0.1", "--port", str(free_port())]
    return subprocess.Popen(
        ["flower-supernode", *where, "--max-wait-time", "10", *options],
        env=deployment.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.fixture
def app(tmp_path):
    new_project(tmp_path / "app")
    (tmp_path / "signs").mkdir()
    text = APP.format(signs=str(tmp_path / "signs"), victim=VICTIM, liar=LIAR)
    (tmp_path / "app" / "app.py").write_text(text)
    return tmp_path / "app"


def replayed(out):
    """The model that a simulation of the recorded participation ends with, and where it began."""

    def triple(round, cohort):
        claims = [n * (3 if c == LIAR else 1) for c, n in zip(cohort.ids, cohort.examples.tolist(), strict=True)]
        return Cohort(
            cohort.ids, cohort.updates, torch.tensor(claims).to(cohort.examples), cohort.steps, cohort.reports
        )

    federation = cp.load("digits", partition=cp.iid(clients=NODES), proxy=300, seed=0)
    simulation = Simulation(
        METHODS.make("feddua:fedavg", **METHOD),
        federation,
        build_model(cp.models.mlp, federation, SEED),
        cohort=cp.replay(str(out)),
        local=LOCAL,
        seed=SEED,
        engine=Engine(dtype="float64", device="cpu", threads=1),
        adversary=triple,
    )
    outcomes = [simulation.advance().outcome for _ in range(ROUNDS)]
    return simulation.server.model, simulation.start, outcomes


@pytest.mark.deploy
def test_a_deployment_sees_the_liar_and_survives_its_nodes_and_its_superlink(app, tmp_path):
    out, signs, clock = tmp_path / "run", tmp_path / "signs", Clock(MINUTES)
    config = {"clients": NODES, "rounds": ROUNDS, "seed": SEED, "out": str(out)}
    with Deployment(app, NODES) as deployment:
        for key in [*deployment.keys.iterdir(), *deployment.certificates.iterdir()]:
            assert stat.S_IMODE(key.stat().st_mode) == 0o600, key
        run = deployment.submit(config)
        make_key(tmp_path / "stranger")
        trusted = ["--root-certificates", str(deployment.certificates / "ca.crt")]
        stranger = supernode(deployment, *trusted, "--auth-supernode-private-key", str(tmp_path / "stranger"))
        plain = supernode(deployment, "--insecure")
        try:
            clock.until(lambda: len(records(out)) >= 1, "the first round", deployment)

            (signs / "hang").touch()
            clock.until((signs / "hangs").exists, "a node in mid-round", deployment)
            done = len(records(out))
            deployment.kill(f"site-{VICTIM}")
            (signs / "hang").unlink()
            clock.until(lambda: len(records(out)) > done, "the round that lost a node", deployment)
            deployment.start_node(VICTIM)  # earlier the SuperLink would not have it: it still believes in the other
            assert records(out)[done].outcome.excluded[VICTIM] == SILENT
            assert f"the claim of client {LIAR} to" in deployment.log(run)

            for refused in (stranger, plain):
                assert refused.wait(timeout=120) != 0
        finally:
            for refused in (stranger, plain):
                if refused.poll() is None:
                    os.killpg(refused.pid, 9)
                    refused.wait()

        deployment.kill(LINK)
        done = len(records(out))
        assert done < ROUNDS, "the run ended before its SuperLink was killed"
        deployment.start_link()
        run = deployment.submit(config)
        clock.until(lambda: len(records(out)) == ROUNDS, "the last round", deployment)
        assert [record.round for record in deployment.rounds(run, out, ROUNDS)] == list(range(1, ROUNDS + 1))
        processes = list(deployment.processes.values())
    assert all(process.poll() is not None for process in processes)

    lines = records(out)
    assert [record.round for record in lines] == list(range(1, ROUNDS + 1))
    verdicts = [record.outcome.verdicts[LIAR].action for record in lines if LIAR in record.outcome.verdicts]
    assert verdicts
    assert all(action in ("corrected", "excluded") for action in verdicts)
    for record in lines:
        assert set(record.outcome.excluded) <= {VICTIM, LIAR}
        assert record.outcome.excluded.get(VICTIM, SILENT) in (SILENT, AWAY)
        assert {"accuracy", "loss", "train_loss"} <= record.metrics.keys()
        assert "accuracy" in record.clients

    model, start, outcomes = replayed(out)
    ended = load_file(out / "checkpoint" / f"state-{ROUNDS}.safetensors")["model"]
    assert_close(ended, model, model - start, 1e-8)
    for record, outcome in zip(lines, outcomes, strict=True):
        assert record.outcome.claims == outcome.claims
        assert {c: v.action for c, v in record.outcome.verdicts.items()} == {
            c: v.action for c, v in outcome.verdicts.items()
        }
