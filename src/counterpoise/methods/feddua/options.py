"""FedDua's options and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from counterpoise.errors import CounterpoiseError
from counterpoise.methods.feddua.constants import BRANCH_RATE, PATIENCE, THRESHOLD
from counterpoise.registry import Option

__all__ = [
    "BranchRate",
    "Embedding",
    "Estimate",
    "Evidence",
    "Factor",
    "Loss",
    "Memory",
    "Options",
    "Paper",
    "Patience",
    "Prior",
    "Threshold",
    "follow_paper",
]

Factor = Annotated[
    Literal["branch", "direct"],
    Option("the adjustment factor: predicted by the quantity-aware branch (eq. 7), or computed (eq. 12)"),
]
Prior = Annotated[
    Literal["proxy", "network", "cohort"],
    Option(
        "what honest factors look like: the server trains on its proxy set and fits a line or a small network, "
        "or it fits the cohort's majority"
    ),
]
Evidence = Annotated[
    Literal["report", "displacement", "both"],
    Option("what a claim is compared with: the client's report, the update it sent, or both"),
]
Memory = Annotated[bool, Option("also judge a client by its average over its last rounds, not by each round alone")]
Estimate = Annotated[
    Literal["prior", "report"],
    Option("how a rejected count is estimated: from the prior, or from the reported factor as in line 13"),
]
Threshold = Annotated[float, Option("a claim this many standard deviations off is rejected", above=0)]
Patience = Annotated[int, Option("a client with more warnings than this is excluded", low=0)]
Embedding = Annotated[
    Literal["fixed", "learnable"], Option("whether a client's embedding stays fixed or is learned with the branch")
]
BranchRate = Annotated[float, Option("lambda in eq. 11, the branch's learning rate", above=0)]
Paper = Annotated[
    bool,
    Option(
        "the paper's own combination: branch with the printed loss, network, report, estimate by report, no memory. "
        "It replaces these options even if their defaults are given"
    ),
]
Loss = Annotated[
    Literal["relative", "printed"],
    Option("eq. 8 relative to the count, or as printed; both with steps capped at length 1"),
]


@dataclass(frozen=True)
class Options:
    """The options of `feddua`."""

    factor: Factor = "branch"
    prior: Prior = "cohort"
    evidence: Evidence = "both"
    memory: Memory = True
    estimate: Estimate = "prior"
    threshold: Threshold = THRESHOLD
    patience: Patience = PATIENCE
    embedding: Embedding = "fixed"
    branch_rate: BranchRate = BRANCH_RATE
    branch_loss: Loss = "relative"

    @property
    def branch(self) -> bool:
        """Whether clients train the branch."""
        return self.factor == "branch"

    @property
    def learnable(self) -> bool:
        """Whether clients learn their embedding."""
        return self.branch and self.embedding == "learnable"

    @property
    def rehearses(self) -> bool:
        """Whether the server trains on its proxy set."""
        return self.prior != "cohort" and "report" in self.kinds

    @property
    def witnessed(self) -> bool:
        """Whether reports are compared with that training. With a branch they are not: its factor shows lies too weakly."""
        return self.rehearses and not self.branch

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of evidence. With the branch, a claim is also compared with the client's own factor (eq. 6)."""
        own = ("report", "consistency") if self.branch else ("report",)
        return {"report": own, "displacement": ("displacement",), "both": (*own, "displacement")}[self.evidence]


def follow_paper(options: Options) -> Options:
    """Set the paper's own combination; refuse an option that contradicts it.

    A default that was given cannot be told from one that was not, so it is replaced like the others.
    """
    usual = Options()
    printed = replace(
        options,
        factor="branch",
        prior="network",
        evidence="report",
        memory=False,
        estimate="report",
        branch_loss="printed",
    )
    for name in ("factor", "prior", "evidence", "estimate", "branch_loss"):
        asked, wanted = getattr(options, name), getattr(printed, name)
        if asked not in (getattr(usual, name), wanted):
            raise CounterpoiseError(f"feddua: paper means {name} {wanted!r}, not {asked!r}; leave one of the two out.")
    return printed
