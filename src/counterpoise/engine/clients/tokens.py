"""Rows of tokens: does the model know all tokens of the inputs, and do targets and outputs suit the usual loss?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from counterpoise.engine.scores import IGNORED
from counterpoise.errors import CounterpoiseError
from counterpoise.federation.federation import Federation
from counterpoise.federation.samples import Samples
from counterpoise.federation.structure import parts

__all__ = ["check_tokens", "embeddings_checked"]


@contextlib.contextmanager
def embeddings_checked(model: nn.Module, inputs: Any, federation: Federation) -> Iterator[None]:
    """While a model runs on some samples, refuse tokens of any sample that are too large for its embeddings.

    An embedding is checked if it is given a part of the inputs unchanged. Without the check, such a token would end a
    run midway with torch's own error.
    """
    embeddings = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Embedding)}
    look = partial(_check_embedding, inputs=parts(inputs, "inputs"), sets=_sets(federation))
    hooks = [layer.register_forward_pre_hook(partial(look, name)) for name, layer in embeddings.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _check_embedding(
    name: str, layer: nn.Embedding, given: tuple[Any, ...], inputs: dict[str, Tensor], sets: dict[str, Samples]
) -> None:
    for part, seen in inputs.items():
        if not given or given[0].data_ptr() != seen.data_ptr() or given[0].numel() != seen.numel():
            continue
        if seen.is_floating_point():
            raise CounterpoiseError(
                f"The model's embedding {name!r} takes tokens, which are whole numbers, but {part} are fractions or pixels. "
                "Give x.astype('int64'), or another model."
            )
        for where, samples in sets.items():
            tokens = parts(samples.inputs, "inputs")[part].flatten(1)
            wrong = (tokens < 0) | (tokens >= layer.num_embeddings)
            if bool(wrong.any()):
                raise CounterpoiseError(
                    f"{where}: sample {int(wrong.any(1).nonzero()[0])} has the token {int(tokens[wrong][0])} in {part}, but "
                    f"the model's embedding {name!r} knows the tokens 0 to {layer.num_embeddings - 1}. Give a larger "
                    "vocabulary, and pad with a token that it knows."
                )


def _sets(federation: Federation) -> dict[str, Samples]:
    sets = {"the data": federation.base, "the test set": federation.test}
    return {where: samples for where, samples in sets.items() if samples is not None and len(samples)}


def check_tokens(outputs: Tensor, federation: Federation) -> None:
    """Refuse tokens that cannot be learned, and outputs that are not one number for each token at each place."""
    there = _sets(federation)
    for where, samples in there.items():
        _check_targets(samples.targets, where)
        _check_shift(samples, where)
    tokens = 1 + max(int(samples.targets.max()) for samples in there.values())
    length = federation.base.targets.shape[1]
    if outputs.ndim != 3 or outputs.shape[1] != length or outputs.shape[2] < tokens:
        raise CounterpoiseError(
            f"The model's output for a sample has shape {tuple(outputs.shape[1:])}, and its targets are rows of "
            f"{length} tokens below {tokens}: for the usual loss, it needs shape ({length}, vocabulary), with a "
            f"vocabulary of at least {tokens}. For other targets, give a loss of your own."
        )


def _check_targets(targets: Tensor, where: str) -> None:
    wrong = (targets < 0) & (targets != IGNORED)
    if bool(wrong.any()):
        sample = int(wrong.any(1).nonzero()[0])
        raise CounterpoiseError(
            f"{where}: sample {sample} has the target {int(targets[wrong][0])}; tokens are numbered from 0, and only "
            f"{IGNORED} marks a place that does not count."
        )
    empty = (targets == IGNORED).all(1)
    if bool(empty.any()):
        raise CounterpoiseError(
            f"{where}: all targets of sample {int(empty.nonzero()[0])} are {IGNORED}, so nothing in it counts; leave "
            "such samples out."
        )


def _check_shift(samples: Samples, where: str) -> None:
    """Refuse targets that are the inputs themselves, as models of Hugging Face want them, which shift them.

    In a text of one token repeated, the tokens that follow are the same too, so some sample must have different ones.
    """
    ids = samples.inputs.get("input_ids") if isinstance(samples.inputs, dict) else samples.inputs
    targets = samples.targets
    if not isinstance(ids, Tensor) or ids.shape != targets.shape or ids.is_floating_point():
        return
    real = targets != IGNORED
    largest = targets.amax(1, keepdim=True)
    if bool(((ids == targets) | ~real).all()) and bool(((targets != largest) & real).any()):
        raise CounterpoiseError(
            f"{where}: the targets are the tokens of the inputs, which a model would only copy. For a language model, "
            "shift them: targets[t] = ids[t + 1]."
        )
