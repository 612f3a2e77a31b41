"""A SuperLink without its network: Flower's own handlers and state, called directly, and nodes that may forge."""

from __future__ import annotations

import hashlib
import secrets
import time
from types import SimpleNamespace

from flwr.app import Message
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import HttpGrid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers


class Node:
    """A SuperNode by hand. `fleet` has the methods of Flower's client of the fleet's API."""

    def __init__(self, fleet, node_id) -> None:
        self.fleet, self.node = fleet, NodeProto(node_id=node_id)

    def pull(self) -> Message | None:
        """The next message for this node."""
        found = self.fleet.PullMessages(PullMessagesRequest(node=self.node))
        if not found.messages_list:
            return None
        one, tree = found.messages_list[0].metadata, found.message_object_trees[0]
        run, contents = one.run_id, {}
        for part in iterate_object_tree(tree):
            asked = PullObjectRequest(node=self.node, run_id=run, object_id=part.object_id)
            while not (found := self.fleet.PullObject(asked)).object_available:  # the server is still sending it
                time.sleep(0.1)
            contents[part.object_id] = found.object_content
        message = inflate_object_from_contents(one.message_id, contents)
        message.metadata.__dict__["_message_id"] = one.message_id
        self.confirm(run, one.message_id)
        return message

    def confirm(self, run, id) -> None:
        """Say that a message was received, upon which the SuperLink drops it."""
        self.fleet.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=id)
        )

    def push(self, message, *, spoil=None, send=None, **envelope) -> None:
        """Send a message in an envelope that may say otherwise; `spoil` changes an object's bytes, `send` says how many go."""
        objects = {id: part.deflate() for id, part in get_all_nested_objects(message).items()}
        outer = message_to_proto(remove_content_from_message(message))
        outer.metadata.message_id = message.object_id
        for name, value in envelope.items():
            setattr(outer.metadata, name, value)
        trees = [get_object_tree(message)]
        if spoil is not None:
            tree, objects = spoil(objects)
            outer.metadata.message_id, trees = tree.object_id, [tree]
        asked = PushMessagesRequest(node=self.node, messages_list=[outer], message_object_trees=trees)
        answer = self.fleet.PushMessages(asked)
        for id in list(answer.objects_to_push)[:send]:
            self.fleet.PushObject(
                PushObjectRequest(
                    node=self.node,
                    run_id=message.metadata.run_id,
                    object_id=id,
                    object_content=objects[id],
                    session_id=answer.session_id,
                )
            )


def saying(message, content, **words) -> Message:
    """A message that says of itself what its sender likes."""
    names = ("run_id", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id", "created_at", "ttl")
    said = {name: getattr(message.metadata, name) for name in (*names, "message_type")} | {"message_id": ""} | words
    return make_message(metadata=Metadata(**said), content=content)


def spoiled(objects):
    """One object of a known kind whose body is nonsense."""
    body = b"\xff\xff\xff"
    made = f"Message  {len(body)}".encode() + b"\0" + body
    id = hashlib.sha256(made).hexdigest()
    return ObjectTree(object_id=id), {id: made}


class Link:
    """A SuperLink with one run, which the server reaches by `grid`; `turn` is called before each of its looks."""

    def __init__(self) -> None:
        self.state = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()).state()
        self.run = self.state.create_run(
            "app", "1", "", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        (run,) = self.state.get_run_info(run_ids=[self.run])
        self.task = SimpleNamespace(run_id=self.run, task_id=run.primary_task_id)
        self.state.claim_task(run.primary_task_id)
        self.state.activate_task(run.primary_task_id)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run, 1, run.primary_task_id
        self.turn = lambda: None
        self.grid = HttpGrid(token="a token")
        self.grid.set_run(Run.create_empty(self.run))
        self.grid._client = self._client(runtime_handlers, task=self.task)
        look = self.grid._client.PullMessages
        self.grid._client.PullMessages = lambda request: (self.turn(), look(request))[1]
        self.fleet = self._client(fleet_handlers)

    def node(self, name) -> Node:
        """A node that is registered and online."""
        made = self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, secrets.token_bytes(), 30, name=name)
        self.state.activate_node(made, 1000)
        return Node(self.fleet, made)

    def _client(self, handlers, **named):
        store = {"store": self.state.object_store} if handlers is fleet_handlers else {}
        state = {"state": self.state}

        def call(handler, **more):
            return lambda request: handler(request, **state, **named, **more)

        return SimpleNamespace(
            PushMessages=call(handlers.push_messages),
            PullMessages=call(handlers.pull_messages, **store),
            PushObject=call(handlers.push_object),
            PullObject=call(handlers.pull_object),
            ConfirmMessageReceived=call(handlers.confirm_message_received, **store),
        )
