"""A run that is asked for again or resumed: whether the folder holds it, and what differs if it does not."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from counterpoise.engine.backends.settings import Engine
from counterpoise.engine.rounds.evaluation import Evaluation
from counterpoise.engine.rounds.setup import Setup
from counterpoise.errors import CounterpoiseError, changed
from counterpoise.runs.build import differences
from counterpoise.runs.config import Config
from counterpoise.runs.objects import changed_objects, unknown_objects

__all__ = ["Differs", "check_repeats", "check_same", "with_choices_of"]

Asked = TypeVar("Asked", Engine, Evaluation)

logger = logging.getLogger(__name__)

_TOLD = 5
"""At most this many differences are reported."""
_IN_WORDS = {
    "frozen": "the model's frozen weights are others",
    "model.form": "the model has other layers, or layers of other sizes or settings",
    "data.fingerprint": "the federation holds other samples, has another number of clients, or deals samples otherwise",
    "model.fingerprint": "the model begins with other weights (if it is made anew each time, give the function that "
    "makes it, such as model=Net or model=lambda: Net(8): its weights then follow from the seed)",
}
"""What it means if a digest differs."""


class Differs(CounterpoiseError):
    """A folder holds a run with another configuration."""

    what = ""
    """The folder and what differs, without what to do about it."""


def with_choices_of(kept: Config, made: Setup) -> Setup:
    """A set-up whose open choices are filled in with those that the kept run made.

    Made anew, the engine's could differ with the machine, and the evaluation's with the counts of samples.
    """
    engine = _filled(made.training.engine, dict(kept.engine), [f.name for f in fields(Engine)])
    evaluation = _filled(made.evaluation, dict(kept.evaluation), ["every", "clients_every"])
    return replace(made, training=replace(made.training, engine=engine), evaluation=evaluation)


def _filled(asked: Asked, kept: Mapping[str, Any], names: Iterable[str]) -> Asked:
    """Settings in which those of the named ones that are open have their kept values."""
    return replace(asked, **{name: kept[name] for name in names if getattr(asked, name) in (None, "auto")})


def check_repeats(path: Path, kept: Config, made: Config) -> None:
    """Refuse to go on with a kept run of another configuration, and say what differs.

    Warn if the code of a user's own objects cannot be compared.
    """
    if told := _told(kept, made):
        more = f" and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
        longer = f" For more rounds, use cp.resume({str(path)!r}, rounds={made.rounds})."
        only_longer = kept.rounds < made.rounds and len(told) == 1 and told[0].startswith("rounds ")
        what = f"{path} holds a run with another configuration: {', '.join(told[:_TOLD])}{more}."
        differs = Differs(
            f"{what}{longer if only_longer else ''} Choose another folder, or replace that run with overwrite=True "
            "(--overwrite on the command line)."
        )
        differs.what = what
        raise differs
    if own := unknown_objects(kept, made):
        logger.warning(
            "The run in %s was begun with your own %s, by another version of Python or of counterpoise. Its code is "
            "not compared: if you changed it since, give overwrite=True to train again.",
            path,
            " and ".join(own),
        )


def check_same(kept: Config, made: Config) -> None:
    """Refuse to resume with objects that differ from those the run was made with."""
    if found := [one for one in differences(kept, made) if one[0] != "rounds"]:
        key, before, now = min(found, key=lambda one: _rank(one[0]))
        what = key.removeprefix("own.").partition(".")[0]
        what = {"data": "federation", "frozen": "model"}.get(what, what)
        how = _IN_WORDS.get(key) or f"{key} was {before!r} and is {now!r}"
        raise CounterpoiseError(
            f"The {what} given is not the one this run was made with: {how}. Give it as it was, or start a new run in "
            "another folder."
        )
    if told := list(changed_objects(kept, made).values()):
        raise CounterpoiseError(
            f"{told[0][0].upper()}{told[0][1:]} since this run began. Give it as it was, or start a new run in "
            "another folder."
        )


def _rank(key: str) -> int:
    """The order in which differences are reported: causes before their effects.

    A name changes options, options change layers, layers change weights, and all of them change the engine's choices.
    """
    if key.startswith(("engine.", "evaluation.")):
        return 4
    if key in _IN_WORDS:
        return 3 if key.endswith(".fingerprint") else 2
    return 0 if key.endswith(".name") else 1


def _told(kept: Config, made: Config) -> list[str]:
    """What differs, in words. A fingerprint is reported only if nothing else in its table differs."""
    found = differences(kept, made)
    tables = [_table(key) for key, _, _ in found if not key.endswith(".fingerprint")]
    told = []
    for key, before, now in found:
        if key.endswith(".fingerprint") and _table(key) in tables:
            continue
        if key.startswith("code."):
            told.append(f"{key.removeprefix('code.')} is another file than when it began")
        else:
            told.append(_IN_WORDS.get(key) or changed(key, before, now))
    known = {_table(key.removeprefix("own.")) for key, _, _ in found}
    return told + [words for name, words in changed_objects(kept, made).items() if name not in known]


def _table(key: str) -> str:
    return "model" if key == "frozen" else key.partition(".")[0]
