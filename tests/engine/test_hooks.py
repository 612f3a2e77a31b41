"""What each hook of a part sees and does, with toy parts whose effect can be worked out by hand."""

import math
import re

import numpy as np
import pytest
import torch
from helpers import (
    BACKENDS,
    H,
    Point,
    Spy,
    assert_close,
    blobs,
    descend,
    double,
    flat,
    gradient,
    half_square,
    quadratics,
    run,
    small,
)
from torch.nn import functional as F

from counterpoise.engine import Engine, Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.local import Local, sgd
from counterpoise.method import Part, Reply
from counterpoise.methods import METHODS, avg, fedavg
from counterpoise.parts import server_momentum

both = pytest.mark.parametrize("backend", BACKENDS)
SIZES = [3, 5]


def one_step(part, backend, *, lr=0.3, decay=0.0, method=None, spy=None):
    """One step on each client's all: two clients of unequal size, so that one batch is padded."""
    federation = blobs(SIZES)
    method = (method or avg()).adding(local=part)
    local = Local(batch=5, optimizer=sgd(lr, weight_decay=decay))
    simulation = Simulation(method, federation, small(), local=local, adversary=spy, engine=double(backend=backend))
    simulation.advance()
    return simulation


def batch(client):
    federation = blobs(SIZES)
    rows = slice(0, SIZES[0]) if client == 0 else slice(SIZES[0], None)
    return federation.base.inputs[rows], federation.base.targets[rows]


def moved(vector):
    """The small model with a vector added to its parameters."""
    model = small()
    torch.nn.utils.vector_to_parameters(flat(model) + vector, model.parameters())
    return model


def direction():
    return torch.linspace(-1, 1, len(flat(small())), dtype=torch.float64)


# ---------------------------------------------------------------- what a step can be asked


@both
def test_curvature_is_the_hessian_times_a_vector(backend):
    spy, v, eps = Spy(), direction(), 1e-5
    part = Part("bend", gradient=lambda client, step, g: g + step.curvature(v), second_order=True)
    one_step(part, backend, spy=spy)
    for client, update in enumerate(spy.cohorts[0].updates):
        ahead, behind = (gradient(moved(sign * eps * v), *batch(client)) for sign in (1, -1))
        product = (ahead - behind) / (2 * eps)
        assert product.norm() > 0.05
        assert_close(update, -0.3 * (gradient(small(), *batch(client)) + product), 0.3 * product, 1e-7)


@both
def test_curvature_counts_the_parts_own_losses(backend):
    spy, v = Spy(), direction()
    bend = Part("bend", gradient=lambda client, step, g: step.curvature(v), second_order=True)
    ridge = Part("ridge", loss=lambda client, step, w: 2.5 * (w * w).sum())
    bare = Spy()
    one_step(bend, backend, spy=bare)
    one_step(ridge, backend, spy=spy, method=avg().adding(local=bend))
    difference = spy.cohorts[0].updates - bare.cohorts[0].updates
    assert torch.allclose(difference, -0.3 * 5.0 * v.expand(2, -1), rtol=0, atol=1e-12)


@both
def test_curvature_may_be_asked_twice(backend):
    spy, once, v = Spy(), Spy(), direction()
    one_step(Part("bend", gradient=lambda c, step, g: step.curvature(v), second_order=True), backend, spy=once)
    twice = Part("bend", gradient=lambda c, step, g: step.curvature(step.curvature(v)), second_order=True)
    one_step(twice, backend, spy=spy)
    for client in range(2):
        first = once.cohorts[0].updates[client] / -0.3
        eps = 1e-5
        product = (gradient(moved(eps * first), *batch(client)) - gradient(moved(-eps * first), *batch(client))) / (
            2 * eps
        )
        assert_close(spy.cohorts[0].updates[client], -0.3 * product, 0.3 * product, 1e-6)


@both
def test_the_curvature_of_a_linear_loss_is_nothing(backend):
    part = Part("bend", gradient=lambda client, step, g: g + step.curvature(torch.ones_like(g)), second_order=True)
    simulation = Simulation(
        avg().adding(local=part),
        quadratics([1.0, 1.0], [0.0, 0.0]),
        Point(),
        loss=lambda outputs, targets: -outputs,
        local=Local(optimizer=sgd(1.0)),
        engine=double(backend=backend),
    )
    simulation.advance()
    assert float(simulation.server.model) == pytest.approx(1.0, abs=1e-15)


@both
def test_the_gradient_can_be_taken_at_another_model(backend):
    spy, v = Spy(), direction()
    part = Part("elsewhere", gradient=lambda client, step, g: step.gradient_at(step.w + v))
    one_step(part, backend, spy=spy)
    for client, update in enumerate(spy.cohorts[0].updates):
        expected = -0.3 * gradient(moved(v), *batch(client))
        assert_close(update, expected, expected, 1e-12)


