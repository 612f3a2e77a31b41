"""Clipped gradients, kept optimisers and rates by epoch: a plain torch loop, step for step, however clients train."""

import tomllib
from dataclasses import replace

import pytest
import torch
from helpers import BACKENDS, assert_close, blobs, data_of, double, flat, small
from played import play
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.engine.backends import batched, perclient
from counterpoise.engine.clients.batches import client_keys, plan
from counterpoise.engine.clients.keeping import KEPT
from counterpoise.engine.rounds.lockstep import Lockstep, why_apart
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, Optimizer, adam, adamw, cosine, listed, sgd
from counterpoise.method import Part
from counterpoise.methods import avg, fedavg
from counterpoise.runs.config import parse
from counterpoise.runs.repeating import check_same

SIZES, ROUNDS, EPOCHS, BATCH = [1, 9, 4, 13, 6], 4, 3, 4

CASES = {
    "clip": (Local(optimizer=sgd(0.3, weight_decay=0.2), clip=0.3), torch.optim.SGD, {"weight_decay": 0.2}),
    "keep": (Local(optimizer=sgd(0.2, momentum=0.8, keep=True)), torch.optim.SGD, {"momentum": 0.8}),
    "keep adam": (Local(optimizer=adam(0.05, keep=True)), torch.optim.Adam, {}),
    "keep adamw": (Local(optimizer=adamw(0.05, keep=True)), torch.optim.AdamW, {}),
    "by epoch": (Local(optimizer=sgd(0.3), schedule=cosine(4, floor=0.1, each="epoch")), torch.optim.SGD, {}),
    "all": (
        Local(
            optimizer=sgd(0.3, momentum=0.5, weight_decay=0.1, keep=True),
            schedule=cosine(4, floor=0.1, each="epoch"),
            clip=0.4,
        ),
        torch.optim.SGD,
        {"momentum": 0.5, "weight_decay": 0.1},
    ),
    "listed": (Local(optimizer=sgd(0.3), schedule=listed([2, 3], [0.1, 0.5], hold=False)), torch.optim.SGD, {}),
}


def local_of(name):
    return replace(CASES[name][0], epochs=EPOCHS, batch=BATCH)


def simulation(name, seed=5, backend="per-client", **settings):
    engine = double(backend=backend, **({"chunk": 2} if backend == "batched" else {}))
    given = {"cohort": 3, "engine": engine, "local": local_of(name)} | settings
    return Simulation(avg(), blobs(SIZES), small(), seed=seed, **given)


def expected(name, cohorts, seed=5):
    """The server's models and moves, by torch alone: a client's optimiser lives on only if it is kept."""
    local, kind, options = CASES[name]
    federation, server, owned, found = blobs(SIZES), small(), {}, []
    for round, cohort in enumerate(cohorts, 1):
        start, trained = flat(server), []
        for client in cohort:
            if client not in owned or not local.optimizer.keep:
                model = small()
                owned[client] = model, kind(model.parameters(), lr=local.optimizer.lr, **options)
            model, optimizer = owned[client]
            model.load_state_dict(server.state_dict())
            train(
                model, optimizer, data_of(federation, client), RATES[name][round - 1], local.clip, client, round, seed
            )
            trained.append(flat(model))
        mean = torch.stack(trained).mean(0)
        found.append((mean, mean - start))
        torch.nn.utils.vector_to_parameters(mean, server.parameters())
    return found


def falling(lr):
    """The rates of every epoch by torch's own cosine, down to a tenth, in rows of a round."""
    dummy = torch.optim.SGD([torch.zeros(1)], lr=lr)
    schedule, rates = torch.optim.lr_scheduler.CosineAnnealingLR(dummy, ROUNDS * EPOCHS, eta_min=0.1 * lr), []
    for _ in range(ROUNDS * EPOCHS):
        rates.append(dummy.param_groups[0]["lr"])
        dummy.step()
        schedule.step()
    return [rates[begin : begin + EPOCHS] for begin in range(0, len(rates), EPOCHS)]


RATES = {name: [[local.optimizer.lr] * EPOCHS] * ROUNDS for name, (local, _, _) in CASES.items()} | {
    "by epoch": falling(0.3),
    "all": falling(0.3),
    "listed": [[lr] * EPOCHS for lr in (0.3, 0.03, 0.15, 0.3)],
}


