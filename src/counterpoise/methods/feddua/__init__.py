"""FedDua: claimed data counts checked against what training on so much data looks like.

`trust` is the method, `branch` the network of eq. 7-11, `evidence` what speaks for or against a claim, and
`sequential` what it comes to over a client's rounds.
"""

from counterpoise.methods.feddua.trust import feddua

__all__ = ["feddua"]
