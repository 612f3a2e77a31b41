"""Samples in parts: tuples and dictionaries of tensors as inputs and targets, against a loop of torch alone."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from grids import InProcess
from helpers import BACKENDS, assert_close, blobs, data_of, double, flat, fresh, net, run
from played import play
from torch import nn
from torch.nn import functional as F

import counterpoise as cp
from counterpoise.engine import Evaluation, Simulation
from counterpoise.engine.clients.batches import client_keys, plan
from counterpoise.engine.rounds.lockstep import Lockstep, why_apart
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.flower import Strategy, client_app
from counterpoise.local import Local, sgd
from counterpoise.methods import METHODS, ditto, fedavg
from counterpoise.trees import select

SIZES, LOCAL, SEED = (5, 9, 3, 6), Local(epochs=2, batch=4, optimizer=sgd(0.3)), 3


class Reader(nn.Module):
    """A classifier of the mean of a text's real tokens, in any of the forms that a model may have."""

    def __init__(self, returns=lambda logits: logits):
        super().__init__()
        self.words, self.head, self.returns = nn.Embedding(7, 4), nn.Linear(4, 3), returns
        fresh(self)

    def forward(self, input_ids, attention_mask):
        real = attention_mask[..., None].to(self.head.weight.dtype)
        return self.returns(self.head((self.words(input_ids) * real).sum(1) / real.sum(1)))


class Two(nn.Module):
    """A model of two inputs with two outputs, one for each target."""

    def __init__(self):
        super().__init__()
        self.picture, self.facts = nn.Linear(4, 3), nn.Linear(2, 3)
        fresh(self)

    def forward(self, picture, facts):
        return self.picture(picture.flatten(1)) * self.facts(facts).tanh()


def two_losses(outputs, targets):
    classes = F.cross_entropy(outputs[:, :2], targets["class"], reduction="none")
    return classes + (outputs[:, 2] - targets["value"]).square()


def texts(n, rng, names=("input_ids", "attention_mask")):
    mask = np.arange(5) < rng.integers(1, 6, (n, 1))
    parts = {"input_ids": np.where(mask, rng.integers(0, 7, (n, 5)), 0), "attention_mask": mask.astype(np.int64)}
    return tuple(parts[name] for name in names) if names == tuple(parts) else {name: parts[name] for name in names}


def written(seed=0, form="dict", sizes=SIZES, **settings):
    """Clients with texts and class numbers."""
    rng = np.random.default_rng(seed)
    names = ("attention_mask", "input_ids") if form == "dict" else ("input_ids", "attention_mask")
    clients = [(texts(n, rng, names), np.arange(n) % 3) for n in sizes]
    return Federation.from_clients(clients, test=(texts(20, rng, names), np.arange(20) % 3), **settings)


def pictured(**settings):
    """Clients with byte pictures beside numbers, and targets of two kinds."""
    rng = np.random.default_rng(1)

    def samples(n):
        inputs = (rng.integers(0, 256, (n, 2, 2), dtype=np.uint8), rng.standard_normal((n, 2)))
        return inputs, {"value": rng.standard_normal(n), "class": rng.integers(0, 2, n)}

    return Federation.from_clients([samples(n) for n in SIZES], test=samples(20), **settings)


CASES = {
    "keywords": (written, Reader, {}),
    "positions": (lambda **s: written(form="tuple", **s), Reader, {}),
    "pictures and facts": (pictured, Two, {"loss": two_losses}),
}


