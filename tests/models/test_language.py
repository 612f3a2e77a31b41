"""Language models: padding changes nothing, a sample's loss is the mean over its real tokens, and backends agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import BACKENDS, assert_close, blobs, data_of, double, flat, fresh
from torch import nn
from torch.nn import functional as F

import counterpoise as cp
from counterpoise.engine import Evaluation, Simulation
from counterpoise.engine.backends.settings import _ELEMENTS
from counterpoise.engine.scores import LOSSES, accuracy, cross_entropy
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.local import Local, sgd
from counterpoise.methods import METHODS, fedavg

TEXTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7], [9], [3, 2, 3]]


def small(kind, seed=0):
    if kind == "lstm":
        return fresh(cp.models.lstm(vocabulary=10, embedding=3, hidden=5), seed)
    return fresh(cp.models.transformer((6,), vocabulary=10, width=8, heads=2), seed)


def short():
    """A model with too few outputs."""
    model = small("lstm")
    model.head = nn.Linear(5, 9).double()
    return model


def told(texts, masked=True):
    """Inputs and targets of a language model: each token, and the one that follows."""
    inputs = cp.padded([text[:-1] for text in texts if len(text) > 1], token=0, length=6)
    targets = cp.padded([text[1:] for text in texts if len(text) > 1], token=-100, length=6)["input_ids"]
    return inputs if masked else inputs["input_ids"], targets


def spoken(masked=True, seed=0):
    """Clients with texts of different lengths."""
    rng = np.random.default_rng(seed)
    draw = lambda n: [rng.integers(0, 10, rng.integers(2, 8)) for _ in range(n)]  # noqa: E731
    test = told(draw(9), masked)
    return Federation.from_clients([told(draw(n), masked) for n in (3, 6, 4)], test=test, heldout=0.3)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_a_padded_batch_is_each_text_alone(kind, masked):
    model = small(kind)
    texts = [text[:6] for text in TEXTS]
    inputs = {name: torch.as_tensor(part) for name, part in cp.padded(texts, token=7, length=6).items()}
    together = model(**inputs) if masked else model(inputs["input_ids"])
    assert together.shape == (5, 6, 10)
    for row, text in zip(together, texts, strict=True):
        assert torch.allclose(row[: len(text)], model(torch.tensor([text]))[0], rtol=0, atol=1e-12)


def test_padding_before_a_text_is_not_seen_either():
    model = small("transformer")
    model.places.weight.data.zero_()
    ids, mask = torch.tensor([[7, 7, 3, 1]]), torch.tensor([[0, 0, 1, 1]])
    assert torch.allclose(model(ids, mask)[0, 2:], model(torch.tensor([[3, 1]]))[0], rtol=0, atol=1e-12)
    assert model(ids, mask).isfinite().all()


def test_blocks_are_those_of_torchs_encoder():
    model = small("transformer")
    ids = torch.tensor([text[:3] for text in TEXTS if len(text) >= 3])
    x = model.tokens(ids) + model.places(torch.arange(3))
    for block in model.blocks:
        layer = nn.TransformerEncoderLayer(8, 2, 32, 0.0, F.gelu, batch_first=True, norm_first=True).double()
        ours = [block.asked, block.mixed, block.dense[0], block.dense[2], block.first, block.second]
        for theirs, own in zip(layer.parameters(), [p for part in ours for p in part.parameters()], strict=True):
            theirs.data.copy_(own.data)
        x = layer(x, nn.Transformer.generate_square_subsequent_mask(3, dtype=torch.float64), is_causal=True)
    assert torch.allclose(model(ids), model.head(model.norm(x)), rtol=0, atol=1e-12)


def test_a_samples_loss_and_accuracy_are_means_over_its_real_tokens():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, 3, 5, generator=generator, dtype=torch.float64)
    targets = torch.tensor([[1, 2, 3], [4, -100, 0], [2, -100, -100], [-100, -100, -100]])
    losses, right = cross_entropy(outputs, targets), accuracy(outputs, targets)
    for sample in range(3):
        places = [t for t in range(3) if targets[sample, t] >= 0]
        chances = [float(outputs[sample, t].softmax(0)[targets[sample, t]].log()) for t in places]
        hits = [int(outputs[sample, t].argmax()) == int(targets[sample, t]) for t in places]
        assert float(losses[sample]) == pytest.approx(-sum(chances) / len(places), rel=1e-12)
        assert float(right[sample]) == pytest.approx(sum(hits) / len(places), rel=1e-12)
    assert (float(losses[3]), float(right[3])) == (0.0, 0.0)  # not NaN; a run refuses such a sample
    best = targets.clamp(min=0)
    assert accuracy(F.one_hot(best, 5).double(), targets).tolist() == [1.0, 1.0, 1.0, 0.0]


IDS = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
FOLLOW = np.array([[2, 3, 4, -100], [6, 7, 8, -100]])


def changed(row, targets):
    made = FOLLOW.copy()
    made[row] = targets
    return made


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (changed(1, -100), "all targets of sample 1 are -100, so nothing in it counts; leave such samples out"),
        (changed(1, [6, -1, 7, -100]), "sample 1 has the target -1; tokens are numbered from 0, and only -100 marks"),
        (IDS, r"the targets are the tokens of the inputs, .* shift them: targets\[t\] = ids\[t \+ 1\]"),
        (np.where(IDS > 6, -100, IDS), "the targets are the tokens of the inputs"),
        (changed(0, 10), "are rows of 4 tokens below 11"),
    ],
)
@pytest.mark.parametrize("place", ["the data", "the test set"])
@pytest.mark.parametrize("named", [True, False])
def test_targets_that_cannot_be_learned_are_told(targets, said, place, named):
    """In the clients' data and in the test set, also if the loss is chosen by its name."""
    ids = {"input_ids": IDS, "attention_mask": IDS // IDS} if named else IDS
    base, test = (targets, FOLLOW) if place == "the data" else (FOLLOW, targets)
    federation = Federation.from_clients([(ids, base)], test=(ids, test), heldout=0)
    loss = LOSSES.make("cross-entropy") if named else None
    with pytest.raises(CounterpoiseError, match=said if "below" in said else f"{place}: {said}"):
        Simulation(fedavg(), federation, small("lstm"), loss=loss, engine=double())


@pytest.mark.parametrize("token", [10, -1])
@pytest.mark.parametrize("place", ["the data", "the test set"])
@pytest.mark.parametrize("named", [True, False])
def test_a_token_that_an_embedding_does_not_know_is_told(token, place, named):
    """In any sample, not only in those that the model is tried on."""
    ids = np.concatenate([IDS] * 3)
    wrong = ids.copy()
    wrong[4, 2] = token
    sets = [(wrong, ids), (ids, wrong)][place == "the test set"]
    base, test = ({"input_ids": one, "attention_mask": one // one} if named else one for one in sets)
    follow = np.concatenate([FOLLOW] * 3)
    federation = Federation.from_clients([(base, follow)], test=(test, follow), heldout=0)
    said = f"{place}: sample 4 has the token {token} in inputs.*embedding 'tokens' knows the tokens 0 to 9"
    with pytest.raises(CounterpoiseError, match=said):
        Simulation(fedavg(), federation, small("lstm"), engine=double())


def test_an_embedding_of_one_column_is_not_compared_with_the_others():
    class OfOneColumn(nn.Module):
        def __init__(self):
            super().__init__()
            self.kinds = nn.Embedding(3, 4)

        def forward(self, x):
            return self.kinds(x[:, 0])

    x = np.array([[0, 99], [2, 50], [1, 7]])
    federation = Federation.from_clients([(x, np.arange(3))], heldout=0)
    assert Simulation(fedavg(), federation, OfOneColumn().double(), engine=double())


def test_fractions_are_no_tokens():
    federation = Federation.from_clients([(IDS / 2, FOLLOW)], heldout=0)
    with pytest.raises(
        CounterpoiseError, match=r"embedding 'tokens' takes tokens, .* but inputs are fractions or pixels"
    ):
        Simulation(fedavg(), federation, small("lstm"), engine=double())


def test_a_text_of_one_token_may_follow_itself():
    federation = Federation.from_clients([(np.full((2, 4), 3), np.array([[3, 3, 3, -100]] * 2))], heldout=0)
    assert Simulation(fedavg(), federation, small("lstm"), engine=double())


def test_a_loss_chosen_by_its_name_is_the_usual_one():
    named, usual = (
        Simulation(fedavg(), spoken(), small("lstm"), loss=loss, engine=double(), evaluation=Evaluation(1)).advance()
        for loss in (LOSSES.make("cross-entropy"), None)
    )
    assert named.metrics == usual.metrics
    assert "accuracy" in named.metrics


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kind", "masked"), [("lstm", False), ("transformer", True)])
def test_a_round_is_that_of_a_plain_loop(kind, masked, backend):
    """Whole batches: the gradient is that of the mean over samples of their means over real tokens."""
    local = Local(steps=3, batch=100, optimizer=sgd(0.5))
    federation = spoken(masked)
    engine, evaluation = double(backend=backend), Evaluation(1, 1)
    simulation = Simulation(fedavg(), federation, small(kind), local=local, engine=engine, evaluation=evaluation)
    record = simulation.advance()
    total, count = 0, 0
    for client in range(3):
        model = small(kind)
        inputs, targets = data_of(federation, client)
        for _ in range(3):
            model.zero_grad()
            each = []
            for row in range(len(targets)):  # without any padding
                real = int((targets[row] >= 0).sum())
                ids = (inputs["input_ids"] if masked else inputs)[row : row + 1, :real]
                each.append(F.cross_entropy(model(ids)[0], targets[row, :real]))
            torch.stack(each).mean().backward()
            with torch.no_grad():
                for p in model.parameters():
                    if p.grad is not None:
                        p -= 0.5 * p.grad
        total, count = total + len(targets) * flat(model), count + len(targets)
    layout = simulation.trainer.layout
    ours = dict(zip(layout.names, layout.unflatten(simulation.server.model), strict=True))
    found = torch.cat([ours[name].flatten() for name, _ in small(kind).named_parameters()])
    assert_close(found, total / count, total / count - flat(small(kind)), 1e-9)
    assert 0 <= record.metrics["accuracy"] <= 1
    assert {*record.clients} >= {"loss", "accuracy"}


@pytest.mark.parametrize("name", ["moon", "fedoaed", "fedatt"])
def test_methods_train_language_models(name):
    made = Simulation(METHODS.make(name), spoken(), small("transformer"), local=Local(batch=2), engine=double())
    made.advance()
    assert made.server.model.isfinite().all()


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_the_representation_is_what_the_last_layer_gets(kind):
    model, ids = small(kind), torch.tensor([TEXTS[0]])
    assert torch.equal(model.head(model.features(ids)), model(ids))


def test_a_model_is_made_for_the_shape_of_samples():
    for shape in ((6,), {"attention_mask": (6,), "input_ids": (6,)}, ((6,), (6,))):
        assert cp.models.transformer(shape).places.weight.shape == (6, 64)
    run = cp.simulate("fedavg", spoken(), model="transformer", rounds=1, engine=cp.Engine(device="cpu"))
    assert 0 <= run.accuracy <= 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: cp.models.transformer((1, 8, 8)),
            r"takes rows of tokens, alone or as input_ids; these .* \(1, 8, 8\)",
        ),
        (lambda: cp.models.transformer((8,), width=10, heads=3), "width must be a multiple of the 3 heads, not 10"),
        (
            lambda: Simulation(fedavg(), spoken(), short(), engine=double()),
            r"shape \(6, 9\), and its targets are rows of 6 tokens below 10: .* vocabulary of at least 10",
        ),
        (
            lambda: Simulation(fedavg(), spoken(False), nn.Linear(6, 3).double(), engine=double()),
            "The model cannot take this federation's samples",
        ),
    ],
)
def test_what_does_not_fit_is_told(make, said):
    with pytest.raises(CounterpoiseError, match=said):
        make()


