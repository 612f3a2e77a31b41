"""Named data sets, and `load`: a data set dealt to clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from counterpoise.errors import CounterpoiseError, unknown
from counterpoise.federation.federation import Federation
from counterpoise.federation.partition import Partition
from counterpoise.randomness import integer, purpose

__all__ = ["DATASETS", "load"]


class Raw(NamedTuple):
    """A data set's arrays; byte inputs are scaled by `scale` and then `shift`."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    scale: float = 1.0 / 255
    shift: float = 0.0


def _digits(seed: int) -> Raw:
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels with 17 grey levels; every fifth is for the test."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise CounterpoiseError(
            "The data set 'digits' comes with scikit-learn; install it: pip install scikit-learn."
        ) from error
    found = load_digits()
    x, y = found.images.astype(np.uint8)[:, None], found.target.astype(np.int64)
    test = np.arange(len(y)) % 5 == 4
    return Raw(x[~test], y[~test], x[test], y[test], scale=1.0 / 8, shift=-1.0)


def _synthetic(seed: int) -> Raw:
    """Ten Gaussian clouds in 32 dimensions, 12,000 samples, for populations of any size."""
    generator = np.random.Generator(np.random.Philox(integer(seed, purpose("synthetic"))))
    centres = generator.standard_normal((10, 32)).astype(np.float32)
    y = np.arange(12_000) % 10
    x = centres[y] + 1.5 * generator.standard_normal((len(y), 32)).astype(np.float32)
    return Raw(x[:10_000], y[:10_000], x[10_000:], y[10_000:])


DATASETS: dict[str, Callable[[int], Raw]] = {"digits": _digits, "synthetic": _synthetic}


def load(
    name: str,
    *,
    partition: Partition,
    heldout: float = 0.2,
    probe: int = 0,
    proxy: int = 0,
    seed: int = 0,
) -> Federation:
    """A named data set dealt to clients; the settings are those of `Federation.from_arrays`.

    >>> import counterpoise as cp
    >>> cp.load("digits", partition=cp.dirichlet(0.5, clients=10), probe=1)
    Federation(10 clients, samples of shape (1, 8, 8), test 359, probe 10)
    """
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    if not isinstance(partition, Partition):
        raise CounterpoiseError("partition must be a recipe such as cp.dirichlet(0.5, clients=100).")
    raw = DATASETS[name](seed)
    federation = Federation.from_arrays(
        raw.x_train,
        raw.y_train,
        partition=partition,
        test=(raw.x_test, raw.y_test),
        heldout=heldout,
        probe=probe,
        proxy=proxy,
        seed=seed,
        scale=raw.scale,
        shift=raw.shift,
    )
    source = {
        "name": name,
        "partition": partition.spec.plain(),
        "heldout": heldout,
        "probe": probe,
        "proxy": proxy,
        "seed": seed,
    }
    object.__setattr__(federation, "source", source)
    return federation
