"""A federation: who holds what, and what the server holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from counterpoise.errors import CounterpoiseError, brief, takes_only_its_options, unknown
from counterpoise.federation.assignment import Assignment, Elsewhere, Table
from counterpoise.federation.bringing import bring
from counterpoise.federation.dealing import Array, deal, is_natural
from counterpoise.federation.features import Skew
from counterpoise.federation.fingerprints import fingerprint
from counterpoise.federation.naming import Column, Names, unify
from counterpoise.federation.partition import Partition
from counterpoise.federation.samples import Samples
from counterpoise.federation.scaling import PLAIN, Scaling, scaled
from counterpoise.federation.structure import check_alike
from counterpoise.randomness import check_seed
from counterpoise.trees import cat

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

__all__ = ["Federation"]


@takes_only_its_options()
@dataclass(frozen=True)
class Federation:
    """Clients' data as rows of shared arrays, and the server's own sets, which no client holds."""

    base: Samples
    """The arrays that clients' rows point into."""
    train: Assignment
    heldout: Assignment
    """The part of each client's data that it does not train on, to measure its own accuracy."""
    test: Samples | None = None
    probe: Samples | None = None
    """A few inputs per class on the server (FedA4): samples, or made ones (`counterpoise.federation.probes`)."""
    proxy: Samples | None = None
    """Public samples on which the server can train (FedDua)."""
    classes: int | None = None
    source: dict[str, Any] | None = field(default=None, compare=False)
    """How to load it again, if it came from `counterpoise.load`."""
    reported: bool = field(default=False, compare=False)
    """Whether the probe set was made from what clients report."""
    client_names: Names | None = field(default=None, compare=False)
    """What clients are called, in the order of their numbers, if they have names."""
    class_names: Names | None = field(default=None, compare=False)
    """What class numbers stand for, if classes have names."""
    aside: int = field(default=0, compare=False)
    """How many samples of `base` the test set took from clients."""

    def __post_init__(self) -> None:
        if not isinstance(self.base, Samples):
            raise CounterpoiseError(
                f"Federation: base must be Samples, not {brief(self.base)}. For arrays use Federation.from_arrays or "
                "Federation.from_clients, for torch Datasets and files Federation.from_datasets, for a named data set "
                "cp.load."
            )
        if self.client_names is not None and len(self.client_names) != self.clients:
            raise CounterpoiseError(f"{len(self.client_names)} names were given for {self.clients} clients.")

    @property
    def clients(self) -> int:
        return self.train.clients

    @property
    def shape(self) -> Any:
        """The shape of one sample, as a model takes it; of a sample in parts, a tuple or dictionary of shapes."""
        return self.base.shape

    def __repr__(self) -> str:
        from counterpoise.federation.pictures import federation_text

        return federation_text(self)

    def _repr_html_(self) -> str:
        from counterpoise.federation.pictures import federation_html

        return federation_html(self)

    def plot(self) -> go.Figure:
        """Who holds which labels, as a plotly figure."""
        from counterpoise.federation.pictures import plot_federation

        return plot_federation(self)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of every sample and who holds it, by which a resumed run recognises its data."""
        return fingerprint(self)

    def to(self, device: torch.device | str) -> Federation:
        """The same federation with its samples on a device."""
        return self._changed(lambda samples: samples.to(device))

    def cropped(self, size: tuple[int, int]) -> Federation:
        """The same federation for models that take pictures of this height and width: the centres of its own."""
        return replace(self._changed(lambda samples: replace(samples, crop=size)), source=None)

    def per_picture(self) -> Federation:
        """The same federation for models that take each picture with mean 0 and standard deviation 1 of its own."""
        return replace(self._changed(lambda samples: replace(samples, per_picture=True)), source=None)

    def _changed(self, change: Callable[[Samples], Samples]) -> Federation:
        sets = {name: getattr(self, name) for name in ("base", "test", "probe", "proxy")}
        return replace(self, **{name: None if held is None else change(held) for name, held in sets.items()})  # type: ignore[arg-type]

    def frame(self) -> pd.DataFrame:
        """How many samples of each label each client holds, held-out ones included, as a table of pandas."""
        from counterpoise.federation.pictures import federation_frame

        return federation_frame(self)

    def only(self, client: int | str) -> Federation:
        """One client's data, by its number or name, as a federation of its own, as a node of a deployment gets it.

        >>> import numpy as np
        >>> fed = Federation.from_arrays(np.zeros((6, 2), "f"), np.arange(6) % 2, partition=[[0, 1, 2], [3, 4, 5]])
        >>> fed.only(1).clients, len(fed.only(1).base)
        (1, 3)
        """
        names = self.client_names or ()
        client = names.index(client) if client in names else client
        if type(client) is not int or not 0 <= client < self.clients:
            if names:
                raise unknown("client", client, names)
            raise CounterpoiseError(f"There is no client {client}; they are numbered from 0 to {self.clients - 1}.")
        ids = torch.tensor([client])
        held = [part.rows(ids)[0, : int(part.sizes(ids))] for part in (self.train, self.heldout)]
        places = torch.split(torch.arange(sum(map(len, held))), [len(rows) for rows in held])
        train, heldout = (Table.of(torch.zeros_like(rows), rows, 1) for rows in places)
        return Federation(
            self.base.rows(torch.cat(held)),
            train,
            heldout,
            classes=self.classes,
            client_names=names[client : client + 1] or None,
            class_names=self.class_names,
        )

    def on_server(self) -> Federation:
        """What the server of a deployment holds: its own sets, the number of clients, and none of their samples."""
        own = next((s for s in (self.test, self.proxy, self.probe) if s is not None), None)
        if own is None:
            raise CounterpoiseError(
                "The server of a deployment needs samples of its own to try the model on: a test, probe or proxy set."
            )
        if self.reported:
            raise CounterpoiseError(
                "A probe set of class means is made from what clients report, but a deployment has no message for "
                "that. Give its server a probe set of samples (probe=1) or of noise (probe='noise')."
            )
        nobody = torch.zeros(self.clients + 1, dtype=torch.int64)
        return replace(
            self,
            base=own.rows(torch.arange(min(2, len(own)))),
            train=Elsewhere(self.clients),
            heldout=Table(nobody, nobody[:0]),
            source=None,
        )

    @classmethod
    @takes_only_its_options()
    def from_arrays(
        cls,
        inputs: Array,
        targets: Array,
        *,
        partition: Partition | Array | Sequence[Array],
        test: tuple[Array, Array] | float | None = None,
        heldout: float = 0.2,
        probe: int | str = 0,
        proxy: int = 0,
        seed: int = 0,
        scale: Tensor | float = PLAIN,
        shift: Tensor | float = 0.0,
        identities: Array | Sequence[str] | None = None,
        features: Skew | None = None,
        skewed_test: bool = False,
        class_names: Sequence[str] | None = None,
    ) -> Federation:
        """A federation from your own arrays.

        `partition` is a recipe (``cp.dirichlet(0.5, clients=100)``), one client number per sample, or the
        rows of each client, as a list of arrays or a table. `heldout` is the fraction of each client's data
        kept to measure its own accuracy. `test` is the server's test set, ``(x, y)``, or the fraction of each
        client's data that becomes it. The server takes `probe` samples per class and `proxy` samples
        before the rest is dealt. A `probe` of ``"noise"``, or of ``"means"`` (the class means that clients
        report), takes no samples. Byte inputs become ``inputs * scale + shift`` in a batch. `identities`
        says who each sample comes from, for ``cp.natural()``; `features` makes clients see pictures
        differently (``cp.rotation(45)``), and `skewed_test` makes the test set one copy for each client, as
        it sees it. Targets that are text become class numbers, in the order of the alphabet, or of
        `class_names`, which also says what numbers stand for.

        >>> import numpy as np
        >>> fed = Federation.from_arrays(np.zeros((6, 2), "f"), np.arange(6) % 2, partition=[[0, 1, 2], [3, 4, 5]])
        >>> fed.clients, fed.train.sizes(torch.tensor([0, 1])).tolist()
        (2, [2, 2])
        """
        check_seed(seed)
        given, part = _apart(test)
        pairs = [(inputs, targets, "the data")] + ([] if given is None else [(*_pair(given, "test"), "the test set")])
        labels, names = unify([Column(where, y) for _, y, where in pairs], class_names)
        base, *tests = (Samples.of(x, y, scale, shift, where) for (x, _, where), y in zip(pairs, labels, strict=True))
        for one in tests:
            check_alike(one.inputs, "the test set", base.inputs, "the clients", "inputs", types=True)
            check_alike(one.targets, "the test set", base.targets, "the clients", "targets", types=True)
        dealt = deal(
            base,
            tests[0] if tests else part,
            partition,
            heldout=heldout,
            probe=probe,
            proxy=proxy,
            seed=seed,
            identities=identities,
            features=features,
            skewed_test=skewed_test,
            class_names=names,
        )
        return cls(**dealt)

    @classmethod
    @takes_only_its_options()
    def from_clients(cls, clients: Sequence[tuple[Array, Array]], **settings: Any) -> Federation:
        """A federation from one ``(inputs, targets)`` pair per client; settings as in `from_arrays`."""
        if isinstance(clients, Dataset):
            raise CounterpoiseError(
                "clients must be a list of pairs of inputs and targets, not one torch Dataset. Deal it with a recipe: "
                "Federation.from_datasets(dataset, partition=cp.iid(clients=10))."
            )
        if isinstance(clients, int | float | None):
            raise CounterpoiseError(f"clients must be a list of pairs of inputs and targets, not {brief(clients)}.")
        if not len(clients := list(clients)):
            raise CounterpoiseError("A federation needs at least one client.")
        if "partition" in settings:
            raise CounterpoiseError("from_clients takes no partition: each client keeps the samples it was given.")
        pairs = [_pair(pair, f"client {i}") for i, pair in enumerate(clients)]
        places = [f"client {i}" for i in range(len(pairs))]
        if (test := _apart(settings.get("test"))[0]) is not None:
            pairs, places = [*pairs, _pair(test, "test")], [*places, "the test set"]
        columns = [Column(where, y) for (_, y), where in zip(pairs, places, strict=True)]
        labels, names = unify(columns, settings.get("class_names"))
        if test is not None:
            settings["test"] = pairs.pop()[0], labels.pop()
        each = [Samples.of(x, y, where=f"client {i}") for i, ((x, _), y) in enumerate(zip(pairs, labels, strict=True))]
        for one, where in zip(each[1:], places[1:], strict=False):
            check_alike(one.inputs, where, each[0].inputs, places[0], "inputs", types=True)
            check_alike(one.targets, where, each[0].targets, places[0], "targets")
        inputs, targets = cat([s.inputs for s in each]), cat([s.targets for s in each])
        rows = torch.split(torch.arange(sum(map(len, each))), [len(s) for s in each])
        return cls.from_arrays(inputs, targets, partition=rows, **settings | {"class_names": names})

    @classmethod
    @takes_only_its_options({"augment": "cp.Local(augment=...)"})
    def from_datasets(
        cls,
        data: Any,
        *,
        partition: Partition | Array | Sequence[Array] | None = None,
        test: Any = None,
        columns: Mapping[str, str | Sequence[str]] | None = None,
        resize: int | tuple[int, int] | None = None,
        cache: str | os.PathLike[str] | bool | None = None,
        heldout: float = 0.2,
        probe: int | str = 0,
        proxy: int = 0,
        seed: int = 0,
        scaling: Scaling | None = None,
        scale: Tensor | float = PLAIN,
        shift: Tensor | float = 0.0,
        features: Skew | None = None,
        skewed_test: bool = False,
        class_names: Sequence[str] | None = None,
    ) -> Federation:
        """A federation from the data sets that you have.

        `data` is a list with one data set for each client, or a dictionary, whose keys become the clients' names. It
        may also be one data set, which `partition` deals to clients. A data set is a torch ``Dataset`` of pairs
        (input, target); a ``DataLoader``, of which only the data set counts; arrays, ``(x, y)`` or ``(x, y, x_test,
        y_test)``; a data set of Hugging Face; a frame of pandas; or the path of a folder of pictures, of a table (.csv,
        .parquet), or of what ``save_to_disk`` wrote. A test part belongs to whoever holds the data: a client measures
        its own accuracy on it, and of one data set that is dealt it becomes the server's. A client may also bring a
        pair of data sets, for training and test.

        `test` is the server's test set, in any of these forms, or the fraction of each client's data that becomes it,
        ``0.2``. `columns` names columns, or the parts of samples that are dictionaries (``{"inputs": "image",
        "targets": "label"}``). `resize` brings pictures to one height and width. `scaling` says what their bytes
        become, as in `cp.load`; or give `scale` and `shift`. Large arrays are kept on disk, in the data folder or in the
        folder `cache`; ``cache=False`` keeps them in memory. The other settings are those of `from_arrays`.

        >>> import numpy as np
        >>> from torch.utils.data import TensorDataset
        >>> north = TensorDataset(torch.rand(6, 2), torch.arange(6) % 2)
        >>> Federation.from_datasets({"north": north, "south": (np.ones((4, 2), "f"), [0, 1, 1, 0])})
        Federation(2 clients (north, south), 10 samples of shape (2,) in 2 classes, 2 of them held out; no test set)
        """
        check_seed(seed)
        given, part = _apart(test)
        found = bring(data, partition is not None, given, columns, resize, cache, class_names, is_natural(partition))
        scale, shift = scaled(found.inputs(), scaling, scale, shift)
        samples = Samples.of(found.kept.inputs, found.kept.targets, scale, shift)
        if part is not None and found.dealt < len(samples):
            raise CounterpoiseError(f"The data bring a test part, and test={part!r} asks for another. Leave test out.")
        dealt = deal(
            samples.rows(slice(found.dealt)),
            samples.rows(slice(found.dealt, None)) if found.dealt < len(samples) else part,
            found.rows() if partition is None else partition,
            heldout=heldout,
            probe=probe,
            proxy=proxy,
            seed=seed,
            identities=found.kept.identities,
            features=features,
            skewed_test=skewed_test,
            own=found.tests(),
            client_names=found.client_names,
            class_names=found.kept.class_names,
        )
        return cls(**dealt).per_picture() if scaling == "per-picture" else cls(**dealt)


def _apart(test: Any) -> tuple[Any, float | None]:
    """A test set that was given, or the fraction of clients' samples that becomes one."""
    return (None, test) if isinstance(test, int | float) and not isinstance(test, bool) else (test, None)


def _pair(given: Any, whose: str) -> tuple[Any, Any]:
    """Inputs and targets."""
    if isinstance(given, Dataset):
        return given, given  # the check of arrays says what to do
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise CounterpoiseError(
            f"{whose} must be a pair of inputs and targets, (x, y); this is of type {type(given).__name__}. "
            "Federation.from_datasets takes other forms."
        )
    return given[0], given[1]
