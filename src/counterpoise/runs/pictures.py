"""A run at a glance, for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from counterpoise import measures
from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.memory import bytes_in_words
from counterpoise.sketch import card, lines, table
from counterpoise.texts import counted

__all__ = ["run_html"]


def run_html(
    method: str,
    seed: int,
    status: str,
    rounds: Sequence[RoundRecord],
    folder: Path | None,
    why: str = "",
    failure: str = "",
) -> str:
    """The curve of the accuracy, or else of the loss, and what the run came to."""
    metric = next((name for name in ("accuracy", "loss", "train_loss") if measures.curve(rounds, name)), "")
    curve = measures.curve(rounds, metric) if metric else []
    if metric in ("train_loss", "") and (own := measures.own_curve(rounds)):
        metric, curve = "accuracy on clients' held-out data", own
    rows: list[tuple[str, str]] = [("status", f"{status}, {counted(len(rounds), 'round')}")]
    rows += [("ended early", why)] if why else []
    rows += [("failed", failure)] if failure else []
    if metric.startswith("accuracy"):
        top = measures.best(curve)
        rows += [(metric, f"{curve[-1][1]:.2%}, best {top.value:.2%} (round {top.round})")]
    rows += [("loss", f"{loss[-1][1]:.4g}") for loss in [measures.curve(rounds, "loss")] if loss]
    if measures.has_personal(rounds):
        rows += [("personal accuracy", f"{own[-1][1]:.2%}") for own in [measures.own_curve(rounds)] if own]
    skipped = [record for record in rounds if record.outcome.skipped]
    rows += (
        [("skipped", f"{counted(len(skipped), 'round')}, the last because {skipped[-1].outcome.skipped}")]
        if skipped
        else []
    )
    left_out = sum(len(record.outcome.excluded) for record in rounds)
    rows += [("left out", f"{left_out} replies")] if left_out else []
    rows += [
        ("time", f"{sum(record.seconds for record in rounds):.1f} s"),
        (
            "traffic",
            f"{bytes_in_words(_sum(rounds, 'bytes_up'))} up, {bytes_in_words(_sum(rounds, 'bytes_down'))} down",
        ),
    ]
    rows += [] if folder is None else [("kept in", str(folder))]
    title = f"{method}, seed {seed}" + (f": {metric.replace('_', ' ')}" if metric else "")
    return card(title, lines([curve], percent=metric.startswith("accuracy")), table(rows))


def _sum(rounds: Sequence[RoundRecord], cost: str) -> int:
    return sum(getattr(record, cost) for record in rounds)
