"""Steps that are recorded on a CPU and replayed without Python: the same bits, of pure code only, and only of steps taken often."""

from __future__ import annotations

import functools
import logging
import threading
from dataclasses import replace

import pytest
import torch
from helpers import ALL_METHODS, BACKENDS, blobs, differing_on_clients, double, fresh, net, small
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.engine.acceleration import scripted
from counterpoise.engine.backends import batched, making, perclient
from counterpoise.engine.rounds.lockstep import Lockstep
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, Optimizer, sgd
from counterpoise.method import Part
from counterpoise.methods import METHODS, avg

SIZES = [1, 9, 4, 13, 6, 9, 9, 5]


@pytest.fixture
def at_once(monkeypatch):
    """Every step is recorded on its first use."""
    for backend in (perclient, batched):
        monkeypatch.setattr(backend, "_OFTEN", 0)


@pytest.fixture
def replayed(monkeypatch):
    """Counts replays."""
    calls, call = [], scripted.ScriptedStep.__call__

    def counted(self, *arguments):
        calls.append(self)
        return call(self, *arguments)

    monkeypatch.setattr(scripted.ScriptedStep, "__call__", counted)
    return calls


def started(
    method=None,
    model=None,
    backend="per-client",
    record=None,
    shape=(6,),
    local=None,
    cohort=6,
    server=False,
    dtype="float64",
    **others,
) -> Simulation:
    return Simulation(
        method or avg(),
        blobs(SIZES, shape=shape, **({"probe": 1, "proxy": 12} if server else {})),
        model or small(),
        cohort=cohort,
        seed=3,
        local=local or Local(epochs=2, batch=4, optimizer=sgd(0.1, momentum=0.5)),
        engine=double(backend=backend, record=record, threads=2, dtype=dtype),
        **others,
    )


def models(simulation: Simulation, rounds: int = 3) -> list[torch.Tensor]:
    found = []
    for _ in range(rounds):
        simulation.advance()
        found.append(simulation.server.model)
    return found


def assert_same(simulation: Simulation, plain: Simulation, rounds: int = 3) -> None:
    assert not plain.engine.record
    for a, b in zip(models(simulation, rounds), models(plain, rounds), strict=True):
        assert torch.equal(a, b)


def drawing() -> nn.Module:
    return net(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout2d(0.3), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(36, 3)
    )


# ---------------------------------------------------------------- the same bits


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", differing_on_clients([*ALL_METHODS, "feddua:scaffold", "feddua:fedprox"]))
def test_every_methods_steps_are_replayed_to_the_bit(name, backend, at_once, replayed):
    simulation = started(METHODS.make(name), backend=backend, server=True)
    assert simulation.engine.record
    plain = started(METHODS.make(name), backend=backend, server=True, record=False)
    assert_same(simulation, plain, rounds=3 if backend == "batched" else 2)  # in which clients' steps are one
    assert len(replayed) > 15


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("dtype", "augment", "side"),
    [
        ("float32", cp.augment.flip(), 8),
        ("float64", cp.augment.flip(), 8),
        ("float64", cp.augment.flip_and_crop(1, "reflect", 0.5, size=8), 9),
    ],
)
def test_pictures_dropout_and_augmentation_are_replayed_to_the_bit(backend, dtype, augment, side, at_once, replayed):
    local = Local(epochs=2, batch=4, optimizer=sgd(0.1), augment=augment)

    def make(record):
        model = drawing().to(getattr(torch, dtype))
        simulation = started(model=model, backend=backend, record=record, shape=(1, side, side), local=local)
        assert simulation.trainer.traits.keyed
        return simulation

    assert_same(make(None), make(False))
    assert len(replayed) > 15


