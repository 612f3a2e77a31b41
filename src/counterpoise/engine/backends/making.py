"""From what a user asked for to a backend: count the work, choose the setting, make the backend."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from counterpoise.engine.acceleration.scripted import pure
from counterpoise.engine.backends.batched import COMPILED_RATIO, Batched
from counterpoise.engine.backends.buckets import widths
from counterpoise.engine.backends.distributed import Distributed, Group
from counterpoise.engine.backends.interface import Backend
from counterpoise.engine.backends.perclient import PerClient
from counterpoise.engine.backends.refusals import refusal
from counterpoise.engine.backends.settings import Engine, chunk
from counterpoise.engine.backends.stacking import stacks, why_unbatched
from counterpoise.engine.clients.inspection import Traits
from counterpoise.engine.clients.program import Program, by_functions
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.assignment import Elsewhere
from counterpoise.federation.federation import Federation
from counterpoise.flat import Layout
from counterpoise.local import Local
from counterpoise.memory import bytes_in_words, machine_memory
from counterpoise.models.digests import frozen_digest

__all__ = ["Work", "choose_setting", "compiling_pays", "count_work", "join_work", "make_backend"]

log = logging.getLogger(__name__)

_PLACE_BYTES = 40
"""Bytes per place of a batch while batches are drawn: its index twice, its row, its share, its masks."""
_SCRIPTED = 2**22
"""Up to this many parameters, steps are scripted by default. Larger models take seconds to script and gain little."""
_COMPILING = 30.0
"""Seconds to compile a step for one width. On an H200 it took 26 to 34, or 2 to 11 if torch had cached the result. We use
one number for every GPU, and do not count on the cache."""
_SAVED, _SAVED_PER_NUMBER = 8e-5, 1.4e-11
"""Seconds that a compiled step saves, and seconds that it saves in addition for each parameter of each client. On an H200
in TF32 a step saved 0.10 ms (LeNet-5, 5 clients), 0.41 ms (100 clients) and 1.24 ms (1,626,442 parameters, 50 clients);
docs/performance.md has the rounds. The two numbers promise less than any of the three, so 'auto' compiles rather too
seldom than too often."""


class Work(NamedTuple):
    """How much clients train in a round, counted before any of them does."""

    sizes: Tensor
    """Each client's number of samples."""
    steps: Tensor
    """Each client's steps per pass."""
    batch: int
    """The widest batch."""
    numbers: int
    """The most numbers that a client's model, its batch or a tensor of a forward pass holds."""
    cohort: int
    share: int
    """The clients of a cohort that this process trains."""
    rounds: int
    """Rounds of the run; 0 if that is not known."""


