"""The real thing: a SuperLink with TLS and node keys, four SuperNodes, one of them a liar, and what can go wrong.

Takes some minutes: `make test-deploy`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import subprocess
import threading
import time

import httpx
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives import serialization
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from helpers import assert_close
from links import Node, saying, spoiled
from safetensors.torch import load_file

import counterpoise as cp
from counterpoise.engine import Engine, Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.absence import AWAY, SILENT
from counterpoise.flower.credentials import make_key
from counterpoise.flower.keeper import _parents, descendants
from counterpoise.flower.local import LINK, Deployment, free_port
from counterpoise.flower.project import new_project
from counterpoise.method import Cohort
from counterpoise.methods import METHODS
from counterpoise.models.building import build_model
from counterpoise.runs.folder import Folder

NODES, ROUNDS, LOST, LIAR, VICTIM, SEED = 4, 3, 2, 3, 1, 7
MINUTES = 18
"""How long a test may wait. Side by side on two cores with a load of 5 the tests took 7 minutes; with one of 14, 10 and 14."""
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
    """One node claims three times its data; another hangs in its training, once."""
    node = context.node_config["partition-id"]
    if message.metadata.message_type != "train":
        return call_next(message, context)
    if node == {victim} and message.content["config"]["round"] == {lost} and not (SIGNS / "hangs").exists():
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


HOSTILE_APP = """
from flwr.app import Context

import counterpoise as cp
from counterpoise.flower import client_app, server_app

LOCAL = cp.Local(epochs=1, batch=16, optimizer=cp.sgd(0.1))


def federation(context: Context) -> cp.Federation:
    return cp.load("digits", partition=cp.iid(clients=int(context.run_config["clients"])), proxy=300, seed=0)


def data(context: Context) -> cp.Federation:
    return federation(context).only(int(context.node_config["partition-id"]))


server = server_app("fedavg", federation, model=cp.models.mlp, local=LOCAL)
client = client_app("fedavg", cp.models.mlp, data, local=LOCAL)
"""


class Hostile(threading.Thread):
    """A node with a key of its own, registered as site-2, that speaks to the SuperLink by hand."""

    def __init__(self, deployment, key, victim):
        super().__init__(daemon=True)
        private = serialization.load_ssh_private_key(key.read_bytes(), None)
        signs = [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(private, private.public_key()),
        ]
        ca = (deployment.certificates / "ca.crt").read_bytes()
        self.fleet = FleetHttpClient.from_server_address(f"127.0.0.1:{deployment.port}", False, ca, interceptors=signs)
        activate = ActivateNodeRequest(public_key=public_key_to_bytes(private.public_key()), heartbeat_interval=300)
        self.node = Node(self.fleet, self.fleet.ActivateNode(activate).node_id)
        self.victim, self.stopped, self.tried = victim, threading.Event(), []

    def run(self):
        with self.fleet:
            while not self.stopped.wait(1):
                with contextlib.suppress(httpx.HTTPError):  # between runs, or refused
                    message = self.node.pull()
                    if message is not None:
                        self.attack(message, message.content["config"]["round"])

    def attack(self, message, number):
        """In another's name, unasked, unreadable, under a false source, never whole."""
        content = RecordDict(
            {
                "arrays": ArrayRecord({n: Array(np.full(3, 1e6)) for n in ("update", "examples", "steps")}),
                "metrics": MetricRecord({"round": number, "accuracy": 50.0}),
            }
        )
        likely = saying(message, message.content, dst_node_id=self.victim)
        likely.metadata.__dict__["_message_id"] = likely.object_id
        refused = [httpx.HTTPStatusError]
        with contextlib.suppress(*refused):
            self.node.push(Message(content, reply_to=likely))
        with contextlib.suppress(*refused):
            self.node.push(saying(message, content, src_node_id=1, dst_node_id=1), spoil=spoiled)
        honest = Message(content, reply_to=message)
        own = {"src_node_id": self.node.node.node_id}
        how = message.metadata.message_type, number
        if how == ("train", 1):
            self.node.push(honest, spoil=spoiled)
        elif how == ("train", 3):
            self.node.push(honest, send=0)
        else:
            self.node.push(saying(honest, content, src_node_id=self.victim), **own)
        self.tried.append(how)


