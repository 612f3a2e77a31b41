"""FedDua's options, and the numbers that are not options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "BRANCH_STEPS",
    "LADDER",
    "REMEMBERED",
    "Embedding",
    "Estimate",
    "Evidence",
    "Factor",
    "Loss",
    "Options",
    "Prior",
]

Factor = Literal["branch", "direct"]
Prior = Literal["proxy", "network", "cohort"]
Evidence = Literal["report", "displacement", "both"]
Estimate = Literal["prior", "report"]
Embedding = Literal["fixed", "learnable"]
Loss = Literal["relative", "printed"]

REMEMBERED = 128
"""Points of recent rounds that the fits use beside the cohort's own."""
LADDER = 8
"""Sizes at which the server trains on its proxy set."""
BRANCH_STEPS = 5
"""Steps of eq. 11 after an epoch."""


@dataclass(frozen=True)
class Options:
    """The options of `feddua`."""

    factor: Factor
    prior: Prior
    evidence: Evidence
    memory: bool
    estimate: Estimate
    threshold: float
    patience: int
    embedding: Embedding
    rate: float
    loss: Loss = "relative"

    @property
    def branch(self) -> bool:
        return self.factor == "branch"

    @property
    def rehearses(self) -> bool:
        """Whether the server trains on its proxy set."""
        return self.prior != "cohort" and "report" in self.kinds

    @property
    def witnessed(self) -> bool:
        """Whether that training is a measure of clients' reports: the branch's factor follows the claim's error too little."""
        return self.rehearses and not self.branch

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of evidence. Under the branch a report is held against itself too (eq. 6)."""
        own = ("report", "consistency") if self.branch else ("report",)
        return {"report": own, "displacement": ("displacement",), "both": (*own, "displacement")}[self.evidence]
