"""Counterpoise: as much of each client's memory as the cohorts show to be worth, on the clients as far as it is safe.

This library's own method. docs/methods/counterpoise.md says what it computes and what it costs.
"""

from __future__ import annotations

from typing import Annotated

from counterpoise import parts
from counterpoise.method import Method
from counterpoise.methods.around import PAPER
from counterpoise.methods.registry import METHODS
from counterpoise.parts.memory import Weights
from counterpoise.registry import Option

__all__ = ["counterpoise"]


@METHODS.register("counterpoise", group="drift and variance", paper=PAPER)
def counterpoise(
    coefficient: Annotated[
        float | None,
        Option("c, how much of a client's memory counts; by default estimated, and 0 turns it off", low=0, high=1),
    ] = None,
    share: Annotated[
        float | None, Option("the part of c that clients apply; by default (cohort / population)^power", low=0, high=1)
    ] = None,
    power: Annotated[float, Option("1: clients apply less of c if they come back seldom", low=0)] = 0.5,
    gate: Annotated[bool, Option("leave out clients that do not apply their corrections")] = True,
    weights: Annotated[Weights, Option("weights of the clients: by counts or equal")] = "data",
    clip: Annotated[float, Option("the longest gradient remembered, in medians; 0: any", low=0)] = 2.0,
    bounded: Annotated[
        float, Option("the longest update, in medians of the cohort; 0 turns the bound off", low=0)
    ] = 2.0,
    capped: Annotated[float, Option("the largest count, in medians of the cohort; 0 turns the cap off", low=0)] = 3.0,
    pace: Annotated[
        float, Option("the longest server step, in mean updates; 0: the update itself", low=0, high=1000)
    ] = 12.0,
    momentum: Annotated[float, Option("decay of that mean update", low=0, below=1)] = 0.8,
    half: Annotated[bool, Option("keep the memory in half precision")] = False,
    trust: Annotated[bool, Option("test whether clients keep opposing the others")] = True,
    exclude: Annotated[bool, Option("leave clients out that do; otherwise they are only on record")] = False,
    lr: Annotated[float, Option("server learning rate", above=0)] = 1.0,
) -> Method:
    """Corrects clients' drift and the noise of sampling by a memory of each client, with an estimated coefficient.

    ``e_i = d_i + (c - a) k_i (y_i - y_bar)``, clipped, then averaged by capped counts into u.
    ``w <- w + lr (u + q (alpha n - u))``. Clients step along ``g - a (y_i - y_bar)``. The coefficient 0 turns the memory off.
    """
    remembered = parts.memory(coefficient, share, power, weights, capped, clip, gate=gate, half=half)
    weigh = [
        *([remembered] if coefficient != 0 else []),
        *([parts.bounded(bounded)] if bounded else []),
        parts.by_data() if weights == "data" else parts.uniform(),
        *([parts.capped(capped)] if capped else []),
    ]
    return Method(
        "counterpoise",
        trust=(parts.consensus_trust(exclude),) if trust else (),
        weigh=tuple(weigh),
        combine=(parts.mean(), *([parts.pace(pace, momentum)] if pace else [])),
        update=(parts.server_step(lr),),
    )
