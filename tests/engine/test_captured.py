"""What is recorded on a GPU, with recordings that play on a CPU: buffers filled in time, and the same numbers."""

import pytest
import torch
from helpers import ALL_METHODS, blobs, differing_on_clients, double, net, small
from played import Played, play
from torch import nn

from counterpoise.augment import flip_and_crop
from counterpoise.engine import Engine, Evaluation, Simulation
from counterpoise.engine.acceleration import graphs
from counterpoise.engine.backends import batched
from counterpoise.engine.clients.network import Network
from counterpoise.errors import Interrupted
from counterpoise.federation import bernoulli
from counterpoise.local import Local, sgd
from counterpoise.memory import out_of_memory
from counterpoise.method import Part, Reply
from counterpoise.methods import METHODS, avg
from counterpoise.trees import fill

SIZES = [1, 9, 4, 13, 6, 9, 9, 5]  # in chunks of 2: some of the same shape, and scripts that need padding


@pytest.mark.parametrize("chunk", [2, 6])
@pytest.mark.parametrize("name", differing_on_clients([*ALL_METHODS, "feddua:scaffold"]))
def test_recorded_chunks_compute_what_plain_ones_do(name, chunk, monkeypatch):
    play(monkeypatch)

    def models(recorded):
        simulation = Simulation(
            METHODS.make(name),
            blobs(SIZES, probe=1, proxy=12),
            small(),
            cohort=6,
            seed=3,
            local=Local(epochs=2, batch=4, optimizer=sgd(0.1, momentum=0.5)),
            engine=double(backend="batched", chunk=chunk),
        )
        if recorded:
            simulation.backend.captures = simulation.overlaps = True
        for _ in range(3):
            simulation.advance()
            yield simulation.server.model

    for recorded, plain in zip(models(True), models(False), strict=True):
        assert torch.allclose(recorded, plain, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("fill", ["zeros", "reflect"])
def test_recorded_chunks_cut_and_normalise_pictures_as_plain_ones_do(fill, monkeypatch):
    """In cohorts that may be larger than expected."""
    play(monkeypatch)

    def models(recorded):
        simulation = Simulation(
            avg(),
            blobs(SIZES, shape=(1, 6, 7)).per_picture(),
            net(nn.Flatten(), nn.Linear(16, 3)),
            cohort=bernoulli(0.4),
            seed=3,
            local=Local(epochs=2, batch=4, optimizer=sgd(0.1), augment=flip_and_crop(1, fill, 0.5, size=4)),
            engine=double(backend="batched"),
        )
        simulation.backend.captures = simulation.overlaps = recorded
        for _ in range(6):
            sizes.add(len(simulation.advance().cohort))
            yield simulation.server.model

    sizes = set()
    for recorded, plain in zip(models(True), models(False), strict=True):
        assert torch.allclose(recorded, plain, rtol=1e-12, atol=1e-14)
    assert max(sizes) > 3  # of eight clients, three are expected


@pytest.mark.parametrize(("fused", "most"), [(False, 10), (True, 4)])
def test_unequal_cohorts_soon_need_no_new_recordings(fused, most, monkeypatch):
    made, compiled = [], []
    monkeypatch.setattr(graphs.torch, "compile", lambda traced, **_: compiled.append(traced) or traced)

    class Counted(Played):
        def __init__(self, *given, into=None, **how):
            made.append(into)
            super().__init__(*given, into=into, **how)

    play(monkeypatch, Counted)
    sizes = [1 + 400 // place for place in range(1, 121)]
    simulation = Simulation(
        avg(),
        blobs(sizes),
        small(),
        cohort=40,
        local=Local(batch=5, optimizer=sgd(0.1)),
        engine=double(backend="batched"),
    )
    simulation.backend.captures, simulation.backend.compiled = True, fused
    counts = []
    for _ in range(20):
        simulation.advance()
        counts.append(sum(into is not None for into in made))
    assert 3 <= counts[-1] <= most  # widths of a step
    assert counts[-1] == counts[9]
    assert len(compiled) == (counts[-1] + 1 if fused else 0)  # and the end of a round
    assert len(simulation.backend._captured) == 1


def test_a_step_trains_few_clients_beside_those_that_have_a_batch(monkeypatch):
    play(monkeypatch)
    engine = double(backend="batched")
    simulation = Simulation(
        avg(), blobs([40, 8, 8, 8, 4, 4, 4, 4]), small(), local=Local(batch=4, optimizer=sgd(0.1)), engine=engine
    )
    simulation.backend.captures = True
    job = simulation.prepare(simulation.open()).job
    (plan,) = simulation.backend.plan(job)
    assert plan.places.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert plan.widths == [8, 4, 2, 2, 2, 2, 2, 2, 2, 2]


def test_a_cohort_with_more_steps_than_the_buffers_hold_gets_longer_ones(monkeypatch):
    play(monkeypatch)
    monkeypatch.setattr(batched, "_MOST_BYTES", 0)  # as if the longest client's steps took too much memory

    def models(recorded):
        simulation = Simulation(
            avg(),
            blobs([4, 8, 20, 40]),
            small(),
            cohort=1,
            local=Local(batch=4, optimizer=sgd(0.1)),
            engine=double(backend="batched"),
        )
        simulation.backend.captures = recorded
        for _ in range(8):
            asked.append(*simulation.advance().cohort)
            yield simulation.server.model

    asked: list[int] = []
    for recorded, plain in zip(models(True), models(False), strict=True):
        assert torch.allclose(recorded, plain, rtol=1e-12, atol=1e-14)
    assert asked[::2] != sorted(asked[::2], reverse=True)  # so a longer one followed a shorter one


def test_few_clients_of_many_take_few_buffers(monkeypatch):
    play(monkeypatch)
    simulation = Simulation(avg(), blobs([4] * 40), small(), engine=double(backend="batched"))
    simulation.backend.captures = True
    job = simulation.prepare(simulation.open()).job
    for clients, rows, width in ((40, 40, 40), (6, 40, 6), (5, 5, 5), (1, 5, 2)):
        (plan,) = simulation.backend.plan(job.some(torch.arange(clients)))
        assert (plan.clients, len(plan.places), {*plan.widths}) == (clients, rows, {width})


def test_a_survey_reaches_every_client_whatever_its_number_of_steps(monkeypatch):
    play(monkeypatch)

    def model(recorded):
        simulation = Simulation(
            METHODS.make("qffl"),
            blobs([4, 8, 8, 40]),
            small(),
            local=Local(steps=[5, 4, 3, 1], batch=4, optimizer=sgd(0.1)),
            engine=double(backend="batched"),
        )
        simulation.backend.captures = recorded
        simulation.advance()
        return simulation.server.model

    assert torch.allclose(model(True), model(False), rtol=1e-12, atol=1e-14)


def test_what_a_traced_client_passes_on_is_its_own(monkeypatch):
    play(monkeypatch)
    part = Part(
        "who",
        begin=lambda client: {"who": client.index.to(client.start.dtype)},
        finish=lambda client, reply: Reply(reply.update, dict(client.memo)),
        trace_every=1,
    )
    engine = double(backend="batched", chunk=2)
    simulation = Simulation(avg().adding(upload=part), blobs([5] * 6), small(), engine=engine)
    simulation.backend.captures = True
    heard = simulation.train(simulation.open())
    assert heard.cohort.reports["who"]["who"].tolist() == [*range(6)]


def test_a_single_run_captures_its_evaluation(monkeypatch):
    play(monkeypatch)
    settings = {"evaluation": Evaluation(clients_every=1, batch=4), "engine": double(backend="batched")}

    def run(captures):
        simulation = Simulation(avg(), blobs([8] * 4, heldout=0.5), small(), **settings)
        simulation.backend.captures = captures
        return simulation, [simulation.advance().clients for _ in range(3)]

    (recorded, found), (_, wanted) = run(True), run(False)
    assert found == wanted
    assert [kind for kind, *_ in recorded.backend._forward._captured] == ["alone"]


def test_a_compiled_function_reads_what_its_buffers_hold(monkeypatch):
    monkeypatch.setattr(graphs.torch, "compile", lambda traced, **_: traced)
    buffers = {"a": torch.ones(2, 3), "b": torch.zeros(3)}
    run = graphs.Compiled(lambda given, factor: (given["a"] * factor, {"sum": given["a"] + given["b"]}), buffers, 3)
    buffers["b"].fill_(5)
    product, named = run()
    assert (product == 3).all()
    assert (named["sum"] == 6).all()
    assert run()[0] is not product


def compiled_beside_plain(monkeypatch, method, model, *, half=True, shape=(6,), sizes=SIZES):
    """A simulation of compiled chunks, after it did what one of plain chunks does."""
    play(monkeypatch)
    monkeypatch.setattr(graphs.torch, "compile", lambda traced, **_: traced)

    def simulation(fused):
        made = Simulation(
            method,
            blobs(sizes, shape=shape),
            model,
            cohort=6,
            local=Local(epochs=2, batch=4, optimizer=sgd(0.1, momentum=0.5)),
            engine=Engine(device="cpu", backend="batched"),
        )
        its = made.trainer
        made.backend.network = Network(its.module, its.layout, its.traits.keyed, train=True, half=half)
        made.backend.captures = made.overlaps = True
        made.backend.compiled = fused
        return made

    plain, fused = (simulation(fused) for fused in (False, True))
    for _ in range(3):
        assert plain.advance().metrics == fused.advance().metrics
        assert torch.equal(plain.server.model, fused.server.model)
    return fused


def test_a_compiled_chunk_compiles_no_width_after_its_first_round(monkeypatch):
    fused = compiled_beside_plain(monkeypatch, avg(), small())
    chunk = next(iter(fused.backend._captured.values()))
    before = {**chunk._steps}
    (plan,) = fused.backend.plan(fused.prepare(fused.open()).job)
    chunk.load(plan._replace(widths=[6, 4, 3]))
    cursor = chunk.begin()
    for width in (6, 4, 3):
        cursor = chunk.step(cursor, width)
    assert chunk._steps == before
    assert chunk._current is before[6]


def test_a_compiled_chunk_of_equal_clients_reads_no_cast_of_the_round_before(monkeypatch):
    fused = compiled_beside_plain(monkeypatch, avg(), small(), sizes=[8] * 6)
    assert {*next(iter(fused.backend._captured.values()))._steps} == {6}  # so nothing else renews the cast


@pytest.mark.parametrize(
    ("name", "half"),
    [
        *((name, True) for name in ("fedavg", "scaffold", "moon", "fedoaed", "ditto")),
        *((name, False) for name in ("scaffold", "ditto")),
    ],
)
def test_a_compiled_chunk_computes_what_a_plain_one_does(name, half, monkeypatch):
    fused = compiled_beside_plain(monkeypatch, METHODS.make(name), small(), half=half)
    chunk = next(iter(fused.backend._captured.values()))
    models = 2 if name == "ditto" else 1  # whose casts are kept
    assert {*chunk._steps} == {6, 2}
    for step in chunk._steps.values():
        assert len(step.kernels._pairs) == (models if half else 0)


def test_a_model_of_one_parameter_is_compiled_too(monkeypatch):
    """Its cast was seen as one piece in the trace, and its rows are apart when they are kept."""
    model = net(nn.Conv2d(1, 3, 3, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    compiled_beside_plain(monkeypatch, avg(), model, shape=(1, 5, 5))


def later(client, step):
    memo = client.memo
    older, x = memo["old"].to(torch.bfloat16)[:4], memo["x"] + memo["older"].to(memo["x"].dtype)
    return {"old": step.w, "older": older, "x": x, "twin": memo["old"].to(torch.bfloat16)}


def test_what_is_written_may_be_a_cast_that_is_kept(monkeypatch):
    part = Part(
        "later",
        begin=lambda client: {
            "old": client.start,
            "older": torch.zeros_like(client.start[:4], dtype=torch.bfloat16),
            "x": torch.zeros_like(client.start[:4]),
            "twin": torch.zeros_like(client.start, dtype=torch.bfloat16),
        },
        after_step=later,
        gradient=lambda client, step, g: g + client.memo["x"].sum() + client.memo["twin"].to(g.dtype),
    )
    compiled_beside_plain(monkeypatch, avg().adding(local=part), small())


def test_a_kept_cast_follows_what_the_end_of_an_epoch_writes(monkeypatch):
    part = Part(
        "average",
        begin=lambda client: {"m": client.start.clone()},
        after_step=lambda client, step: {"m": 0.9 * client.memo["m"] + 0.1 * step.w},
        after_epoch=lambda client, w: {"m": w + 1},
        loss=lambda client, step, w: (step.output_at(w) - step.output_at(client.memo["m"])).square().mean(),
    )
    compiled_beside_plain(monkeypatch, avg().adding(local=part), small(), sizes=[8] * 6)  # one width


def test_a_cast_of_what_a_function_rewrites_is_kept(monkeypatch):
    monkeypatch.setattr(graphs.torch, "compile", lambda traced, **_: traced)
    w, other = torch.full((2, 3), 1.0), torch.ones(2, 3)

    def step(other, w):
        fill(w, w + w.to(torch.bfloat16).to(w.dtype) * other.to(torch.bfloat16).to(w.dtype))

    run = graphs.Compiled(step, other, w)
    (cast, of), = run._pairs  # fmt: skip
    assert of is w
    w.fill_(1)  # it was tried
    run.renew()
    for value in (2.0, 4.0):
        run()
        assert (w == value).all()
        assert (cast == value).all()
    w.fill_(3)
    run()
    assert (w == 3 + 4).all()  # what others write is not seen ...
    w.fill_(3)
    run.renew()
    run()
    assert (w == 6).all()  # ... before it is renewed


# ------------------------------------------------------------ the next round, prepared while this one trains


def overlapping(cohort=6):
    simulation = Simulation(avg(), blobs(SIZES), small(), cohort=cohort, engine=double(backend="batched", chunk=2))
    simulation.overlaps = True
    return simulation


def test_a_round_is_prepared_in_the_one_before_once(monkeypatch):
    simulation = overlapping()
    plan, planned = simulation.backend.plan, []
    monkeypatch.setattr(simulation.backend, "plan", lambda job: planned.append(job) or plan(job))
    for round in (1, 2, 3):
        simulation.advance()
        assert len(planned) == round + 1


def test_a_prepared_round_goes_on_from_a_model_that_was_changed_since():
    ahead, plain = overlapping(), overlapping()
    plain.overlaps = False
    for simulation in (ahead, plain):
        simulation.advance()
        simulation.server.model = simulation.server.model + 1
        simulation.advance()
    assert torch.equal(ahead.server.model, plain.server.model)


@pytest.mark.parametrize("failure", [RuntimeError("out of memory"), Interrupted("Stopped.")], ids=["error", "stop"])
def test_a_round_that_fails_in_training_changes_nothing(failure, monkeypatch):
    simulation = overlapping()
    train, calls = simulation.backend.train, []

    def failing(job, planned=None):
        calls.append(job)
        if len(calls) > 1:
            raise failure
        return train(job, planned)

    monkeypatch.setattr(simulation.backend, "train", failing)
    assert simulation.advance().round == 1
    model = simulation.server.model
    with pytest.raises(type(failure)):
        simulation.advance()
    assert simulation.round == 1
    assert simulation.server.whole
    assert simulation.server.model is model


def test_a_metric_that_fails_leaves_the_round_before_whole():
    """Evaluation comes before anything is written."""

    def failing(outputs, targets):
        if len(outputs) > 2 and simulation.round:
            raise RuntimeError("no memory left")
        return (outputs.argmax(1) == targets).to(outputs)

    settings = {"metrics": {"mine": failing}, "evaluation": Evaluation(clients_every=1), "engine": double()}
    simulation = Simulation(METHODS.make("scaffold"), blobs(SIZES, heldout=0.4), small(), **settings)
    simulation.advance()
    (part,) = simulation.client_state
    model, kept = simulation.server.model, simulation.client_state[part][1]
    with pytest.raises(RuntimeError):
        simulation.advance()
    assert simulation.round == 1
    assert simulation.server.whole
    assert simulation.server.model is model
    assert all(torch.equal(kept[name], row) for name, row in simulation.client_state[part][1].items())


def test_a_sampler_that_ends_is_asked_for_no_round_that_does_not_come():
    cohorts = [[0, 1], [2, 3]]
    simulation = overlapping(lambda seed, round, clients: cohorts[round - 1])
    assert [simulation.advance(last).round for last in (False, True)] == [1, 2]
    with pytest.raises(IndexError):
        simulation.advance()


@pytest.mark.parametrize(
    "error",
    [torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to"), RuntimeError("CUDA driver error: out of memory")],
)
def test_a_capture_that_runs_out_of_memory_is_not_blamed_on_a_hook(error):
    ended = RuntimeError("operation failed due to a previous error during capture")
    ended.__context__ = error
    for one in (error, ended):
        found = graphs.uncaptured(one)
        assert out_of_memory(found)
        assert "hook" not in str(found)
    assert "a hook waits for the GPU" in str(graphs.uncaptured(RuntimeError("operation not permitted")))
