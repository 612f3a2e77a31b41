"""A server without clients: random cohorts, and a world that answers what it was given."""

from __future__ import annotations

import numpy as np
import torch

from counterpoise.engine.rounds.admission import Limits
from counterpoise.engine.rounds.server import Server
from counterpoise.flat import Layout
from counterpoise.local import Local
from counterpoise.method import Cohort


class FixedWorld:
    """A world of fixed answers; `outputs` is a function of the models, for the probe."""

    def __init__(self, size: int, round: int = 1, population: int = 10, outputs=None, targets=None, local=None) -> None:
        self.round, self.population, self.key = round, population, 7
        self.cohort = population
        self.local = local or Local()
        self.layout = Layout(("w",), ((size,),))
        self._outputs, self.probe_targets = outputs, targets

    def probe(self, models):
        return self._outputs(models)

    def rehearse(self, sizes):
        raise AssertionError("nobody should rehearse here")


def cohort(ids, updates, examples=None, reports=None) -> Cohort:
    updates = torch.as_tensor(np.asarray(updates), dtype=torch.float64)
    examples = np.ones(len(ids)) if examples is None else np.asarray(examples)
    return Cohort(
        tuple(int(i) for i in ids),
        updates,
        torch.as_tensor(examples, dtype=torch.float64),
        torch.ones(len(ids), dtype=torch.int64),
        reports or {},
    )


def server(method, size: int, start=None) -> Server:
    start = torch.zeros(size, dtype=torch.float64) if start is None else torch.as_tensor(start, dtype=torch.float64)
    return Server(method, start, Limits(norm_ratio=float("inf")))
