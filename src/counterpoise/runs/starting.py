"""`simulate` and `resume`: a whole run, kept in a folder if the user names one."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoise.engine.backends.distributed import rank
from counterpoise.engine.backends.settings import Engine
from counterpoise.engine.rounds.admission import Limits
from counterpoise.engine.rounds.adversaries import Adversaries
from counterpoise.engine.rounds.evaluation import Evaluation
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.engine.rounds.setup import Setup, check_rounds
from counterpoise.engine.rounds.simulation import Simulation
from counterpoise.engine.scores import Loss, Metrics
from counterpoise.errors import CounterpoiseError, Diverged, brief, check_call, takes_only_its_options
from counterpoise.federation import Availability, Federation, Sampler
from counterpoise.local import Augment, Local, Optimizer, Schedule
from counterpoise.logs.base import Log, Logger, resolve
from counterpoise.measures.stopping import When
from counterpoise.method import Method
from counterpoise.models.building import Model
from counterpoise.runs.course import Course, OnRound, drive, go
from counterpoise.runs.run import Run
from counterpoise.screens import watching
from counterpoise.texts import counted

if TYPE_CHECKING:
    from counterpoise.runs.folder import Folder

__all__ = ["ELSEWHERE", "resume", "resume_course", "run_setup", "setup_course", "simulate"]

logger = logging.getLogger(__name__)


ELSEWHERE = {
    **dict.fromkeys(("lr", "learning_rate", "optimizer"), "local=cp.Local(optimizer=cp.sgd(0.1))"),
    **dict.fromkeys(("epochs", "batch", "batch_size", "steps"), "local=cp.Local(epochs=1, batch=32)"),
    **dict.fromkeys(("clients", "clients_per_round", "fraction"), "cohort"),
    "device": "engine=cp.Engine(device='cuda')",
}
"""Names that users mistake for options of `simulate`, and where they belong."""


@takes_only_its_options(ELSEWHERE)
def simulate(
    method: Method | str | tuple[str, Mapping[str, Any]],
    federation: Federation,
    *,
    model: Model,
    rounds: int,
    cohort: int | float | Availability | Sampler | None = None,
    local: Local | None = None,
    loss: Loss | str | None = None,
    metrics: Metrics | None = None,
    seed: int = 0,
    engine: Engine | None = None,
    evaluation: Evaluation | None = None,
    limits: Limits | None = None,
    adversary: Adversaries | None = None,
    stop: When | None = None,
    on_round: OnRound | None = None,
    log: Log | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Run:
    """Run a method on a federation for a number of rounds.

    `method` is a name such as ``"fedprox"`` or ``"fedprox(mu=0.1)"``, a pair ``("fedprox", {"mu": 0.1})``, or a method
    such as ``cp.methods.fedprox(mu=0.1)``. `model` is an ``nn.Module``, a factory of one, or a name. `cohort` is the
    number of clients per round, a fraction of them, None for all, or an availability such as
    ``cp.stragglers(10, rate=0.2)``. `loss` is a function of outputs and targets, or the name of one such as
    ``"squared-error"``; it and each metric give one value per sample. `stop` is a rule that ends the run early, such as
    ``cp.when("accuracy", above=0.9)``; `run.why` then says why. `log` is a logger of `counterpoise.logs`, several of
    them, or their names.

    With `out`, the run is kept in that folder. The same call again returns the run if it is finished, and goes on with
    it if it was stopped. A folder that holds a run with another configuration is refused; `overwrite` replaces it.

    A bar shows rounds, accuracy and time left in a terminal and in a notebook. `progress` switches it on, also in a
    pipe, or off.

    >>> import counterpoise as cp
    >>> fed = cp.load("digits", partition=cp.iid(clients=5))
    >>> run = cp.simulate("fedavg", fed, model=cp.models.linear, rounds=2, local=cp.Local(batch=16))
    >>> len(run.rounds), run.status, run.accuracy > 0.5
    (2, 'finished', True)
    """
    made = Setup.of(
        method,
        federation,
        model,
        rounds,
        cohort=cohort,
        local=local,
        loss=loss,
        metrics=metrics,
        seed=seed,
        engine=engine,
        evaluation=evaluation,
        limits=limits,
        adversary=adversary,
        stop=stop,
    )
    place = None if out is None else _path(out, "out")
    _check_on_round(on_round)
    with watched(made.training.method.name, made.rounds, progress) as show:
        return _shown(show, run_setup(made, _both(show, on_round), place, log, overwrite))


@contextlib.contextmanager
def watched(title: str, rounds: int, progress: bool | None = None, leave: bool = True) -> Iterator[OnRound | None]:
    """Show a bar while the block runs, if somebody watches; yield the callback that moves it, or None.

    Without rich, which draws it, there is none: a simulation needs no more than torch and numpy.
    """
    if not watching(progress) or rank():
        yield None
        return
    try:
        from counterpoise.display.bar import bar
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("rich"):
            raise
        if progress:
            raise CounterpoiseError("Progress is drawn by rich. Install it with: pip install rich") from None
        yield None
        return
    with bar(title, rounds, leave) as show:
        yield show


def _both(show: OnRound | None, on_round: OnRound | None) -> OnRound | None:
    """One callback for the bar and the user."""
    if show is None or on_round is None:
        return on_round if show is None else show

    def hear(record: RoundRecord) -> object:
        show(record)
        return on_round(record)

    return hear


def _shown(show: OnRound | None, run: Run) -> Run:
    """A run, with the bar moved to its last round, which may have been run by an earlier call."""
    if show is not None and run.rounds:
        show(run.rounds[-1])
    return run


# Keeping a run in a folder needs more packages than torch and numpy. They are imported only for runs that are kept, so
# that a simulation also works on a machine where nothing can be installed.


def run_setup(
    made: Setup,
    on_round: OnRound | None = None,
    out: Path | None = None,
    log: Log | None = None,
    overwrite: bool = False,
) -> Run:
    """Run a set-up, or what is left of it in the folder `out`."""
    return drive(setup_course(made, on_round, out, log, overwrite))


def setup_course(
    made: Setup,
    on_round: OnRound | None = None,
    out: Path | None = None,
    log: Log | None = None,
    overwrite: bool = False,
) -> Course:
    """A set-up's run from its first round, or from its checkpoint if the folder `out` holds one."""
    _check_on_round(on_round)
    loggers = resolve(log)
    if out is not None and not overwrite and os.path.lexists(out / "config.toml"):
        return (yield from _repeated(made, on_round, out, loggers))
    simulation = Simulation.of(made)
    names = made.federation.client_names
    run = Run(made.training.method.name, made.seed, simulation.trainer.module, client_names=names)
    if out is None or rank():
        run.keep = lambda path: _keep(made, simulation, run, _path(path, "folder"))
        return (yield from go(simulation, run, made.rounds, on_round, None, loggers, made.stop))
    if overwrite:
        from counterpoise.runs.removal import clear_run

        clear_run(out)
    with _begun(made, simulation, run, out) as folder:
        folder.save(simulation.loop, "running")
        return (yield from go(simulation, run, made.rounds, on_round, folder, loggers, made.stop))


