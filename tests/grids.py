"""A deployment within one process: Flower's messages pass through bytes between a strategy and client apps."""

from __future__ import annotations

import random
from types import SimpleNamespace

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message_type import MessageType
from flwr.app.user_config import UserConfig
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity


def through_bytes(message: Message) -> Message:
    """What arrives at the other end of a wire."""
    message.metadata.__dict__["_message_id"] = message.object_id
    contents = {key: part.deflate() for key, part in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, contents)
    arrived.metadata.__dict__["_message_id"] = message.object_id
    return arrived


class InProcess(Grid):
    """Nodes that answer in an order of their own; `meddle(request, reply)` gives what is sent in a reply's place."""

    in_process = True

    def __init__(self, app, clients, *, names=True, order=0, meddle=None, config=None) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.app, self.meddle, self.names = app, meddle, names
        self.random = random.Random(order)
        # Identities have nothing to do with the clients' numbers, not even the order.
        self.ids = {(client * 7919 + 13) % 101 + 1000: client for client in range(clients)}
        self.contexts = {}
        for node, client in self.ids.items():
            self.restart(node, config or {"partition-id": client})
        self.sent: list[Message] = []

    def restart(self, node: int, config: UserConfig | None = None) -> None:
        """The node loses its state."""
        config = config or self.contexts[node].node_config
        self.contexts[node] = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})

    def get_node_ids(self):
        return list(self.contexts)

    def get_nodes(self):
        shuffled = self.random.sample(sorted(self.contexts), len(self.contexts))
        return [SimpleNamespace(node_id=n, name=f"site-{self.ids[n]}" if self.names else "") for n in shuffled]

    def send_and_receive(self, messages, *, timeout=None):
        messages = [through_bytes(message) for message in messages]
        self.random.shuffle(messages)
        self.sent += messages
        return [reply for message in messages for reply in self._answers(message)]

    def _answers(self, message):
        try:
            reply = self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # as a SuperNode tells it
            reply = Message(Error(2, str(error)), reply_to=message)
        if self.meddle is not None and message.metadata.message_type == MessageType.TRAIN:
            reply = self.meddle(message, reply)
        replies = reply if isinstance(reply, list) else [] if reply is None else [reply]
        return [through_bytes(reply) for reply in replies]

    # What an older way of calling needs, and nobody here does.
    def set_run(self, run): ...

    @property
    def run(self): ...

    def create_message(self, *arguments, **named): ...

    def push_messages(self, messages): ...

    def pull_messages(self, message_ids): ...
