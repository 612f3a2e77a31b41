"""Parts that can be put around any method by name, as in ``memory:median`` or ``consensus-trust:fedavg``.

The name reads in the order in which the parts act on a round's updates, as far as they share a slot: in
``memory:bounded:fedavg``, updates are corrected, then clipped, then averaged.
"""

from __future__ import annotations

from typing import Annotated

from counterpoise import parts
from counterpoise.errors import CounterpoiseError
from counterpoise.method import Method
from counterpoise.methods import meanings as of
from counterpoise.methods.registry import METHODS
from counterpoise.methods.switches import refuse_idle
from counterpoise.parts.trial import Bounds
from counterpoise.registry import Option, Paper

__all__ = ["averaged", "bounded", "capped", "consensus_trust", "memory", "pace", "steady"]

_OWN_MEMORY = ("varied-mean", "clustered-mean", "remembered-mean", "control-variates")
"""The parts by which fedvarp, clusterfedvarp, mifa and scaffold remember clients."""
_AVERAGING = Paper(
    "Stochastic Gradient Descent for Non-smooth Optimization: Convergence Results and Optimal Averaging Schemes",
    "Shamir and Zhang",
    2013,
    "arXiv:1212.1824",
)
_WITHOUT = {("counterpoise", "pace"): ": counterpoise(pace=0) has none"}
"""How a method is made without a part."""


def _refuse_around(outer: str, method: Method, twice: tuple[str, ...], why: str) -> None:
    """Refuse to put a part around a method that has a part of the same purpose."""
    for part in method.parts:
        if part.name in twice:
            raise CounterpoiseError(
                f"{outer}:{method.name}: the method inside {why} (its part {part.name}). Leave one of the two out"
                f"{_WITHOUT.get((method.name, part.name), '')}."
            )


@METHODS.register("memory", group="parts", paper=of.PAPER, wraps="method")
def memory(
    method: Method | str = "fedavg",
    memory_coefficient: of.Coefficient = None,
    memory_share: of.Share = None,
    memory_power: of.Power = 0.5,
    memory_weights: of.MemoryWeights = "data",
    memory_cap: Annotated[
        float, Option("the largest count in that mean, in medians of the cohort, at least 1; 0: any", low=0)
    ] = 3.0,
    memory_clip: of.Clip = 2.0,
    memory_gate: of.Gate = True,
    memory_half: of.Half = False,
    memory_smoothing: of.Smoothing = 0.9,
    memory_gate_doubt: of.GateDoubt = 5.0,
    memory_gate_proof: of.GateProof = 3.0,
    memory_gate_most: of.GateMost = 10.0,
    memory_gate_turn: of.GateTurn = 3.0,
    memory_gate_spread: of.GateSpread = 0.05,
    memory_gate_clients: of.GateClients = 5,
) -> Method:
    """Takes out of each update what the client's last one predicts, in front of any method; alone, of fedavg.

    ``e_i = d_i + (c - a) k_i (y_i - y_bar)``; clients step along ``g - a (y_i - y_bar)``. The server keeps all y_i, the
    mean gradients of the clients' last rounds. It does not go around fedvarp, clusterfedvarp, mifa and scaffold, which
    have a memory of their own and would correct for the same thing again.
    """
    refuse_idle("memory", locals(), "memory_")
    assert isinstance(method, Method)  # the registry turned a name into a method
    _refuse_around("memory", method, _OWN_MEMORY, "has a memory of its own, so it would be corrected twice")
    bounds = Bounds(
        memory_gate_doubt,
        memory_gate_proof,
        memory_gate_most,
        memory_gate_turn,
        memory_gate_spread,
        memory_gate_clients,
    )
    part = parts.memory(
        memory_coefficient,
        memory_share,
        memory_power,
        memory_weights,
        memory_cap,
        memory_clip,
        memory_smoothing,
        memory_gate,
        memory_half,
        bounds,
    )
    return method.replacing(f"memory:{method.name}", weigh=(part, *method.weigh))


@METHODS.register("bounded", group="parts", paper=of.PAPER, wraps="method")
def bounded(
    method: Method | str = "fedavg",
    longest: Annotated[float, Option("the longest update, in medians of the cohort", above=0)] = 2.0,
) -> Method:
    """Clips each update relative to the cohort's median length, in front of any method; alone, of fedavg.

    ``min(1, 2 median_j |d_j| / |d_i|) d_i``, the median over clients that moved, if there are at least three of them.
    """
    assert isinstance(method, Method)
    return method.replacing(f"bounded:{method.name}", weigh=(parts.bounded(longest), *method.weigh))


