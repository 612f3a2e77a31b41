"""The same methods on Flower's SuperLink and SuperNodes: a `Strategy` for the server, `client_app` for the nodes."""

from counterpoise.flower.node import client_app
from counterpoise.flower.strategy import Strategy

__all__ = ["Strategy", "client_app"]
