"""Measures of a run, each named for what it is.

They are pure functions of records and sequences. They need no engine, so a record read from a run's
folder works as well as a fresh one. `summary` measures a whole run. A metric of your own is a function
of outputs and targets, given to `simulate(metrics=...)`; every measure here takes its name.
"""

from counterpoise.errors import guard
from counterpoise.measures.columns import COLUMNS, Column
from counterpoise.measures.comparison import Standing, best_two, on_shared_seeds, standings
from counterpoise.measures.cost import Cost, cost
from counterpoise.measures.coupling import couplings, effective_clients, effective_number, spearman
from counterpoise.measures.curves import (
    Best,
    across_seeds,
    best,
    best_by_clients,
    bytes_to,
    curve,
    last,
    mean_of_last,
    rounds_to,
    volatility,
)
from counterpoise.measures.detection import (
    Caught,
    Detection,
    auc,
    caught_by_round,
    count_error,
    detection,
    false_alarms,
    recall,
    roc,
)
from counterpoise.measures.fairness import Distribution, distribution
from counterpoise.measures.naming import (
    CLIENT,
    PERSONAL,
    check_metric,
    curve_by,
    is_share,
    lower_is_better,
    measured_as,
    metric_words,
    metrics_of,
    of_clients,
    plain_name,
    usual_metric,
)
from counterpoise.measures.personal import client_curve, has_personal, own, own_curve
from counterpoise.measures.records import Curve
from counterpoise.measures.significance import (
    MOST_SEEDS,
    WILCOXON_FROM,
    Paired,
    paired,
    seeds_needed,
    student_factor,
    student_interval,
)
from counterpoise.measures.summary import summary

__all__ = [
    "CLIENT",
    "COLUMNS",
    "MOST_SEEDS",
    "PERSONAL",
    "WILCOXON_FROM",
    "Best",
    "Caught",
    "Column",
    "Cost",
    "Curve",
    "Detection",
    "Distribution",
    "Paired",
    "Standing",
    "across_seeds",
    "auc",
    "best",
    "best_by_clients",
    "best_two",
    "bytes_to",
    "caught_by_round",
    "check_metric",
    "client_curve",
    "cost",
    "count_error",
    "couplings",
    "curve",
    "curve_by",
    "detection",
    "distribution",
    "effective_clients",
    "effective_number",
    "false_alarms",
    "has_personal",
    "is_share",
    "last",
    "lower_is_better",
    "mean_of_last",
    "measured_as",
    "metric_words",
    "metrics_of",
    "of_clients",
    "on_shared_seeds",
    "own",
    "own_curve",
    "paired",
    "plain_name",
    "recall",
    "roc",
    "rounds_to",
    "seeds_needed",
    "spearman",
    "standings",
    "student_factor",
    "student_interval",
    "summary",
    "usual_metric",
    "volatility",
]

guard(__name__)