@both
def test_loss_output_and_mean_leave_padding_out(backend):
    spy, v = Spy(), direction()

    def after_step(client, step):
        output = step.output_at(client.start)
        return {
            "loss": step.loss_at(client.start + v),
            "mean": step.mean(output.square().sum(1)),
            "last": step.loss_at(step.w),
        }

    part = Part(
        "asks",
        begin=lambda client: {name: client.start.new_zeros(()) for name in ("loss", "mean", "last")},
        after_step=after_step,
        finish=lambda client, reply: Reply(reply.update, dict(client.memo), reply.state),
    )
    one_step(part, backend, spy=spy)
    cohort = spy.cohorts[0]
    for client in range(2):
        x, y = batch(client)
        told = {name: float(value[client]) for name, value in cohort.reports["asks"].items()}
        with torch.no_grad():
            assert told["loss"] == pytest.approx(float(F.cross_entropy(moved(v)(x), y)), rel=1e-12)
            assert told["mean"] == pytest.approx(float(small()(x).square().sum(1).mean()), rel=1e-12)
            assert told["last"] == pytest.approx(float(F.cross_entropy(moved(cohort.updates[client])(x), y)), rel=1e-12)


@both
def test_another_method_of_the_model_can_be_called(backend):
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.full((1,), 3.0, dtype=torch.float64))

        def forward(self, inputs):
            return self.w.expand(len(inputs))

        def features(self, inputs):
            return 2 * self.w + inputs[:, 0]

    spy = Spy()
    part = Part(
        "features",
        begin=lambda client: {"seen": client.start.new_zeros(())},
        after_step=lambda client, step: {"seen": step.mean(step.output_at(client.start, "features"))},
        finish=lambda client, reply: Reply(reply.update, dict(client.memo), reply.state),
    )
    simulation = Simulation(
        fedavg().adding(local=part),
        quadratics([1.0, 1.0], [0.0, 0.0], counts=[2, 3]),
        Two(),
        loss=half_square,
        local=Local(optimizer=sgd(0.1)),
        adversary=spy,
        engine=double(backend=backend),
    )
    simulation.advance()
    assert spy.cohorts[0].reports["features"]["seen"].tolist() == pytest.approx([6.0, 6.0])


@both
def test_a_loss_hook_adds_its_gradient(backend):
    spy = Spy()
    part = Part("ridge", loss=lambda client, step, w: 0.5 * ((w - client.start + 1) ** 2).sum())
    one_step(part, backend, spy=spy)
    for client, update in enumerate(spy.cohorts[0].updates):
        expected = -0.3 * (gradient(small(), *batch(client)) + 1)
        assert_close(update, expected, expected, 1e-12)


@both
def test_gradient_hooks_act_in_order_and_decay_comes_last(backend):
    spy = Spy()
    double_it = Part("double", gradient=lambda client, step, g: 2 * g)
    seen = Part(
        "seen",
        begin=lambda client: {"entered": torch.zeros_like(client.start)},
        after_step=lambda client, step: {"entered": step.gradient},
        finish=lambda client, reply: Reply(reply.update, dict(client.memo), reply.state),
    )
    add_one = Part("add", gradient=lambda client, step, g: g + 1)
    one_step(add_one, backend, decay=0.1, spy=spy, method=avg().adding(local=double_it).adding(trust=seen))
    for client, update in enumerate(spy.cohorts[0].updates):
        entered = 2 * gradient(small(), *batch(client)) + 1 + 0.1 * flat(small())
        assert_close(update, -0.3 * entered, update, 1e-12)
        assert_close(spy.cohorts[0].reports["seen"]["entered"][client], entered, entered, 1e-12)


# ---------------------------------------------------------------- the memo, round by round

STEPS, LR, M = [2, 7], 0.02, (4.0, -1.0)


def path(client, start, steps=None):
    """The client's models after each of its steps from a start."""
    return [M[client] + (1 - LR * H[client]) ** k * (start - M[client]) for k in range(1, (steps or STEPS[client]) + 1)]


def diary():
    """A part that uses every client hook and keeps count of everything."""

    def begin(client):
        return {
            "sum": client.broadcast["base"].clone(),
            "count": client.start.new_zeros(()),
            "passes": client.start.new_zeros(()),
        }

    def after_step(client, step):
        return client.memo | {"sum": client.memo["sum"] + step.w, "count": step.count * 1.0}

    def after_epoch(client, w):
        return client.memo | {"passes": client.memo["passes"] + 1, "sum": client.memo["sum"] + 100 * w}

    def finish(client, reply):
        told = client.memo | {
            "facts": torch.stack([client.index, client.examples, client.steps]) * 1.0,
            "lr": client.lr,
            "before": client.state["rounds"],
        }
        return Reply(
            3 * reply.update, told, {"rounds": client.state["rounds"] + 1, "offset": client.state["offset"] - 0.5}
        )

    def apply(round):
        assert round.reports["passes"].shape == (len(round.cohort),)
        seen = round.records["seen"] + 1
        return round.but(
            state={**round.state, "base": round.state["base"] + 10},
            records={"seen": seen, "last": round.cohort.updates.squeeze(1)},
            notes={"times": seen},
        )

    return Part(
        "diary",
        server_state=lambda start: {"base": start.new_zeros(1), "secret": start.new_ones(1)},
        client_record=lambda start: {"seen": start.new_zeros(()), "last": start.new_zeros(())},
        client_state=lambda start: {"rounds": start.new_zeros(()), "offset": start.new_zeros(())},
        when_lost="it counts from 0 again",
        begin=begin,
        after_step=after_step,
        after_epoch=after_epoch,
        finish=finish,
        personal=lambda model, state: model + state["offset"],
        broadcast=lambda state: {"base": state["base"]},
        apply=apply,
    )


