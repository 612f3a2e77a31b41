"""How the work is done: backend, device, threads, chunk, precision.

A setting is resolved once from what was asked, the device and the sizes of the work, never from load or free
memory. It is written into the run: for one resolved setting, a run alone repeats bit for bit.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from counterpoise.engine.acceleration.doors import use_compiled_steps, use_kernels, use_scripted_steps
from counterpoise.errors import CounterpoiseError, brief, takes_only_its_options, unknown

__all__ = ["Engine", "check_options", "chunk"]

log = logging.getLogger(__name__)

BACKENDS = ("auto", "batched", "per-client")
CONVOLUTIONS = ("auto", "triton", "torch")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
_MOST_THREADS, _MOST_CHUNK, _MOST_STORE = 4096, 10**9, 2**20
"""Larger numbers are taken for a mistake; the last are GiB."""
_ELEMENTS = {"cpu": 2**22, "cuda": 2**29}
"""How many numbers one copy of a chunk's models, its batch, or a tensor of its forward pass may hold by default. What
is kept for the backward pass is not counted. On a CPU, malloc sets the limit: from 32 MiB on, it maps fresh memory for
every tensor, and steps took up to 2.5 times as long."""


@takes_only_its_options({"gpu": "device='cuda'"})
@dataclass(frozen=True)
class Engine:
    """What a user may ask for; `resolve` fills in 'auto', and None if that is the default."""

    backend: str = "auto"
    """'batched' (vmap) or 'per-client' (threads). Auto takes 'batched' on a GPU. On a CPU it does so only if that is
    faster, as for a small model and a large cohort of similar clients, and never for convolutions."""
    device: str = "auto"
    """'cpu', 'cuda', 'cuda:1'; auto takes a GPU if there is one."""
    threads: int | None = None
    """CPU threads; by default one per core that this process may use, shared with the other ranks on this machine.
    The default is one if a GPU trains with the batched backend: little is left for the CPU, and many threads would wait
    for each other."""
    chunk: int | None = None
    """Clients trained as one batch; by default the cohort, or as many as fit a fixed number of elements."""
    dtype: str = "float32"
    """'float32' or 'float64'."""
    tf32: bool = True
    """On a GPU, let float32 products use TF32, which is faster, with about three digits less in a product."""
    bf16: bool = False
    """Compute models and gradients in bfloat16, on the batched backend; parameters and methods stay in float32."""
    compile: bool | str = False
    """On a GPU, compile the training step. This takes up to half a minute for each width of a batch and makes rounds
    faster; torch keeps the result for the next run. It stays off without a C compiler. 'auto' compiles if, by the counts
    of rounds, steps, clients and parameters, the run saves more time than compiling takes."""
    convolutions: str = "auto"
    """On a GPU, 'triton' (kernels for stacks of clients) or 'torch' (grouped convolutions). Auto takes 'triton' if it
    is available."""
    onednn: bool | None = None
    """On a CPU, let torch use oneDNN. By default not on ARM, where it slowed down all of our models, up to twofold."""
    record: bool | None = None
    """On a CPU, script steps that are taken often, so that they run without Python, with the same result. By default
    this is done for models of at most 4 million parameters if a step runs only code of torch and of this package. Set it
    to true if your own models and hooks are pure functions of tensors: a scripted step does not repeat anything else they
    do (count, print). Nothing is scripted if the model draws random numbers that cannot be keyed."""
    store_gib: float = 4.0
    """GiB of memory for the rows that each part keeps for clients; rows beyond that go to a temporary file."""

    def __post_init__(self) -> None:
        for name in ("tf32", "bf16", "compile", "onednn", "record"):
            value = getattr(self, name)
            others = {"compile": ("auto",), "onednn": (None,), "record": (None,)}.get(name, ())
            if not isinstance(value, bool) and value not in others:
                also = ", or 'auto'" if name == "compile" else ""
                raise CounterpoiseError(f"engine: {name} must be true or false{also}, not {brief(value)}.")
        if self.dtype == "bfloat16":
            raise CounterpoiseError("engine: parameters are float32 or float64; to compute in bfloat16 set bf16=True.")
        if self.backend not in BACKENDS:
            raise unknown("backend", self.backend, BACKENDS)
        if self.dtype not in DTYPES:
            raise unknown("dtype", self.dtype, DTYPES)
        if self.convolutions not in CONVOLUTIONS:
            raise unknown("convolutions", self.convolutions, CONVOLUTIONS)
        if self.bf16 and (self.backend == "per-client" or self.dtype != "float32"):
            raise CounterpoiseError(
                "engine: bf16 needs the batched backend and dtype float32; set bf16=False or those."
            )
        for name, most in (("threads", _MOST_THREADS), ("chunk", _MOST_CHUNK)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= most):
                raise CounterpoiseError(f"engine: {name} must be a whole number from 1 to {most}, not {brief(value)}.")
        if type(self.store_gib) not in (int, float) or not 0 <= self.store_gib <= _MOST_STORE:
            raise CounterpoiseError(
                f"engine: store_gib must be a number from 0 to {_MOST_STORE}, not {brief(self.store_gib)}."
            )
        if self.device != "auto":
            _check_device(self.device)

    @property
    def place(self) -> str:
        """The device; 'auto' is a GPU if there is one."""
        return self.device if self.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def kind(self) -> str:
        """'cpu' or 'cuda'."""
        return torch.device(self.place).type

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    def resolve(
        self,
        cohort: int,
        numbers: int,
        stacks: bool = False,
        scripts: bool = False,
        unkeyed: bool = False,
        compiling_pays: bool = False,
    ) -> Engine:
        """This setting with every open choice made.

        `numbers` is the most numbers that a client's model, its batch or a tensor of a forward pass holds. The others
        say: `stacks`, that even a CPU should train clients as one batch; `scripts`, that steps only compute and gain
        from being scripted; `unkeyed`, that the model draws random numbers that cannot be keyed by client, so that
        threads would mix them; `compiling_pays`, that compiled steps save more time than compiling them takes.
        """
        device, kind = self.place, self.kind
        backend = self.backend
        if backend == "auto":
            backend = "batched" if stacks or self.bf16 or kind == "cuda" else "per-client"
        kernels = use_kernels(kind, backend, self.dtype)
        if self.convolutions == "triton" and not kernels:
            raise CounterpoiseError(
                "engine: convolutions=triton needs a GPU, Triton, a C compiler, the batched backend and dtype float32. "
                "Use convolutions=auto."
            )
        compiles = use_compiled_steps(kind, backend)
        if self.compile is True and not compiles:
            log.warning("compile is left off: it needs a GPU, Triton, a C compiler and the batched backend.")
        if self.record and kind != "cpu":
            log.warning("record is for a CPU; a GPU captures its steps without being asked.")
        threads = self.threads or (1 if kind == "cuda" and backend == "batched" else _cores())
        return replace(
            self,
            backend=backend,
            device=device,
            compile=compiles and (compiling_pays if self.compile == "auto" else bool(self.compile)),
            convolutions="triton" if kernels and self.convolutions != "torch" else "torch",
            threads=1 if unkeyed and backend == "per-client" else threads,
            chunk=self.chunk or chunk(kind, cohort, numbers),
            record=use_scripted_steps(kind, unkeyed) and (scripts if self.record is None else self.record),
            onednn=self.onednn if self.onednn is not None else platform.machine() not in ("aarch64", "arm64"),
        )


def chunk(kind: str, cohort: int, numbers: int) -> int:
    """How many clients train as one batch by default, if each holds this many numbers."""
    return max(1, min(cohort, _ELEMENTS[kind] // numbers))


def _cores() -> int:
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, there // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse what `Engine` would refuse, except a device that this machine lacks: another one may have it."""
    given = dict(options)
    name = given.pop("device", "auto")
    Engine(**given)
    if name != "auto":
        _read_device(name)


def _read_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise CounterpoiseError(f"engine: there is no device {name!r}; use cpu or cuda.") from error
    if device.type not in _ELEMENTS:
        raise CounterpoiseError(f"engine: device must be cpu or cuda, not {name!r}.")
    return device


def _check_device(name: str) -> None:
    device = _read_device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise CounterpoiseError("engine: device cuda was asked for, and torch finds no GPU here. Use device=cpu.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise CounterpoiseError(
            f"engine: there is no {name}: torch finds {torch.cuda.device_count()} GPUs here, and the first is cuda:0."
        )
