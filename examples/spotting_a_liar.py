"""Spot a liar: two of twenty clients claim three times their data, and FedDua checks the claims.

The script prints the clients that were rejected at least once, and the clients that lied, which only a simulation
knows.

    python examples/spotting_a_liar.py
"""

from __future__ import annotations

import sys

import counterpoise as cp


def main(rounds: int = 30) -> cp.measures.Detection:
    federation = cp.load("digits", partition=cp.iid(clients=20), seed=0)
    run = cp.simulate(
        cp.methods.feddua(cp.methods.fedavg()),
        federation,
        model=cp.models.mlp,
        rounds=rounds,
        cohort=10,
        local=cp.Local(epochs=1, batch=8, optimizer=cp.sgd(0.05)),
        adversary=cp.adversary.claims(factor=3.0, clients=2),
        seed=0,
    )
    verdicts = run.frame("verdicts")
    liars = set(verdicts.loc[verdicts["liar"], "client"])
    rejected = verdicts[verdicts["action"] != "accepted"]
    print(f"they lied: {sorted(map(int, liars))}")
    print(f"rejected: {sorted(map(int, set(rejected['client'])))}")
    print(rejected[["round", "client", "claimed", "estimated", "action"]].tail(5).round(0).to_string(index=False))
    found = cp.measures.detection(run.verdicts, liars)
    print(f"{found.recall:.0%} of lies rejected, {found.false_alarms:.1%} of honest claims")
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