def _path(given: object, what: str) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise CounterpoiseError(f"{what} must be the path of a run's folder, not {brief(given)}.")
    return Path(given)


def _check_on_round(given: OnRound | None) -> None:
    if given is not None:
        check_call(given, "on_round(record)", "simulate")


@contextlib.contextmanager
def _begun(made: Setup, simulation: Simulation, run: Run, path: Path) -> Iterator[Folder]:
    from counterpoise.federation.overview import holdings
    from counterpoise.runs.build import describe
    from counterpoise.runs.folder import Folder

    with Folder.begun(path, describe(made, simulation.trainer)) as folder:
        folder.write_holdings(holdings(made.federation))
        run.settings, run.folder = folder.config.plain(), path
        yield folder


def _repeated(made: Setup, on_round: OnRound | None, out: Path, loggers: Sequence[Logger]) -> Course:
    """What is left of a run that the folder already holds."""
    from counterpoise.runs.build import describe
    from counterpoise.runs.folder import Folder, busy
    from counterpoise.runs.locks import Busy, in_use
    from counterpoise.runs.repeating import check_repeats, with_choices_of

    kept = Folder.open(out)
    if in_use(out):
        raise Busy(busy(out))
    asked, made = made.training.engine, with_choices_of(kept.config, made)
    simulation = Simulation.of(made)
    check_repeats(out, kept.config, describe(made, simulation.trainer))
    simulation.trainer.asked = asked
    return (yield from _restored(kept, made, simulation, None, on_round, loggers))


def _keep(made: Setup, simulation: Simulation, run: Run, path: Path) -> None:
    with _begun(made, simulation, run, path) as folder:
        for record in run.rounds:
            folder.append(record)
        folder.save(simulation.loop, run.status)
    run.keep = None


