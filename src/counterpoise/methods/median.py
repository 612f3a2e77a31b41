"""The median and the trimmed mean, coordinate by coordinate.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates, ICML 2018, definitions 1 and 2 and Algorithm 1.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from counterpoise.errors import CounterpoiseError
from counterpoise.method import Method, Part, Round, World
from counterpoise.methods.registry import METHODS
from counterpoise.parts import by_columns, server_step
from counterpoise.registry import Option, Paper

__all__ = ["median", "trimmed_mean"]

PAPER = Paper(
    "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
    "Yin, Chen, Ramchandran, Bartlett",
    2018,
    "arXiv:1803.01498",
)

Lr = Annotated[float, Option("server learning rate", above=0)]


@METHODS.register("median", group="robustness", paper=PAPER)
def median(lr: Lr = 1.0) -> Method:
    """The median of the updates, coordinate by coordinate.

    ``w <- w + lr med_i d_i`` (definition 1); for an even number of clients, the mean of the two in the middle.
    """
    return Method("median", combine=(trimmed(0.5),), update=(server_step(lr),))


@METHODS.register("trimmed-mean", group="robustness", paper=PAPER)
def trimmed_mean(
    trim: Annotated[float, Option("share of the clients left out at each end", low=0, below=0.5)] = 0.25,
    lr: Lr = 1.0,
) -> Method:
    """The mean without the largest and the smallest, coordinate by coordinate.

    ``floor(trim |S|)`` clients are left out at each end of each coordinate (definition 2). If that is nobody, one liar
    is enough to move the mean, so such a cohort is refused and such a round is skipped.
    """
    return Method("trimmed-mean", combine=(trimmed(trim),), update=(server_step(lr),))


def trimmed(trim: float) -> Part:
    """The mean of each coordinate after its ends are cut; at trim 0.5, the mean of the middle one or two."""

    def ends(count: int) -> int:
        return min(int(trim * count + 1e-9), (count - 1) // 2)  # 0.29 * 100 is a little less than 29

    def idle(count: int) -> bool:
        return 0 < trim < 0.5 and ends(count) == 0

    def apply(round: Round) -> Round:
        count = len(round.cohort)
        cut = ends(count)
        if idle(count):
            return round.skip(f"trimmed-mean leaves out none of {count} clients at trim {trim:g}")

        def middle(columns: Tensor) -> Tensor:
            return columns.sort(dim=0).values[cut : count - cut].mean(0)

        return round.but(weights=None, combined=by_columns(middle, round.cohort.updates))

    def check(world: World) -> None:
        if idle(world.cohort):
            raise CounterpoiseError(
                f"method trimmed-mean with trim {trim:g} leaves out none of {world.cohort} clients a round, so it "
                "tolerates no faulty one. Raise the option trim or the cohort, so that their product is at least 1."
            )

    return Part("median" if trim == 0.5 else "trimmed-mean", apply=apply, check=check)
