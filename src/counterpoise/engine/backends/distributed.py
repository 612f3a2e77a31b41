"""One simulation on several processes, each with a share of the cohort: what `torchrun` starts.

Every rank holds the whole federation and the whole server, and draws the same cohorts and batches; only local
training is split. A round has one exchange, an all-gather of the ranks' packed replies, after which all ranks know
the same and continue alike. With its replies a rank sends its status, so that all ranks end if one fails or is stopped.
It also sends digests of the model it started from and of its frozen weights, so that ranks that differ are noticed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from counterpoise.engine.backends.interface import Backend, Job
from counterpoise.engine.clients.messages import template, unpack_reports
from counterpoise.engine.clients.program import Program, TrainingResult
from counterpoise.errors import CounterpoiseError, Interrupted
from counterpoise.trees import pack, row_size, select, unpack

__all__ = ["Distributed", "Group", "first_to_say", "rank"]

_WELL, _STOPPED, _FAILED = 0, 1, 2
_SAID = "counterpoise/said"
_HEAD = 3 * 8
"""Bytes of a packet's head."""
_TEXT = 1000
"""How many bytes of an error's sentence are sent."""


def rank() -> int:
    """This process's number; 0 in a run of one process."""
    return int(os.environ["RANK"]) if _was_launched() else 0


def first_to_say() -> bool:
    """Whether this process should report how the run ended: rank 0 does so, or if it stays silent, one other rank."""
    if not _was_launched() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return rank() == 0
    store = next(rendezvous("env://"))[0]
    if rank():
        with contextlib.suppress(RuntimeError):  # nobody said it in time
            store.wait([_SAID], timedelta(seconds=5))
            return False
    return bool(store.add(_SAID, 1) == 1)


def _was_launched() -> bool:
    """Whether torchrun, or something that sets the same variables, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys() and int(
        os.environ["WORLD_SIZE"]
    ) > 1


@dataclass(frozen=True)
class Group:
    """The processes of this run."""

    rank: int
    size: int
    wire: torch.device | None
    """The device that packets are moved to for an exchange; None if they stay where they are."""

    @classmethod
    def join(cls, device: torch.device) -> Group | None:
        """The group this process was launched in, or None if it runs alone."""
        if not _was_launched():
            return None
        here = int(os.environ.get("LOCAL_RANK", 0))
        on_gpu = device.type == "cuda"
        share_gpus = on_gpu and int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > torch.cuda.device_count()
        if on_gpu and device.index is None:
            torch.cuda.set_device(here % torch.cuda.device_count())
        if not dist.is_initialized():
            try:
                dist.init_process_group("nccl" if on_gpu and not share_gpus else "gloo")
            except RuntimeError as error:
                raise CounterpoiseError(
                    f"Rank {rank()} could not join the others: {str(error).splitlines()[0]}."
                ) from error
            atexit.register(_leave)
        return cls(
            dist.get_rank(), dist.get_world_size(), None if dist.get_backend() == "nccl" else torch.device("cpu")
        )

    def gather(self, packet: Tensor) -> Tensor:
        """Every rank's packet ``[R, bytes]``."""
        sent = packet if self.wire is None else packet.to(self.wire)
        got = sent.new_empty(self.size, len(sent))
        try:
            dist.all_gather(list(got), sent)
        except RuntimeError as error:
            raise CounterpoiseError(
                "Another rank of this run has ended, so this one ends too. The other rank's output says why."
            ) from error
        return got.to(packet.device)


def _leave() -> None:
    with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # the others may have left before
        dist.destroy_process_group()


class _Halt(threading.Event):
    """A request to stop. It is never seen between two rounds: ranks act on it together, at their next exchange."""

    def __init__(self, inner: threading.Event) -> None:
        super().__init__()
        self._inner = inner

    def set(self) -> None:
        self._inner.set()


