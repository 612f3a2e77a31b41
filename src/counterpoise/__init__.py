"""Federated learning for clients that differ, drift and sometimes lie.

>>> import counterpoise as cp
>>> fed = cp.load("digits", partition=cp.dirichlet(0.5, clients=10), seed=0)
>>> run = cp.simulate(cp.methods.fedprox(mu=0.01), fed, model=cp.models.mlp, rounds=3, cohort=5, seed=0)
>>> run
Run(fedprox, seed 0, 3 rounds, finished, accuracy ...)
"""

import os as _os

# Let waiting threads sleep. By default torch's threads spin, which slows down everything else on the machine: two runs
# side by side on two cores took eight times as long. torch reads this once, when it is loaded; a value that is already
# in the environment stays.
_os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from counterpoise import adversary, augment, logs, measures, methods, models, parts
    from counterpoise.adversary import Adversary
    from counterpoise.comparisons.calls import compare, sweep
    from counterpoise.comparisons.comparison import Comparison
    from counterpoise.engine import Engine, Evaluation, Limits
    from counterpoise.errors import CounterpoiseError, Diverged, Failed, Interrupted
    from counterpoise.federation import (
        Availability,
        Federation,
        Partition,
        bernoulli,
        capped_dirichlet,
        client_dirichlet,
        colour,
        day_and_night,
        dirichlet,
        draws,
        flwr,
        from_file,
        iid,
        load,
        lq,
        mixed,
        natural,
        noise,
        pachinko,
        padded,
        power_law,
        quantity_dirichlet,
        rare,
        replay,
        rotation,
        shards,
        stragglers,
        weighted,
    )
    from counterpoise.local import Local, Optimizer, adam, adamw, constant, cosine, exponential, listed, sgd, stairs
    from counterpoise.measures.stopping import when
    from counterpoise.method import Client, Cohort, Method, Part, Reply, Round, Step, Verdict, World
    from counterpoise.reports.inline import Report, report
    from counterpoise.runs import Run, resume, simulate
    from counterpoise.studies.performing import study
else:
    from counterpoise.lazy import attach as _attach

    __getattr__, __dir__ = _attach(
        __name__,
        {
            "counterpoise": "adversary augment engine errors federation flat hooks local logs measures memory method methods "
            "models parts randomness registry runs texts",
            "counterpoise.adversary": "Adversary",
            "counterpoise.comparisons.calls": "compare sweep",
            "counterpoise.comparisons.comparison": "Comparison",
            "counterpoise.engine": "Engine Evaluation Limits",
            "counterpoise.errors": "CounterpoiseError Diverged Failed Interrupted",
            "counterpoise.federation": "Availability Federation Partition bernoulli capped_dirichlet client_dirichlet "
            "colour day_and_night dirichlet draws flwr from_file iid load lq mixed natural noise pachinko padded power_law "
            "quantity_dirichlet rare replay rotation shards stragglers weighted",
            "counterpoise.local": "Local Optimizer adam adamw constant cosine exponential listed sgd stairs",
            "counterpoise.measures.stopping": "when",
            "counterpoise.method": "Client Cohort Method Part Reply Round Step Verdict World",
            "counterpoise.reports.inline": "Report report",
            "counterpoise.runs": "Run resume simulate",
            "counterpoise.studies.performing": "study",
        },
    )

__version__ = "0.1.0"

__all__ = [
    "Adversary",
    "Availability",
    "Client",
    "Cohort",
    "Comparison",
    "CounterpoiseError",
    "Diverged",
    "Engine",
    "Evaluation",
    "Failed",
    "Federation",
    "Interrupted",
    "Limits",
    "Local",
    "Method",
    "Optimizer",
    "Part",
    "Partition",
    "Reply",
    "Report",
    "Round",
    "Run",
    "Step",
    "Verdict",
    "World",
    "adam",
    "adamw",
    "adversary",
    "augment",
    "bernoulli",
    "capped_dirichlet",
    "client_dirichlet",
    "colour",
    "compare",
    "constant",
    "cosine",
    "day_and_night",
    "dirichlet",
    "draws",
    "exponential",
    "flwr",
    "from_file",
    "iid",
    "listed",
    "load",
    "logs",
    "lq",
    "measures",
    "methods",
    "mixed",
    "models",
    "natural",
    "noise",
    "pachinko",
    "padded",
    "parts",
    "power_law",
    "quantity_dirichlet",
    "rare",
    "replay",
    "report",
    "resume",
    "rotation",
    "sgd",
    "shards",
    "simulate",
    "stairs",
    "stragglers",
    "study",
    "sweep",
    "weighted",
    "when",
]