@both
def test_every_hook_is_called_when_and_with_what_it_should_be(backend):
    spy = Spy()
    simulation = descend(
        avg().adding(upload=diary()), H, M, STEPS, counts=[2, 3], start=2.0, backend=backend, adversary=spy
    )
    w, base = 2.0, 0.0
    for round in range(3):
        record = simulation.advance()
        cohort = spy.cohorts[round]
        told = cohort.reports["diary"]
        updates = []
        for client in range(2):
            way = path(client, w)
            updates.append(3 * (way[-1] - w))
            assert float(told["sum"][client]) == pytest.approx(base + sum(way) + 100 * way[-1], abs=1e-10)
            assert float(told["count"][client]) == STEPS[client]
            assert float(told["passes"][client]) == 1
            assert told["facts"][client].tolist() == [client, [2, 3][client], STEPS[client]]
            assert float(told["lr"][client]) == LR
            assert float(told["before"][client]) == round
            assert float(cohort.updates[client]) == pytest.approx(updates[-1], abs=1e-12)
            assert float(simulation.client_state["diary"][client]["rounds"]) == round + 1
            assert float(simulation.server.records["diary"][client]["seen"]) == round + 1
            assert float(simulation.server.records["diary"][client]["last"]) == pytest.approx(updates[-1], abs=1e-12)
        w += sum(updates) / 2
        base += 10
        assert float(simulation.server.model) == pytest.approx(w, abs=1e-11)
        assert float(simulation.server.state["diary"]["base"]) == base
        assert record.outcome.notes["times"] == {0: round + 1, 1: round + 1}
        assert cohort.steps.tolist() == STEPS
        assert cohort.examples.tolist() == [2, 3]


@both
def test_a_memo_runs_on_over_epochs(backend):
    spy = Spy()
    federation = quadratics(H, M, counts=[2, 5])
    simulation = Simulation(
        avg().adding(upload=diary()),
        federation,
        Point(2.0),
        loss=half_square,
        local=Local(epochs=3, batch=2, optimizer=sgd(LR)),
        adversary=spy,
        engine=double(backend=backend),
    )
    simulation.advance()
    told = spy.cohorts[0].reports["diary"]
    for client, per_epoch in enumerate((1, 3)):
        way = path(client, 2.0, 3 * per_epoch)
        expected = sum(way) + 100 * sum(way[per_epoch - 1 :: per_epoch])
        assert float(told["sum"][client]) == pytest.approx(expected, abs=1e-9)
        assert float(told["passes"][client]) == 3
        assert float(told["count"][client]) == 3 * per_epoch


@pytest.mark.parametrize("hook", ["after_step", "after_epoch"])
def test_a_memo_is_laid_out_in_begin(hook):
    """Masks and CUDA graphs carry it from step to step, so its shape is fixed from the start."""
    with pytest.raises(CounterpoiseError, match=r"part late .* must lay out its memo in begin"):
        avg().adding(local=Part("late", **{hook: lambda client, other: {}}))


@both
def test_one_part_reads_what_another_sends_and_keeps(backend):
    seen = []

    def apply(round):
        seen.append(float(round.shared["diary"]["base"]))
        return round

    reader = Part(
        "reader",
        reads=("diary",),
        finish=lambda client, reply: Reply(reply.update + client.shared["diary"]["base"]),
        apply=apply,
    )
    method = avg().adding(upload=diary()).adding(trust=reader)
    spy = Spy()
    simulation = descend(method, H, M, STEPS, start=2.0, backend=backend, adversary=spy)
    simulation.advance()
    w = float(simulation.server.model)
    simulation.advance()
    assert seen == [10.0, 20.0]  # the diary acts first and is read after its turn
    expected = [3 * (path(client, w)[-1] - w) + 10.0 for client in range(2)]  # what was broadcast before the round
    assert spy.cohorts[1].updates.squeeze(1).tolist() == pytest.approx(expected, abs=1e-10)
    assert simulation.server.broadcast() == {"diary": {"base": simulation.server.state["diary"]["base"]}}


@both
def test_a_finish_sees_one_client(backend):
    def finish(client, reply):
        return Reply(reply.update / reply.update.norm(), {"width": reply.update.new_tensor(len(reply.update))})

    method = avg().adding(upload=Part("unit", finish=finish))
    simulation = Simulation(method, blobs([3, 5]), small(), engine=double(backend=backend))
    heard = simulation.train(simulation.open())
    assert torch.allclose(heard.cohort.updates.norm(dim=1), torch.ones(2, dtype=torch.float64))
    assert heard.cohort.reports["unit"]["width"].tolist() == [len(simulation.trainer.start)] * 2