def test_a_run_goes_over_to_replays_without_a_trace(monkeypatch, replayed):
    monkeypatch.setattr(perclient, "_OFTEN", 60)  # batches of 4 are met 24 times a round, of 1 twelve times, of 2 twice
    simulation, plain = started(cohort=8), started(cohort=8, record=False)
    models(simulation, 2), models(plain, 2)
    assert not replayed
    assert_same(simulation, plain)
    assert list(simulation.backend._scripted_steps._known) == [4]
    assert len(replayed) == 2 + 3 * 24  # its trial, and three rounds


def test_a_batch_keeps_its_recording_when_a_run_ends(at_once, replayed):
    def members(record):
        return [
            Simulation(avg(), blobs([8] * 6), small(), seed=seed, engine=double(backend="batched", record=record))
            for seed in range(3)
        ]

    joint, plain = members(None), members(False)
    lockstep, other = Lockstep(joint), Lockstep(plain)
    for ended in (0, 0, 1):
        lockstep.advance([(made, False) for made in joint[ended:]])
        other.advance([(made, False) for made in plain[ended:]])
    assert len(lockstep.backend.scripted_steps._known) == 1
    assert len({*replayed}) == 1
    assert not other.backend.scripted_steps._known
    for a, b in zip(joint, plain, strict=True):
        assert torch.allclose(a.server.model, b.server.model, rtol=1e-12, atol=1e-14)


def test_no_step_is_recorded_before_it_was_met_often(replayed):
    models(started(backend="per-client")), models(started(backend="batched"))
    assert not replayed


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_servers_own_samples_are_not_taken_for_the_federations(backend, at_once, replayed):
    """FedDua's rehearsals train on the proxy set, before the clients do."""
    method = METHODS.make("feddua", prior="proxy")
    assert_same(
        started(method, backend=backend, server=True), started(method, backend=backend, server=True, record=False)
    )
    assert len(replayed) > 15


def test_equal_tensors_are_told_apart(at_once):
    """At the start of a round `begun` is the server's model; in the second pass it is not."""

    def step(fixed, progress, given):
        begun, w = progress
        return begun, w - 0.1 * (w - fixed[0]) + given[0]

    start = torch.ones(3)
    scripted_steps = scripted.ScriptedSteps(0, True)
    scripted_steps.script("form", step, (start,), (start, start), (torch.zeros(3),))
    found = scripted_steps._known["form"](
        [start], (torch.full((3,), 5.0), torch.full((3,), 2.0)), (torch.full((3,), 7.0),)
    )
    assert [t.tolist() for t in found] == [[5.0] * 3, pytest.approx([8.9] * 3)]


@pytest.mark.parametrize("wrong", [0, 1, 2, "batch"])
def test_a_recording_that_takes_one_tensor_for_another_is_refused(wrong, monkeypatch):
    """Even where both hold the same numbers when it is made."""
    call, batch = scripted.ScriptedStep.__call__, (torch.arange(3.0),)

    def confused(self, fixed, progress, given):
        if wrong == "batch":
            return call(self, fixed, progress, batch)
        tensors = [fixed[0], *progress]
        tensors[wrong] = tensors[(wrong + 1) % 3]
        return call(self, tensors[:1], tuple(tensors[1:]), given)

    def step(fixed, progress, given):
        return progress[1], 2 * progress[0] + 3 * fixed[0] + given[0]

    monkeypatch.setattr(scripted.ScriptedStep, "__call__", confused)
    start, scripted_steps = torch.ones(3), scripted.ScriptedSteps(0, True)
    scripted_steps.script("form", step, (start,), (start, start), batch)
    assert not scripted_steps._known


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_of_one_tensor_is_replayed_from_its_first_step(backend, monkeypatch, replayed):
    """Under `vmap` a chunk begins with one row for all its clients; recorded is a later step."""
    for module in (perclient, batched):
        monkeypatch.setattr(module, "_OFTEN", 3)

    def make(record):
        model = net(nn.Conv2d(1, 3, 8, bias=False), nn.Flatten())
        return started(model=model, backend=backend, record=record, shape=(1, 8, 8))

    assert_same(make(None), make(False))
    assert len(replayed) > 15


