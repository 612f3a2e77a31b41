"""Which node is which client. The server decides this once for each node, and a node cannot be two clients.

If an operator registered a node under a name that ends in a number (``site-3``), the node is that client. Its key
proves the name, so nobody can take another client's place or its record. A node without such a name is asked for the
``partition-id`` of its configuration; that is good enough for a simulation and for sites that trust one another.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence

from flwr.app import Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from counterpoise.flower.replies import CONFIG, METRICS, answers
from counterpoise.flower.terms import VERSION, show_version
from counterpoise.flower.wire import SMALL, exchange, with_secret

__all__ = ["Roster"]

log = logging.getLogger(__name__)

_SECONDS_TO_ANSWER = 60.0
_LONGEST = 200
"""A longer name is cut to this length."""


class Roster:
    """The clients of a deployment and their nodes."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self._client: dict[str, int | None] = {}
        """For every identity seen, its client; None if it is not a client."""
        self._proved: set[str] = set()
        """The identities whose names prove which client they are."""
        self._name: dict[int, str] = {}
        """For each client whose name a key proves, that name."""
        self._version: dict[int, str] = {}
        """The version that each client runs, if it is not the server's."""

    def present(self, grid: Grid) -> dict[int, int]:
        """For each client that is connected now, its node."""
        names = {node.node_id: node.name for node in sorted(grid.get_nodes(), key=lambda node: node.node_id)}
        identities = {node: name or f"node {node}" for node, name in names.items()}
        new = [node for node, identity in identities.items() if identity not in self._client]
        proved = {node: number for node in new if (number := _number(names[node])) is not None}
        for node, client in (proved | self._ask(grid, [node for node in new if node not in proved])).items():
            self._enter(identities[node], client, node in proved)
        here: dict[int, int] = {}
        for node, identity in identities.items():
            held = self._client.get(identity)
            if held is not None and here.setdefault(held, node) != node:
                log.warning("%s is connected twice; node %d is not asked.", identity, node)
        return here

    def names(self, known: Sequence[str] | None = None) -> list[str] | None:
        """What clients are called: the name of the key, or that in `known`, or the number; None if all are numbers."""
        if not self._name and known is None:
            return None
        return [self._name.get(c, str(c) if known is None else known[c]) for c in range(self.clients)]

    def note_versions(self, sent: Mapping[int, object]) -> None:
        """Warn once of each client that runs another version of this library than the server."""
        for client, version in sent.items():
            shown = show_version(version)
            if version != VERSION and self._version.get(client) != shown:
                log.warning(
                    "client %d runs counterpoise %s, and the server %s. They may compute differently: install one "
                    "version on all machines.",
                    *(client, shown, show_version(VERSION)),
                )
            self._version[client] = shown

    def _enter(self, identity: str, client: int | None, proved: bool) -> None:
        """Give an identity its client, unless another identity has it; a proved name goes before a mere claim."""
        other = next((who for who, held in self._client.items() if held == client and who != identity), None)
        if client is None or not 0 <= client < self.clients:
            log.warning("%s is not one of the %d clients and is not asked.", identity, self.clients)
            client = None
        elif other is not None and proved and other not in self._proved:
            log.warning("%s says it is client %d, which is %s; it is not asked any more.", other, client, identity)
            self._client[other] = None
        elif other is not None:
            log.warning("%s says it is client %d, which is %s; it is not asked.", identity, client, other)
            client = None
        if client is not None:
            log.info("client %d is %s", client, identity)
        self._client[identity] = client
        if proved:
            self._proved.add(identity)
            self._name |= {} if client is None else {client: identity[:_LONGEST]}

    def _ask(self, grid: Grid, nodes: list[int]) -> dict[int, int | None]:
        messages = [Message(RecordDict({CONFIG: with_secret({})}), node, MessageType.QUERY) for node in nodes]
        replies = exchange(grid, messages, _SECONDS_TO_ANSWER, SMALL)
        asked = {message.metadata.message_id: node for message, node in zip(messages, nodes, strict=True)}
        claims: dict[int, int | None] = {}
        for node, reply in answers(replies, asked):
            if reply.has_content():
                said = reply.content.metric_records.get(METRICS, MetricRecord()).get("client")
                claims[node] = said if isinstance(said, int) else None
        return claims


def _number(name: str) -> int | None:
    found = re.search(r"(?<!\d)\d{1,9}$", name)
    return int(found[0]) if found else None