@takes_only_its_options()
def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    on_round: OnRound | None = None,
    log: Log | None = None,
    progress: bool | None = None,
    trust: str | Path | None = None,
    method: Method | None = None,
    federation: Federation | None = None,
    model: Model | None = None,
    cohort: Availability | Sampler | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    augment: Augment | None = None,
    loss: Loss | None = None,
    metrics: Metrics | None = None,
    adversary: Adversaries | None = None,
) -> Run:
    """Continue a run from its checkpoint, up to the number of rounds in its configuration or up to `rounds`.

    Objects of your own (a model, a federation, a loss and so on) could not be written down, so give them again. Those
    that have a fingerprint are checked. The resumed run ends with the same model, bit for bit, as one that never
    stopped; if it began in a batch with other runs, in a comparison or a sweep, the same to rounding. `progress` is as
    in `simulate`. Code that was given by name (``my_project.models:net``) is imported from the folder `trust`, and only
    if it has not changed.
    """
    own: dict[str, Any] = {
        "method": method,
        "federation": federation,
        "model": model,
        "cohort": cohort,
        "optimizer": optimizer,
        "schedule": schedule,
        "augment": augment,
        "loss": loss,
        "metrics": metrics,
        "adversary": adversary,
    }
    from counterpoise.runs.folder import Folder

    place = _path(folder, "folder")
    config = Folder.open(place).config
    check_rounds(config.rounds if rounds is None else rounds)
    _check_on_round(on_round)
    with watched(config.method["name"], rounds or config.rounds, progress) as show:
        return _shown(show, drive(resume_course(place, rounds, _both(show, on_round), log, trust=trust, **own)))


def resume_course(
    folder: Path,
    rounds: int | None = None,
    on_round: OnRound | None = None,
    log: Log | None = None,
    asked: Engine | None = None,
    trust: str | Path | None = None,
    **own: Any,
) -> Course:
    """A kept run from its checkpoint on. `trust` and `own`, the user's own objects, are as in `resume`.

    `asked` is the engine setting as the user gave it. The configuration holds the setting as it was resolved for this
    run alone; with that, the run could not join a batch of runs.
    """
    from counterpoise.runs.build import describe, setup, whole
    from counterpoise.runs.folder import Folder
    from counterpoise.runs.holdings import check_simulated
    from counterpoise.runs.origin import check_here
    from counterpoise.runs.repeating import check_same
    from counterpoise.runs.trust import check_trusted

    _check_on_round(on_round)
    loggers = resolve(log)
    kept = Folder.open(folder)
    check_simulated(folder)
    check_trusted(kept.config.plain(), kept.config.code, str(folder), None if trust is None else _path(trust, "trust"))
    check_here(folder, kept.config.data.name)
    made = setup(whole(kept.config), **own)
    simulation = Simulation.of(made)
    check_same(kept.config, describe(made, simulation.trainer))
    simulation.trainer.asked = asked or simulation.trainer.asked
    return (yield from _restored(kept, made, simulation, rounds, on_round, loggers))


def _restored(
    kept: Folder,
    made: Setup,
    simulation: Simulation,
    rounds: int | None,
    on_round: OnRound | None,
    loggers: Sequence[Logger],
) -> Course:
    """A run from its folder's checkpoint on."""
    from counterpoise.runs.failure import forget_failure
    from counterpoise.runs.folder import Folder

    run = Run(
        made.training.method.name,
        made.seed,
        simulation.trainer.module,
        settings=kept.config.plain(),
        folder=kept.path,
        client_names=made.federation.client_names,
    )
    writes = rank() == 0
    with kept.locked() if writes else contextlib.nullcontext():
        kept = Folder.open(kept.path)  # another process may have changed it before we locked it
        if writes:
            forget_failure(kept.path)
        _restore(kept, made.federation, simulation, run, writes)
        if rounds is not None:
            _extend(kept, simulation, rounds, writes)
        kept_in = kept if writes else None
        short = rounds is None and simulation.round < kept.config.rounds
        run.why = made.stop.reason(run.rounds) if made.stop is not None and short else ""
        until = simulation.round if run.why else rounds or kept.config.rounds
        loggers = loggers if simulation.round < until else ()  # there is nothing to log
        return (yield from go(simulation, run, until, on_round, kept_in, loggers, made.stop))


def _restore(folder: Folder, federation: Federation, simulation: Simulation, run: Run, writes: bool) -> None:
    """Bring a simulation and its run back to the folder's checkpoint. If federation.json was lost, write it again."""
    from counterpoise.federation.overview import holdings
    from counterpoise.runs.contents import HOLDINGS

    run.rounds, run.status = folder.restore(simulation.loop, writes)
    if writes and folder.holdings_changed:
        folder.write_holdings(holdings(federation))
        logger.warning("%s was lost or is not what was written; it has been written again.", folder.path / HOLDINGS)
    if run.status == "diverged":
        run.model = simulation.trained()
        told = Diverged(
            f"The run in {folder.path} diverged after round {simulation.round}; resuming it would diverge again."
        )
        told.run = run
        raise told


def _extend(folder: Folder, simulation: Simulation, rounds: int, writes: bool) -> None:
    check_rounds(rounds)
    if rounds < simulation.round:
        raise CounterpoiseError(
            f"The run in {folder.path} has already run {counted(simulation.round, 'round')}; it cannot end at round {rounds}."
        )
    if writes:
        folder.extend(rounds)
