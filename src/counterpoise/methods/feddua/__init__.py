"""FedDua: check claimed data counts against what training on that much data looks like.

`trust` is the method, `client` what a client reports, `branch` the network of eq. 7-11. On the server, `evidence`
compares claims with what was sent, `prior` and `rehearsal` say what honest factors look like, `sequential` adds up a
client's rounds, `verdicts` decides and `record` says why. `constants` lists every number and its origin.
"""

from counterpoise.methods.feddua.trust import feddua

__all__ = ["feddua"]
