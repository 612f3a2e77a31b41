"""Measure what a round of our strategy costs over Flower's own FedAvg, on the server and on the nodes.

Both arms train LeNet-5 on the same nodes' data (10 nodes x 120 images of 28 x 28, batch 20, 1 epoch), in one
process, through the same in-process grid; every message passes through bytes. The arms take turns, and the medians
are compared. The server's time runs from the replies to the next round's messages, the nodes' from message to
reply, for all nodes and with the training.

    python benchmarks/flower_overhead.py --rounds 20
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import counterpoise as cp
from counterpoise.flower import Strategy, client_app

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from grids import InProcess

NODES, EACH, BATCH, LR = 10, 120, 20, 0.05


def federation() -> cp.Federation:
    rng = np.random.default_rng(0)
    clients = [(rng.standard_normal((EACH, 1, 28, 28), "f"), np.arange(EACH) % 10) for _ in range(NODES)]
    test = (rng.standard_normal((20, 1, 28, 28), "f"), np.arange(20) % 10)
    return cp.Federation.from_clients(clients, heldout=0, test=test)


def stock_client(fed: cp.Federation) -> ClientApp:
    """A client as in Flower's own quick start."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = cp.models.lenet5(fed.shape, 10)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        base = fed.only(int(context.node_config["partition-id"])).base
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        order = torch.randperm(len(base))
        for rows in order.split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(base.inputs[rows]), base.targets[rows]).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(base)})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    return app


class Arm:
    """A strategy and its nodes, timed round by round."""

    def __init__(self, strategy: Any, app: ClientApp, arrays: Callable[[], ArrayRecord]) -> None:
        self.strategy, self.grid, self.arrays = strategy, InProcess(app, NODES), arrays()
        self.server: list[float] = []
        self.nodes: list[float] = []

    def turn(self, round: int) -> None:
        begun = time.perf_counter()
        messages = list(self.strategy.configure_train(round, self.arrays, ConfigRecord(), self.grid))
        sent = time.perf_counter()
        replies = list(self.grid.send_and_receive(messages))
        came = time.perf_counter()
        arrays, _ = self.strategy.aggregate_train(round, replies)
        self.arrays = arrays
        self.strategy.aggregate_evaluate(round, [])
        self.server.append(time.perf_counter() - came + sent - begun)
        self.nodes.append(came - sent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--method", default="fedavg")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    fed, model = federation(), cp.models.lenet5
    local, engine = cp.Local(batch=BATCH, optimizer=cp.sgd(LR)), cp.Engine(device="cpu", threads=1)
    ours = Strategy(
        arguments.method,
        fed,
        model=model,
        rounds=10**6,
        local=local,
        engine=engine,
        evaluation=cp.Evaluation(0, 0),
        patience=0,
    )
    app = client_app(
        arguments.method, model, lambda c: fed.only(int(c.node_config["partition-id"])), local=local, engine=engine
    )
    stock = FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES)
    first = model(fed.shape, 10).state_dict()
    arms = {
        "Flower's FedAvg": Arm(stock, stock_client(fed), lambda: ArrayRecord(first)),
        f"ours, {arguments.method}": Arm(ours, app, ours.arrays),
    }
    for round in range(1, arguments.rounds + 2):
        for arm in arms.values():
            arm.turn(round)
    print(f"{'median of a round':24} {'server':>10} {'nodes':>10}")
    medians = {name: [statistics.median(times[1:]) for times in (arm.server, arm.nodes)] for name, arm in arms.items()}
    for name, (server, nodes) in medians.items():
        print(f"{name:24} {1e3 * server:7.1f} ms {1e3 * nodes:7.1f} ms")
    (theirs, their_nodes), (our, our_nodes) = medians.values()
    print(f"{'ratio':24} {our / theirs:9.2f}x {our_nodes / their_nodes:9.2f}x")


if __name__ == "__main__":
    main()
