"""What the server accepts of what it was sent. Everything else is left out, with a reason."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from counterpoise.errors import CounterpoiseError, Diverged
from counterpoise.method import Cohort

__all__ = ["Limits", "admit"]


@dataclass(frozen=True)
class Limits:
    """Bounds on a client's reply."""

    norm_ratio: float = 1000.0
    """How many times the median of the cohort an update's norm may be; infinity turns the bound off.

    The median is over clients that moved, so that a cohort at rest does not exclude one that is not."""
    max_examples: int = 2**53
    """The largest data count a client may claim; by default the largest that can be counted exactly."""

    def __post_init__(self) -> None:
        if not isinstance(self.norm_ratio, int | float) or not self.norm_ratio > 1:
            raise CounterpoiseError(f"limits: norm_ratio must be above 1, not {self.norm_ratio!r}.")
        if type(self.max_examples) is not int or self.max_examples < 1:
            raise CounterpoiseError(f"limits: max_examples must be at least 1, not {self.max_examples!r}.")


def admit(cohort: Cohort, limits: Limits) -> tuple[Cohort, dict[int, str]]:
    """The clients whose reply is usable, and why each of the others is not.

    Exclusion must not hide a learning rate that is too high: when most updates are not finite,
    training has diverged.
    """
    if not len(cohort):
        return cohort, {}
    reasons: dict[int, str] = {}

    def refuse(bad: Tensor, reason: str) -> None:
        for place in bad.nonzero().squeeze(1).tolist():
            reasons.setdefault(cohort.ids[place], reason)

    norms = torch.linalg.vector_norm(cohort.updates, dim=1, dtype=torch.float64)
    finite = norms.isfinite()
    if 2 * int((~finite).sum()) > len(cohort):
        raise Diverged(
            f"Training diverged: the updates of {int((~finite).sum())} of {len(cohort)} clients are not finite. "
            "Lower the learning rate (local.optimizer.lr)."
        )
    refuse(~finite, "its update holds NaN or infinity")
    claims = cohort.examples
    refuse(~claims.isfinite(), "the data count it claims is not a number")
    refuse(claims <= 0, "it claims no data")
    refuse(claims != claims.round(), "the data count it claims is not whole")
    steps = cohort.steps
    refuse(
        ~(steps.isfinite() & (steps > 0) & (steps == steps.round())),
        "the number of steps it reports is not a positive whole number",
    )
    refuse(claims > limits.max_examples, f"it claims more than the {limits.max_examples} samples allowed")
    for part, named in cohort.reports.items():
        for name, values in named.items():
            refuse(
                ~values.flatten(1).isfinite().all(1) if values.ndim > 1 else ~values.isfinite(),
                f"its report {part}/{name} is not finite",
            )
    moved = norms[finite & (norms > 0)]
    if len(moved):
        middle = moved.median()
        refuse(
            finite & (norms > limits.norm_ratio * middle),
            f"its update is over {limits.norm_ratio:g} times as long as the cohort's median",
        )
    good = torch.tensor([client not in reasons for client in cohort.ids], device=cohort.updates.device)
    return cohort.keep(good), reasons