def given(model, inputs):
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def averaged_by_torch(make, federation, loss, rounds=2):
    """The parameters and each client's held-out loss after rounds of FedAvg, by torch alone."""
    model = make()
    for round in range(1, rounds + 1):
        start, total = flat(model).clone(), 0
        sizes = [int(federation.train.sizes(torch.tensor([i]))) for i in range(federation.clients)]
        for client, size in enumerate(sizes):
            own = make()
            nn.utils.vector_to_parameters(start.clone(), own.parameters())
            inputs, targets = data_of(federation, client)
            key, steps = client_keys(SEED, round, torch.tensor([client])), torch.tensor([-(-size // LOCAL.batch)])
            optimizer = torch.optim.SGD(own.parameters(), LOCAL.lr(round))
            for epoch in range(LOCAL.epochs):
                batches = plan(key, torch.tensor([size]), steps, LOCAL.batch, epoch)
                for places, real in zip(batches.places[0], batches.real[0], strict=True):
                    optimizer.zero_grad()
                    some = select((inputs, targets), places[real])
                    loss(given(own, some[0]), some[1]).mean().backward()
                    optimizer.step()
            total = total + size * flat(own)
        nn.utils.vector_to_parameters(total / sum(sizes), model.parameters())
    return model


def simulated(case, backend, method=None, **settings):
    made, model, more = CASES[case]
    held = {"heldout": 0.3, **settings.pop("data", {})}
    given = {"engine": double(backend=backend), "evaluation": Evaluation(1, 1)} | more | settings
    return Simulation(method or fedavg(), made(**held), model(), local=LOCAL, seed=SEED, **given)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_rounds_are_those_of_a_plain_loop(case, backend):
    simulation = simulated(case, backend)
    federation = simulation.trainer.federation
    loss = CASES[case][2].get("loss", lambda outputs, y: F.cross_entropy(outputs, y, reduction="none"))
    model = averaged_by_torch(CASES[case][1], federation, loss)
    records = [simulation.advance() for _ in range(2)]
    layout = simulation.trainer.layout
    ours = dict(zip(layout.names, layout.unflatten(simulation.server.model), strict=True))
    moved = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert_close(torch.cat([ours[n].flatten() for n, _ in model.named_parameters()]), moved, moved, 1e-9)
    with torch.no_grad():
        inputs, targets = federation.test.take(torch.arange(20), torch.float64)
        assert records[-1].metrics["loss"] == pytest.approx(float(loss(given(model, inputs), targets).mean()), rel=1e-9)
        rows = federation.heldout.rows(torch.tensor([1]))[0][: int(federation.heldout.sizes(torch.tensor([1])))]
        inputs, targets = federation.base.take(rows, torch.float64)
        own = float(loss(given(model, inputs), targets).mean())
    assert records[-1].clients["loss"][1] == pytest.approx(own, rel=1e-9)


def test_chunks_captures_and_backends_agree(monkeypatch):
    """Also personal models, each on held-out samples of its own."""
    play(monkeypatch)

    def ended(chunk=None, captures=False, **engine):
        simulation = simulated("keywords", "batched", ditto(), engine=double(chunk=chunk, **engine))
        if captures:
            simulation.backend.captures = True
        return [simulation.advance() for _ in range(4)][-1], simulation.server.model

    record, model = ended(backend="per-client")
    for how in ({"chunk": 1}, {"chunk": 3}, {"captures": True}):
        other, found = ended(**{"backend": "batched"} | how)
        assert torch.allclose(found, model, rtol=1e-10, atol=1e-12)
        for name, each in record.clients.items():
            assert other.clients[name] == pytest.approx(each, rel=1e-9)
        assert other.metrics == pytest.approx(record.metrics, rel=1e-9)
    assert "personal_loss" in record.clients


@pytest.mark.parametrize("backend", BACKENDS)
def test_runs_on_different_texts_train_as_one_batch(backend):
    def members():
        made = [written(seed, sizes=sizes, heldout=0.3) for seed, sizes in ((0, SIZES), (1, (4, 7)), (0, SIZES))]
        how = {"local": LOCAL, "engine": double(backend=backend), "evaluation": Evaluation(1, 1)}
        return [Simulation(fedavg(), data, Reader(), seed=i, **how) for i, data in enumerate(made)]

    mine, joint = members(), members()
    assert not why_apart(joint[0], joint[1])
    lockstep = Lockstep(joint)
    assert len(lockstep.samples) == len(joint[0].trainer.federation.base) + len(joint[1].trainer.federation.base)
    for _ in range(2):
        for alone, record in zip(mine, lockstep.advance([(one, False) for one in joint]), strict=True):
            assert alone.advance().metrics == pytest.approx(record.metrics, rel=1e-9)
    for alone, other in zip(mine, joint, strict=True):
        assert torch.allclose(alone.server.model, other.server.model, rtol=1e-10, atol=1e-12)
    assert why_apart(joint[0], Simulation(fedavg(), written(form="tuple"), Reader(), local=LOCAL, engine=double()))


def test_nodes_train_as_the_simulator_does():
    federation = written(heldout=0.3)
    settings = {"local": LOCAL, "engine": double()}
    more = {"seed": SEED, "cohort": 3, "evaluation": Evaluation(1, 1)}
    simulation = Simulation(fedavg(), federation, Reader(), **settings, **more)
    records = [simulation.advance() for _ in range(2)]
    app = client_app("fedavg", Reader(), lambda c: federation.only(c.node_config["partition-id"]), **settings)
    strategy = Strategy("fedavg", federation, model=Reader(), rounds=2, patience=0, **settings, **more)
    strategy.start(InProcess(app, federation.clients))
    assert torch.allclose(strategy.loop.server.model, simulation.server.model, rtol=1e-10, atol=1e-12)
    for ours, theirs in zip(strategy.run.rounds, records, strict=True):
        assert (ours.bytes_up, ours.bytes_down) == (theirs.bytes_up, theirs.bytes_down)
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-9)


@pytest.mark.parametrize(
    "returns",
    [
        lambda logits: {"hidden_states": 0 * logits, "logits": logits},
        lambda logits: SimpleNamespace(loss=None, logits=logits),
    ],
    ids=["dictionary", "attribute"],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_outputs_of_a_model_that_returns_several_things_are_its_logits(returns, backend):
    plain, other = (
        run(Simulation(fedavg(), written(), Reader(how), local=LOCAL, engine=double(backend=backend)))
        for how in (lambda logits: logits, returns)
    )
    assert torch.equal(plain, other)


@pytest.mark.parametrize("name", ["moon", "feda4", "feddua", "scaffold"])
def test_methods_that_look_at_samples_take_them_in_parts(name):
    class Told(Reader):
        def features(self, input_ids, attention_mask):
            return self.words(input_ids).mean(1)

    federation = written(sizes=(12, 9, 14), probe=1, proxy=6)
    made = Simulation(METHODS.make(name), federation, Told(), local=LOCAL, engine=double(), seed=1)
    assert run(made).isfinite().all()


def test_bytes_are_scaled_and_numbers_are_not():
    inputs = (np.full((2, 2, 2), 51, np.uint8), np.full((2, 2), 51.0), np.full((2, 2), 51))
    fed = Federation.from_arrays(inputs, np.zeros(2, int), partition=[[0], [1]], scale=1 / 255, shift=-1.0)
    pixels, numbers, tokens = fed.base.take(torch.tensor([[1, 0]]), torch.float64)[0]
    assert torch.allclose(pixels, torch.full((1, 2, 2, 2), -0.8, dtype=torch.float64))
    assert numbers.dtype == torch.float64
    assert tokens.dtype == torch.int64
    assert (numbers == 51).all()
    assert (tokens == 51).all()


def test_one_tensor_stays_what_it_was():
    federation = blobs(SIZES, shape=(2, 3), heldout=0.3)
    base = federation.base
    assert isinstance(base.inputs, torch.Tensor)
    assert base.shape == (2, 3)
    assert base.labels is base.targets
    assert base.numbers == 6
    with pytest.raises(CounterpoiseError, match="neither cropped nor scaled picture by picture"):
        written().per_picture()
    tuples = Federation.from_arrays(((1.0, 2.0), (3.0, 4.0)), (0, 1), partition=[[0], [1]])
    assert tuples.base.inputs.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_fingerprints_tell_parts_apart_by_name_place_and_content():
    a, b = np.arange(8.0).reshape(4, 2), np.ones((4, 2))
    forms = [{"a": a, "b": b}, {"b": a, "a": b}, {"a": a, "c": b}, (a, b), (b, a), {"a": a, "b": b + 1}]
    found = {Federation.from_clients([(x, np.arange(4) % 2)]).fingerprint for x in forms}
    assert len(found) == len(forms)
    same = Federation.from_clients([({"b": b, "a": a}, np.arange(4) % 2)])
    assert same.fingerprint == Federation.from_clients([(forms[0], np.arange(4) % 2)]).fingerprint


def test_a_federation_shows_its_parts():
    federation = written()
    told = "samples of shape {'attention_mask': (5,), 'input_ids': (5,)} in 3 classes, "
    assert repr(federation).startswith(f"Federation(4 clients, {sum(SIZES)} {told}")
    assert repr(federation).endswith("; test 20)")
    assert "attention_mask 5, input_ids 5" in federation._repr_html_()
    assert federation.base.numbers == 10
    assert federation.only(1).base.inputs["input_ids"].shape == (9, 5)
    one = Federation.from_clients([(np.ones((4, 2)), np.arange(4) % 2)])
    assert repr(one).startswith("Federation(1 client, 4 samples")
    flipped = cp.adversary.label_flip(clients=[0]).data(federation, torch.tensor([0]))
    assert flipped.base.inputs is federation.base.inputs


X, Y = np.zeros((6, 2)), np.arange(6) % 2
WRONG = {
    "other parts": (
        [({"a": X}, Y), ({"b": X}, Y)],
        r"client 1 has inputs\['b'\], but client 0 has inputs\['a'\]\. Give",
    ),
    "a part too many": (
        [((X,), Y), ((X, X), Y)],
        r"client 1 has inputs\[0\], inputs\[1\], but client 0 has inputs\[0\]",
    ),
    "one tensor and parts": ([(X, Y), ({"a": X}, Y)], r"client 1 has inputs\['a'\], but client 0 has inputs\. Give"),
    "other lengths": (
        [({"a": X}, Y), ({"a": np.zeros((6, 3))}, Y)],
        r"client 1 has inputs\['a'\] of shape \(3,\) for a sample, but client 0 has \(2,\)\. Bring samples to one shape",
    ),
    "other types": (
        [({"a": X}, Y), ({"a": X.astype("i8")}, Y)],
        r"client 1 has inputs\['a'\] of type int64, but client 0 has float64\. Give all the same type",
    ),
    "other targets": ([(X, {"a": Y}), (X, {"b": Y})], r"client 1 has targets\['b'\], but client 0 has targets\['a'\]"),
    "unequal parts": (
        [((X, X[:5]), Y)],
        r"inputs\[0\] of shape \(6, 2\), inputs\[1\] of shape \(5, 2\) and targets of shape \(6,\) do not hold the same "
        r"number of samples along their first axis\. A tuple holds the parts of all samples; stack",
    ),
    "bytes": ([({"mask": X.astype("u1")}, Y)], r"inputs\['mask'\] are bytes, which count as pixels .* int64 or bool"),
    "no parts": ([({}, Y)], "inputs in a dictionary need names that are text, and at least one part"),
    "numbers as names": ([({1: X}, Y)], "inputs in a dictionary need names that are text"),
    "a list": ([({"a": [[1], [1, 2]]}, Y)], r"inputs\['a'\] do not form one array"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_form_gets_a_sentence(case):
    clients, said = WRONG[case]
    with pytest.raises(CounterpoiseError, match=said):
        Federation.from_clients(clients)


@pytest.mark.parametrize(
    ("targets", "test", "said"),
    [
        ({"a": Y, "b": Y}, {"a": Y}, r"targets\['a'\], but the clients have targets\['a'\], targets\['b'\]\. Give the"),
        (Y, Y / 2, "targets of type float64, but the clients have int64"),
        (X, X[:, :1], r"targets of shape \(1,\) for a sample, but the clients have \(2,\)"),
    ],
)
def test_the_test_set_has_targets_as_the_clients_have(targets, test, said):
    with pytest.raises(CounterpoiseError, match=f"the test set has {said}"):
        Federation.from_clients([({"x": X}, targets)], test=({"x": X}, test))


def test_the_test_set_has_the_types_that_the_clients_have():
    with pytest.raises(CounterpoiseError, match="the test set has inputs of type int64, but the clients have float64"):
        Federation.from_clients([(X, Y)], test=(X.astype("i8"), Y))
    assert len(Federation.from_clients([(X, Y)], test=(X.astype("f"), Y)).test) == 6


def test_what_needs_one_tensor_says_so():
    inputs = {"a": X, "b": X}
    with pytest.raises(CounterpoiseError, match="the test set has inputs, but the clients have inputs"):
        Federation.from_clients([(inputs, Y)], test=(X, Y))
    with pytest.raises(
        CounterpoiseError, match="A feature skew changes pictures of bytes; these samples have inputs in"
    ):
        Federation.from_clients([(inputs, Y)], features=cp.rotation(45))
    with pytest.raises(CounterpoiseError, match="A probe set of noise cannot be made for inputs in several parts"):
        Federation.from_clients([(inputs, Y)], probe="noise")
    with pytest.raises(CounterpoiseError, match="partition dirichlet deals by label, but these targets are not class"):
        Federation.from_arrays(inputs, {"y": Y}, partition=cp.dirichlet(0.5, clients=2))
    assert Federation.from_arrays(inputs, {"y": Y}, partition=cp.iid(clients=2)).clients == 2
    assert Federation.from_arrays(inputs, Y, partition=cp.dirichlet(0.5, clients=2)).classes == 2
    with pytest.raises(CounterpoiseError, match="label-flip needs classes"):
        cp.adversary.label_flip(clients=[0]).data(pictured(), torch.tensor([0]))
    augmented = Local(augment=cp.augment.flip_and_crop())
    with pytest.raises(CounterpoiseError, match="local: augment changes inputs that are one tensor"):
        Simulation(fedavg(), written(), Reader(), local=augmented, engine=double())
    with pytest.raises(
        CounterpoiseError, match="samples, whose parts it is given as keywords, attention_mask, input_ids: "
    ):
        Simulation(fedavg(), written(), net(nn.Linear(5, 3)), local=LOCAL, engine=double())
    with pytest.raises(CounterpoiseError, match="samples, whose 2 parts it is given one after the other: "):
        Simulation(fedavg(), written(form="tuple"), net(nn.Linear(5, 3)), local=LOCAL, engine=double())
    pair = Reader(lambda logits: (logits, logits))
    with pytest.raises(
        CounterpoiseError, match="one tensor with a row for each sample, or a dictionary whose logits are"
    ):
        Simulation(fedavg(), written(), pair, local=LOCAL, engine=double())
