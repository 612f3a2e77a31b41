"""Every number that FedDua uses, with its origin.

*Derived* means that the number follows by arithmetic; *measured*, that it rests on the experiment named. *Chosen* means
that no equation and no experiment on record stands behind it.
"""

from __future__ import annotations

__all__ = [
    "ADAM_EPSILON",
    "ADAM_FIRST",
    "ADAM_SECOND",
    "BRANCH_RATE",
    "BRANCH_STEPS",
    "COUNT_ROUNDING",
    "EMBEDDING_SIZE",
    "FARTHEST",
    "FEWEST_CLIENTS",
    "HIDDEN_UNITS",
    "HORIZON",
    "LADDER",
    "LARGEST_ERROR",
    "LARGEST_RATIO",
    "LEAST_SPREAD",
    "LONGEST_STEP",
    "MOMENTUM_SPREAD",
    "NARROWEST_LADDER",
    "NETWORK_DECAY",
    "NETWORK_RATE",
    "NETWORK_TURNS",
    "NETWORK_UNITS",
    "PATIENCE",
    "PROXY_BATCHES",
    "REHEARSE_EVERY",
    "REMEMBERED",
    "ROUNDING",
    "SEARCH_PARTS",
    "SEARCH_TURNS",
    "SEARCH_WIDTH",
    "SLOPE",
    "SLOPE_UNKNOWN_OPTIMIZER",
    "START_SCALE",
    "STILL",
    "THRESHOLD",
    "TINY",
]

# ---------------------------------------------------------------- defaults of options

THRESHOLD = 3.5
"""Standard deviations beyond which a claim is rejected. Chosen: one look at normal errors errs 5 times in 10,000."""
PATIENCE = 3
"""Warnings that a client may have before it is excluded. Chosen."""
BRANCH_RATE = 0.1
"""Lambda in eq. 11. Chosen; on digits with the printed loss, .01 learned too slowly (measured, see the page)."""

# ---------------------------------------------------------------- the branch (eq. 7-11)

EMBEDDING_SIZE = 16
"""Numbers in a client's embedding. Chosen."""
HIDDEN_UNITS = 32
"""Units of the branch's hidden layer. Chosen."""
START_SCALE = 0.1
"""Standard deviation of the first weights. Chosen, so that every factor begins near 1 / batch."""
BRANCH_STEPS = 5
"""Steps of eq. 11 after every epoch. Chosen; the first version took ten."""
LONGEST_STEP = 1.0
"""Longest step in phi before the rate, because eq. 9 is enormous for a factor far off. Chosen."""
LARGEST_RATIO = 1e6
"""Largest rho / (alpha n) that a step uses, so that squares stay finite. Chosen; steps are capped anyway."""

# ---------------------------------------------------------------- the evidence

TINY = 1e-30
"""Smallest number whose logarithm is taken, in place of 0. Chosen."""
FARTHEST = 2.3
"""A point farther out than this, in logarithms, pulls no harder on a fit. Chosen: a factor of ten, log 10 = 2.30."""
STILL = 20.0
"""A client whose log-norm lies this far below the round's median did not move. Chosen."""
LEAST_SPREAD = 0.2
"""Least spread in log n of evidence from how clients differ: the update, and what the branch learned. Chosen."""
MOMENTUM_SPREAD = 0.3
"""The same for reports under momentum 1, in proportion for less: rho then depends on how gradients turn.

Measured on digits (momentum .9, 20 honest clients, 50 rounds, ten federations): at most 2 of 500 claims were rejected.
With .2 up to 23 were, and honest clients were excluded. Derived: a threefold claim is log 3 / .3 = 3.7 deviations.
"""
FEWEST_CLIENTS = 5
"""Clients that must have been seen before they are a measure of one another. Chosen."""
REMEMBERED = 128
"""Points of recent rounds that the fits use beside the cohort's own. Chosen."""

# ---------------------------------------------------------------- the prior

LADDER = 8
"""Sizes at which the server trains on its proxy set. Chosen."""
REHEARSE_EVERY = 10
"""Rounds after which the server trains on its proxy set again. Chosen."""
PROXY_BATCHES = 2
"""Batches that a proxy set must hold, because the ladder of sizes begins at one batch. Chosen."""
NARROWEST_LADDER = 1e-3
"""Least half width of the ladder in log n, so that equal sizes divide nothing by 0. Chosen."""
SLOPE = 0.3
"""Largest slope of the fit by log n. Chosen: the expected factor already holds what the optimizer does."""
SLOPE_UNKNOWN_OPTIMIZER = 0.9
"""The same for an optimizer whose expected factor is unknown. Chosen."""
NETWORK_UNITS = 8
"""Hidden units of the network prior. Chosen."""
NETWORK_TURNS = 300
"""Adam steps that fit the network. Chosen."""
NETWORK_RATE = 0.05
"""Adam's rate in that fit. Chosen."""
NETWORK_DECAY = 1e-3
"""Weight decay in that fit, because eight points are few. Chosen."""
ADAM_FIRST = (0.9, 0.1)
"""Adam's first moment: the share kept and the share of the new slope. Its authors' default (Kingma, Ba 2015)."""
ADAM_SECOND = (0.999, 0.001)
"""Adam's second moment, likewise: its authors' default."""
ADAM_EPSILON = 1e-8
"""Adam's epsilon: its authors' default."""
SEARCH_WIDTH = 60.0
"""Width of the interval in log n that is searched for a count. Chosen: e^60 exceeds every count."""
SEARCH_PARTS = 16
"""Parts of that interval that one turn compares. Chosen: a bisection takes four times as many turns."""
SEARCH_TURNS = 14
"""Turns of that search. Derived: 60 / 16^14 is below 1e-15, about the precision of float64."""
ROUNDING = 1e-9
"""Part of a batch that rounding may add to n / batch, so that n = exp(log n) takes no step too many. Chosen."""
COUNT_ROUNDING = 1e-6
"""Samples that rounding may add to a claim. Chosen."""

# ---------------------------------------------------------------- a client's rounds together

HORIZON = 10
"""Rounds that a client's average reaches back, and fitting claims in a row that forgive one warning. Chosen."""
LARGEST_ERROR = 3.0
"""Largest error in log n that enters an average, so that one strange round does not weigh for ten. Chosen."""
