"""`cp.compare` and `cp.sweep`: methods or settings over several seeds, from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from counterpoise.comparisons.asking import Asked, Compared, Data, Seeds, asked_comparison, asked_sweep
from counterpoise.comparisons.board import plan_board, shown
from counterpoise.comparisons.collection import Group, is_begun, of_plan
from counterpoise.comparisons.comparison import Comparison
from counterpoise.comparisons.conduct import conducting, open_pieces
from counterpoise.comparisons.contents import COMPARISON
from counterpoise.comparisons.doing import run_here
from counterpoise.comparisons.going_on import how_far, resuming
from counterpoise.comparisons.perform import Workers, crew, taken
from counterpoise.comparisons.plan import read_plan
from counterpoise.comparisons.removal import remove
from counterpoise.engine.backends.settings import Engine
from counterpoise.engine.rounds.admission import Limits
from counterpoise.engine.rounds.adversaries import Adversaries
from counterpoise.engine.rounds.evaluation import Evaluation
from counterpoise.engine.rounds.setup import Settings
from counterpoise.engine.scores import Loss, Metrics
from counterpoise.errors import CounterpoiseError, Interrupted, brief, takes_only_its_options
from counterpoise.federation import Availability, Sampler
from counterpoise.local import Local
from counterpoise.measures.stopping import When
from counterpoise.models.building import Model
from counterpoise.runs.starting import ELSEWHERE

__all__ = ["compare", "sweep"]


class Keeping(NamedTuple):
    """Where runs are kept, whether old ones are replaced, and how many processes run them."""

    out: str | Path | None
    overwrite: bool
    jobs: int | None


@takes_only_its_options({**ELSEWHERE, "seed": "seeds"})
def compare(
    methods: Sequence[Compared] | Mapping[str, Compared],
    federation: Data,
    *,
    model: Model,
    rounds: int,
    seeds: Seeds = 3,
    baseline: str = "",
    cohort: int | float | Availability | Sampler | None = None,
    local: Local | None = None,
    loss: Loss | str | None = None,
    metrics: Metrics | None = None,
    engine: Engine | None = None,
    evaluation: Evaluation | None = None,
    limits: Limits | None = None,
    adversary: Adversaries | None = None,
    stop: When | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    jobs: int | None = None,
    together: int | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Compare methods over the same seeds: each seed gives all of them the same cohorts, batches and weights.

    `methods` are names such as ``"fedprox(mu=0.1)"`` or ``"feddua:fedavg"``, pairs ``("fedprox", {"mu": 0.1})``, or
    methods such as ``cp.methods.fedprox(mu=0.1)``. A pair may also begin with a function of your own that returns a
    method. Give them in a list, or in a dictionary that names them. `baseline` is the label of the one that the others
    are compared with, by default fedavg.

    `seeds` is a number of seeds, beginning with 0, or a list of them. All seeds share the federation. To deal the data
    anew for each seed, as the command line does, give a function: ``lambda seed: cp.load(..., seed=seed)``. The other
    settings are those of `simulate`.

    With `out`, `jobs` worker processes run the comparison and keep its runs in that folder, as ``counterpoise compare``
    does. The same call again returns what is finished and goes on with the rest. Other methods and seeds are added to
    the folder, but a call returns only those it asked for. Other settings are refused unless `overwrite` is given.
    ``counterpoise resume`` can go on too, unless the comparison uses a model, method or other object of your own. Only
    Python has such objects, so those runs also stay in this process.

    Runs that can train as one batch do so, at most `together` of them. A table shows the progress in a terminal and in
    a notebook; `progress` switches it on, also in a pipe, or off.

    Ctrl-C raises `KeyboardInterrupt`, as it does everywhere in Python; its message says how many runs are done and how
    to go on.

    >>> import counterpoise as cp
    >>> fed = cp.load("digits", partition=cp.dirichlet(0.3, clients=10), samples=300)
    >>> found = cp.compare(["fedavg", "fedprox"], fed, model=cp.models.linear, rounds=2, seeds=2)
    >>> sorted(found.runs), found.best in found.runs
    (['fedavg', 'fedprox'], True)
    """
    asked = asked_comparison(methods, federation, seeds, baseline, **_settings(locals()))
    return performed(asked, Keeping(out, overwrite, jobs), together, progress)


