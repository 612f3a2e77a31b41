"""Use your own data and model: measurements of three hospitals, and a network of two layers.

Data are arrays, one pair for each client. A model is any module.
"""

import sys

import numpy as np
from torch import nn

import counterpoise as cp


def hospital(number: int, patients: int) -> tuple[np.ndarray, np.ndarray]:
    """Eight measurements of each patient, and whether they fell ill. Each hospital's instruments are a little off."""
    draw = np.random.default_rng(number)
    x = draw.normal(size=(patients, 8)).astype("float32")
    y = (x[:, 0] - x[:, 1] * x[:, 2] + 0.3 * draw.normal(size=patients) > 0).astype("int64")
    return x + 0.2 * number, y


def main(rounds: int = 30) -> cp.Run:
    federation = cp.Federation.from_clients(
        [hospital(number, patients) for number, patients in enumerate((600, 200, 80))], test=hospital(0, 1000)
    )
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    run = cp.simulate(
        cp.methods.fedprox(mu=0.01),
        federation,
        model=model,
        rounds=rounds,
        local=cp.Local(epochs=2, batch=20, optimizer=cp.sgd(0.1)),
    )
    print(f"accuracy at the first hospital's patients to come: {run.accuracy:.1%}")
    print(run.frame()[["round", "loss", "accuracy", "seconds"]].tail(3).to_string(index=False))
    return run


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
