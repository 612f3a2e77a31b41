"""The named data sets: what each is, who publishes it under which licence, and how its files are read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.readers import (
    Raw,
    read_archive,
    read_arrays,
    read_cifar,
    read_idx,
    read_stl_images,
    read_stl_labels,
    read_texts,
)
from counterpoise.federation.sources import Remote, data_folder, ensure, here, md5
from counterpoise.hashing import integer, purpose

__all__ = ["DATASETS", "DataSet", "place"]

log = logging.getLogger(__name__)

_OTHER = "not the published files:"


@dataclass(frozen=True)
class DataSet:
    """A named data set. One without `files` comes with a package, or is generated."""

    name: str
    summary: str
    licence: str
    home: str
    read: Callable[[Path, int], Raw]
    """Reads the arrays, given the data folder and a seed for sets that are drawn at random."""
    files: tuple[Remote, ...] = ()
    identities: Callable[[Path], np.ndarray] | None = None
    """Who each training sample comes from, for a natural partition."""

    def arrays(self, seed: int = 0) -> Raw:
        """The arrays from the local data folder; files that are not there are fetched first."""
        folder = data_folder()
        if (
            self.files
            and (own := folder / f"{self.name}.npz").is_file()
            and all(f.path != own.name for f in self.files)
        ):
            return read_arrays(own)
        self.bring()
        if (said := self.provenance()).startswith(_OTHER):
            log.warning("%s: %s.", self.name, said)
        return self.read(folder, seed)

    def provenance(self) -> str:
        """Whether the data folder holds the published files, as far as can be checked; '' if it holds none."""
        found, folder = place(self), data_folder()
        if found is None:
            return ""
        if found.suffix == ".npz" and all(remote.path != found.name for remote in self.files):
            return f"unchecked: {found.name} is a file of your own in place of the published ones"
        whole = [remote for remote in self.files if not remote.members]
        if other := [Path(remote.path).name for remote in whole if md5(folder / remote.path) != remote.md5]:
            return f"{_OTHER} {', '.join(other)} (different MD5)"
        if len(whole) < len(self.files):
            return "unchecked: these files were unpacked from an archive, and only the archive's MD5 is published"
        return "as published: every MD5 matches"

    def bring(self) -> None:
        """Fetch the files that are not in the local data folder."""
        if place(self) is None:
            own = f"{self.name}.npz"
            other = all(remote.path != own for remote in self.files)
            ensure(self.files, data_folder(), f"{own} (x_train, y_train, x_test, y_test)" if other else "")


def place(dataset: DataSet) -> Path | None:
    """The file or folder that `arrays` would read, or None if it would have to fetch something."""
    folder = data_folder()
    if (own := folder / f"{dataset.name}.npz").is_file():
        return own
    if all(here(remote, folder) for remote in dataset.files):
        return (folder / dataset.files[0].path).parent if dataset.files else None
    return None


# ---------------------------------------------------------------- sets that need no files


def _digits(folder: Path, seed: int) -> Raw:
    """Every fifth sample is for the test; 17 grey levels become -1 to 1."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise CounterpoiseError("The data set 'digits' comes with scikit-learn; install it: pip install scikit-learn.")
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.exists():  # importing scikit-learn takes seconds, and in a deployment for every message to a node
        table = np.loadtxt(file, np.int64, delimiter=",")
    else:
        from sklearn.datasets import load_digits

        table = np.column_stack(load_digits(return_X_y=True)).astype(np.int64)
    x, y = table[:, :-1].astype(np.uint8).reshape(-1, 1, 8, 8), table[:, -1]
    test = np.arange(len(y)) % 5 == 4
    return Raw(x[~test], y[~test], x[test], y[test], peak=16, scaling="centred")


def _synthetic(folder: Path, seed: int) -> Raw:
    generator = np.random.Generator(np.random.Philox(integer(seed, purpose("synthetic"))))
    centres = generator.standard_normal((10, 32)).astype(np.float32)
    y = np.arange(12_000) % 10
    x = centres[y] + 1.5 * generator.standard_normal((len(y), 32)).astype(np.float32)
    return Raw(x[:10_000], y[:10_000], x[10_000:], y[10_000:])


# ---------------------------------------------------------------- published files


_MB = 10**6