@pytest.mark.deploy
def test_a_hostile_node_neither_speaks_for_another_nor_silences_it(app, tmp_path):
    """Then the SuperLink is killed: all that was started ends, and the same again goes on."""
    out, key = tmp_path / "run", tmp_path / "hostile"
    (app / "app.py").write_text(HOSTILE_APP)
    config = {"clients": 3, "seed": SEED, "out": str(out), "timeout": 600}
    make_key(key)
    with Deployment(app, 2) as deployment:
        for path in deployment.work.rglob("*"):
            if path.is_file() and "home/apps" not in str(path):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        deployment.flwr("supernode", "register", f"{key}.pub", "dep", "--name", "site-2")
        with contextlib.closing(sqlite3.connect(deployment.work / "state.db")) as state:
            ((victim,),) = state.execute("select node_id from node where name = 'site-1'")
        hostile = Hostile(deployment, key, victim % 2**64)
        hostile.start()
        begun, run = time.monotonic(), deployment.submit(config | {"rounds": 2})
        lines = list(deployment.rounds(run, out, 2))
        # Round 3 waits until its end for a reply that never comes whole; training is about half of what a round takes.
        seconds = (time.monotonic() - begun) / 2
        run = deployment.submit(config | {"rounds": 9, "timeout": 10 + 1.5 * seconds})
        more = deployment.rounds(run, out, 9)
        lines = [next(more) for _ in range(3)]
        hostile.stopped.set()
        hostile.join(60)
        assert {("train", 1), ("train", 2), ("train", 3)} <= {*hostile.tried}
        assert [line.round for line in lines] == [1, 2, 3]
        for line in lines:
            assert set(line.outcome.weights) == {0, 1}
            assert set(line.outcome.excluded) == {2}
            assert line.clients["accuracy"].keys() == {0, 1}
        reasons = [line.outcome.excluded[2] for line in lines]
        assert reasons[::2] == [SILENT, SILENT]
        assert reasons[1].startswith("update has shape [3] and should have ")

        link, below, parents = deployment.processes[LINK].pid, descendants(deployment.processes[LINK].pid), _parents()
        (keeper,) = [child for child, parent in parents if parent == link]
        (program,) = [child for child, parent in parents if parent == keeper]
        assert len(below) > 2  # the run's server is one of them
        os.kill(program, 9)
        with pytest.raises(CounterpoiseError, match="The SuperLink ended with status 137"):
            list(more)
        assert not set(below) & {pid for pid, _ in _parents()}
    done = len(records(out))
    with Deployment(app, 2) as deployment:
        run = deployment.submit(config | {"rounds": done + 1, "patience": 10})
        assert [line.round for line in deployment.rounds(run, out, done + 1)] == list(range(1, done + 2))


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
    text = APP.format(signs=str(tmp_path / "signs"), victim=VICTIM, liar=LIAR, lost=LOST)
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
    return simulation.server.model, simulation.trainer.start, outcomes


@pytest.mark.deploy
def test_a_deployment_sees_the_liar_and_survives_its_nodes_and_its_superlink(app, tmp_path):
    out, signs, clock = tmp_path / "run", tmp_path / "signs", Clock(MINUTES)
    config = {"clients": NODES, "rounds": ROUNDS, "seed": SEED, "out": str(out)}
    with Deployment(app, NODES) as deployment:
        for key in [*deployment.keys.iterdir(), *deployment.certificates.iterdir()]:
            assert stat.S_IMODE(key.stat().st_mode) == 0o600, key
        run = deployment.submit(config)
        clock.until((signs / "hangs").exists, "a node in mid-round", deployment)
        deployment.kill(f"site-{VICTIM}")
        make_key(tmp_path / "stranger")
        trusted = ["--root-certificates", str(deployment.certificates / "ca.crt")]
        stranger = supernode(deployment, *trusted, "--auth-supernode-private-key", str(tmp_path / "stranger"))
        plain = supernode(deployment, "--insecure")
        try:
            for refused in (stranger, plain):
                assert refused.wait(timeout=120) != 0
        finally:
            for refused in (stranger, plain):
                if refused.poll() is None:
                    os.killpg(refused.pid, 9)
                    refused.wait()
        clock.until(lambda: len(records(out)) >= LOST, "the round that lost a node", deployment)
        deployment.start_node(VICTIM)  # earlier the SuperLink would not have it: it still believes in the other
        assert records(out)[LOST - 1].outcome.excluded[VICTIM] == SILENT
        assert f"the claim of client {LIAR} to" in deployment.log(run)

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
