"""Data sets and partitioners of flwr-datasets (the extra ``counterpoise[datasets]``)."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError, unknown
from counterpoise.federation.assignment import Assignment, Table
from counterpoise.federation.partition import PARTITIONS, Partition, class_numbers
from counterpoise.randomness import integer, purpose
from counterpoise.registry import Option

__all__ = ["flwr", "load_splits"]


def _missing(error: ImportError) -> CounterpoiseError:
    return CounterpoiseError(f"This needs flwr-datasets ({error}): pip install 'counterpoise[datasets]'.")


def load_splits(name: str) -> tuple[Any, Any]:
    """The training and test splits of a data set, by its name on the Hugging Face hub or by a local path."""
    try:
        from flwr_datasets import FederatedDataset
    except ImportError as error:
        raise _missing(error) from None
    try:
        source = FederatedDataset(dataset=name, partitioners={"train": 1}, shuffle=False)
        train = source.load_split("train")
        try:
            return train, source.load_split("test")
        except ValueError:  # it has none
            return train, None
    except Exception as error:  # whatever fails (hub, network, files), the user must hear of it
        raise CounterpoiseError(f"flwr-datasets cannot load {name!r}: {str(error).splitlines()[0]}") from error


@PARTITIONS.register("flwr")
def flwr(
    partitioner: Annotated[str, Option("the class in flwr_datasets.partitioner, such as DirichletPartitioner")],
    options: Annotated[dict, Option("its arguments, such as {num_partitions = 10, alpha = 0.5}")],  # type: ignore[type-arg]
) -> Partition:
    """Any partitioner of flwr-datasets that deals samples; labels are in its column ``label``."""

    def assign(labels: Tensor, seed: int) -> Assignment:
        try:
            import flwr_datasets.partitioner as known
            from datasets import Dataset
        except ImportError as error:
            raise _missing(error) from None
        names = [n for n in known.__all__ if n != "Partitioner" and not n.startswith("Vertical")]
        if partitioner not in names:
            raise unknown("partitioner", partitioner, names, "in flwr-datasets that deals samples")
        kind = getattr(known, partitioner)
        defaults = {"partition_by": "label", "seed": integer(seed, purpose("flwr")) % 2**32}
        taken = inspect.signature(kind).parameters
        if "partition_by" in taken and partitioner != "ContinuousPartitioner":
            labels = class_numbers(labels, f"{partitioner} of flwr-datasets")
        try:
            made = kind(**{k: v for k, v in defaults.items() if k in taken} | dict(options))
            made.dataset = Dataset.from_dict({"label": labels.tolist(), "row": list(range(len(labels)))})
            held = [np.asarray(made.load_partition(i)["row"][:], dtype=np.int64) for i in range(made.num_partitions)]
        except Exception as error:  # its own checks: their first line is the reason
            raise CounterpoiseError(
                f"{partitioner} of flwr-datasets cannot deal this: {str(error).splitlines()[0]}"
            ) from error
        owners = np.repeat(np.arange(len(held)), [len(rows) for rows in held])
        return Table.of(torch.from_numpy(owners), torch.from_numpy(np.concatenate(held)), len(held))

    return Partition(None, assign)