def told(state):
    return dict(state) if state["m"].any() else {"v": state["v"]}


@pytest.mark.parametrize("broadcast", [dict, told], ids=["another order", "one more"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_broadcast_is_known_by_its_names(backend, broadcast, at_once, replayed):
    def apply(round):
        v = 0.9 * round.state["v"] + 0.1 * round.combined
        return round.but(model=round.model + round.combined, state={"v": v, "m": round.state["m"] + v})

    def server_state(w):
        return {"m": torch.zeros_like(w), "v": torch.zeros_like(w)}

    part = Part("direction", server_state=server_state, broadcast=broadcast, apply=apply)
    method = replace(METHODS.make("fedbac", strength=0.5, align="update", reliability="none"), update=(part,))
    assert_same(started(method, backend=backend), started(method, backend=backend, record=False))
    assert len(replayed) > 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_memo_that_is_laid_out_anew_after_a_pass(backend, at_once, replayed):
    method = with_part(
        begin=lambda client: {"m": client.start.new_zeros(2, 3)},
        gradient=lambda client, step, g: g + 0.01 * client.memo["m"].reshape(-1)[1],
        after_epoch=lambda client, w: {"m": w[:6].view(3, 2).T},
    )
    simulation = started(method, backend=backend, record=True)
    assert_same(simulation, started(method, backend=backend, record=False))
    assert len(replayed) > 5


def test_a_recording_is_made_in_a_thread_as_clients_train_in(at_once, replayed):
    """Autocast is the calling thread's own: clients do not train in it."""

    def make(record):
        simulation = started(record=record, dtype="float32")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            simulation.advance()
        return simulation

    assert_same(make(None), make(False))
    assert len(replayed) > 15


def test_runs_beside_each_other_record_one_at_a_time(at_once, replayed):
    call, found = nn.Module.__call__, {}

    def train(seed):
        found[seed] = models(started(model=small()))[-1]

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert nn.Module.__call__ is call
    assert len(set(replayed)) >= 6
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_round_records_once_and_not_when_it_is_to_stop(at_once):
    simulation = started()
    for many in (1, 2):
        simulation.advance()
        assert len(simulation.backend._scripted_steps._known) == many


# ---------------------------------------------------------------- what is recorded


class Counting(nn.Module):
    """A model of the user's that does more than compute."""

    def __init__(self, grows: bool = False) -> None:
        super().__init__()
        self.layer, self.calls, self.grows = nn.Linear(6, 3), [], grows

    def __deepcopy__(self, memo):
        copy = Counting(self.grows)
        copy.load_state_dict(self.state_dict())
        copy.calls = self.calls
        return copy.double()

    def forward(self, inputs):
        self.calls.append(len(inputs))
        return self.layer(inputs) * (len(self.calls) if self.grows and self.training else 1)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs):
        outputs = self.layer(inputs)
        return outputs if outputs.sum() > 0 else 2 * outputs


def squared(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none") ** 2


class Loss:
    func = F.cross_entropy

    def __call__(self, outputs, targets):
        return squared(outputs, targets)


class Partial(functools.partial):
    pass


def hooked_loss() -> nn.Module:
    loss = nn.CrossEntropyLoss(reduction="none")
    loss.register_forward_hook(lambda module, inputs, outputs: outputs)
    return loss


def turned(loss=False) -> nn.Module:
    model = small()
    model[1].register_full_backward_pre_hook(lambda module, gradient: gradient)
    return model


def hooked() -> nn.Module:
    model = small()
    model[0].register_forward_hook(lambda module, inputs, outputs: outputs)
    return model


def rebuild() -> nn.Module:
    model = small()
    forward = model[2].forward
    model[2].forward = lambda inputs: forward(inputs)
    return model


def with_part(**hooks) -> cp.Method:
    return replace(avg(), local=(Part("mine", **hooks),))


@pytest.mark.parametrize(
    "mine",
    [
        {"model": fresh(Counting())},
        {"model": net(nn.Linear(6, 6), nn.Sequential(Counting()))},
        {"model": hooked()},
        {"model": rebuild()},
        {"loss": squared},
        {"method": with_part(begin=lambda client: {}, finish=lambda client, reply: reply)},
        {"method": with_part(loss=lambda client, step, w: 0 * w.sum())},
        {"method": with_part(gradient=lambda client, step, g: g)},
        {"method": with_part(begin=lambda client: {}, after_step=lambda client, step: {})},
        {"local": Local(batch=4, optimizer=sgd(0.1), augment=lambda inputs, keys: inputs)},
        {"local": Local(batch=4, optimizer=replace(sgd(0.1), step=lambda w, g, state, lr: (w - lr * g, state)))},
        {"local": Local(batch=4, optimizer=replace(sgd(0.1), init=lambda w: {}))},
    ],
    ids=[
        *(
            "model",
            "layer",
            "module hook",
            "forward",
            "loss",
            "begin",
            "loss hook",
            "gradient",
            "after_step",
            "augment",
        ),
        *("optimiser's step", "optimiser's init"),
    ],
)
def test_code_of_others_is_recorded_only_if_asked(mine):
    assert not started(**mine).engine.record
    assert started(**mine, record=True).engine.record
    assert started().engine.record
    assert not started(record=False).engine.record


def test_an_update_of_others_is_not_taken_for_ours():
    with pytest.warns(DeprecationWarning, match="update"):
        optimizer = Optimizer(0.1, lambda w: {}, update=lambda g, state, lr: (lr * g, state))
    assert not scripted._known(optimizer.step)
    assert scripted._known(sgd(0.1).step)


class Attention(nn.TransformerEncoderLayer):
    pass


@pytest.mark.parametrize(
    "code",
    [
        functools.wraps(F.cross_entropy)(squared.__class__(squared.__code__, squared.__globals__)),
        Loss(),
        Loss().__call__,
        functools.partial(squared),
        functools.partial(F.cross_entropy, weight=squared),
        Partial(F.cross_entropy, reduction="none"),
        Attention,
    ],
    ids=["wraps", "func", "method", "partial", "argument", "partial's class", "class"],
)
def test_what_calls_itself_torchs_is_not_taken_for_it(code):
    assert not scripted._known(code)


@pytest.mark.parametrize(
    "code",
    [
        F.cross_entropy,
        functools.partial(F.cross_entropy, reduction="none"),
        nn.Linear,
        nn.MSELoss(),
        torch.tanh,
        nn.ReLU().forward,
    ],
)
def test_torchs_own_is_known(code):
    assert scripted._known(code)


def test_modules_that_were_changed_are_not_pure(monkeypatch):
    assert not started(model=turned()).engine.record
    assert not started(loss=hooked_loss()).engine.record
    assert started(loss=nn.CrossEntropyLoss(reduction="none")).engine.record
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, activation=lambda x: x)
    assert not scripted._plain(layer)
    assert scripted._plain(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True))
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, outputs: None)
    assert not started().engine.record
    handle.remove()
    assert started().engine.record
    forward = nn.Tanh.forward
    monkeypatch.setattr(nn.Tanh, "forward", lambda self, inputs: forward(self, inputs))
    assert not started().engine.record


