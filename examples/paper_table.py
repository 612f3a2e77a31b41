"""Repeat a paper's table in its small form: FedA4's table 1 for Fashion-MNIST, our numbers beside the published ones.

The preset holds the experiment: methods, settings that vary, published numbers. The small form differs in rounds,
samples and model, so only the order of the methods can be compared with the paper. (`counterpoise compare
feda4/table-1-fmnist-small` repeats one column, with several seeds and a report.)

    python examples/paper_table.py [PRESET] [KEY=VALUE]...
"""

import itertools
import sys

from counterpoise.runs.build import setup
from counterpoise.runs.config import assign, override, parse, read
from counterpoise.runs.starting import run_setup


def main(preset: str = "feda4/table-1-fmnist-small", *settings: str) -> list[list[float]]:
    values = override(read(preset)[0], settings)
    paper = parse(values, preset).paper
    columns = [dict(zip(paper.vary, row, strict=True)) for row in itertools.product(*paper.vary.values())]
    print(f"{paper.source}; {paper.measure}: ours (published)")
    print(" " * 10 + "".join(f"{' '.join(map(str, column.values())):>16}" for column in columns))
    table = []
    for method, published in zip(paper.methods, paper.numbers, strict=True):
        table.append([accuracy({**values, "method": method}, column, preset) for column in columns])
        cells = (f"{100 * ours:.2f} ({theirs:g})" for ours, theirs in zip(table[-1], published, strict=True))
        print(f"{method['name']:10}" + "".join(f"{cell:>16}" for cell in cells))
    return table


def accuracy(values: dict, column: dict, preset: str) -> float:
    for key, value in column.items():
        values = assign(values, key, value)
    return run_setup(setup(parse(values, preset))).accuracy or 0.0


if __name__ == "__main__":
    main(*sys.argv[1:])