def test_a_clients_state_waits_until_it_is_drawn_again():
    simulation = descend(avg().adding(upload=diary()), H * 4, M * 4, 2, cohort=3)
    times = {}
    for _ in range(6):
        for client in simulation.advance().cohort:
            times[client] = times.get(client, 0) + 1
    assert {c: float(simulation.client_state["diary"][c]["rounds"]) for c in simulation.client_state["diary"]} == times
    assert {
        c: float(simulation.server.records["diary"][c]["seen"]) for c in simulation.server.records["diary"]
    } == times
    assert len(set(times.values())) > 1


@both
def test_a_personal_model_is_measured_on_the_clients_held_out_part(backend):
    federation = quadratics(H, M, counts=[5, 5])
    train, heldout = federation.train.split(0.4, seed=0)
    federation = type(federation)(federation.base, train, heldout)
    simulation = Simulation(
        avg().adding(upload=diary()),
        federation,
        Point(2.0),
        loss=half_square,
        local=Local(steps=STEPS, optimizer=sgd(LR)),
        engine=double(backend=backend),
    )
    record = simulation.advance(last=True)
    w = float(simulation.server.model)
    assert record.clients["loss"] == pytest.approx({c: H[c] / 2 * (w - M[c]) ** 2 for c in range(2)})
    assert record.clients["personal_loss"] == pytest.approx({c: H[c] / 2 * (w - 0.5 - M[c]) ** 2 for c in range(2)})


def test_a_client_keeps_no_state_that_is_not_finite():
    def finish(client, reply):
        bad = client.index == 1
        return Reply(reply.update, {}, {"x": torch.where(bad, torch.nan, client.state["x"] + 1)})

    part = Part("frail", client_state=lambda start: {"x": start.new_zeros(())}, when_lost="starts anew", finish=finish)
    simulation = descend(avg().adding(local=part), H, M, STEPS)
    run(simulation, 2)
    assert float(simulation.client_state["frail"][0]["x"]) == 2
    assert float(simulation.client_state["frail"][1]["x"]) == 0


# ---------------------------------------------------------------- the server's side


def test_a_client_excluded_by_a_part_is_left_out_of_all_that_follows():
    first = Part("judge", apply=lambda round: round.but(excluded={round.cohort.ids[0]: "it was first"}))
    simulation = descend(avg().adding(trust=first), H, M, STEPS, start=2.0)
    record = simulation.advance()
    assert record.outcome.excluded == {0: "it was first"}
    assert record.outcome.weights == {1: 1.0}
    assert float(simulation.server.model) == pytest.approx(path(1, 2.0)[-1], abs=1e-13)


def test_a_client_excluded_after_weighing_takes_its_weight_along():
    late = Part("judge", apply=lambda round: round.but(excluded={round.cohort.ids[0]: "too late"}))
    simulation = descend(avg().adding(weigh=late), H, M, STEPS, start=2.0)
    record = simulation.advance()
    assert record.outcome.excluded == {0: "too late"}
    assert record.outcome.weights == {1: 1.0}
    assert float(simulation.server.model) == pytest.approx(path(1, 2.0)[-1], abs=1e-13)


def counting(name, **changes):
    """A part that counts its rounds on the server and for every client."""
    return Part(
        name,
        server_state=lambda start: {"n": start.new_zeros(())},
        client_record=lambda start: {"n": start.new_zeros(())},
        apply=lambda round: round.but(
            state={"n": round.state["n"] + 1},
            records={"n": round.records["n"] + 1},
            **{k: f(round) for k, f in changes.items()},
        ),
    )


def test_a_skipped_round_keeps_what_was_learned_of_clients_and_nothing_else():
    """Trust's evidence stays; weights and what follows were not used and leave no trace."""
    method = (
        avg()
        .adding(trust=counting("judge"))
        .adding(weigh=counting("scale"))
        .adding(weigh=counting("stop", skipped=lambda round: "too few"))
    )
    simulation = descend(method, H, M, STEPS, start=2.0)
    record = simulation.advance()
    assert record.outcome.skipped == "too few"
    assert float(simulation.server.model) == 2.0
    found = {
        name: (float(state["n"]), len(simulation.server.records[name]))
        for name, state in simulation.server.state.items()
    }
    assert found == {"judge": (1, 2), "scale": (0, 0), "stop": (0, 0)}


def test_a_round_in_which_all_are_excluded_leaves_the_model():
    nobody = counting("judge", excluded=lambda round: dict.fromkeys(round.cohort.ids, "no"))
    simulation = descend(avg().adding(trust=nobody), H, M, STEPS, start=2.0)
    record = simulation.advance()
    assert record.outcome.skipped == "no client could be trusted"
    assert float(simulation.server.model) == 2.0
    assert float(simulation.server.state["judge"]["n"]) == 1


