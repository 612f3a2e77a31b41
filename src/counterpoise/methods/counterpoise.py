"""Counterpoise: as much of each client's memory as the cohorts show to be worth, on the clients as far as it is safe.

This library's own method. docs/methods/counterpoise.md says what it computes and what it costs.
"""

from __future__ import annotations

from typing import Annotated

from counterpoise import parts
from counterpoise.method import Method
from counterpoise.methods import meanings as of
from counterpoise.methods.registry import METHODS
from counterpoise.methods.switches import refuse_idle
from counterpoise.parts.trial import Bounds
from counterpoise.registry import Option

__all__ = ["counterpoise"]


@METHODS.register("counterpoise", group="drift and variance", paper=of.PAPER)
def counterpoise(
    coefficient: of.Coefficient = None,
    share: of.Share = None,
    power: of.Power = 0.5,
    gate: of.Gate = True,
    weights: of.ClientWeights = "data",
    clip: of.Clip = 2.0,
    bounded: of.Bounded = 2.0,
    capped: of.Capped = 3.0,
    pace: of.Pace = 12.0,
    momentum: of.Momentum = 0.8,
    half: of.Half = False,
    trust: Annotated[bool, Option("test whether clients keep opposing the others")] = True,
    exclude: Annotated[bool, Option("leave clients out that do; otherwise they are only on record")] = False,
    lr: Annotated[float, Option("server learning rate", above=0)] = 1.0,
    averaged: of.Averaged = 0.0,
    smoothing: of.Smoothing = 0.9,
    gate_doubt: of.GateDoubt = 5.0,
    gate_proof: of.GateProof = 3.0,
    gate_most: of.GateMost = 10.0,
    gate_turn: of.GateTurn = 3.0,
    gate_spread: of.GateSpread = 0.05,
    gate_clients: of.GateClients = 5,
    pace_least: of.PaceLeast = 0.5,
    pace_gain: of.PaceGain = 1.0,
    pace_square: of.PaceSquare = 0.99,
    pace_floor: of.PaceFloor = 0.3,
    pace_power: of.PacePower = 4.0,
    pace_root: of.PaceRoot = 0.5,
    trust_below: of.FlagBelow = -3.0,
    trust_until: of.FlagUntil = -1.5,
    trust_rounds: of.FlagRounds = 3,
    trust_clients: of.FlagClients = 5,
    trust_clip: of.FlagClip = 2.0,
    trust_spread: of.FlagSpread = 0.02,
    trust_most: of.FlagMost = 6.0,
) -> Method:
    """Corrects clients' drift and the noise of sampling by a memory of each client, with an estimated coefficient.

    Clients step along ``g - a (y_i - y_bar)``. The server corrects their updates:
    ``e_i = d_i + (c - a) k_i (y_i - y_bar)``. It clips these, averages them by capped counts into u, and steps:
    ``w <- w + lr (q (1 + q^4 (sqrt(alpha) - 1)) u + (1 - q) alpha z)``.

    d_i is a client's update, y_i its memory (the mean gradient of its last round before any correction), y_bar the mean
    of the memories, and k_i how far its optimiser carries it per unit of gradient. c is how much the memory says, and a
    the part of c that clients apply. q is the share of the population that is in u, z is u smoothed over rounds,
    coordinate by coordinate, and alpha, the pace, lengthens steps.
    """
    refuse_idle("counterpoise", locals())
    bounds = Bounds(gate_doubt, gate_proof, gate_most, gate_turn, gate_spread, gate_clients)
    remembered = parts.memory(coefficient, share, power, weights, capped, clip, smoothing, gate, half, bounds)
    lengths = (pace_least, pace_gain, pace_square, pace_floor, pace_power, pace_root)
    weigh = [
        *([remembered] if coefficient != 0 else []),
        *([parts.bounded(bounded)] if bounded else []),
        parts.by_data() if weights == "data" else parts.uniform(),
        *([parts.capped(capped)] if capped else []),
    ]
    flags = (trust_below, trust_until, trust_rounds, trust_clients, trust_clip, trust_spread, trust_most)
    return Method(
        "counterpoise",
        trust=(parts.consensus_trust(exclude, *flags),) if trust else (),
        weigh=tuple(weigh),
        combine=(parts.mean(), *([parts.pace(pace, momentum, *lengths)] if pace else [])),
        update=(parts.server_step(lr), *([parts.averaged(averaged)] if averaged else [])),
    )
