"""Write down what is left of studies as jobs for `side_by_side.py`, and add what they found to the studies' results.

    python benchmarks/far/jobs.py left studies/worlds.toml FOLDER --cells "cifar10-*" --gib 12
    python benchmarks/far/jobs.py merge FOLDER RESULTS

`left` adds a line to FOLDER/jobs.jsonl for each method of each cell that lacks runs. With --whole, it adds one for each
such cell, with all the methods that lack some: then one process starts instead of one for each method, and runs whose
clients do the same work train as one batch. What is known of a job's methods is copied to FOLDER/known/ID.json, so that
the job does only the rest. With --again nothing counts as known: all runs are made once more. The data that a job needs
are its cell's.

`merge` adds the runs in RESULTS/ID.json to the results beside each job's study. A run that is there already stays, unless
it failed or the job was to make it once more.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from counterpoise.comparisons.plan import slugs
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.catalogue import DATASETS
from counterpoise.runs.config import parse
from counterpoise.studies.ledger import Ledger, check_settings, lasting
from counterpoise.studies.performing import results_of
from counterpoise.studies.plans import plan_of
from counterpoise.studies.provenance import made_here
from counterpoise.studies.reading import chosen, read_study
from counterpoise.studies.results import Results, read_results, write_results
from counterpoise.studies.study import Cell, Study
from counterpoise.texts import parse_json, read_text


def found_before(path: Path) -> Results:
    kept = results_of(path)
    return read_results(kept)[1] if kept.exists() else {}


def of_arms(study: Study, results: Results, cell: Cell, labels: Sequence[str]) -> Results:
    """What is known of some methods in a cell and in its views."""
    names = [cell.name, *(view.name for view in study.cells if view.runs_of == cell.name)]
    kept = {
        name: {label: arm for label, arm in results[name].arms.items() if label in labels}
        for name in names
        if name in results
    }
    return {name: replace(results[name], arms=arms) for name, arms in kept.items() if arms}


def left(
    path: Path, cells: Sequence[str], methods: Sequence[str], whole: bool = False, again: bool = False
) -> Iterator[tuple[dict[str, Any], Study, Results]]:
    """The jobs of a study, each with what is known of it."""
    study, results = read_study(path), {} if again else found_before(path)
    ledger = Ledger(study, path.parent, results_of(path), results, made_here())
    for cell in chosen(study, cells, None, methods).cells:
        if cell.cannot or cell.runs_of:
            continue
        plan = plan_of(cell)
        arms = [arm for arm in plan.arms if ledger.lacking(cell, replace(plan, arms=(arm,)))]
        for some in [arms] * bool(arms) if whole else [[arm] for arm in arms]:
            labels = [arm.label for arm in some]
            more = f" and {len(labels) - 1} more" * (len(labels) > 1)
            name = slugs([f"{path.stem} {cell.name} {labels[0]}{more}"])[0]
            data = parse(next(plan.pieces(some[0])).values, cell.name).data.name
            needs = [data] if data in DATASETS and DATASETS[data].files else []
            job = {"id": name, "file": str(path), "cells": cell.name, "methods": ",".join(labels), "needs": needs}
            yield job | ({"again": True} if again else {}), study, of_arms(study, results, cell, labels)


def write_left(folder: Path, jobs: Sequence[tuple[dict[str, Any], Study, Results]], more: Mapping[str, Any]) -> None:
    """Write jobs, all or none. `more` is what all of them ask for: memory, worker processes, runs in one batch."""
    (folder / "known").mkdir(parents=True, exist_ok=True)
    (listed := folder / "jobs.jsonl").touch()
    names = Counter([job["id"] for job in read_jobs(listed)] + [job["id"] for job, *_ in jobs])
    if twice := [name for name, count in names.items() if count > 1]:
        raise CounterpoiseError(
            f"{listed} would have the job {twice[0]} twice. Use another folder, or leave out what is listed there."
        )
    for job, study, known in jobs:
        if known:
            write_results(folder / "known" / f"{job['id']}.json", study, known)
    with listed.open("a", encoding="utf-8") as lines:
        lines.writelines(json.dumps({**job, **more}) + "\n" for job, *_ in jobs)


def read_jobs(path: Path) -> list[dict[str, Any]]:
    jobs = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip():
            jobs.append(parse_json(line, f"{path}, line {number}"))
            if not (isinstance(jobs[-1], dict) and {"id", "file"} <= jobs[-1].keys()):
                raise CounterpoiseError(f"{path}, line {number} is no job: it needs an id and a file.")
    return jobs


def merge(folder: Path, found: Path) -> None:
    """Add what the folder's jobs found to the results of their studies. Runs of other settings are refused."""
    jobs = read_jobs(folder / "jobs.jsonl")
    for path in sorted({Path(job["file"]) for job in jobs}):
        study, results, count = read_study(path), found_before(path), 0
        plans = {cell.name: (cell, plan_of(cell)) for cell in study.cells if not cell.runs_of}
        for job in jobs:
            if Path(job["file"]) == path and (there := found / f"{job['id']}.json").exists():
                more = read_results(there)[1]
                check_settings(more, (plans[name] for name in more if name in plans), there)
                count += sum(name in plans for name in fold(results, more, job.get("again", False)))
        check_settings(results, (plans[name] for name in results if name in plans), results_of(path))
        write_results(results_of(path), study, results)
        print(f"{path}: {count} runs more")


def fold(results: Results, more: Results, again: bool = False) -> list[str]:
    """Add runs to results, `again` also in place of those that are there. Returns the cell of every run that is new."""
    new = []
    for name, cell in more.items():
        kept = results.setdefault(name, replace(cell, arms={}))
        for label, arm in cell.arms.items():
            into = kept.arms.setdefault(label, replace(arm, outcomes={})).outcomes
            for seed, outcome in arm.outcomes.items():
                if again or not lasting(into.get(seed)):
                    into[seed] = outcome
                    new.append(name)
    return new


def gibibytes(text: str) -> float:
    if not 0 <= (value := float(text)) < math.inf:
        raise ValueError(text)
    return value


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError(text)
    return value


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    does = words.add_subparsers(dest="does", required=True)
    some = does.add_parser("left", help="write jobs for what is left of a study")
    some.add_argument("study", type=Path)
    some.add_argument("folder", type=Path)
    some.add_argument("--cells", action="append", default=[], help="as in `study run`")
    some.add_argument("--methods", action="append", default=[], help="as in `study run`")
    some.add_argument("--whole", action="store_true", help="a job for each cell, not for each method of it")
    some.add_argument("--again", action="store_true", help="make all runs once more")
    some.add_argument("--gib", type=gibibytes, help="GPU memory that a job waits for")
    some.add_argument("--jobs", type=positive, help="as in `study run`: worker processes of a job")
    some.add_argument("--together", type=positive, help="as in `study run`: runs that train as one batch")
    back = does.add_parser("merge", help="add what jobs found to the studies' results")
    back.add_argument("folder", type=Path)
    back.add_argument("found", type=Path)
    given = words.parse_args()
    try:
        if given.does == "left":
            more = {name: value for name in ("gib", "jobs", "together") if (value := getattr(given, name)) is not None}
            jobs = [*left(given.study, given.cells, given.methods, given.whole, given.again)]
            write_left(given.folder, jobs, more)
        else:
            merge(given.folder, given.found)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except FileNotFoundError as error:
        raise SystemExit(f"There is no file {error.filename}.") from None
    except (CounterpoiseError, OSError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