def test_notes_go_on_to_later_parts_without_the_excluded_and_into_the_record():
    noting = Part("first", apply=lambda round: round.but(notes={"size": round.cohort.updates.abs().sum(1)}))
    judge = Part("judge", apply=lambda round: round.but(excluded={0: "no"}))
    seen = []
    reader = Part("reader", apply=lambda round: (seen.append(round.notes["size"]), round)[1])
    method = avg().adding(trust=noting).adding(trust=judge).adding(weigh=reader)
    record = descend(method, H, M, STEPS, start=2.0).advance()
    assert set(record.outcome.notes["size"]) == {0, 1}
    assert seen[0].tolist() == [record.outcome.notes["size"][1]]


@pytest.mark.parametrize(("field", "home"), [("state", "server_state"), ("records", "client_record")])
def test_a_part_cannot_lose_what_it_did_not_declare(field, home):
    part = Part("careless", apply=lambda round: round.but(**{field: {"x": torch.zeros(2)}}))
    with pytest.raises(CounterpoiseError, match=f"part careless returned x but declares no {home}"):
        descend(avg().adding(trust=part), H, M, STEPS).advance()


WRONG = {
    "weights as a list": ({"weights": [0.5, 0.5]}, "weights must be a tensor with a number for each of the 2 clients"),
    "weights as an array": ({"weights": np.ones(2)}, "not ndarray; torch.as_tensor"),
    "a column of weights": ({"weights": torch.ones(2, 3)}, r"weights must have the shape \[2\], .* not \[2, 3\]"),
    "a weight too many": ({"weights": torch.ones(3)}, r"weights must have the shape \[2\], .* not \[3\]"),
    "a single weight": ({"weights": torch.tensor(1.0)}, r"weights must have the shape \[2\], .* not \[\]"),
    "an update of another length": (
        {"combined": torch.ones(3)},
        r"must return a combined update of float64\[1\], not float32\[3\]",
    ),
    "an update as a list": ({"combined": [1.0]}, "a combined update of .* not list"),
    "a model as a list": ({"model": [1.0]}, r"must return a model of float64\[1\], not list"),
    "a model of another length": ({"model": torch.ones(2)}, r"a model of float64\[1\], not float32\[2\]"),
    "a model of whole numbers": ({"model": torch.ones(1, dtype=torch.int64)}, r"not int64\[1\]"),
    "no model": ({"model": None}, "a model of .* not NoneType"),
    "another cohort": ({"cohort": None}, "a cohort of the same clients, not None"),
    "a stranger excluded": ({"excluded": {99: "x"}}, r"excluded client 99, which is not in the cohort: .*\(0, 1\)"),
    "a reason that is none": ({"excluded": {0: 3}}, "excluded must give the reason for each client"),
    "only names excluded": ({"excluded": [0]}, "excluded must give the reason for each client"),
    "a reason to skip that is none": ({"skipped": True}, "skipped must be the reason as a text"),
    "a fact that is none": ({"facts": {"a": "b"}}, "the fact a must be a number, not 'b'"),
    "a note as a number": (
        {"notes": {"a": 0.5}},
        r"the note a .* not float; .* is a fact, as in round.but\(facts={'a': 0.5}\)",
    ),
    "a note as a list": ({"notes": {"a": [0.5, 0.5]}}, "the note a .* not list; torch.as_tensor makes one"),
    "a note of another length": ({"notes": {"a": torch.ones(3)}}, r"each of the 2 clients, not float32\[3\]"),
    **{
        f"a note called {name}": ({"notes": {name: torch.ones(2)}}, f"a note cannot be called {name}, because")
        for name in ("client", "weight", "contribution", "client_accuracy")
    },
    "notes as a list": ({"notes": [1.0]}, "notes must be a dictionary"),
    "verdicts as a list": ({"verdicts": [1.0]}, "verdicts must be a dictionary"),
    "state as a list": ({"state": [1.0]}, "its server_state must stay a dictionary of tensors and not become list"),
}


@pytest.mark.parametrize(("changes", "sentence"), WRONG.values(), ids=WRONG)
def test_what_apply_returns_is_checked_and_the_part_is_named(changes, sentence):
    part = Part("wrong", apply=lambda round: round.but(**changes))
    with pytest.raises(CounterpoiseError, match=rf"^part wrong.*{sentence}.* \(<lambda> in test_hooks.py, line \d+\)$"):
        descend(avg().adding(update=part), H, M, STEPS).advance()


def test_what_is_not_a_round_is_not_shown_in_full():
    part = Part("wrong", apply=lambda round: [round])
    with pytest.raises(CounterpoiseError, match=r"^part wrong: apply must return the round, not list\. \(<lambda> in"):
        descend(avg().adding(trust=part), H, M, STEPS).advance()