class Distributed:
    """A backend that trains this rank's share of a cohort on another backend, and shares the replies."""

    asynchronous = False  # ranks wait for each other

    def __init__(self, inner: Backend, program: Program, group: Group, frozen: str = "") -> None:
        self.halt: threading.Event = _Halt(inner.halt)
        self._frozen = int(frozen or "0", 16) - 2**63
        """A digest of the weights that are not trained."""
        self._inner, self._program, self._group = inner, program, group
        self._like: Any = None

    def plan(self, job: Job) -> Any:
        mine = self._shares(job)[self._group.rank]
        return self._inner.plan(job.some(mine)) if len(mine) else None

    def _shares(self, job: Job) -> list[Tensor]:
        """Each rank's places in the cohort. The longest clients are dealt out first, so that ranks have like work."""
        order = job.steps.argsort(descending=True, stable=True)
        return [order[rank :: self._group.size] for rank in range(self._group.size)]

    def train(self, job: Job, planned: Any = None) -> TrainingResult:
        shares, ranks = self._shares(job), self._group.size
        like = self._one_reply(job)
        status, rows = _WELL, job.shared.start.new_empty(0, row_size(like), dtype=torch.uint8)
        failure: BaseException | None = None
        try:
            mine = shares[self._group.rank]
            if len(mine):
                rows = pack(self._inner.train(job.some(mine), planned))
        except Interrupted as stopped:
            status, failure = _STOPPED, stopped
        except Exception as error:
            status, failure = _FAILED, error
        packets = self._group.gather(_packet((status, self._frozen), failure, job.shared.start, rows, len(shares[0])))
        heads = packets[:, :_HEAD].contiguous().view(torch.int64).tolist()
        if failure is not None:
            raise failure
        for other, (status, _, _) in enumerate(heads):
            if status == _FAILED:
                text = bytes(packets[other, _HEAD : _HEAD + _TEXT].tolist()).rstrip(b"\0").decode(errors="replace")
                raise CounterpoiseError(f"Rank {other} failed, and with it the run: {text}")
        if any(status == _STOPPED for status, _, _ in heads):
            raise Interrupted("Stopped.")
        if len({frozen for _, frozen, _ in heads}) > 1:
            raise CounterpoiseError(
                "The ranks begin with different frozen weights. Load the same file of weights on all of them."
            )
        if len({digest for _, _, digest in heads}) > 1:
            raise CounterpoiseError(
                "The ranks do not hold the same model any more. Give all of them the same program, arguments and data, "
                "on machines of one kind."
            )
        replies = packets[:, _HEAD + _TEXT :].reshape(ranks, len(shares[0]), -1)
        rows = torch.cat([replies[rank, : len(share)] for rank, share in enumerate(shares)])
        return TrainingResult(*unpack(rows[torch.cat(shares).argsort().to(rows.device)], like))

    def _one_reply(self, job: Job) -> TrainingResult:
        """What one client ends a round with; only its layout is used, which is the same in every round."""
        if self._like is None:
            start, state = job.shared.start, select(job.state, 0)
            reports = unpack_reports(template(self._program, job.shared, state, select(job.letters, 0)))
            self._like = TrainingResult(start, reports, state, start.new_zeros(()))
        return self._like  # type: ignore[no-any-return]

    def forget(self) -> None:
        self._inner.forget()

    def outputs(self, models: Tensor, inputs: Any) -> Tensor:
        return self._inner.outputs(models, inputs)

    def own_outputs(self, models: Tensor, inputs: Any) -> Tensor:
        return self._inner.own_outputs(models, inputs)

    def output(self, model: Tensor, inputs: Any) -> Tensor:
        return self._inner.output(model, inputs)


def _packet(facts: tuple[int, int], failure: BaseException | None, start: Tensor, rows: Tensor, width: int) -> Tensor:
    """A rank's packet: its head, its error's sentence, and its replies padded to `width`.

    The head holds the `facts` (status, digest of the frozen weights) and a digest of the model it began with.
    """
    bits = start.contiguous().view(torch.int64 if start.element_size() == 8 else torch.int32)
    digest = (bits * torch.arange(1, len(bits) + 1, device=bits.device)).sum(dtype=torch.int64)
    head = torch.stack([*(torch.full_like(digest, fact) for fact in facts), digest]).view(torch.uint8)
    text = ("" if failure is None else str(failure) or type(failure).__name__).encode()[:_TEXT].ljust(_TEXT, b"\0")
    body = rows.new_zeros(width, rows.shape[1])
    body[: len(rows)] = rows
    return torch.cat([head, torch.tensor(list(text), dtype=torch.uint8, device=start.device), body.flatten()])
