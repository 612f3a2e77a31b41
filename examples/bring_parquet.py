"""Bring Parquet files, one for each client. The column `label` holds the targets, all others the inputs.

To run it: python examples/bring_parquet.py
"""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import counterpoise as cp


def measured(seed: int, rows: int) -> pd.DataFrame:
    x = np.random.default_rng(seed).normal(size=(rows, 2))
    return pd.DataFrame({"height": x[:, 0], "weight": x[:, 1], "label": (x.sum(1) > 0).astype(int)})


with tempfile.TemporaryDirectory() as folder:
    files = {name: Path(folder, f"{name}.parquet") for name in ("berlin", "nairobi", "quito")}
    for seed, file in enumerate(files.values()):
        measured(seed, 100 * (seed + 1)).to_parquet(file)
    federation = cp.Federation.from_datasets(files, test=measured(9, 200))  # a frame is a table, too
print(run := cp.simulate("fedavg", federation, model=cp.models.linear, rounds=10))
