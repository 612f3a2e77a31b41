"""Metrics by name: which ones runs have, which way is better, and which are shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from counterpoise.errors import unknown
from counterpoise.measures.curves import curve
from counterpoise.measures.personal import client_curve, own, own_curve
from counterpoise.measures.records import Curve, Record

__all__ = [
    "CLIENT",
    "PERSONAL",
    "check_metric",
    "check_planned",
    "curve_by",
    "is_share",
    "lower_is_better",
    "measured_as",
    "metric_words",
    "metrics_of",
    "of_clients",
    "plain_name",
    "usual_metric",
]

PERSONAL = "personal_"
"""Begins the name of a metric on clients' held-out data, by the model that each client would use."""
CLIENT = "client_"
"""The same by the server's model."""
_LESS = ("loss", "error", "brier")
_SHARES = ("accuracy", "top-k")


def metrics_of(records: Iterable[Record]) -> set[str]:
    """Every metric that these rounds measured: on the test set, and as ``client_...`` and ``personal_...`` on clients."""
    found: set[str] = set()
    for record in records:
        found |= record.metrics.keys() | {PERSONAL + name.removeprefix(PERSONAL) for name in record.clients}
        found |= {CLIENT + name for name in record.clients if not name.startswith(PERSONAL)}
    return found


def plain_name(metric: str) -> str:
    """A metric's name without the prefix that says by which model and on what it is measured."""
    return metric.removeprefix(PERSONAL).removeprefix(CLIENT)


def usual_metric(known: Iterable[str]) -> str:
    """What runs are shown and compared by unless the user says otherwise: accuracy, or the loss if it is not `known`."""
    plain = {plain_name(name) for name in known}
    return "accuracy" if "accuracy" in plain or "loss" not in plain else "loss"


def measured_as(metric: str, known: Iterable[str], personal: bool) -> str:
    """A metric itself if it is `known`. Otherwise, as there is no test set, the one on clients' held-out data.

    With `personal`, that is by the model that each client would use.

    >>> measured_as("accuracy", {"client_accuracy", "personal_accuracy", "train_loss"}, personal=False)
    'client_accuracy'
    """
    names, on_clients = set(known), (PERSONAL if personal else CLIENT) + metric
    return on_clients if metric not in names and on_clients in names else metric


def check_metric(metric: str, known: Iterable[str], where: str = "in these runs") -> None:
    """Refuse a metric that was not measured, with the names of those that were."""
    names = set(known)
    if metric not in names:
        raise unknown("metric", metric, names, where)


def check_planned(metric: str, names: Iterable[str], where: str = "in these runs") -> None:
    """Refuse a metric that a run will not measure, by the `names` of its metrics, before it runs."""
    every = {"loss", *names}
    check_metric(metric, every | {prefix + name for name in every for prefix in (CLIENT, PERSONAL, "train_")}, where)


def curve_by(records: Iterable[Record], metric: str) -> Curve:
    """``(round, value)`` of a metric by its name.

    ``client_...`` and ``personal_...`` are means over clients (see `client_curve` and `own_curve`), unless a metric on
    the test set has such a name.
    """
    rounds = list(records)
    if metric.startswith(PERSONAL):
        return curve(rounds, metric) or own_curve(rounds, metric.removeprefix(PERSONAL))
    if metric.startswith(CLIENT):
        return curve(rounds, metric) or client_curve(rounds, metric.removeprefix(CLIENT))
    return curve(rounds, metric)


def of_clients(records: Sequence[Record], metric: str) -> dict[int, float]:
    """Every client's value in the last round that measured clients, by a metric's name as in `curve_by`."""
    name, personal = plain_name(metric), metric.startswith(PERSONAL)
    found = (own(r, name) if personal else dict(r.clients.get(name, {})) for r in reversed(records))
    return next((each for each in found if each), {})


def lower_is_better(metric: str) -> bool:
    """Whether less of a metric is better: of a loss, an error or the Brier score, by its name.

    >>> [lower_is_better(name) for name in ("accuracy", "train_loss", "absolute-error", "personal_loss")]
    [False, True, True, True]
    """
    return metric.endswith(_LESS)


def metric_words(metric: str) -> str:
    """A metric's name for people.

    >>> metric_words("personal_accuracy"), metric_words("client_accuracy")
    ('personal accuracy', "clients' accuracy")
    """
    name = metric.removeprefix(CLIENT)
    return ("" if name == metric else "clients' ") + name.replace("_", " ")


def is_share(metric: str) -> bool:
    """Whether a metric is a share, which is shown in percent."""
    return metric.endswith(_SHARES)