def _idx_files(name: str, mirrors: tuple[str, ...], checksums: tuple[str, str, str, str]) -> tuple[Remote, ...]:
    files = [f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
    return tuple(
        Remote(f"{name}/{file}", tuple(mirror + file for mirror in mirrors), md5, most=40 * _MB)
        for file, md5 in zip(files, checksums, strict=True)
    )


def _read_idx_files(name: str) -> Callable[[Path, int], Raw]:
    def read(folder: Path, seed: int) -> Raw:
        x_train, y_train, x_test, y_test = (
            read_idx(folder / name / f"{part}-{what}-ubyte.gz")
            for part in ("train", "t10k")
            for what in ("images-idx3", "labels-idx1")
        )
        return Raw(x_train[:, None], y_train, x_test[:, None], y_test)

    return read


_QMNIST = Remote(
    "mnist/qmnist-train-labels-idx2-int.gz",
    ("https://raw.githubusercontent.com/facebookresearch/qmnist/master/qmnist-train-labels-idx2-int.gz",),
    "0058f8dd561b90ffdd0f734c6a30e5e4",
    most=40 * _MB,
)


def _writers(folder: Path) -> np.ndarray:
    """MNIST's writers: the third column of QMNIST's labels, which are in MNIST's order."""
    if (own := folder / "mnist_writers.npz").is_file():
        found = read_archive(own, {"writer_train"})
        if "writer_train" not in found:
            raise CounterpoiseError(f"{own} has no array called writer_train.")
        return found["writer_train"]
    ensure([_QMNIST], folder, "mnist_writers.npz (writer_train)")
    return np.ascontiguousarray(read_idx(folder / _QMNIST.path)[:, 2])


def _cifar(name: str, archive: str, md5: str, prefix: str, train: tuple[str, ...], test: str) -> tuple[Remote, ...]:
    members = tuple(f"{prefix}/{file}" for file in (*train, test))
    return (Remote(f"{name}/{archive}", (f"https://www.cs.toronto.edu/~kriz/{archive}",), md5, members, 400 * _MB),)


def _read_cifar(name: str, train: tuple[str, ...], test: str, labels: int) -> Callable[[Path, int], Raw]:
    def read(folder: Path, seed: int) -> Raw:
        return Raw(
            *read_cifar([folder / name / file for file in train], labels),
            *read_cifar([folder / name / test], labels),
        )

    return read


_CIFAR10 = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_STL = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")


def _read_stl(folder: Path, seed: int) -> Raw:
    x_train, y_train, x_test, y_test = (folder / "stl10" / file for file in _STL)
    return Raw(read_stl_images(x_train), read_stl_labels(y_train), read_stl_images(x_test), read_stl_labels(y_test))


def _medmnist(name: str, md5: str, summary: str) -> DataSet:
    """MedMNIST publishes one .npz file per set; its validation part stays unused."""
    url = f"https://zenodo.org/records/10519652/files/{name}.npz?download=1"
    return DataSet(
        name,
        summary,
        "CC BY 4.0",
        "https://medmnist.com",
        lambda folder, seed: read_arrays(folder / f"{name}.npz"),
        (Remote(f"{name}.npz", (url,), md5, most=500 * _MB),),
    )


# Addresses and checksums are those of torchvision 0.29 and medmnist 3.0, for CIFAR's binary versions of its home page.
_SETS = (
    DataSet(
        "digits",
        "1,797 handwritten digits of 8 x 8 pixels, from scikit-learn",
        "CC BY 4.0",
        "https://archive.ics.uci.edu/dataset/80",
        _digits,
    ),
    DataSet(
        "synthetic",
        "12,000 samples of ten Gaussian clouds in 32 dimensions, drawn from the seed",
        "none needed",
        "",
        _synthetic,
    ),
    DataSet(
        "mnist",
        "70,000 handwritten digits of 28 x 28 pixels; 539 writers in the training part",
        "CC BY-SA 3.0",
        "http://yann.lecun.com/exdb/mnist/",
        _read_idx_files("mnist"),
        _idx_files(
            "mnist",
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        _writers,
    ),
    DataSet(
        "fashion-mnist",
        "70,000 pictures of clothes in 10 classes, 28 x 28 grey pixels",
        "MIT",
        "https://github.com/zalandoresearch/fashion-mnist",
        _read_idx_files("fashion-mnist"),
        _idx_files(
            "fashion-mnist",
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
    ),
    DataSet(
        "cifar10",
        "60,000 photographs in 10 classes, 32 x 32 colour pixels",
        "none stated; cite Krizhevsky 2009",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        _read_cifar("cifar10", _CIFAR10, "test_batch.bin", 1),
        _cifar(
            "cifar10",
            "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            "cifar-10-batches-bin",
            _CIFAR10,
            "test_batch.bin",
        ),
    ),
    DataSet(
        "cifar100",
        "60,000 photographs in 100 classes, 32 x 32 colour pixels",
        "none stated; cite Krizhevsky 2009",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        _read_cifar("cifar100", ("train.bin",), "test.bin", 2),
        _cifar(
            "cifar100",
            "cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            "cifar-100-binary",
            ("train.bin",),
            "test.bin",
        ),
    ),
    DataSet(
        "stl10",
        "13,000 labelled photographs in 10 classes, 96 x 96 colour pixels; the unlabelled ones are left out",
        "none stated; cite Coates et al. 2011",
        "https://cs.stanford.edu/~acoates/stl10/",
        _read_stl,
        (
            Remote(
                "stl10/stl10_binary.tar.gz",
                ("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",),
                "91f7769df0f17e558f3565bffb0c7dfb",
                tuple(f"stl10_binary/{file}" for file in _STL),
                4000 * _MB,
            ),
        ),
    ),
    _medmnist(
        "pathmnist",
        "a8b06965200029087d5bd730944a56c1",
        "97,176 patches of colorectal tissue in 9 classes, 28 x 28 colour pixels",
    ),
    _medmnist(
        "organamnist",
        "68e3f8846a6bd62f0c9bf841c0d9eacc",
        "52,339 axial CT slices of 11 organs, 28 x 28 grey pixels",
    ),
    _medmnist(
        "bloodmnist",
        "7053d0359d879ad8a5505303e11de1dc",
        "15,380 blood cells in 8 classes, 28 x 28 colour pixels",
    ),
    DataSet(
        "shakespeare",
        "37 plays by role, 1,119 roles, as samples of 80 characters with those that follow",
        "public domain",
        "http://shakespeare.mit.edu",
        lambda folder, seed: read_texts(folder / "shakespeare_by_role.npz"),
        (Remote("shakespeare_by_role.npz", (), "46a7c1c4d2b4b4fac8d94e38b306af10", most=10 * _MB),),
    ),
)
DATASETS = {dataset.name: dataset for dataset in _SETS}
