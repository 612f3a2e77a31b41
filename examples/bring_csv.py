"""Bring a CSV file with named columns. Each hospital in it becomes a client, and the diagnoses are text.

To run it: python examples/bring_csv.py
"""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import counterpoise as cp

rows = pd.DataFrame(np.random.default_rng(0).normal(size=(900, 2)), columns=["pulse", "fever"])
rows["diagnosis"] = np.where(rows.pulse + rows.fever > 0, "ill", "well")
rows["hospital"] = np.where(rows.index % 3, "city", "coast")

with tempfile.TemporaryDirectory() as folder:
    rows[:700].to_csv(path := Path(folder, "patients.csv"), index=False)
    columns = {"inputs": ["pulse", "fever"], "targets": "diagnosis", "identity": "hospital"}
    federation = cp.Federation.from_datasets(path, partition=cp.natural(), columns=columns, test=rows[700:])

run = cp.simulate("fedavg", federation, model=cp.models.linear, rounds=10)
print(run.frame("clients")[["name", "client_accuracy"]].tail(2))
