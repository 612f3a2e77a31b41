"""The same methods on Flower's SuperLink and SuperNodes.

`Strategy` is the server's half of a method, and `client_app` is a node's half; `server_app` is a strategy that keeps
its run in a folder. `counterpoise.flower.local` runs a whole deployment on one machine.
"""

from counterpoise.flower.node import client_app
from counterpoise.flower.server import server_app
from counterpoise.flower.strategy import Strategy

__all__ = ["Strategy", "client_app", "server_app"]
