"""The same code on a GPU: a step with every hook, captured as a CUDA graph, against the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.method import Client, Part, Reply, Step
from counterpoise.methods import METHODS

pytestmark = pytest.mark.gpu


def every_hook() -> Part:
    """A part with every client hook, a second derivative and state of its own."""

    def begin(client: Client) -> dict[str, Tensor]:
        nothing = torch.zeros_like(client.start)
        return {"sum": nothing, "last": nothing, "previous": nothing, "epochs": client.start.new_zeros(())}

    def loss(client: Client, step: Step, w: Tensor) -> Tensor:
        return 1e-3 * (w - client.start).square().sum() + step.mean(1e-3 * step.output_at(w).square().mean(1))

    def gradient(client: Client, step: Step, g: Tensor) -> Tensor:
        return g + 1e-2 * step.curvature(g) + 1e-3 * step.gradient_at(client.start) + client.state["kept"]

    def after_step(client: Client, step: Step) -> dict[str, Tensor]:
        # In another order than `begin`, and one leaf passed on to another: a graph's buffers must not mix them up.
        passed = {"last": step.gradient, "previous": client.memo["last"], "epochs": client.memo["epochs"]}
        return {**passed, "sum": client.memo["sum"] + step.gradient}

    def after_epoch(client: Client, w: Tensor) -> dict[str, Tensor]:
        return {**client.memo, "epochs": client.memo["epochs"] + 1}

    def finish(client: Client, reply: Reply) -> Reply:
        reports = {"epochs": client.memo["epochs"], "norm": client.memo["sum"].norm()}
        change = client.memo["last"] - client.memo["previous"]
        return Reply(0.9 * reply.update + 1e-3 * change, reports, {"kept": 1e-3 * reply.update})

    return Part(
        "every-hook",
        client_state=lambda start: {"kept": torch.zeros_like(start)},
        when_lost="it starts again at zero",
        begin=begin,
        loss=loss,
        gradient=gradient,
        after_step=after_step,
        after_epoch=after_epoch,
        finish=finish,
        second_order=True,
    )


def network(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def recurrent(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The rows of a picture as a sequence; dropout between its layers."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.LSTM(8, 6, 2, batch_first=True, dropout=0.25)
            self.head = nn.Linear(6, classes)

        def forward(self, pictures: Tensor) -> Tensor:
            return self.head(self.layers(pictures.squeeze(1))[0][:, -1])  # type: ignore[no-any-return]

    return Rows()


OPTIMIZERS = {"momentum": cp.sgd(0.05, momentum=0.9, weight_decay=1e-4), "adam": cp.adam(1e-2), "adamw": cp.adamw(1e-2)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_captured_step_with_every_hook_is_the_cpus(optimizer: str) -> None:
    federation = cp.load("digits", partition=cp.dirichlet(0.5, clients=12))
    models = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        simulation = Simulation(
            cp.methods.fedprox(mu=0.1).adding(local=every_hook()),
            federation,
            network(federation.shape, 10),
            cohort=7,
            local=cp.Local(epochs=2, batch=10, optimizer=OPTIMIZERS[optimizer], augment=cp.augment.flip_and_crop(1)),
            engine=cp.Engine(device=device, dtype="float64", chunk=3),
        )
        for _ in range(3):
            simulation.advance()
        models[device] = simulation.server.model.cpu()
        if device == "cuda":
            assert simulation.engine.backend == "batched"
            assert simulation.backend._captured
    assert torch.allclose(models["cpu"], models["cuda"], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", [network, recurrent])
def test_a_captured_evaluation_measures_what_a_plain_one_does(model: Callable[..., nn.Module], dtype: str) -> None:
    federation = cp.load("digits", partition=cp.dirichlet(0.5, clients=12))

    def run(captures: bool) -> tuple[list[str], Tensor]:
        torch.manual_seed(0)
        simulation = Simulation(
            cp.methods.fedavg(),
            federation,
            model(federation.shape, 10),
            engine=cp.Engine(device="cuda", dtype=dtype),
            evaluation=cp.Evaluation(every=1, clients_every=0, batch=50),
        )
        backend = simulation.backend
        backend._forward._refused = not captures
        losses = [simulation.advance().metrics["loss"] for _ in range(3)]
        return [kind for kind, *_ in backend._forward._captured], torch.tensor(losses, dtype=torch.float64)

    (kinds, found), (none, plain) = run(True), run(False)
    assert kinds == ["alone"] * len(kinds)
    assert kinds
    assert not none
    assert torch.allclose(found, plain, rtol=1e-12 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize("fill", ["zeros", "reflect"])
def test_pictures_that_a_captured_step_cuts_and_normalises_are_the_cpus(fill: str) -> None:
    federation = cp.load("digits", partition=cp.dirichlet(0.5, clients=12), scaling="per-picture")
    found = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        simulation = Simulation(
            cp.methods.fedavg(),
            federation,
            nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.Tanh(), nn.Linear(20, 10)),
            cohort=cp.bernoulli(0.5),
            local=cp.Local(batch=10, augment=cp.augment.flip_and_crop(1, fill, 0.5, size=6)),
            engine=cp.Engine(device=device, dtype="float64", chunk=3),
            evaluation=cp.Evaluation(1, 1),
        )
        records = [simulation.advance() for _ in range(3)]
        found[device] = simulation.server.model.cpu(), [record.metrics["loss"] for record in records]
        assert device == "cpu" or simulation.backend._captured
    assert torch.allclose(found["cpu"][0], found["cuda"][0], rtol=1e-9, atol=1e-11)
    assert found["cpu"][1] == pytest.approx(found["cuda"][1])


@pytest.mark.parametrize("backend", ["auto", "per-client"])
@pytest.mark.parametrize("model", [network, recurrent])
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_either_backend_trains_on_the_gpu_as_the_cpu_does(
    backend: str, model: Callable[..., nn.Module], method: str
) -> None:
    federation = cp.load("digits", partition=cp.dirichlet(0.5, clients=12))
    models = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        simulation = Simulation(
            METHODS.make(method),
            federation,
            model(federation.shape, 10),
            cohort=4,
            local=cp.Local(batch=10, optimizer=cp.sgd(0.05)),
            engine=cp.Engine(backend=backend, device=device, dtype="float64"),
        )
        for _ in range(2):
            simulation.advance()
        models[device] = simulation.server.model.cpu()
    assert simulation.engine.backend == ("batched" if backend == "auto" else backend)
    assert torch.allclose(models["cpu"], models["cuda"], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("model", [cp.models.mlp, cp.models.cnn6, network])
def test_a_run_on_the_gpu_repeats_bit_for_bit(model: Callable[..., nn.Module]) -> None:
    federation = cp.load("digits", partition=cp.dirichlet(0.5, clients=12))
    runs = [
        cp.simulate("fedavgm", federation, model=model, rounds=4, cohort=5, engine=cp.Engine(device="cuda"))
        for _ in range(2)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*(r.model.parameters() for r in runs), strict=True))


def test_one_round_without_tf32_is_the_cpus_in_float32() -> None:
    federation = cp.load("digits", partition=cp.iid(clients=6))
    ends = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = network(federation.shape, 10)
        simulation = Simulation(
            cp.methods.fedavg(),
            federation,
            model,
            local=cp.Local(epochs=2, batch=16, optimizer=cp.sgd(0.05)),
            engine=cp.Engine(device=device, tf32=False),
        )
        start = simulation.server.model.clone()
        simulation.advance()
        ends.append((simulation.server.model - start).cpu())
    assert (ends[0] - ends[1]).norm() <= 1e-3 * ends[0].norm()
    assert not torch.backends.cuda.matmul.allow_tf32  # the switches are put back


@pytest.mark.parametrize("name", [entry.name for entry in cp.methods.METHODS])
def test_every_method_does_on_the_gpu_what_it_does_on_the_cpu(name: str) -> None:
    federation = cp.load("digits", partition=cp.dirichlet(0.5, clients=12), probe=1, proxy=100)
    models = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        simulation = Simulation(
            cp.methods.METHODS.make(name),
            federation,
            cp.models.mlp(federation.shape, 10, hidden=8),
            cohort=7,
            local=cp.Local(epochs=2, batch=10, optimizer=cp.sgd(0.05, momentum=0.5)),
            engine=cp.Engine(device=device, dtype="float64", chunk=4, store_gib=1e-5),
        )
        for _ in range(3):
            simulation.advance()
        models[device] = simulation.server.model.cpu()
    assert torch.allclose(models["cpu"], models["cuda"], rtol=1e-6, atol=1e-8)


CNN = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)]


def first_gradient(device: str, **engine: bool | str) -> Tensor:
    """Minus the mean gradient of one batch of each client: what one step of size 1 leaves behind."""
    federation = cp.load("digits", partition=cp.iid(clients=6))
    torch.manual_seed(0)
    simulation = Simulation(
        cp.methods.fedavg(),
        federation,
        nn.Sequential(*(copy.deepcopy(layer) for layer in CNN)),
        local=cp.Local(steps=1, batch=32, optimizer=cp.sgd(1.0)),
        engine=cp.Engine(device=device, **engine),
    )
    start = simulation.server.model.clone()
    simulation.advance()
    return (simulation.server.model - start).cpu().double()


@pytest.mark.parametrize(
    ("engine", "bound"),
    [
        ({"tf32": False}, 1e-4),
        ({"tf32": False, "convolutions": "torch"}, 1e-4),
        ({"tf32": False, "compile": True}, 1e-4),
        ({}, 5e-2),
        ({"compile": True}, 5e-2),
        ({"bf16": True}, 1.5e-1),
        ({"bf16": True, "compile": True}, 1.5e-1),
    ],
)
def test_the_first_gradient_is_the_cpus_in_every_precision(engine: dict[str, bool | str], bound: float) -> None:
    exact = first_gradient("cpu", dtype="float64")
    assert (first_gradient("cuda", **engine) - exact).norm() <= bound * exact.norm()


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedbac-soft", "feddua"])
def test_a_compiled_step_is_the_plain_one(method: str) -> None:
    federation = cp.load("digits", partition=cp.dirichlet(0.5, clients=12), probe=1, proxy=100)
    models = []
    for compiled in (False, True):
        torch.manual_seed(0)
        simulation = Simulation(
            cp.methods.METHODS.make(method),
            federation,
            network(federation.shape, 10),
            cohort=7,
            local=cp.Local(epochs=2, batch=10, optimizer=cp.sgd(0.05, momentum=0.5)),
            engine=cp.Engine(device="cuda", dtype="float64", chunk=4, compile=compiled),
        )
        assert simulation.engine.compile == compiled
        for _ in range(3):
            simulation.advance()
        models.append(simulation.server.model)
    assert torch.allclose(*models, rtol=1e-8, atol=1e-10)
