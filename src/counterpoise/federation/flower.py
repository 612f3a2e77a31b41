"""Data sets and partitioners of flwr-datasets (the extra ``counterpoise[datasets]``)."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError, unknown
from counterpoise.federation.assignment import Assignment, Table
from counterpoise.federation.bringing import Columns
from counterpoise.federation.partition import PARTITIONS, Partition, class_numbers
from counterpoise.federation.readers import Raw, channels_first
from counterpoise.randomness import integer, purpose
from counterpoise.registry import Option

__all__ = ["flwr", "read_flower"]

_IDENTITIES = ("identity", "writer_id", "client_id", "user_id", "speaker_id", "hospital_id")


def _missing(error: ImportError) -> CounterpoiseError:
    return CounterpoiseError(f"This needs flwr-datasets ({error}): pip install 'counterpoise[datasets]'.")


def read_flower(name: str, columns: Columns | None = None) -> Raw:
    """Read a data set through flwr-datasets, by its name on the Hugging Face hub or by a local path.

    Inputs are the first column of pictures or arrays, and targets the first column of class labels,
    unless `columns` names them (``{"inputs": "image", "targets": "digit"}``).
    """
    try:
        from flwr_datasets import FederatedDataset
    except ImportError as error:
        raise _missing(error) from None
    try:
        source = FederatedDataset(dataset=name, partitioners={"train": 1}, shuffle=False)
        train = source.load_split("train")
        try:
            test = source.load_split("test")
        except ValueError:  # it has none
            test = None
    except Exception as error:  # whatever fails (hub, network, files), the user must hear of it
        raise CounterpoiseError(f"flwr-datasets cannot load {name!r}: {str(error).splitlines()[0]}") from error
    chosen = _columns(train, dict(columns or {}), name)
    x_train, y_train = (_array(train, chosen[what], name) for what in ("inputs", "targets"))
    who = None
    if "identity" in chosen:
        who = np.unique(np.asarray(train[chosen["identity"]][:]), return_inverse=True)[1]
    raw = Raw(x_train, y_train, identity_train=who)
    if test is None:
        return raw
    return raw._replace(x_test=_array(test, chosen["inputs"], name), y_test=_array(test, chosen["targets"], name))


def _columns(split: Any, given: dict[str, Any], name: str) -> dict[str, str]:
    for what, column in given.items():
        if what not in ("inputs", "targets", "identity"):
            raise unknown("column", what, ("inputs", "targets", "identity"), "of a data set")
        if not isinstance(column, str) or column not in split.features:
            raise unknown("column", column, split.features, f"in {name}")
    kinds = {column: type(feature).__name__ for column, feature in split.features.items()}
    found = {
        "inputs": [c for c, k in kinds.items() if k == "Image" or k.startswith("Array")],
        "targets": [c for c, k in kinds.items() if k == "ClassLabel"]
        + [c for c in ("label", "target", "y") if c in kinds],
        "identity": [c for c in _IDENTITIES if c in kinds],
    }
    chosen = {what: columns[0] for what, columns in found.items() if columns} | given
    for what in ("inputs", "targets"):
        if what not in chosen:
            raise CounterpoiseError(
                f"Which column of {name} holds the {what}? It has {', '.join(kinds)}. Say columns={{'{what}': ...}}."
            )
    return chosen


def _array(split: Any, column: str, name: str) -> np.ndarray:
    values = split.with_format("numpy")[column][:]
    try:
        array = np.stack(list(values)) if isinstance(values, list) or values.dtype == object else np.asarray(values)
    except ValueError:
        raise CounterpoiseError(f"The column {column} of {name} holds samples of different shapes.") from None
    feature = split.features[column]
    if type(feature).__name__ == "Image" and array.ndim == 4:  # channels last, however many
        return np.ascontiguousarray(array.transpose(0, 3, 1, 2))
    # The numpy format turns every integer into int64, but pictures must be bytes.
    return channels_first(array.astype(np.uint8) if _number_type(feature) == "uint8" else array)


def _number_type(feature: Any) -> str:
    """The number type of a column, or of the arrays or lists in it."""
    while hasattr(feature, "feature"):
        feature = feature.feature
    return str(getattr(feature, "dtype", ""))


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