@METHODS.register("capped", group="parts", paper=of.PAPER, wraps="method")
def capped(
    method: Method | str = "fedavg",
    heaviest: Annotated[float, Option("the largest weight, in medians of the cohort", low=1)] = 3.0,
) -> Method:
    """Caps each client's weight relative to the cohort's median weight, in any method; alone, in fedavg.

    ``min(n_i, 3 median_j n_j)`` for weights by data.
    """
    assert isinstance(method, Method)
    return method.adding(f"capped:{method.name}", weigh=parts.capped(heaviest))


@METHODS.register("pace", group="parts", paper=of.PAPER, wraps="method")
def pace(
    method: Method | str = "fedavg",
    fastest: Annotated[float, Option("the longest step, in mean updates", low=1, high=1000)] = 12.0,
    pace_momentum: of.Momentum = 0.8,
    slowest: of.PaceLeast = 0.5,
    pacing_gain: of.PaceGain = 1.0,
    pacing_square: of.PaceSquare = 0.99,
    pacing_floor: of.PaceFloor = 0.3,
    pacing_power: of.PacePower = 4.0,
    pacing_root: of.PaceRoot = 0.5,
) -> Method:
    """A server step that becomes longer while updates agree with the step before, behind any method; alone, behind fedavg.

    ``q (1 + q^4 (sqrt(alpha) - 1)) u + (1 - q) alpha z``, with ``alpha <- alpha exp(median_i cos(d_i, last step))`` and
    ``z = 1.3 R M / (sqrt(V) + 0.3 R)``. u is the combined update and q the share of the population that is in it. M and V
    are means over rounds of u and of its square, and R is the root of V's mean over the coordinates.
    """
    assert isinstance(method, Method)
    _refuse_around("pace", method, ("steady",), "has a momentum that lengthens its steps already")
    lengths = (slowest, pacing_gain, pacing_square, pacing_floor, pacing_power, pacing_root)
    return method.adding(f"pace:{method.name}", combine=parts.pace(fastest, pace_momentum, *lengths))


@METHODS.register("steady", group="parts", paper=of.PAPER, wraps="method")
def steady(
    method: Method | str = "fedavg",
    steadiest: Annotated[float, Option("the momentum of updates that agree completely", low=0, below=1)] = 0.9,
    steady_mean: Annotated[float, Option("decay of the mean of the updates before", low=0, below=1)] = 0.8,
    steady_agreement: Annotated[float, Option("decay of s, the mean agreement", low=0, below=1)] = 0.9,
) -> Method:
    """Server momentum that grows as successive combined updates agree, behind any method; alone, behind fedavg.

    ``u + beta v``, ``v <- beta v + u``, ``beta = 0.9 max(0, s)``, s a running mean of the cosine of u with those before.
    """
    assert isinstance(method, Method)
    _refuse_around("steady", method, ("pace",), "has a pace that lengthens its steps already")
    return method.adding(f"steady:{method.name}", combine=parts.steady(steadiest, steady_mean, steady_agreement))


@METHODS.register("averaged", group="parts", paper=_AVERAGING, wraps="method")
def averaged(
    method: Method | str = "fedavg",
    latest: Annotated[
        float,
        Option(
            "the larger, the later the models: at 10, two thirds from the last tenth of the rounds; 0: all alike", low=0
        ),
    ] = 10.0,
) -> Method:
    """Measures and hands out a mean of the late models of any method; alone, of fedavg. Training stays as it is.

    ``x <- x + g (w - x)`` with ``g = (latest + 1)/(t + latest)``, where w is the server's t-th model.
    """
    assert isinstance(method, Method)
    return method.adding(f"averaged:{method.name}", update=parts.averaged(latest))


@METHODS.register("consensus-trust", group="parts", paper=of.PAPER, wraps="method")
def consensus_trust(
    method: Method | str = "fedavg",
    exclude_opposed: Annotated[bool, Option("leave flagged clients out; otherwise they are only on record")] = False,
    flag_below: of.FlagBelow = -3.0,
    flag_until: of.FlagUntil = -1.5,
    flag_rounds: of.FlagRounds = 3,
    flag_clients: of.FlagClients = 5,
    flag_clip: of.FlagClip = 2.0,
    flag_spread: of.FlagSpread = 0.02,
    flag_most: of.FlagMost = 6.0,
) -> Method:
    """Tests over each client's rounds whether its updates oppose the others', in front of any method; alone, of fedavg.

    Verdicts are on record. It is known to flag honest clients with rare labels, so it excludes nobody by default.
    """
    assert isinstance(method, Method)
    flags = (flag_below, flag_until, flag_rounds, flag_clients, flag_clip, flag_spread, flag_most)
    part = parts.consensus_trust(exclude_opposed, *flags)
    return method.adding(f"consensus-trust:{method.name}", trust=part)