@pytest.mark.parametrize(
    "made", [{"mean": torch.ones(2)}, {"m": torch.ones(2, 1)}, {"m": torch.ones(2, dtype=torch.int64)}]
)
def test_a_record_of_another_layout_is_told_with_both(made):
    part = Part(
        "keeps", client_record=lambda start: {"m": start.new_zeros(())}, apply=lambda round: round.but(records=made)
    )
    ((name, value),) = made.items()
    found = f"{name} {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    sentence = f"its client_record must keep its names, shapes and types, m float64[2], but apply returned {found}."
    with pytest.raises(CounterpoiseError, match=re.escape(sentence)):
        descend(avg().adding(trust=part), H, M, STEPS).advance()


def test_an_error_in_apply_is_told_with_its_file_and_line():
    def apply(round):
        return round.but(weights=round.cohort.updates @ round.cohort.examples)  # 2 x 1 times 2

    line = apply.__code__.co_firstlineno + 1
    with pytest.raises(
        CounterpoiseError,
        match=rf"^part boom: its hook apply failed \(apply in test_hooks.py, line {line}\): RuntimeError: size mismatch",
    ) as caught:
        descend(avg().replacing(weigh=Part("boom", apply=apply)), H, M, STEPS).advance()
    assert isinstance(caught.value.__cause__, RuntimeError)