def count_work(
    federation: Federation, local: Local, parameters: int, traits: Traits, cohort: int, group: Group | None, rounds: int
) -> Work:
    """Count the work of a federation's clients. The server of a deployment trains none."""
    clients = torch.arange(federation.clients)
    sizes = torch.zeros_like(clients)
    if not isinstance(federation.train, Elsewhere):
        sizes = federation.train.sizes(clients)
    batch = max(1, min(local.batch, int(sizes.max())))
    numbers = max(parameters, batch * federation.base.numbers, traits.widest(batch))
    share = cohort if group is None else -(-max(cohort, 1) // group.size)
    return Work(sizes, local.steps_of(clients, sizes), batch, numbers, cohort, share, rounds)


def join_work(works: Sequence[Work]) -> Work:
    """The work of several runs whose clients train as one batch."""
    sizes, steps = torch.cat([work.sizes for work in works]), torch.cat([work.steps for work in works])
    batch, numbers = max(work.batch for work in works), max(work.numbers for work in works)
    cohort, share, rounds = sum(w.cohort for w in works), sum(w.share for w in works), max(w.rounds for w in works)
    return Work(sizes, steps, batch, numbers, cohort, share, rounds)


def choose_setting(
    asked: Engine, program: Program, module: nn.Module, federation: Federation, traits: Traits, work: Work
) -> Engine:
    """Make every choice that was left open. If it matters, try first whether `vmap` takes the model and the method."""
    together = False
    if asked.backend == "batched" or (asked.backend == "auto" and (asked.bf16 or asked.kind != "cpu")):
        asked = _as_one_batch(asked, why_unbatched(program, module, federation, traits.keyed))
    elif asked.backend == "auto":
        most = max(1, min(asked.chunk or chunk("cpu", work.share, work.numbers), work.share))
        typical = _typical(work.steps, work.share)
        together = stacks(program, module, federation, traits.keyed, typical, most, work.batch)
    scripts = Layout.of(module).size <= _SCRIPTED and pure(module, program.code)
    if traits.unkeyed:
        log.warning(
            "The model draws random numbers that cannot be keyed by client: "
            "the run repeats only for this backend and chunk."
        )
    most = asked.chunk or chunk(asked.kind, work.cohort, work.numbers)
    compiling = asked.compile == "auto" and compiling_pays(work, program.local.passes, Layout.of(module).size, most)
    return asked.resolve(work.cohort, work.numbers, together, scripts, traits.unkeyed, compiling)


def compiling_pays(work: Work, passes: int, parameters: int, most: int) -> bool:
    """Whether a GPU that trains chunks of at most `most` clients saves more time by compiled steps than they take to make.

    Steps are compiled once for each width of a chunk; a chunk of unequal clients has several widths.
    """
    falling = _typical(work.steps, work.share).flip(0)
    chunks = [falling[begin : begin + most] for begin in range(0, len(falling), most)]
    found = [width for steps in chunks for width in widths(steps, len(chunks[0]), COMPILED_RATIO)]
    saved = sum(_SAVED + _SAVED_PER_NUMBER * width * parameters for width in found)
    return work.rounds * passes * saved > _COMPILING * len({*found})


def make_backend(
    engine: Engine, program: Program, module: nn.Module, layout: Layout, keyed: bool, work: Work, group: Group | None
) -> tuple[Program, Backend]:
    """The backend of a resolved setting, and the program with that backend's way to differentiate."""
    batched, dtype, script_steps = engine.backend == "batched", engine.torch_dtype, bool(engine.record)
    share = max(work.share, 1)
    most, threads = min(engine.chunk or 1, share), engine.threads or 1
    _check_plan(program.local, int(work.steps.max()), work.batch, most if batched else min(threads, share))
    backend: Backend
    if batched:
        program = replace(program, differentiate=by_functions)
        how = {"compiled": bool(engine.compile), "lowered": engine.convolutions == "triton", "half": engine.bf16}
        longest = program.local.passes * int(work.steps.max())
        backend = Batched(
            program, module, layout, keyed, most, dtype, script_steps=script_steps, longest=longest, **how
        )
    else:
        backend = PerClient(program, module, layout, keyed, threads, dtype, script_steps=script_steps)
    return program, backend if group is None else Distributed(backend, program, group, frozen_digest(module))


def _as_one_batch(asked: Engine, reason: str) -> Engine:
    """The setting asked for if clients can train as one batch; otherwise 'auto' becomes the per-client backend."""
    if reason and (asked.backend == "batched" or asked.bf16):
        raise refusal(reason)
    if reason:
        log.warning("Clients train one by one instead of as one batch, which is slower on a GPU, because: %s.", reason)
        return replace(asked, backend="per-client")
    return asked


def _check_plan(local: Local, steps: int, batch: int, clients: int) -> None:
    """Refuse a round whose batches do not fit into memory; they are drawn before a client begins."""
    needs, has = clients * local.passes * steps * batch * _PLACE_BYTES, machine_memory()
    if has is not None and needs > has:
        raise CounterpoiseError(
            f"local: {local.passes * steps} steps of {batch} samples in a round take {bytes_in_words(needs)} to plan "
            f"for {clients} clients at once, and this machine has {bytes_in_words(has)}. Use fewer epochs or steps."
        )


def _typical(steps: Tensor, cohort: int) -> Tensor:
    """The steps of a typical cohort: evenly spaced quantiles of the population's steps."""
    return steps.sort().values[(2 * torch.arange(cohort) + 1) * len(steps) // max(1, 2 * cohort)]
