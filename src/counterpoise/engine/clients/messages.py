"""Broadcasts and replies as flat dictionaries of named tensors: what travels over a network.

`pack_*` and `unpack_*` are inverse to each other. A reply that comes from outside is checked against
a template before it is stacked; one that does not fit is left out with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from counterpoise.engine.clients.program import Named, Participant, Program, Shared, TrainingResult
from counterpoise.method import Cohort

__all__ = [
    "SENT",
    "byte_count",
    "pack_accepted",
    "pack_broadcast",
    "pack_evaluation",
    "pack_letters",
    "pack_reply",
    "show_text",
    "stack_replies",
    "template",
    "unpack_accepted",
    "unpack_broadcast",
    "unpack_letters",
    "unpack_reports",
    "unpack_statistics",
]

Arrays = dict[str, Tensor]

SENT = {"model", "lr", "broadcast", "letter", "accepted", "statistics"}
"""The names of all tensors that a server sends, up to the first slash."""


def _flatten(prefix: str, named: Named) -> Arrays:
    return {f"{prefix}/{part}/{name}": t for part, own in named.items() for name, t in own.items()}


def _nest(prefix: str, arrays: Mapping[str, Tensor]) -> Named:
    nested: Named = {}
    for key, tensor in arrays.items():
        head, _, rest = key.partition("/")
        if head == prefix:
            part, _, name = rest.partition("/")
            nested.setdefault(part, {})[name] = tensor
    return nested


def pack_broadcast(shared: Shared) -> Arrays:
    """What the server sends to every client."""
    return {"model": shared.start, "lr": shared.lr} | _flatten("broadcast", shared.broadcast)


def unpack_broadcast(arrays: Mapping[str, Tensor]) -> Shared:
    """A broadcast as a client reads it."""
    return Shared(arrays["model"], _nest("broadcast", arrays), arrays["lr"])


def pack_evaluation(model: Tensor, statistics: Mapping[str, Tensor]) -> Arrays:
    """What the server sends for an evaluation: its model and the model's running statistics."""
    return {"model": model} | {f"statistics/{name}": values for name, values in statistics.items()}


def unpack_statistics(arrays: Mapping[str, Tensor]) -> Arrays:
    """The running statistics in a message that asks for an evaluation."""
    return {name.removeprefix("statistics/"): t for name, t in arrays.items() if name.startswith("statistics/")}


def pack_letters(letters: Named) -> Arrays:
    """What the server sends to one client alone, or to several if the letters are stacked."""
    return _flatten("letter", letters)


def unpack_letters(arrays: Mapping[str, Tensor]) -> Named:
    """A client's letters, by part."""
    return _nest("letter", arrays)


def pack_accepted(rounds: Mapping[str, int]) -> Arrays:
    """For each part with client state, the last round in which the server accepted this client's reply; 0 for none."""
    return {f"accepted/{part}": torch.tensor(round) for part, round in rounds.items()}


def unpack_accepted(arrays: Mapping[str, Tensor]) -> dict[str, int]:
    """For each part, the round of the state that a client continues from."""
    return {key.removeprefix("accepted/"): int(t) for key, t in arrays.items() if key.startswith("accepted/")}


def pack_reply(result: TrainingResult, examples: Tensor, steps: Tensor) -> Arrays:
    """What a client sends back; its state is not in it."""
    return {"update": result.update, "examples": examples, "steps": steps} | _flatten("report", result.reports)


def unpack_reports(arrays: Mapping[str, Tensor]) -> Named:
    """The reports within a reply."""
    return _nest("report", arrays)


def template(program: Program, shared: Shared, state: Named, letters: Named) -> Arrays:
    """A reply with the right names and shapes, made by a client that takes no step."""
    one = torch.ones((), dtype=torch.int64, device=shared.start.device)
    participant = Participant(torch.zeros_like(one), one, one, torch.zeros_like(one), state, letters)
    traces = {every: shared.start.new_zeros(1, len(shared.start)) for every in program.periods}
    with torch.no_grad():
        return pack_reply(program.finish(shared, participant, program.begin(shared, participant), traces), one, one)


def stack_replies(
    replies: Mapping[int, Mapping[str, Tensor]], like: Mapping[str, Tensor]
) -> tuple[Cohort, dict[int, str]]:
    """Stack replies in the order of their authenticated identities, so that the order of arrival does not matter."""
    reasons: dict[int, str] = {}
    good: list[int] = []
    for client in sorted(replies):
        reason = _misfit(replies[client], like)
        if reason:
            reasons[client] = reason
        else:
            good.append(client)
    columns = {}
    for name, tensor in like.items():
        kind = torch.float64 if name in ("examples", "steps") else tensor
        rows = [replies[client][name].to(kind) for client in good]
        columns[name] = torch.stack(rows) if rows else tensor.new_empty((0, *tensor.shape))
    cohort = Cohort(tuple(good), columns["update"], columns["examples"], columns["steps"], _nest("report", columns))
    return cohort, reasons


def _misfit(reply: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> str:
    missing, extra = like.keys() - reply.keys(), reply.keys() - like.keys()
    if missing:
        return f"its reply lacks {min(missing)}"
    if extra:
        return f"its reply holds {show_text(min(extra))}, which was not asked for"
    for name, tensor in like.items():
        if reply[name].shape != tensor.shape:
            return f"{name} has shape {show_text(str(list(reply[name].shape)))} and should have {list(tensor.shape)}"
        if reply[name].dtype == torch.bool or reply[name].is_complex():
            return f"{name} is not made of real numbers"
    return ""


def show_text(name: str, most: int = 80) -> str:
    """A sender's text made safe for one line of a log: unprintable characters are escaped, and a long text is cut."""
    return repr(name)[1:-1][:most]


def byte_count(arrays: Mapping[str, Tensor]) -> int:
    """The bytes of a message's tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in arrays.values())
