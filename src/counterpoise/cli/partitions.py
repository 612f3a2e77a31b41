"""What `counterpoise partition` does: count the labels of every client, and draw them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from counterpoise.cli.pictures import heat_svg, heat_text, shades
from counterpoise.cli.screen import echo
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.federation import Federation
from counterpoise.federation.overview import Overview, label_counts, overview, spread
from counterpoise.runs.build import setup
from counterpoise.runs.config import override, parse, read
from counterpoise.runs.trust import check_named
from counterpoise.texts import clean

__all__ = ["draw"]

_COLUMNS, _ROWS, _DRAWN, _NAME = 72, 20, 1000, 16
"""How many clients and labels a terminal shows, how many clients a drawing shows, and how much of a label's name."""


def draw(source: str, settings: Sequence[str], seed: int | None, out: Path | None, as_json: bool) -> None:
    """Draw how an experiment divides its data, in the terminal or to a file."""
    values, _ = read(source, settings)
    values = override(values, settings)
    values |= {} if seed is None else {"seed": seed}
    check_named(values, source)
    config = parse(values, source)
    federation = setup(config).federation
    shown = spread(federation.clients, _DRAWN)
    counts = label_counts(federation, shown)
    facts = overview(federation, counts)
    if as_json:
        called = federation.client_names
        names = {
            "client_names": None if called is None else [called[client] for client in shown.tolist()],
            "class_names": federation.class_names,
        }
        plain = {**facts._asdict(), "shown": shown.tolist(), "labels_by_client": counts.tolist()}
        echo(json.dumps(plain | {key: value for key, value in names.items() if value is not None}))
        return
    if out is not None:
        if out.suffix != ".svg":
            raise CounterpoiseError(f"The picture is an SVG file; {out} does not end in .svg.")
        try:
            drawn = heat_svg(_shares(counts), counts.sum(1), _sentence(facts), _labels(federation))
            out.write_text(drawn, encoding="utf-8")
        except OSError as error:
            raise CounterpoiseError(f"{out} cannot be written: {error.strerror or error}.") from None
        echo(f"written: {out}")
        return
    lines = _lines(counts[spread(len(counts), _COLUMNS).numpy()], facts, _labels(federation))
    if federation.client_names is not None and federation.clients <= _ROWS:
        lines.append(f"Clients, from the left: {', '.join(federation.client_names)}.")
    if config.data.skewed_test and federation.test is not None:
        each, everyone = len(federation.test) // federation.clients, len(federation.test)
        lines.append(f"The test set holds {each} samples as each client sees them, {everyone} in all.")
    echo("\n".join(lines))


def _labels(federation: Federation) -> list[str]:
    """What to call each label: its name, cut if it is long, or its number."""
    names = federation.class_names or range(federation.classes or 0)
    shown = (clean(str(name)).replace("\n", " ").replace("\t", " ") for name in names)
    return [name if len(name) <= _NAME else f"{name[: _NAME - 1]}…" for name in shown]


def _shares(counts: np.ndarray) -> np.ndarray:
    shares: np.ndarray = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares


def _lines(counts: np.ndarray, facts: Overview, called: Sequence[str]) -> list[str]:
    labels = counts.shape[1]
    together = -(-labels // _ROWS)  # several labels share a line if there are many
    starts = range(0, labels, together)
    shares = np.stack([_shares(counts)[:, s : s + together].sum(1) for s in starts], axis=1)
    names = [called[s] if together == 1 else f"{s}-{min(s + together, labels) - 1}" for s in starts]
    sizes = counts.sum(1) / max(int(counts.sum(1).max()), 1)
    wide = max(map(len, names))
    chosen = "" if len(counts) == facts.clients else f" ({len(counts)} shown)"
    return [
        *heat_text(shares / (shares.max() or 1), names),
        f"{'':>{wide}} {'─' * len(counts)}",
        f"{'n':>{wide}} {shades(sizes)}",
        f"Labels down, clients across{chosen}; darker: larger share; n: client's size.",
        *_sentence(facts).split("; "),
    ]


def _sentence(facts: Overview) -> str:
    unused = f", {facts.unused} unused" if facts.unused else ""
    return (
        f"{facts.clients} clients hold {facts.samples} samples{unused}; "
        f"{facts.smallest} to {facts.largest} each, median {facts.median:g}; "
        f"{facts.labels:.3g} labels per client, distance from all labels {facts.skew:.3f}"
    )