# ---------------------------------------------------------------- how much memory they take


def traits_of(model, federation=None):
    return Simulation(fedavg(), federation or blobs([4, 4]), model, engine=double()).trainer.traits


def test_the_largest_tensor_of_a_forward_pass_is_counted():
    traits = traits_of(fresh(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))))
    assert {*traits.tensors} == {(0, 9), (0, 3)}
    assert (traits.widest(1), traits.widest(32)) == (9, 9 * 32)
    assert [traits.most_samples(numbers) for numbers in (1, 18, 26, 27)] == [1, 2, 2, 3]
    transformer = traits_of(small("transformer"), spoken())
    assert transformer.widest(5) == 5 * 6 * 32  # the dense layer: places, four times the width
    assert traits_of(small("lstm"), spoken()).widest(5) == 5 * 6 * 10  # the outputs: places, vocabulary


def test_what_a_forward_pass_makes_of_weights_alone_does_not_grow_with_the_batch():
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Parameter(torch.rand(3, 2)), nn.Parameter(torch.rand(2, 6))

        def forward(self, x):
            return x.flatten(1) @ (self.up @ self.down).T

    traits = traits_of(Product().double())
    assert {*traits.tensors} == {(18, 0), (0, 3)}
    assert (traits.widest(1), traits.widest(100)) == (18, 300)


