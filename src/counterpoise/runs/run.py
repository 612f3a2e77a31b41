"""`Run`: what a simulation returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from counterpoise.engine.rounds.records import RoundRecord
from counterpoise.errors import CounterpoiseError, brief, unknown
from counterpoise.measures import (
    CLIENT,
    PERSONAL,
    client_curve,
    curve,
    curve_by,
    has_personal,
    last,
    metrics_of,
    own_curve,
)
from counterpoise.measures import summary as measured
from counterpoise.runs.ending import untrained
from counterpoise.texts import counted

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

__all__ = ["Run"]

_USUAL = ("accuracy", "loss")
"""What a run measures on its test set by default."""


@dataclass
class Run:
    """The record of a run, round by round, and the model it ended with."""

    method: str
    seed: int
    model: nn.Module
    """The model that was measured last: the server's, or what the method makes of it (`Part.scored`)."""
    rounds: list[RoundRecord] = field(default_factory=list)
    status: str = "running"
    """finished, stopped, diverged, or failed (no round trained the model)"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The complete, resolved configuration."""
    why: str = ""
    """Why its rule (`stop`) ended it before its last round; empty if it did not."""
    folder: Path | None = None
    client_names: tuple[str, ...] | None = None
    """What clients are called, in the order of their numbers, if the federation gives them names."""
    keep: Callable[[str | Path], None] | None = field(default=None, repr=False)
    """Writes the complete run into a new folder, from which it can be resumed; `save` calls it."""

    def save(self, folder: str | Path) -> None:
        """Write a run that was simulated without a folder into one."""
        if self.keep is None:
            raise CounterpoiseError(f"This run is already kept, in {self.folder}.")
        self.keep(folder)

    def __repr__(self) -> str:
        found = [
            (name, value, "") for name, value in (("accuracy", self.accuracy), ("loss", self.loss)) if value is not None
        ]
        for name in _USUAL:
            what = f"personal {name}" if has_personal(self.rounds, name) else name
            found += [(what, own[-1][1], " on clients' held-out data") for own in [own_curve(self.rounds, name)] if own]
        shown = "".join(f", {name} {value:.4f}{where}" for name, value, where in found[:1])
        skipped = sum(bool(r.outcome.skipped) for r in self.rounds)
        rounds = counted(len(self.rounds), "round") + (f" ({skipped} skipped)" if skipped else "")
        return f"Run({self.method}, seed {self.seed}, {rounds}, {self.status}{' early' if self.why else ''}{shown})"

    def curve(self, metric: str = "accuracy") -> list[tuple[int, float]]:
        """``(round, value)`` for every round in which the metric was measured on the test set.

        ``"client_accuracy"`` is the mean over clients of the server's model on their held-out data, and
        ``"personal_accuracy"`` that of the model that each client would use, which is the server's unless the method
        makes personal ones. A name that this run never measured is an error, but accuracy and loss are empty without a
        test set.
        """
        if not isinstance(metric, str):
            raise CounterpoiseError(f"A metric is given by its name, such as 'accuracy', not {brief(metric)}.")
        there = metrics_of(self.rounds)
        tested = any(not name.startswith(("train_", CLIENT, PERSONAL)) for name in there)
        if metric not in there and (tested or metric not in _USUAL):
            raise unknown("metric", metric, there or _USUAL, "in the rounds of this run")
        return curve_by(self.rounds, metric)

    def last(self, metric: str) -> float | None:
        """The metric's value in the last round that measured it."""
        values = self.curve(metric)
        return values[-1][1] if values else None

    @property
    def accuracy(self) -> float | None:
        """Test accuracy of the last round that measured it; None if none did."""
        return self._last("accuracy")

    @property
    def loss(self) -> float | None:
        """Test loss of the last round that measured it; None if none did."""
        return self._last("loss")

    def _last(self, metric: str) -> float | None:
        values = curve(self.rounds, metric)
        return values[-1][1] if values else None

    @property
    def weights(self) -> list[Mapping[int, float] | None]:
        """For each round, the weight of every client that was heard; None for a rule without weights."""
        return [r.outcome.weights for r in self.rounds]

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """Every verdict on a client's claim: round, client, claimed, estimated, low, high, z, action, reason."""
        return [
            {"round": r.round, "client": client} | asdict(verdict)
            for r in self.rounds
            for client, verdict in r.outcome.verdicts.items()
        ]

    @property
    def liars(self) -> list[int]:
        """Every client that an adversary controlled in some round: the truth to compare the verdicts with."""
        return sorted({client for r in self.rounds for client in r.liars})

    @property
    def seconds(self) -> float:
        return sum(r.seconds for r in self.rounds)

    @property
    def bytes_up(self) -> int:
        return sum(r.bytes_up for r in self.rounds)

    @property
    def bytes_down(self) -> int:
        return sum(r.bytes_down for r in self.rounds)

    @property
    def bytes_server(self) -> int:
        """Bytes that the method kept on the server at the end, the model not counted."""
        return self.rounds[-1].bytes_server if self.rounds else 0

    @property
    def bytes_clients(self) -> int:
        """Bytes that the method kept on all clients seen so far, at the end."""
        return self.rounds[-1].bytes_clients if self.rounds else 0

    @property
    def personal(self) -> float | None:
        """Personal accuracy: the mean over clients of their personal models' accuracy on their held-out data.

        None if the method makes no personal models; ``last("client_accuracy")`` is the server's model on the same data.
        A client that has not trained yet counts with the server's model, which is the one it would use.
        """
        values = own_curve(self.rounds) if has_personal(self.rounds) else []
        return values[-1][1] if values else None

    def frame(self, of: str = "rounds") -> pd.DataFrame:
        """The record as a tidy pandas frame with a row per round, per client and round, or per verdict.

        `of` is ``"rounds"``, ``"clients"`` or ``"verdicts"``. What parts noted about clients are columns of the second; a
        fact of a round is a column ``fact_...`` of the first. If clients have names, the last
        two have a column ``name``.
        """
        from counterpoise.runs.frames import frame

        return frame(self.rounds, of, self.client_names, method=self.method, seed=self.seed)

    def plot(self, metric: str | None = None, against: str = "rounds") -> go.Figure:
        """A metric as a plotly figure; by default the accuracy, or the loss if there is none.

        `metric` is a name as in `curve`. `against` is ``"rounds"``, ``"bytes"`` or
        ``"seconds"``.
        """
        from counterpoise.runs.plots import plot_curves

        return plot_curves([(self.method, [self.rounds])], metric, against)

    def _repr_html_(self) -> str:
        from counterpoise.runs.pictures import run_html

        return run_html(self.method, self.seed, self.status, self.rounds, self.folder, self.why)

    def summary(self, target: float | None = None) -> dict[str, Any]:
        """The run in a few plain values; with `target`, also the rounds and bytes it took to reach that accuracy."""
        left_out = sum(len(r.outcome.excluded) for r in self.rounds)
        counts = None
        if self.folder is not None:
            from counterpoise.runs.holdings import true_counts  # needs pydantic, as all code that keeps runs does

            counts = true_counts(self.folder)
        measures = measured(self.rounds, target=target, counts=counts)
        return {
            "method": self.method,
            "seed": self.seed,
            "status": self.status,
            **({"reason": untrained(self.rounds)} if self.status == "failed" else {}),
            **({"why": self.why} if self.why else {}),
            "rounds": len(self.rounds),
            "accuracy": _finite(self.accuracy),
            "loss": _finite(self.loss),
            "client_accuracy": _finite(last(client_curve(self.rounds))),
            "personal_accuracy": _finite(self.personal),
            "seconds": round(self.seconds, 3),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "bytes_server": self.bytes_server,
            "bytes_clients": self.bytes_clients,
            "excluded": left_out,
            **({"rejected": sum(v["action"] != "accepted" for v in verdicts)} if (verdicts := self.verdicts) else {}),
            "skipped": sum(bool(r.outcome.skipped) for r in self.rounds),
            "liars": self.liars,
            "measures": {name: _finite(value) for name, value in measures.items()},
            "out": None if self.folder is None else str(self.folder),
        }


def _finite(value: float | None) -> float | None:
    """None for NaN and infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None
