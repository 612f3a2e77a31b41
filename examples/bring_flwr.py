"""Bring partitions of flwr-datasets: its partitioners deal any data set of Hugging Face.

To run it: python examples/bring_flwr.py
"""

import numpy as np
from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner

import counterpoise as cp

x = np.random.default_rng(0).normal(size=(1000, 2))
rows = Dataset.from_dict({"a": x[:, 0], "b": x[:, 1], "label": (x.sum(1) > 0).astype(int)})

partitioner = DirichletPartitioner(num_partitions=5, partition_by="label", alpha=0.5, seed=0)
partitioner.dataset = rows.select(range(800))
# Single partitions are data sets, too: {"north": partitioner.load_partition(0), ...}
federation = cp.Federation.from_datasets(partitioner, test=rows.select(range(800, 1000)))

run = cp.simulate("fedavg", federation, model=cp.models.linear, rounds=20)
print(run)
