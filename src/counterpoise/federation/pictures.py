"""A federation at a glance: for a notebook, and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from counterpoise.errors import CounterpoiseError
from counterpoise.federation.assignment import Elsewhere
from counterpoise.federation.overview import Holder, holdings, label_counts, overview, spread
from counterpoise.federation.structure import shape_in_words
from counterpoise.sketch import card, heat, table
from counterpoise.texts import counted

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

__all__ = ["federation_frame", "federation_html", "federation_text", "plot_federation"]

_SHOWN = 40
"""The most clients in the small picture."""
_NAMED = 5
"""The most clients whose names are written."""


def federation_text(federation: Holder) -> str:
    """A federation in a line: clients, samples, classes, and what the server holds."""
    named = f" ({_names(federation.client_names)})" if federation.client_names else ""
    samples, out = "samples", ""
    if not isinstance(federation.train, Elsewhere):
        everyone = torch.arange(federation.clients)
        train, heldout = (int(part.sizes(everyone).sum()) for part in (federation.train, federation.heldout))
        samples, out = counted(train + heldout, "sample"), f", {heldout or 'none'} of them held out"
    classes = "" if federation.classes is None else f" in {federation.classes} class{'es' * (federation.classes != 1)}"
    sets = [
        f"no {name} set" if own is None else f"{name} {len(own)}"
        for name in ("test", "probe", "proxy")
        if (own := getattr(federation, name)) is not None or name == "test"
    ]
    clients = f"{counted(federation.clients, 'client')}{named}"
    return f"Federation({clients}, {samples} of shape {federation.shape}{classes}{out}; {', '.join(sets)})"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def federation_html(federation: Holder) -> str:
    """Labels by client, and a few numbers."""
    title = "1 client" if federation.clients == 1 else f"{federation.clients} clients"
    rows: list[tuple[str, object]] = [("a sample", shape_in_words(federation.shape))]
    rows += [
        (name, f"{len(held)} samples on the server")
        for name in ("test", "probe", "proxy")
        if (held := getattr(federation, name)) is not None
    ]
    if names := federation.client_names:
        rows.insert(0, ("names", _names(names)))
    if isinstance(federation.train, Elsewhere):
        return card(f"{title}, whose data lie on their own machines", "", table(rows))
    if federation.classes is None:
        sizes = federation.train.sizes(torch.arange(federation.clients))
        return card(
            title, "", table([("samples to train on", f"{int(sizes.min())} to {int(sizes.max())} each"), *rows])
        )
    shown = spread(federation.clients, _SHOWN)
    counts = label_counts(federation, shown)
    facts = overview(federation, counts)
    some = "" if len(shown) == federation.clients else f" of {len(shown)} of them"
    more = [
        ("samples", f"{facts.samples}, {facts.smallest} to {facts.largest} each, median {facts.median:g}"),
        (f"labels{some}", f"{facts.labels:.3g} of {federation.classes} per client"),
        ("label skew", f"{facts.skew:.2f} (0: all alike, 1: nothing in common)"),
    ]
    return card(title, heat(counts.tolist()), table([*more, *rows]))


def federation_frame(federation: Holder) -> pd.DataFrame:
    """A row for each client and a column for each label, by their names if they have any."""
    if isinstance(federation.train, Elsewhere):
        raise CounterpoiseError("The server of a deployment does not know which labels its nodes hold.")
    try:
        import pandas as pd
    except ImportError:
        raise CounterpoiseError("Frames need pandas. Install it with: pip install pandas") from None
    counts = label_counts(federation, torch.arange(federation.clients))
    clients, labels = (
        range(count) if names is None else list(names)
        for count, names in zip(counts.shape, (federation.client_names, federation.class_names), strict=True)
    )
    return pd.DataFrame(counts, pd.Index(clients, name="client"), pd.Index(labels, name="label"))


def plot_federation(federation: Holder) -> go.Figure:
    """Labels by client as a plotly figure."""
    if isinstance(federation.train, Elsewhere) or federation.classes is None:
        raise CounterpoiseError("There is nothing to plot: this federation holds no samples with class numbers.")
    try:
        from counterpoise.charts.holdings import holdings_figure
        from counterpoise.charts.style import alone
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "plotly":
            raise
        raise CounterpoiseError("Figures need plotly. Install it with: pip install plotly") from None
    return alone(holdings_figure(holdings(federation)), "Who holds which labels")