def train(model, optimizer, data, rates, clip, client, round, seed):
    inputs, targets = data
    size = torch.tensor([len(targets)])
    for epoch, lr in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = lr
        keys = client_keys(seed, round, torch.tensor([client]))
        batches = plan(keys, size, (size + BATCH - 1) // BATCH, BATCH, epoch)
        for places, real in zip(batches.places[0], batches.real[0], strict=True):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[places[real]]), targets[places[real]]).backward()
            if clip:
                clip_grad_norm_(model.parameters(), clip)
            optimizer.step()


@pytest.mark.parametrize("how", ["per-client", "batched", "captured", "scripted per-client", "scripted batched"])
@pytest.mark.parametrize("name", CASES)
def test_every_way_to_train_is_a_plain_loop(name, how, monkeypatch):
    backend = "per-client" if "per-client" in how else "batched"
    settings = {}
    if "scripted" in how:
        for module in (perclient, batched):
            monkeypatch.setattr(module, "_OFTEN", 0)
        settings = {"engine": double(backend=backend, record=True)}
    if how == "captured":
        play(monkeypatch)
    made = simulation(name, backend=backend, **settings)
    if how == "captured":
        made.backend.captures = True
    models, cohorts = [], []
    for _ in range(ROUNDS):
        cohorts.append(made.advance().cohort)
        models.append(made.server.model)
    assert len({client for cohort in cohorts for client in cohort}) > 3, "clients must come back after a pause"
    for model, (mean, move) in zip(models, expected(name, cohorts), strict=True):
        assert_close(model, mean, move, 1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["clip", "keep", "by epoch", "all"])
def test_runs_that_train_together_compute_what_they_compute_alone(name, backend):
    def members():
        other = simulation(name, seed=6, backend=backend)
        rate = replace(local_of(name), optimizer=replace(local_of(name).optimizer, lr=0.07))
        third = Simulation(fedavg(), blobs(SIZES), small(), seed=7, local=rate, cohort=2, engine=other.trainer.asked)
        return [simulation(name, backend=backend), other, third]

    mine, joint = members(), members()
    assert not any(why_apart(joint[0], made) for made in joint[1:])
    lockstep = Lockstep(joint)
    for _ in range(ROUNDS):
        lockstep.advance([(made, False) for made in joint])
        for own, made in zip(mine, joint, strict=True):
            own.advance()
            moved = own.server.model - own.trainer.start
            assert_close(made.server.model, own.server.model, moved, 0.0 if backend == "per-client" else 1e-10)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"clip": 0.31}, "their gradients are clipped at different lengths"),
        ({"clip": None}, "their gradients are clipped at different lengths"),
        ({"schedule": cosine(4, floor=0.1)}, "one changes the learning rate by round and the other by epoch"),
        ({"schedule": cosine(9, floor=0.3, each="epoch")}, ""),
        ({"optimizer": sgd(0.3, momentum=0.5, weight_decay=0.1)}, "their optimisers differ"),
    ],
)
def test_runs_with_other_options_stay_apart(change, reason):
    assert why_apart(simulation("all"), simulation("all", local=replace(local_of("all"), **change))) == reason


def test_kept_and_new_optimisers_stay_apart():
    new = replace(local_of("keep adam"), optimizer=adam(0.05))
    assert why_apart(simulation("keep adam"), simulation("keep adam", local=new)) == "their optimisers differ"


def test_a_kept_state_goes_back_if_the_reply_is_lost():
    """The first client's replies of rounds 2 and 3 never arrive: its momentum is then that of round 1."""

    def lost(round, cohort):
        return cohort.keep(torch.tensor([round not in (2, 3) or client != 0 for client in cohort.ids]))

    made = simulation("keep", cohort=5, adversary=lost)
    buffers = []
    for _ in range(4):
        made.advance()
        buffers.append([made.client_state[KEPT][client]["buffer"].clone() for client in (0, 1)])
    assert torch.equal(buffers[0][0], buffers[1][0])
    assert torch.equal(buffers[0][0], buffers[2][0])
    assert not torch.equal(buffers[2][0], buffers[3][0])
    assert all(not torch.equal(buffers[round][1], buffers[round + 1][1]) for round in range(3))
    assert made.server.accepted_rounds(KEPT, [0, 1]) == [4, 4]