def test_chunks_and_evaluation_leave_room_for_outputs(monkeypatch):
    monkeypatch.setitem(_ELEMENTS, "cpu", 5 * 4 * 60)  # five clients' batches of four texts, 6 places and 10 tokens
    settings = {"local": Local(batch=4), "engine": double(backend="batched")}
    federation = Federation.from_clients([told(TEXTS)] * 9, test=told(TEXTS), heldout=0)
    model = fresh(cp.models.lstm(vocabulary=10, embedding=1, hidden=1))
    assert Simulation(fedavg(), federation, model, **settings).engine.chunk == 5
    monkeypatch.setattr("counterpoise.engine.rounds.trainer.WIDEST", 3 * 60)
    whole = Simulation(fedavg(), spoken(), small("lstm"), **settings | {"evaluation": Evaluation(1, 1)})
    assert {what: one.at_once for what, one in whole.loop.evaluator.due(1, True).items()}["test"] == 3
    few = Simulation(fedavg(), spoken(), small("lstm"), **settings | {"evaluation": Evaluation(1, 1, batch=2)})
    assert few.loop.evaluator.due(1, True)["test"].at_once == 2
    one, other = (simulation.advance().metrics for simulation in (whole, few))
    assert one == pytest.approx(other, rel=1e-12)
