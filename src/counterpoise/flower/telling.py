"""What the log of a deployed run says about its rounds, and what its report calls the clients."""

from __future__ import annotations

from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.flower.roster import Roster
from counterpoise.method import Method
from counterpoise.runs.folder import Folder
from counterpoise.runs.run import Run

__all__ = ["describe_round", "forgotten", "judges_nobody", "keep_names"]


def describe_round(record: RoundRecord, rounds: int) -> str:
    """A round as one line of the log."""
    heard = len(record.cohort) - len(record.outcome.excluded)
    found = [f"{name} {value:.4g}" for name, value in record.metrics.items()]
    found += [f"skipped: {record.outcome.skipped}"] if record.outcome.skipped else []
    return f"round {record.round} of {rounds}: {', '.join([f'{heard} of {len(record.cohort)} clients', *found])}"


def forgotten(method: Method) -> str:
    """What happens to a method's clients if a run is continued: Flower gives nodes an empty state in every run."""
    return "; ".join(part.when_lost for part in method.parts if part.client_state is not None)


def judges_nobody(record: RoundRecord) -> str:
    """Why a method that judges clients judged nobody in a round; empty if it judged somebody, or never judges."""
    verdicts = record.outcome.verdicts.values()
    return "" if any(verdict.judged for verdict in verdicts) else next((v.reason for v in verdicts if v.reason), "")


def keep_names(folder: Folder, run: Run, roster: Roster) -> None:
    """Keep what clients are called; nodes may come later than the first round."""
    names = roster.names(run.client_names)
    if names is not None and tuple(names) != run.client_names:
        folder.write_holdings({"clients": len(names), "client_names": names})
        run.client_names = tuple(names)
