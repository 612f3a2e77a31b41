"""Mistakes in Python that used to end in an error of torch's, NumPy's or Python's own: a sentence for each."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from helpers import BACKENDS, blobs, digits, double, small
from torch import nn
from torch.utils.data import TensorDataset

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.errors import CounterpoiseError, can_take
from counterpoise.federation import Federation
from counterpoise.local import Local, sgd
from counterpoise.method import Part, Reply
from counterpoise.methods import fedavg
from counterpoise.runs.config import override, parse, read

# ---------------------------------------------------------------- adversaries by name


def test_an_adversary_is_taken_by_its_name_as_methods_and_models_are(tmp_path) -> None:
    settings = {"model": cp.models.linear, "rounds": 2, "seed": 3}
    by_name = cp.simulate("fedavg", digits(4), adversary="sign-flip", out=tmp_path / "named", **settings)
    made = cp.simulate("fedavg", digits(4), adversary=cp.adversary.sign_flip(), **settings)
    assert by_name.liars == made.liars != []
    assert by_name.accuracy == made.accuracy
    assert [one["name"] for one in by_name.settings["adversary"]] == ["sign-flip"]
    assert cp.resume(tmp_path / "named", rounds=3).liars == made.liars


def test_several_adversaries_may_be_named_together() -> None:
    spied = []
    run = cp.simulate(
        "fedavg",
        digits(6),
        model=cp.models.linear,
        rounds=1,
        adversary=["crashed", cp.adversary.scaled(), lambda round, cohort: spied.append(len(cohort)) or cohort],
    )
    assert spied == [5]
    assert len(run.liars) in (1, 2)


@pytest.mark.parametrize(
    ("adversary", "sentence"),
    [
        ("sing-flip", "There is no adversary 'sing-flip'. Did you mean 'sign-flip'?"),
        (["crashed", "scled"], "There is no adversary 'scled'. Did you mean 'scaled'?"),
        (0.3, "adversary must be an adversary such as cp.adversary.sign_flip.., its name, .*not 0.3"),
    ],
)
def test_an_adversary_that_is_none_is_refused(adversary, sentence: str) -> None:
    with pytest.raises(CounterpoiseError, match=sentence):
        cp.simulate("fedavg", digits(3), model=cp.models.linear, rounds=1, adversary=adversary)


# ---------------------------------------------------------------- parts and their hooks


def test_an_unknown_hook_is_named_with_the_nearest_one() -> None:
    with pytest.raises(CounterpoiseError, match=r"There is no hook 'gradeint' of a part\. Did you mean 'gradient'\?"):
        Part("mine", gradeint=lambda client, step, g: g)
    with pytest.raises(CounterpoiseError, match="A part needs a name"):
        Part(gradient=lambda client, step, g: g)
    assert Part(name="mine", reads=("other",)).name == "mine"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"loss": 3}, r"part mine: loss must be a function loss\(client, step, w\), not 3\."),
        ({"client_state": {}}, r"part mine: client_state must be a function client_state\(start\), not \{\}\."),
        (
            {"apply": lambda round, extra: round},
            r"part mine: apply is called as apply\(round\), but the function given takes \(round, extra\)",
        ),
        ({"gradient": lambda client, step: step}, r"gradient\(client, step, g\), .* takes \(client, step\)"),
        ({"after_epoch": lambda: {}}, r"after_epoch\(client, w\), but the function given takes \(\)"),
        ({"begin": lambda client, *, late: {}}, r"begin\(client\), but the function given takes \(client, \*, late\)"),
        ({"reads": "other"}, "its reads a tuple of names, not 'mine' and 'other'"),
    ],
)
def test_a_hook_that_could_not_be_called_is_refused_when_the_part_is_made(given, sentence) -> None:
    with pytest.raises(CounterpoiseError, match=sentence):
        Part("mine", **given)


def test_hooks_may_take_more_than_they_must_or_hide_what_they_take() -> None:
    Part(
        "mine", loss=lambda *given: given[2].sum(), gradient=lambda client, step, g, scale=2: scale * g, broadcast=dict
    )
    assert can_take(dict.fromkeys, 2)
    assert can_take(type("Hidden", (), {"__call__": print, "__signature__": 3})(), 9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("hook", "sentence"),
    [
        ({"loss": lambda client, step, w: w * w}, r"part mine: its hook loss must return one number, not .*\(\d+,\)"),
        ({"loss": lambda client, step, w: None}, "its hook loss must return one number, not NoneType"),
        ({"loss": lambda client, step, w: w.sum().view(1)}, r"must return one number, not a tensor of shape \(1,\)"),
        ({"gradient": lambda client, step, g: g.sum()}, r"its hook gradient must return a vector of the model's \d+"),
        (
            {"gradient": lambda client, step, g: g.float()},
            r"its hook gradient must return a vector of the model's (\d+) numbers \(float64\[\1\]\), not float32\[\1\]",
        ),
        ({"gradient": lambda client, step, g: 0.0}, "its hook gradient must return .* not float"),
        (
            {"finish": lambda client, reply: Reply(reply.update[:2], {}, reply.state)},
            r"its hook finish must return a cp.Reply whose update is a vector of the model's \d+ .*, not float64\[2\]",
        ),
    ],
)
def test_a_hook_that_returns_another_shape_is_told(backend: str, hook: dict, sentence: str) -> None:
    method = fedavg().adding(local=Part("mine", **hook))
    simulation = Simulation(
        method, blobs([5, 6]), small(), local=Local(batch=4, optimizer=sgd(0.1)), engine=double(backend=backend)
    )
    with pytest.raises(CounterpoiseError, match=sentence):
        simulation.advance()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_that_returns_another_shape_is_told(backend: str) -> None:
    def wide(outputs, targets):
        return outputs

    with pytest.raises(
        CounterpoiseError, match=r"The loss must return one value per sample, shape \(2,\), not \(2, 3\)"
    ):
        Simulation(fedavg(), blobs([5, 6]), small(), loss=wide, engine=double(backend=backend))


# ---------------------------------------------------------------- data


def test_ragged_arrays_are_told() -> None:
    with pytest.raises(
        CounterpoiseError, match="client 1: inputs do not form one array, perhaps because samples differ"
    ):
        Federation.from_clients([([[1.0, 2.0]], [0]), ([[1.0], [1.0, 2.0]], [0, 1])])


def test_a_dataset_given_as_a_client_is_told_where_to_give_it() -> None:
    dataset = TensorDataset(torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(CounterpoiseError, match=r"client 0: inputs are a torch Dataset\. Give it to Federation\.from"):
        Federation.from_clients([dataset])
    with pytest.raises(CounterpoiseError, match=r"the data: inputs are a torch Dataset"):
        Federation.from_arrays(dataset, np.zeros(3), partition=cp.iid(1))
    with pytest.raises(CounterpoiseError, match=r"client 1 must be a pair of inputs and targets, \(x, y\); .* ndarray"):
        Federation.from_clients([(np.zeros((3, 2)), np.zeros(3)), np.zeros((3, 2))])


def test_whole_numbers_go_to_embeddings_and_others_are_told_what_to_give() -> None:
    x, y = np.arange(24).reshape(12, 2) % 5, np.arange(12) % 3
    fed = Federation.from_arrays(x, y, partition=cp.iid(2))
    with pytest.raises(
        CounterpoiseError, match=r"whole numbers, which models with an embedding take; other models need"
    ):
        cp.simulate("fedavg", fed, model=nn.Linear(2, 3), rounds=1)
    words = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3))
    assert cp.simulate("fedavg", fed, model=words, rounds=1).status == "finished"


# ---------------------------------------------------------------- settings in the wrong place


@pytest.mark.parametrize(
    ("setting", "place"),
    [
        ({"local": {"lr": 0.1}}, "'local.optimizer.lr'?"),
        ({"lr": 0.1}, "'local.optimizer.lr' or 'method.lr'?"),
        ({"batch": 5}, "'local.batch' or 'evaluation.batch'?"),
        ({"mu": 0.1}, "'method.mu'?"),
        ({"data": {"name": "digits", "alpha": 1}}, "'data.partition.alpha'?"),
        ({"local": {"epoch": 1}}, "'local.epochs'?"),
    ],
)
def test_a_setting_in_the_wrong_place_is_told_its_own(setting: dict, place: str) -> None:
    values = {**read("quickstart")[0], **setting}
    with pytest.raises(CounterpoiseError) as told:
        parse(values, "here")
    assert f" Did you mean {place}" in str(told.value)


# ---------------------------------------------------------------- what does not fit into memory


def test_a_model_that_does_not_fit_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.models.building.machine_memory", lambda: 1_000_000)
    assert cp.simulate("fedavg", digits(3), model=cp.models.linear, rounds=1).status == "finished"
    sentence = r"The model takes 300 kB, and training it at least 1.2 MB \(4 copies\); this machine has 1 MB"
    with pytest.raises(CounterpoiseError, match=sentence):
        cp.simulate("fedavg", digits(3), model=partial(cp.models.mlp, hidden=1000), rounds=1)


def test_a_round_whose_batches_do_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.engine.backends.making.machine_memory", lambda: 1_000_000)
    settings = {"model": cp.models.linear, "rounds": 1, "engine": cp.Engine(threads=1, backend="per-client")}
    assert cp.simulate("fedavg", digits(3), local=Local(steps=600, batch=32), **settings).status == "finished"
    sentence = "local: 800 steps of 32 samples in a round take 1.02 MB to plan for 1 clients at once"
    with pytest.raises(CounterpoiseError, match=sentence):
        cp.simulate("fedavg", digits(3), local=Local(steps=800, batch=32), **settings)


@pytest.mark.parametrize(
    ("setting", "place"),
    [
        ("optimizer.lr", "local.optimizer"),
        ("local.learning_rate", "local.optimizer.lr"),
        ("partition", "data.partition"),
    ],
)
def test_a_setting_by_another_name_or_in_another_place_is_suggested(setting: str, place: str) -> None:
    values = override(read("quickstart")[0], [f"{setting}=0.1"])
    with pytest.raises(CounterpoiseError, match=f"Did you mean '{place}'"):
        parse(values, "x")