def test_a_resumed_run_goes_on_with_the_kept_state(tmp_path):
    fed = cp.load("digits", partition=cp.dirichlet(0.5, clients=6), seed=1)
    local = Local(2, 16, sgd(0.05, momentum=0.9, keep=True), cosine(6, floor=0.1, each="epoch"), clip=0.5)
    given = {"model": cp.models.linear, "cohort": 3, "local": local}
    whole = cp.simulate("fedavg", fed, rounds=6, out=tmp_path / "whole", **given)
    cp.simulate("fedavg", fed, rounds=6, out=tmp_path / "cut", on_round=lambda record: record.round == 3, **given)
    assert torch.equal(flat(cp.resume(tmp_path / "cut").model), flat(whole.model))
    kept = (tmp_path / "cut" / "config.toml").read_text()
    for setting in ("keep = true", 'each = "epoch"', "clip = 0.5"):
        assert setting in kept


def test_a_run_from_before_an_option_can_go_on(tmp_path):
    """Its configuration lacks the option, which then has its default."""
    fed = cp.load("digits", partition=cp.iid(4), seed=1)
    local = Local(1, 64, sgd(0.05), cosine(9), augment=cp.augment.crop(1))
    cp.simulate("fedavg", fed, rounds=1, model=cp.models.mlp, local=local, out=tmp_path / "run")
    now = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    before = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    del before["local"]["optimizer"]["keep"], before["local"]["schedule"]["each"], before["model"]["hidden"]
    check_same(parse(before, "before"), parse(now, "now"))
    now["local"]["optimizer"]["momentum"] = 0.5
    with pytest.raises(CounterpoiseError, match=r"local\.optimizer\.momentum was 0\.0 and is 0\.5"):
        check_same(parse(before, "before"), parse(now, "now"))


def test_mistakes_are_told_in_a_sentence():
    for clip in (0, -1.0, True, "ten", float("nan"), float("inf")):
        with pytest.raises(CounterpoiseError, match="local: clip must be a number above 0, or left out, not"):
            Local(clip=clip)
    with pytest.raises(CounterpoiseError, match="without momentum there is no state to keep; leave keep out"):
        sgd(0.1, keep=True)
    for rounds, factors, sentence in (
        ([2, 2], [0.1, 0.1], r"rounds must be whole numbers from 1 in ascending order, not \[2, 2\]"),
        ([0], [0.1], "rounds must be whole numbers from 1"),
        ([1.5], [0.1], "rounds must be whole numbers from 1"),
        ([2], [0.0], r"factors must be numbers above 0, not \[0\.0\]"),
        ([2], ["a"], "factors must be numbers above 0"),
        ([2, 3], [0.1], "there must be one factor for each round, not 1 for 2"),
    ):
        with pytest.raises(CounterpoiseError, match="schedule listed: " + sentence):
            listed(rounds, factors)
    taken = avg().adding(local=Part(KEPT))
    with pytest.raises(CounterpoiseError, match=f"A part cannot be called '{KEPT}'"):
        Simulation(taken, blobs(SIZES), small(), local=local_of("keep"))
    with pytest.raises(CounterpoiseError, match="FedNova needs a local optimiser that is linear in the gradients"):
        Simulation(cp.methods.fednova(), blobs(SIZES), small(), local=local_of("keep"))


def test_an_own_optimiser_can_be_kept():
    def counting(w, g, state, lr):
        return w - lr * g, {"count": state["count"] + 1}

    own = Optimizer(0.1, lambda w: {"count": w.new_zeros(())}, counting, keep=True)
    made = Simulation(avg(), blobs(SIZES), small(), local=Local(2, 4, own), engine=double())
    made.advance()
    made.advance()
    assert [float(made.client_state[KEPT][client]["count"]) for client in range(5)] == [4, 12, 4, 16, 8]


def test_ditto_clips_its_personal_step_too():
    """One client, one batch: both models take a step of the clipped length, and decay is not clipped."""
    local = Local(batch=100, optimizer=sgd(0.5, weight_decay=0.1), clip=1e-3)
    made = Simulation(cp.methods.ditto(), blobs([7]), small(), local=local, engine=double())
    made.advance()
    start = made.trainer.start
    own = made.client_state["personal-model"][0]["v"]
    assert torch.allclose(own, made.server.model, atol=1e-14)
    assert float((own - start + 0.05 * start).norm()) == pytest.approx(5e-4, rel=1e-4)
