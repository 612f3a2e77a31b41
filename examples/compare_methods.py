"""Compare three methods over five seeds, and print a table of them. Nothing is kept but the figure.

python examples/compare_methods.py
"""

import counterpoise as cp


def main(rounds: int = 20, seeds: int = 5) -> cp.Comparison:
    found = cp.compare(
        {"plain": "fedavg", "weak pull": "fedprox(mu=0.01)", "strong pull": cp.methods.fedprox(mu=1.0)},
        lambda seed: cp.load("digits", partition=cp.dirichlet(0.3, clients=20), seed=seed),
        model=cp.models.mlp,
        rounds=rounds,
        cohort=10,
        seeds=seeds,
    )
    print(found)
    print(found.table()[["accuracy", "deviation", "difference", "p"]])
    return found


if __name__ == "__main__":
    main().plot().write_html("comparison.html")