def test_large_models_are_recorded_only_if_asked(monkeypatch):
    size = sum(p.numel() for p in small().parameters())
    monkeypatch.setattr(making, "_SCRIPTED", size)
    assert started().engine.record
    monkeypatch.setattr(making, "_SCRIPTED", size - 1)
    assert not started().engine.record
    assert started(record=True).engine.record


class Clipping(nn.Module):
    """Leaves torch and comes back: what it finds there could become a part of a recording."""

    def __init__(self, how) -> None:
        super().__init__()
        self.first, self.second, self.how = nn.Linear(6, 3), nn.Linear(6, 3), how

    def forward(self, x):
        if self.how == "numpy":
            return self.first(torch.from_numpy(x.numpy().clip(-1, 1)))
        if self.how == "list":
            return (
                self.first(x) * torch.tensor([1.0 if v > 0 else 0.5 for v in x[:, 0].tolist()], dtype=x.dtype)[:, None]
            )
        mine = x[:, 0] > 0
        found = x.new_zeros(len(x), 3).index_put((mine,), self.first(x[mine]))
        return found.index_put((~mine,), self.second(x[~mine]))


@pytest.mark.parametrize("how", ["numpy", "list", "mask"])
def test_no_number_of_a_batch_becomes_part_of_a_recording(how, at_once):
    assert_same(started(model=fresh(Clipping(how)), record=True), started(model=fresh(Clipping(how)), record=False))


