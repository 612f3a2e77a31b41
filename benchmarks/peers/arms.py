"""The arms: our engine, a bare torch loop and pfl, each doing the same work.

An arm is made once, keeps its model and data on its device, and does a number of rounds when called.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol
from unittest.mock import MagicMock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from works import Data, Work

import counterpoise as cp
from counterpoise.engine import Simulation

__all__ = ["Absent", "Arm", "Loop", "Ours", "Pfl", "folder"]

_ROOT = Path(__file__).resolve().parents[2]


class Absent(Exception):
    """A peer is not installed; the message says why."""


class Arm(Protocol):
    def run(self, rounds: int) -> None: ...

    def weights(self) -> Tensor:
        """The server's model, flat."""


def folder(peer: str) -> Path:
    """Where `install_peers.sh` puts a peer for this Python and machine."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return _ROOT / "peers" / f"{peer}-{version}-{platform.machine()}"


class Ours:
    def __init__(
        self, work: Work, data: Data, model: nn.Module, device: str, threads: int | None, seed: int = 0, **options: Any
    ) -> None:
        federation = cp.Federation.from_arrays(data.inputs, data.targets, partition=list(data.rows), heldout=0.0)
        self.simulation = Simulation(
            cp.methods.avg(),
            federation,
            model,
            cohort=work.cohort,
            seed=seed,
            local=cp.Local(epochs=work.epochs, batch=work.batch, optimizer=cp.sgd(work.lr, momentum=work.momentum)),
            engine=cp.Engine(device=device, threads=threads, **options),
            evaluation=cp.Evaluation(every=0, clients_every=0),
        )

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.simulation.advance()

    def weights(self) -> Tensor:
        return self.simulation.server.model


class Loop:
    """One client after the other, with torch.optim and a mean of state dictionaries."""

    def __init__(self, work: Work, data: Data, model: nn.Module, device: str, bf16: bool = False) -> None:
        self.work, self.data, self.model, self.device = work, data.to(device), model.to(device), device
        self.bf16 = bf16

    def run(self, rounds: int) -> None:
        work, model, data = self.work, self.model, self.data
        for _ in range(rounds):
            start = {k: v.clone() for k, v in model.state_dict().items()}
            total = {k: torch.zeros_like(v) for k, v in start.items()}
            for client in torch.randperm(work.clients)[: work.cohort].tolist():
                model.load_state_dict(start)
                optimizer = torch.optim.SGD(model.parameters(), lr=work.lr, momentum=work.momentum)
                for _ in range(work.epochs):
                    rows = data.rows[client]
                    order = rows[torch.randperm(len(rows), device=self.device)]
                    for batch in order.split(work.batch):
                        optimizer.zero_grad()
                        with torch.autocast("cuda", torch.bfloat16) if self.bf16 else contextlib.nullcontext():
                            loss = F.cross_entropy(model(data.inputs[batch]), data.targets[batch])
                        loss.backward()
                        optimizer.step()
                for k, v in model.state_dict().items():
                    total[k] += v / work.cohort
            model.load_state_dict(total)

    def weights(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()


class Pfl:
    """pfl 0.6.0: FederatedAveraging on its simulated backend, without its own central evaluation."""

    def __init__(self, work: Work, data: Data, model: nn.Module, device: str, bf16: bool = False) -> None:
        os.environ["PFL_PYTORCH_DEVICE"] = device
        with _findable():
            from pfl.aggregate.simulate import SimulatedBackend
            from pfl.algorithm.base import NNAlgorithmParams
            from pfl.algorithm.federated_averaging import FederatedAveraging
            from pfl.data.federated_dataset import FederatedDataset
            from pfl.data.pytorch import PyTorchTensorDataset
            from pfl.data.sampling import get_user_sampler
            from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
            from pfl.metrics import Weighted
            from pfl.model.pytorch import PyTorchModel

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model(x), y)

        def metrics(x: Tensor, y: Tensor) -> dict[str, Any]:
            return {"loss": Weighted(float(loss(x, y).detach()) * len(y), len(y))}

        model.loss, model.metrics = loss, metrics  # type: ignore[assignment]
        model.to(device)
        held = data.to(device)
        users = {
            str(client): PyTorchTensorDataset((held.inputs[rows], held.targets[rows]))
            for client, rows in enumerate(held.rows)
        }
        sampler = get_user_sampler("minimize_reuse", list(users))
        dataset = FederatedDataset(users.__getitem__, sampler)
        self.model = PyTorchModel(
            model,
            lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=work.momentum),
            torch.optim.SGD(model.parameters(), lr=1.0),
            amp_dtype=torch.bfloat16 if bf16 else None,
        )
        self.algorithm, self.backend = FederatedAveraging(), SimulatedBackend(dataset, dataset)
        self.train = NNTrainHyperParams(
            local_batch_size=work.batch, local_num_epochs=work.epochs, local_learning_rate=work.lr
        )
        self.evaluate = NNEvalHyperParams(local_batch_size=500)
        self.settings = lambda rounds: NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=2**60,  # the first round alone, which is a warm-up
            train_cohort_size=work.cohort,
            val_cohort_size=0,
        )
        self.done = 0

    def run(self, rounds: int) -> None:
        self.done += rounds
        self.algorithm.run(
            self.settings(self.done),
            self.backend,
            self.model,
            self.train,
            self.evaluate,
            send_metrics_to_platform=False,
        )

    def weights(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.model.pytorch_model.parameters()).detach()


@contextlib.contextmanager
def _findable() -> Iterator[None]:
    """Put pfl on the path, and mock a missing scipy, which pfl's privacy accountants import but nothing here calls."""
    if not folder("pfl").is_dir():
        raise Absent(f"pfl is not in {folder('pfl').relative_to(_ROOT)}; run: sh benchmarks/install_peers.sh pfl")
    if str(folder("pfl")) not in sys.path:
        sys.path.append(str(folder("pfl")))
    names = [f"scipy{part}" for part in ("", ".special", ".stats", ".fft", ".optimize", ".signal")]
    stand_ins = {} if importlib.util.find_spec("scipy") else {name: _nothing(name) for name in names}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:  # torch looks whether scipy is there, and must not find these
        for name in stand_ins:
            del sys.modules[name]


def _nothing(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__getattr__ = lambda attribute: MagicMock()  # type: ignore[method-assign]
    module.__path__ = []
    return module