@both
def test_a_name_that_no_hook_declared_is_told_with_where_to_declare_it(backend):
    reads = Part("reads", apply=lambda round: round.but(weights=round.records["m"]))
    with pytest.raises(
        CounterpoiseError,
        match=r"^part reads: its hook apply failed .* KeyError: 'm'.*the part's client_record declares",
    ):
        descend(avg().replacing(weigh=reads), H, M, STEPS).advance()
    pull = Part("pull", loss=lambda client, step, w: client.numbers["mu"] * w.sum())
    with pytest.raises(CounterpoiseError, match=r"<lambda> in test_hooks.py.* KeyError: 'mu'.*the part's numbers give"):
        descend(avg().adding(local=pull), H, M, STEPS, backend=backend).advance()


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (
            Part("a", apply=lambda round: round.cohort.loss),
            r"A Cohort has examples, ids, keep, reports, steps, updates\.$",
        ),
        (Part("a", loss=lambda client, step, w: step.loss), r"A Step has .*gradient_at, loss_at, mean,"),
        (Part("a", finish=lambda client, reply: client.memory), r"A Client has broadcast, examples, .*memo,"),
    ],
)
def test_a_hook_that_asks_for_what_is_not_there_is_told_what_is(part, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        descend(avg().adding(trust=part), H, M, STEPS).advance()


def test_two_parts_cannot_both_make_the_new_model():
    """A momentum of 0 behind FedAvg's step would be the step with twice its learning rate."""
    twice = avg().adding(update=server_momentum(0.0))
    with pytest.raises(CounterpoiseError, match=r"part server-momentum changes the model that part server-step has .*"):
        descend(twice, H, M, STEPS).advance()
    instead, alone = (descend(m, H, M, STEPS) for m in (avg().replacing(update=server_momentum(0.0)), avg()))
    assert run(instead) == run(alone)


@pytest.mark.parametrize("slot", ["trust", "update"])
def test_a_part_that_says_so_may_amend_the_new_model(slot):
    shifted = Part("shifted", apply=lambda round: round.but(model=round.model + 0.5), amends=True)
    changed, plain = (descend(m, H, M, STEPS, start=2.0) for m in (avg().adding(**{slot: shifted}), avg()))
    changed.advance(), plain.advance()
    assert float(changed.server.model) == pytest.approx(float(plain.server.model) + 0.5, abs=1e-15)


@pytest.mark.parametrize("slot", ["local", "upload", "trust"])
def test_weights_are_not_set_before_the_slot_weigh(slot):
    part = Part("early", apply=lambda round: round.but(weights=torch.tensor([1.0, 0.0])))
    with pytest.raises(
        CounterpoiseError, match=f"part early sets weights in the slot {slot}, and the slot weigh would"
    ):
        descend(avg().adding(**{slot: part}), H, M, STEPS).advance()


def middle():
    return Part("middle", apply=lambda round: round.but(weights=None, combined=round.cohort.updates.median(0).values))


@pytest.mark.parametrize(
    "combine",
    [
        middle(),
        *(METHODS.make(name).combine for name in ("median", "krum", "qffl", "mifa", "fedvarp", "clusterfedvarp")),
    ],
)
def test_weights_before_a_rule_that_takes_none_are_refused(combine):
    """Otherwise the weighting rule would have no effect, and nobody would notice."""
    method = avg().replacing(combine=combine)
    name = method.combine[0].name
    with pytest.raises(CounterpoiseError, match=f"part {name} takes no weights, so the weighting rule before it would"):
        descend(method, (1.0,) * 3, (1.0, 2.0, 9.0), 1).advance()


def test_facts_of_several_parts_come_together():
    first, second = (Part(name, apply=lambda round, name=name: round.but(facts={name: 1.5})) for name in ("a", "b"))
    record = descend(avg().adding(trust=[first, second]), H, M, STEPS).advance()
    assert record.outcome.facts == {"a": 1.5, "b": 1.5}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_weight_that_is_no_number_is_told_with_its_part_and_client(bad):
    part = Part("spoilt", apply=lambda round: round.but(weights=torch.tensor([1.0, bad])))
    record = descend(avg().replacing(weigh=part), H, M, STEPS).advance()
    assert record.outcome.skipped == f"part spoilt gave client 1 the weight {bad}"
    layered = Part("layered", apply=lambda round: round.but(weights=torch.tensor([[bad], [1.0]])))
    record = descend(avg().replacing(weigh=layered), H, M, STEPS).advance()
    assert record.outcome.skipped == f"part layered gave client 0 the weight {bad}"


@both
def test_a_finish_cannot_keep_a_state_that_was_not_declared(backend):
    part = Part("careless", finish=lambda client, reply: Reply(reply.update, {}, {"a": reply.update}))
    with pytest.raises(CounterpoiseError, match="part careless: its hook finish returned a state, but"):
        descend(avg().adding(local=part), H, M, STEPS, backend=backend).advance()


@both
def test_a_loss_hook_returns_a_tensor(backend):
    part = Part("flat", loss=lambda client, step, w: 3.0)
    with pytest.raises(
        CounterpoiseError, match=r"part flat: its hook loss must return one number, not float\. Make it a tensor of w"
    ):
        descend(avg().adding(local=part), H, M, STEPS, backend=backend).advance()


@both
@pytest.mark.parametrize(
    "after",
    [
        lambda memo: {"a": memo["a"]},
        lambda memo: {**memo, "c": memo["a"]},
        lambda memo: {**memo, "a": memo["a"][:0]},
        lambda memo: {**memo, "a": memo["a"].float()},
    ],
)
def test_a_memo_keeps_its_layout(after, backend):
    begin = lambda client: {"a": client.start * 0, "b": client.start * 0}  # noqa: E731
    for hook in ("after_step", "after_epoch"):
        part = Part("loose", begin=begin, **{hook: lambda client, other: after(client.memo)})
        with pytest.raises(CounterpoiseError, match="part loose changed the layout of its memo: it began as a float64"):
            descend(avg().adding(local=part), H, M, STEPS, backend=backend).advance()


@both
def test_a_clients_state_keeps_its_layout(backend):
    part = Part(
        "loose",
        client_state=lambda start: {"a": start},
        when_lost="-",
        finish=lambda client, reply: Reply(reply.update, {}, {}),
    )
    with pytest.raises(CounterpoiseError, match="part loose changed the layout of its state"):
        descend(avg().adding(local=part), H, M, STEPS, backend=backend).advance()


@both
def test_a_loss_hook_may_differentiate_the_tasks_gradient(backend):
    """A penalty of |grad F|^2 / 2 on a quadratic of curvature h bends the gradient by h^2 (w - m)."""
    part = Part("flat", loss=lambda client, step, w: 0.1 * step.gradient_at(w).square().sum() / 2)
    simulation = descend(avg().adding(local=part), [3.0], [1.0], [1], start=2.0, backend=backend)
    simulation.advance()
    assert float(simulation.server.model) == pytest.approx(2.0 - 0.02 * (3.0 + 0.1 * 9.0) * (2.0 - 1.0), abs=1e-14)


@both
def test_the_training_loss_is_the_tasks_alone(backend):
    part = Part("heavy", loss=lambda client, step, w: 100 + 0 * w.sum())
    losses = [
        descend(method, H, M, STEPS, start=2.0, backend=backend).advance().metrics["train_loss"]
        for method in (avg(), avg().adding(local=part))
    ]
    assert losses[0] == losses[1]


@both
def test_clients_and_server_have_keys_to_draw_by(backend):
    keys = {}
    part = Part(
        "draw",
        finish=lambda client, reply: Reply(reply.update, {"key": client.key}, reply.state),
        apply=lambda round: (
            keys.setdefault(round.world.round, (round.world.key, round.reports["key"].tolist())),
            round,
        )[1],
    )
    for _ in range(2):
        simulation = descend(avg().adding(upload=part), H, M, STEPS, backend=backend)
        simulation.advance()
        simulation.advance()
    drawn = [key for server, clients in keys.values() for key in (server, *clients)]
    assert len(set(drawn)) == 6


def test_a_rule_without_weights_records_none():
    median = Part("median", apply=lambda round: round.but(weights=None, combined=round.cohort.updates.median(0).values))
    simulation = descend(
        avg().replacing("median", weigh=(), combine=median), (1.0,) * 3, (1.0, 2.0, 9.0), 1, start=0.0, lr=0.5
    )
    assert simulation.advance().outcome.weights is None
    assert float(simulation.server.model) == pytest.approx(1.0)


def test_a_weight_per_layer_is_recorded_by_the_layers_sizes():
    def apply(round):
        weights = torch.tensor([[0.25, 0.75], [0.75, 0.25]], dtype=torch.float64)
        return round.but(
            weights=weights, combined=(weights[:, round.world.layout.layers] * round.cohort.updates).sum(0)
        )

    layered = Part("layered", apply=apply)
    spy = Spy()
    simulation = Simulation(
        avg().replacing("layered", weigh=(), combine=layered), blobs(SIZES), small(), adversary=spy, engine=double()
    )
    start = simulation.server.model
    record = simulation.advance()
    first, last = 6 * 5 + 5, 5 * 3 + 3
    share = first / (first + last)
    assert record.outcome.weights == pytest.approx(
        {0: 0.25 * share + 0.75 * (1 - share), 1: 0.75 * share + 0.25 * (1 - share)}
    )
    a, b = spy.cohorts[0].updates
    expected = start + torch.cat([0.25 * a[:first] + 0.75 * b[:first], 0.75 * a[first:] + 0.25 * b[first:]])
    assert torch.allclose(simulation.server.model, expected, rtol=0, atol=1e-13)


# ---------------------------------------------------------------- the world


@both
def test_the_server_can_probe_models(backend):
    seen = {}

    def apply(round):
        models = round.model + round.cohort.updates
        seen["outputs"], seen["targets"], seen["models"] = round.world.probe(models), round.world.probe_targets, models
        return round

    federation = blobs([8, 9, 10], probe=2)
    method = avg().adding(trust=Part("look", apply=apply))
    Simulation(method, federation, small(), local=Local(batch=4), engine=double(backend=backend, chunk=2)).advance()
    assert seen["targets"].bincount().tolist() == [2, 2, 2]
    for model, outputs in zip(seen["models"], seen["outputs"], strict=True):
        with torch.no_grad():
            assert torch.allclose(outputs, moved(model - flat(small()))(federation.probe.inputs), rtol=0, atol=1e-12)


@both
def test_the_server_can_rehearse_on_its_proxy_set(backend):
    seen = []

    def apply(round):
        seen.append((round.world.rehearse([7, 2, 7]), round.world))
        return round

    federation = blobs([8, 9], proxy=7)
    method = avg().adding(trust=Part("rehearse", apply=apply))
    local = Local(batch=7, optimizer=sgd(0.2))
    Simulation(method, federation, small(), local=local, engine=double(backend=backend)).advance()
    cohort, world = seen[0]
    assert cohort.examples.tolist() == [7, 2, 7]
    assert cohort.steps.tolist() == [1, 1, 1]
    expected = -0.2 * gradient(small(), federation.proxy.inputs, federation.proxy.targets)
    for place in (0, 2):  # both see the whole set in one batch
        assert_close(cohort.updates[place], expected, expected, 1e-12)
    assert (cohort.updates[1] - expected).norm() > 1e-3
    assert (world.round, world.population, world.local) == (1, 2, local)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (
            lambda world: world.probe(torch.zeros(1, 53)),
            "needs a probe set on the server; load the federation with probe=1",
        ),
        (lambda world: world.probe_targets, "needs a probe set"),
        (lambda world: world.rehearse([3]), "needs a proxy set on the server; load the federation with proxy=1000"),
    ],
)
def test_a_server_set_that_is_not_there_is_asked_for_in_a_sentence(ask, sentence):
    part = Part("asks", check=lambda world: ask(world) and None)
    with pytest.raises(CounterpoiseError, match=sentence):
        Simulation(avg().adding(trust=part), blobs(SIZES), small(), engine=double())


