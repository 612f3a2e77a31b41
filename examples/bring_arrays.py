"""Bring arrays: two hospitals, each with patients to train on and patients to test on. Diagnoses are text.

To run it: python examples/bring_arrays.py
"""

import numpy as np

import counterpoise as cp


def hospital(number: int, patients: int) -> tuple[np.ndarray, list[str]]:
    x = np.random.default_rng(number).normal(size=(patients, 4)).astype("float32")
    return x, ["ill" if row[0] > row[1] else "well" for row in x]


def main(rounds: int = 20) -> cp.Run:
    data = {"north": (*hospital(1, 300), *hospital(2, 100)), "south": (*hospital(3, 200), *hospital(4, 100))}
    federation = cp.Federation.from_datasets(data, test=hospital(5, 500))
    run = cp.simulate("fedavg", federation, model=cp.models.linear, rounds=rounds)
    print(run.frame("clients")[["name", "client_accuracy"]].tail(2).to_string(index=False))
    return run


if __name__ == "__main__":
    print(f"accuracy on all: {main().accuracy:.1%}")