def test_what_else_a_users_model_does_is_done_at_every_step_unless_asked(at_once, replayed):
    model = fresh(Counting())
    models(started(model=model))
    often = len(model.calls)
    model.calls.clear()
    models(started(model=model, record=True))
    assert 0 < len(model.calls) < often / 2
    assert len(replayed) > 30


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_gives_other_numbers_is_not_replayed(backend, at_once, replayed, caplog):
    caplog.set_level(logging.INFO)
    simulation = started(model=fresh(Counting(grows=True)), backend=backend, record=True)
    models(simulation)
    assert len(replayed) == 2  # its trial
    assert "not scripted, because: a script gave other numbers." in caplog.text


def test_a_branch_on_numbers_is_not_recorded_and_trains_as_ever(at_once, replayed, caplog):
    caplog.set_level(logging.INFO)
    assert_same(
        started(model=fresh(Branching()), record=True, local=Local(batch=4, optimizer=sgd(0.1))),
        started(model=fresh(Branching()), record=False, local=Local(batch=4, optimizer=sgd(0.1))),
    )
    assert not replayed
    assert caplog.text.count("Steps are not scripted, because: ") == 1


def test_draws_that_cannot_be_keyed_are_not_recorded():
    model = net(nn.Linear(6, 3), nn.RReLU())
    assert not started(model=model, record=True).engine.record
    with pytest.raises(CounterpoiseError, match="cannot be trained as one batch of clients"):
        started(model=model, backend="batched", record=True)


# ---------------------------------------------------------------- maxima of 2 x 2


@given(
    st.integers(1, 3),
    st.integers(2, 9),
    st.integers(2, 9),
    st.integers(1, 4),
    st.integers(0, 10**6),
)
def test_maxima_and_their_places_are_torchs_with_equal_numbers_too(channels, height, width, values, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(values, (2, channels, height, width), generator=generator).float()
    for pictures in (x, x[0]):
        found, expected = (
            scripted._pool_by_twos(pictures, [2, 2], [2, 2]),
            F.max_pool2d(pictures, 2, return_indices=True),
        )
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_wide_pictures_are_pooled_to_their_last_column():
    x = torch.randn(1, 1, 4, 250)
    found, expected = scripted._pool_by_twos(x, [2, 2]), F.max_pool2d(x, 2, return_indices=True)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "other",
    [
        ([3, 3], [2, 2]),
        ([2, 2], [1, 1]),
        ([2, 2], [2, 2], [1, 1]),
        ([2, 2], [2, 2], [0, 0], [2, 2]),
        ([2, 2], [2, 2], [0, 0], [1, 1], True),
    ],
)
def test_other_pooling_is_torchs_own(other):
    assert scripted._pool_by_twos(torch.randn(1, 1, 8, 8), *other) is NotImplemented
    assert scripted._pool_by_twos(torch.randn(1, 1, 8, 8).transpose(2, 3), [2, 2]) is NotImplemented
    assert scripted._pool_by_twos(torch.randn(1, 1, 8, 251), [2, 2]) is NotImplemented