def test_a_rehearsal_larger_than_the_proxy_set_is_refused():
    def apply(round):
        round.world.rehearse([8])
        return round

    with pytest.raises(CounterpoiseError, match="proxy set has 7 samples, and 8 are needed"):
        Simulation(avg().adding(trust=Part("r", apply=apply)), blobs([9], proxy=7), small(), engine=double()).advance()


def test_weights_may_differ_from_layer_to_layer():
    """`[C, layers]` weights, against the mean of each layer by hand; the record holds their mean by size."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).double()
    weights = torch.tensor([[1.0, 3.0], [3.0, 1.0]], dtype=torch.float64)
    part = Part("by-layer", apply=lambda round: round.but(weights=weights))
    spy = Spy()
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.arange(8) % 2
    federation = Federation.from_arrays(x, y, partition=[[0, 1, 2, 3], [4, 5, 6, 7]], heldout=0)
    simulation = Simulation(
        fedavg().replacing(weigh=part), federation, model, engine=Engine(dtype="float64"), adversary=spy
    )
    before = simulation.server.model.clone()
    record = simulation.advance()
    first, second = spy.cohorts[0].updates
    cut = 3 * 4 + 4
    expected = torch.cat([(first[:cut] + 3 * second[:cut]) / 4, (3 * first[cut:] + second[cut:]) / 4])
    assert torch.allclose(simulation.server.model - before, expected, rtol=0, atol=1e-15)
    assert record.outcome.weights == pytest.approx({0: (16 * 0.25 + 10 * 0.75) / 26, 1: (16 * 0.75 + 10 * 0.25) / 26})
