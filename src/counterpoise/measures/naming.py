"""Metrics by name: which ones runs have, which way is better, and which are shares."""

from __future__ import annotations

from collections.abc import Iterable

from counterpoise.errors import unknown
from counterpoise.measures.curves import curve
from counterpoise.measures.personal import own_curve
from counterpoise.measures.records import Curve, Record

__all__ = [
    "PERSONAL",
    "check_metric",
    "check_planned",
    "curve_by",
    "is_share",
    "lower_is_better",
    "metric_words",
    "metrics_of",
]

PERSONAL = "personal_"
"""Begins the name of a metric on clients' held-out data, by the model that each client would use."""
_LESS = ("loss", "error", "brier")
_SHARES = ("accuracy", "top-k")


def metrics_of(records: Iterable[Record]) -> set[str]:
    """Every metric that these rounds measured: on the test set, and on clients' held-out data as ``personal_...``."""
    found: set[str] = set()
    for record in records:
        found |= record.metrics.keys() | {PERSONAL + name.removeprefix(PERSONAL) for name in record.clients}
    return found


def check_metric(metric: str, known: Iterable[str], where: str = "in these runs") -> None:
    """Refuse a metric that was not measured, with the names of those that were."""
    names = set(known)
    if metric not in names:
        raise unknown("metric", metric, names, where)


def check_planned(metric: str, names: Iterable[str], where: str = "in these runs") -> None:
    """Refuse a metric that a run will not measure, by the `names` of its metrics, before it runs."""
    every = {"loss", *names}
    personal, trained = ({prefix + name for name in every} for prefix in (PERSONAL, "train_"))
    check_metric(metric, every | personal | trained, where)


def curve_by(records: Iterable[Record], metric: str) -> Curve:
    """``(round, value)`` of a metric by its name; ``personal_...`` is the mean over clients (see `own_curve`)."""
    own = metric.removeprefix(PERSONAL)
    return curve(records, metric) if own == metric else own_curve(records, own)


def lower_is_better(metric: str) -> bool:
    """Whether less of a metric is better: of a loss, an error or the Brier score, by its name.

    >>> [lower_is_better(name) for name in ("accuracy", "train_loss", "absolute-error", "personal_loss")]
    [False, True, True, True]
    """
    return metric.endswith(_LESS)


def metric_words(metric: str) -> str:
    """A metric's name for people.

    >>> metric_words("personal_accuracy")
    'personal accuracy'
    """
    return metric.replace("_", " ")


def is_share(metric: str) -> bool:
    """Whether a metric is a share, which is shown in percent."""
    return metric.endswith(_SHARES)
