"""What the options of counterpoise mean; the parts that go around any method share them."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from counterpoise.parts.memory import Weights
from counterpoise.registry import Option, Paper

PAPER = Paper(
    "Counterpoise: federated learning for clients that differ, drift and sometimes lie", "The Counterpoise authors"
)

Inner = partial(Option, inner=True)

Coefficient = Annotated[
    float | None,
    Option("c, how much of a client's memory counts; by default estimated, and 0 turns it off", low=0, high=1),
]
Share = Annotated[
    float | None, Option("the part of c that clients apply; by default (cohort / population)^power", low=0, high=1)
]
Power = Annotated[
    float, Option("exponent of cohort / population in the share; the larger, the less of c clients apply", low=0)
]
Smoothing = Annotated[float, Inner("decay of the means over rounds from which c is estimated", low=0, below=1)]
MemoryWeights = Annotated[Weights, Option("weights in the mean of the memories: by counts or equal")]
ClientWeights = Annotated[Weights, Option("weights of the clients: by counts or equal")]
Clip = Annotated[float, Option("the longest gradient remembered, in medians; 0: any", low=0)]
Half = Annotated[bool, Option("keep the memory in half precision")]

Bounded = Annotated[float, Option("the longest update, in medians of the cohort; 0 turns the bound off", low=0)]
Capped = Annotated[float, Option("the largest count, in medians of the cohort, at least 1; 0 turns the cap off", low=0)]
Averaged = Annotated[
    float,
    Option("measure and hand out a mean of late models; 10 is usual, larger: later models, 0: the last one", low=0),
]

Gate = Annotated[bool, Option("leave out clients that do not apply their corrections")]
GateDoubt = Annotated[float, Inner("the doubt over which a client can be left out, a log-likelihood ratio", above=0)]
GateProof = Annotated[
    float,
    Inner("the proof over which a client in doubt is left out; a reply moves proof by at most half of it", above=0),
]
GateMost = Annotated[float, Inner("the most doubt and the most trust", above=0)]
GateTurn = Annotated[
    float,
    Inner(
        "how much trust stays once something speaks against a client; with more, clients that turn stay longer", low=0
    ),
]
GateSpread = Annotated[float, Inner("the least spread between clients that the gate reckons with", above=0)]
GateClients = Annotated[int, Inner("the fewest clients with a memory among whom anyone is tested", low=3)]

Pace = Annotated[float, Option("the longest server step, in mean updates; 0: the update itself", low=0, high=1000)]
Momentum = Annotated[float, Option("decay of the mean update", low=0, below=1)]
PaceLeast = Annotated[float, Inner("the shortest server step, in mean updates", above=0, high=1)]
PaceGain = Annotated[float, Inner("how fast the step's length follows the clients; 0: it stays", low=0, high=100)]
PaceSquare = Annotated[float, Inner("decay of the mean of squared updates", low=0, below=1)]
PaceFloor = Annotated[
    float, Inner("large: coordinates move as in the mean update; small: all equally far", above=0, high=1000)
]
PacePower = Annotated[
    float, Inner("exponent of the share heard; the larger, the less the update itself is lengthened", low=0)
]
PaceRoot = Annotated[
    float, Inner("exponent of the pace by which the update itself is lengthened; 0: it is not", low=0, high=1)
]

FlagBelow = Annotated[float, Inner("the score under which a client is flagged", below=0)]
FlagUntil = Annotated[float, Inner("the score at which the flag is lifted", high=0)]
FlagRounds = Annotated[int, Inner("rounds before a client can be flagged", low=1)]
FlagClients = Annotated[int, Inner("the fewest clients among whom anyone is judged", low=3)]
FlagClip = Annotated[float, Inner("the longest update in the sum of the others, in medians; 0: any", low=0)]
FlagSpread = Annotated[float, Inner("cosines that differ by less are taken for equal", above=0)]
FlagMost = Annotated[float, Inner("the most standard deviations for which a round counts", above=0)]