@takes_only_its_options({**ELSEWHERE, "seed": "seeds"})
def sweep(
    method: Compared,
    federation: Data,
    *,
    model: Model,
    rounds: int,
    over: Mapping[str, Sequence[Any]] | None = None,
    at: Sequence[Mapping[str, Any]] = (),
    seeds: Seeds = 3,
    cohort: int | float | Availability | Sampler | None = None,
    local: Local | None = None,
    loss: Loss | str | None = None,
    metrics: Metrics | None = None,
    engine: Engine | None = None,
    evaluation: Evaluation | None = None,
    limits: Limits | None = None,
    adversary: Adversaries | None = None,
    stop: When | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    jobs: int | None = None,
    together: int | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Try settings over the same seeds; ``found.best`` names the best, and the text warns if its lead may be noise.

    `over` lists values of settings, which are named as in a TOML file: every value is combined with every value. `at`
    adds single points. `method` may also be a function of your own that returns a method: ``method.x`` is then its
    argument x. All other arguments are as in `compare`.

    >>> import counterpoise as cp
    >>> fed = cp.load("digits", partition=cp.dirichlet(0.3, clients=10), samples=300)
    >>> over = {"method.mu": [0.0, 1.0], "local.epochs": [1, 2]}
    >>> found = cp.sweep("fedprox", fed, over=over, model=cp.models.linear, rounds=2, seeds=1)
    >>> list(found.runs)
    ['mu=0.0, epochs=1', 'mu=0.0, epochs=2', 'mu=1.0, epochs=1', 'mu=1.0, epochs=2']
    """
    asked = asked_sweep(method, federation, {} if over is None else over, at, seeds, **_settings(locals()))
    return performed(asked, Keeping(out, overwrite, jobs), together, progress)


def performed(asked: Asked, keeping: Keeping, together: int | None, progress: bool | None) -> Comparison:
    """Run what was asked for, or what is left of it in its folder."""
    out, overwrite, jobs = keeping
    workers = Workers(jobs, together)
    workers.check()
    if out is None:
        if jobs is not None:
            raise CounterpoiseError("jobs needs out=...: worker processes keep their runs in a folder.")
        return _in_memory(asked, together, progress)
    if not isinstance(out, str | os.PathLike):
        raise CounterpoiseError(f"out must be the path of a folder, not {brief(out)}.")
    folder = Path(out)
    if overwrite and (folder / COMPARISON).exists():
        remove(folder)
    try:
        found = _kept(asked, folder, workers, progress)
    except KeyboardInterrupt:
        raise _stopped(asked, folder, workers) from None
    if not any(group.done for group in found.groups):
        raise CounterpoiseError(next((group.failure for group in found.groups if group.sentence), "No run finished."))
    return found


def _in_memory(asked: Asked, together: int | None, progress: bool | None) -> Comparison:
    plan = asked.plan
    try:
        with shown(plan_board(plan, [], 1), progress) as hear:
            found = run_here(asked, plan, None, together, hear)
    except KeyboardInterrupt:
        raise Interrupted("Stopped. Nothing is kept of a comparison without out=...") from None
    groups = [Group(arm.label, tuple(found[piece.place] for piece in plan.pieces(arm))) for arm in plan.arms]
    return Comparison(plan, groups)


def _kept(asked: Asked, folder: Path, workers: Workers, progress: bool | None) -> Comparison:
    """Run in worker processes, as the command line does, or in this process if the user's own objects are needed."""
    with taken(folder, asked.plan) as (whole, lock), conducting(folder):
        plan = whole.narrowed(asked.plan)
        before = of_plan(folder, plan)
        if asked.own:
            with shown(plan_board(plan, before, 1), progress) as hear:
                run_here(asked, plan, folder, workers.together, hear)
        else:
            with (
                crew(folder, open_pieces(folder, plan), lock, workers) as found,
                shown(plan_board(plan, before, found.workers), progress) as hear,
            ):
                found.work(hear)
        groups = of_plan(folder, plan)
        begun = sum(is_begun(folder / piece.place) for arm in whole.arms for piece in whole.pieces(arm))
        return Comparison(plan, groups, folder, others=begun - sum(len(group.runs) for group in groups))


def _stopped(asked: Asked, folder: Path, workers: Workers) -> Interrupted:
    plan = read_plan(folder) if (folder / COMPARISON).exists() else asked.plan
    values = [next(plan.pieces(arm)).values for arm in plan.arms]
    command = "" if asked.own else f", and so does: {resuming(folder, values, workers.words)}"
    return Interrupted(f"{how_far(folder, plan)} The same call goes on{command}")


_SETTINGS = ("model", "rounds", *(name for name in Settings.__annotations__ if name != "seed"))


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call that are settings of its runs."""
    return {name: given[name] for name in _SETTINGS}
