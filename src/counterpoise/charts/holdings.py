"""Who holds which labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from counterpoise.charts.style import NEUTRAL, called, from_zero, sized

__all__ = ["holdings_figure"]

_WRITTEN = 20
"""Up to this many clients and labels, each cell shows its number."""


def holdings_figure(found: Mapping[str, Any]) -> go.Figure:
    """Labels by client, and below them every client's total; `found` is what `federation.overview.holdings` returned."""
    counts = np.asarray(found["labels"])
    clients = called(found.get("client_names"), found["shown"])
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.76, 0.24], vertical_spacing=0.04)
    figure.add_heatmap(
        z=[[int(v) or None for v in row] for row in counts.T],
        x=clients,
        y=called(found.get("class_names"), range(counts.shape[1])),
        coloraxis="coloraxis",
        xgap=1 if len(clients) <= 60 else 0,
        ygap=1 if counts.shape[1] <= 30 else 0,
        hovertemplate="client %{x}, label %{y}: %{z} samples<extra></extra>",
        texttemplate="%{z}" if max(counts.shape) <= _WRITTEN else None,
        row=1,
        col=1,
    )
    figure.add_bar(
        x=clients,
        y=counts.sum(1).tolist(),
        marker={"color": NEUTRAL},
        hovertemplate="client %{x}: %{y} samples<extra></extra>",
        showlegend=False,
        row=2,
        col=1,
    )
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_xaxes(title_text="client", row=2, col=1)
    figure.update_yaxes(title_text="label", type="category", showgrid=False, row=1, col=1)
    figure.update_yaxes(title_text="samples", row=2, col=1)
    tall = min(max(counts.shape[1] * 22, 160), 420)
    bar = {"title": {"text": "samples of a label"}}
    return sized(
        figure, round(tall / 0.76) + 110, coloraxis={"colorbar": bar} | from_zero(counts.flat), margin={"b": 70}
    )
