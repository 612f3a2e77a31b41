"""Partitions that the data gives (natural identities) or a file (recorded owners)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.assignment import Assignment, Table
from counterpoise.federation.partition import PARTITIONS, Partition, generator_of
from counterpoise.federation.readers import read_archive
from counterpoise.registry import Option
from counterpoise.texts import MOST_LINE, parse_json, read_text

__all__ = ["from_file", "natural"]

_MOST_CLIENTS = 10_000_000


@PARTITIONS.register("natural")
def natural(
    clients: Annotated[int | None, Option("how many of the identities, drawn at random; by default all", low=1)] = None,
    minimum: Annotated[int, Option("identities with fewer samples are left out", low=1)] = 2,
) -> Partition:
    """Each client is one of the data's own identities, such as a writer of MNIST or an outer folder of pictures."""

    def assign(identities: Tensor, seed: int) -> Assignment:
        _, codes, counts = torch.unique(identities, return_inverse=True, return_counts=True)
        enough = (counts >= minimum).nonzero().squeeze(1)
        if len(enough) < (clients or 1):
            raise CounterpoiseError(
                f"partition natural: {len(enough)} of {len(counts)} identities have at least {minimum} samples, "
                f"but {clients or 1} clients were asked for. Use fewer clients or a lower minimum."
            )
        if clients is not None:
            drawn = generator_of(seed, "natural").permutation(len(enough))[:clients]
            enough = enough[torch.from_numpy(drawn).sort().values]
        client_of = torch.full((len(counts),), -1)
        client_of[enough] = torch.arange(len(enough))
        owners = client_of[codes]
        rows = (owners >= 0).nonzero().squeeze(1)
        return Table.of(owners[rows], rows, len(enough))

    return Partition(clients, assign, "identity")


@PARTITIONS.register("file")
def from_file(
    path: Annotated[str, Option("a .npy, .npz or .json file")],
) -> Partition:
    """Deal as a file says: one client number per sample (-1 for nobody), or each client's rows.

    An .npy file, or the array ``owners`` of an .npz file, has one number per sample. A .json file has
    either that or one list of rows per client.
    """

    def assign(rows: Tensor, seed: int) -> Assignment:
        found = _read(Path(path))
        try:
            owners, held, clients = _owners(found)
        except (TypeError, ValueError, OverflowError):
            raise _unfit(path, len(rows)) from None
        short = isinstance(found, np.ndarray) and len(found) != len(rows)
        if short or not len(held) or held.min() < 0 or held.max() >= len(rows) or clients > _MOST_CLIENTS:
            raise _unfit(path, len(rows))
        if len(np.unique(held)) < len(held):
            raise CounterpoiseError(f"The partition in {path} gives a sample to two clients.")
        return Table.of(torch.from_numpy(owners), torch.from_numpy(held), clients)

    return Partition(None, assign, "row")


def _owners(found: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """Owners, their rows, and the number of clients. Anything else raises ValueError or TypeError."""
    if isinstance(found, list):
        each = [np.asarray(rows, dtype=np.int64) for rows in found]
        counts = [len(rows) for rows in each]
        return np.repeat(np.arange(len(each)), counts), np.concatenate(each), len(each)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ValueError
    held = np.flatnonzero(found >= 0)
    owners = found[held].astype(np.int64)
    return owners, held, int(owners.max()) + 1


def _unfit(path: str, samples: int) -> CounterpoiseError:
    return CounterpoiseError(
        f"The partition in {path} must give one client number to each of the {samples} samples, "
        f"or a list of rows below {samples} to each client."
    )


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".json":
            found = parse_json(read_text(path, MOST_LINE), str(path))
            lists = isinstance(found, list) and any(isinstance(value, list) for value in found)
            return found if lists else np.asarray(found)
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        return read_archive(path, {"owners"})["owners"]
    except FileNotFoundError:
        raise CounterpoiseError(f"There is no file {path}.") from None
    except KeyError:
        raise CounterpoiseError(f"{path} has no array called owners.") from None
    except CounterpoiseError:
        raise
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise CounterpoiseError(f"{path} cannot be read as a partition: {error}.") from None
