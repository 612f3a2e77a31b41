"""Flower's simulation on the same work: a ClientApp that trains one client, FedAvg, Ray actors.

A module of its own, because Ray's processes import it by name.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
from arms import Absent, folder
from torch import Tensor
from torch.nn import functional as F
from works import WORKS, Data, Work

__all__ = ["Flower"]

try:
    import ray  # noqa: F401, Flower's simulation looks for it only when it runs
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    HERE = True
except ImportError:
    HERE = False


@cache
def _data(name: str, device: str) -> Data:
    """Once in each of Ray's processes."""
    torch.set_num_threads(1)
    return WORKS[name].data().to(device)


class Flower:
    def __init__(self, name: str, device: str, threads: int) -> None:
        if not HERE:
            raise Absent(
                f"Flower with Ray is not in peers/{folder('flower').name}; run: sh benchmarks/install_peers.sh flower"
            )
        self.name, self.work, self.device, self.threads = name, WORKS[name], device, threads
        self.last: Tensor | None = None

    def run(self, rounds: int) -> None:
        logging.getLogger("flwr").setLevel(logging.ERROR)
        work, model = self.work, self.work.model(dropout=False)
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            strategy = FedAvg(
                fraction_train=work.cohort / work.clients, fraction_evaluate=0.0, min_available_nodes=work.clients
            )
            done = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds)
            self.last = torch.cat([value.flatten() for value in done.arrays.to_torch_state_dict().values()])

        gpus = 1 / self.threads if self.device == "cuda" else 0.0
        resources = {"num_cpus": 1, "num_gpus": gpus}
        run_simulation(
            server, _client(self.name, self.device), work.clients, backend_config={"client_resources": resources}
        )
        if self.last is None:
            raise RuntimeError("Flower's simulation ended before its last round")

    def weights(self) -> Tensor:
        assert self.last is not None
        return self.last


def _client(name: str, device: str) -> ClientApp:
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        data, work = _data(name, device), WORKS[name]
        model = work.model(dropout=False)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        model.to(device)
        _train(work, model, data, data.rows[int(context.node_config["partition-id"])])
        content = RecordDict(
            {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": work.images})}
        )
        return Message(content, reply_to=message)

    return client


def _train(work: Work, model: torch.nn.Module, data: Data, rows: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr, momentum=work.momentum)
    for _ in range(work.epochs):
        for batch in rows[torch.randperm(len(rows), device=rows.device)].split(work.batch):
            optimizer.zero_grad()
            F.cross_entropy(model(data.inputs[batch]), data.targets[batch]).backward()
            optimizer.step()
