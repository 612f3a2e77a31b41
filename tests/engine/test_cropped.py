"""An augmentation that cuts pictures: the model takes their size, and everything but training sees the centres."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from grids import InProcess
from helpers import BACKENDS, assert_close, blobs, double, net, run
from torch import nn
from torch.nn import functional as F

import counterpoise as cp
from counterpoise.engine import Evaluation, Simulation
from counterpoise.engine.backends.batching import BatchIndex, cropped, gather
from counterpoise.engine.backends.joining import join_samples, number_equals
from counterpoise.errors import CounterpoiseError
from counterpoise.flower import Strategy, client_app
from counterpoise.randomness import counter

SHAPE, CUT = (1, 6, 7), cp.augment.flip_and_crop(0, size=4)
CENTRE = (..., slice(1, 5), slice(1, 5))
"""Of 6 x 7 pixels, 4 x 4; of an odd number left over, the smaller half comes first."""


def federation(**settings):
    rng = np.random.default_rng(1)
    test = (rng.standard_normal((20, *SHAPE)), rng.integers(0, 3, 20))
    return blobs((5, 9, 6, 8), shape=SHAPE, test=test, **{"heldout": 0.3} | settings)


def model():
    return net(nn.Flatten(), nn.Linear(16, 3))


def local(augment=CUT):
    return cp.Local(epochs=2, batch=4, optimizer=cp.sgd(0.1), augment=augment)


def simulation(augment=CUT, fed=None, **settings):
    engine = double(backend=settings.pop("backend", "per-client"))
    evaluation = Evaluation(1, 1, train_every=1)
    return Simulation(
        cp.methods.fedavg(),
        fed or federation(),
        settings.pop("model", model()),
        local=local(augment),
        engine=engine,
        evaluation=evaluation,
        **settings,
    )


def accuracy(weights, inputs, targets):
    module = model()
    nn.utils.vector_to_parameters(weights, module.parameters())
    return (module(inputs[CENTRE]).argmax(1) == targets).double()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_model_is_measured_on_the_centres_of_whole_pictures(backend):
    made = simulation(backend=backend)
    record = made.advance()
    fed, weights = federation(), made.server.model
    assert record.metrics["accuracy"] == pytest.approx(
        float(accuracy(weights, fed.test.inputs, fed.test.targets).mean())
    )
    rows = fed.train.flat
    seen = accuracy(weights, fed.base.inputs[rows], fed.base.targets[rows])
    assert record.metrics["train_accuracy"] == pytest.approx(float(seen.mean()))
    for client, value in record.clients["accuracy"].items():
        rows = fed.heldout.rows(torch.tensor([client]))[0, : int(fed.heldout.sizes(torch.tensor([client])))]
        own = accuracy(weights, fed.base.inputs[rows], fed.base.targets[rows])
        assert value == pytest.approx(float(own.mean()))


def test_a_personal_model_is_measured_on_centres_too():
    fed = federation()
    made = Simulation(
        cp.methods.ditto(), fed, model(), local=local(), engine=double(), evaluation=Evaluation(1, 1), seed=1
    )
    record = made.advance()
    part = next(p for p in made.trainer.program.method.parts if p.personal is not None)
    for client, value in record.clients["personal_accuracy"].items():
        kept = {name: rows[0] for name, rows in made.trainer.client_state[part.name].gather([client]).items()}
        own = part.personal(made.server.model, kept)
        rows = fed.heldout.rows(torch.tensor([client]))[0, : int(fed.heldout.sizes(torch.tensor([client])))]
        assert value == pytest.approx(float(accuracy(own, fed.base.inputs[rows], fed.base.targets[rows]).mean()))


def test_training_takes_what_the_augmentation_cut():
    """One step of one client, from the windows that its keys choose."""
    fed = cropped(federation(), local())
    rows, keys = torch.tensor([3, 0, 4]), counter(7, torch.arange(3))
    index = BatchIndex(rows, torch.full((3,), 1 / 3), torch.zeros((), dtype=torch.int64), keys)
    batch = gather(fed.base, local(), torch.float64, index)
    assert torch.equal(batch.inputs, CUT(fed.base.inputs[rows], keys))
    assert batch.inputs.shape == (3, 1, 4, 4)
    plain = gather(fed.base, cp.Local(), torch.float64, index._replace(augment=None))
    assert torch.equal(plain.inputs, fed.base.inputs[rows][CENTRE])


def test_a_picture_is_normalised_after_it_was_cut():
    fed = cropped(federation(), local()).per_picture()
    rows, keys = torch.tensor([3, 0, 4]), counter(7, torch.arange(3))
    index = BatchIndex(rows, torch.full((3,), 1 / 3), torch.zeros((), dtype=torch.int64), keys)
    whole = fed.base.inputs[rows]
    seen = gather(fed.base, local(), torch.float64, index).inputs
    for cut, found in ((CUT(whole, keys), seen), (whole[CENTRE], fed.base.take(rows, torch.float64)[0])):
        mean, deviation = (f(cut.numpy(), axis=(1, 2, 3), keepdims=True) for f in (np.mean, np.std))
        assert np.allclose(found.numpy(), (cut.numpy() - mean) / np.maximum(deviation, 1 / 4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_normalised_pictures_are_what_both_backends_train_on(backend):
    """The same as to normalise whole pictures beforehand."""
    fed = federation()
    x = fed.base.inputs
    apart = x - x.mean((1, 2, 3), keepdim=True)
    ready = apart / apart.square().mean((1, 2, 3), keepdim=True).sqrt()
    flat = net(nn.Flatten(), nn.Linear(42, 3))
    models = [
        run(simulation(None, fed=one, model=flat, backend=backend), 2)
        for one in (fed.per_picture(), replace(fed, base=replace(fed.base, inputs=ready), test=None))
    ]
    assert torch.allclose(*models, rtol=1e-9)


def test_a_factory_is_told_the_size_that_the_model_takes():
    told = []

    def factory(shape, classes):
        told.append(shape)
        return model()

    simulation(model=factory)
    simulation(augment=None, model=lambda shape: told.append(shape) or net(nn.Flatten(), nn.Linear(42, 3)))
    assert told == [(1, 4, 4), SHAPE]


def test_a_function_of_ones_own_may_cut_pictures():
    made = simulation(lambda inputs, keys: inputs[..., 2:6, 3:7])
    assert made.trainer.federation.shape == (1, 4, 4)
    run(made, 2)


def test_probe_and_proxy_sets_are_cut_like_the_test_set():
    fed = cropped(federation(probe=1, proxy=5), local())
    for samples in (fed.base, fed.test, fed.probe, fed.proxy):
        assert samples.take(torch.arange(2), torch.float64)[0].shape == (2, 1, 4, 4)
    noise = cropped(federation(probe="noise"), local())
    assert noise.probe.take(torch.arange(3), torch.float64)[0].shape == (3, 1, 4, 4)


def test_nodes_cut_pictures_as_the_simulator_does():
    fed = federation()
    settings = {"local": local(), "engine": double()}
    app = client_app("fedavg", model(), lambda context: fed.only(context.node_config["partition-id"]), **settings)
    strategy = Strategy("fedavg", fed, model=model(), rounds=2, evaluation=Evaluation(1, 1), patience=0, **settings)
    strategy.start(InProcess(app, fed.clients))
    made = simulation()
    records = [made.advance() for _ in range(2)]
    assert_close(strategy.loop.server.model, made.server.model, made.server.model - made.trainer.start, 1e-8)
    for ours, theirs in zip(strategy.run.rounds, records, strict=True):
        assert ours.metrics["accuracy"] == pytest.approx(theirs.metrics["accuracy"])
        assert ours.clients["accuracy"] == pytest.approx(theirs.clients["accuracy"])


def test_the_same_federation_serves_runs_that_cut_and_runs_that_do_not():
    fed = federation()
    before = fed.fingerprint
    simulation(fed=fed)
    assert fed.shape == SHAPE
    assert fed.fingerprint == before == federation().fingerprint


def test_sets_that_are_cut_and_sets_that_are_not_are_different():
    base = federation().base
    cut = federation().cropped((4, 4)).base
    assert number_equals([base, cut, base, cut]) == [0, 1, 0, 1]
    assert number_equals([base, replace(base, per_picture=True)]) == [0, 1]
    joint, begins = join_samples([cut, cut.rows(torch.arange(3))])
    assert (joint.shape, begins) == ((1, 4, 4), [0, len(base)])


def test_a_model_for_whole_pictures_is_told_the_size_they_are_cut_to():
    with pytest.raises(CounterpoiseError, match=r"cannot take this federation's samples of shape \(1, 4, 4\)"):
        simulation(model=net(nn.Flatten(), nn.Linear(42, 3)))


@pytest.mark.parametrize(
    ("augment", "numbers"),
    [
        (lambda x, keys: F.pad(x, (1, 1)), 42),
        (lambda x, keys: x[:, :, :3] if len(x) > 1 else x, 42),
        (lambda x, keys: x[..., : 4 if len(x) == 1 else 5, :], 28),
    ],
)
def test_larger_pictures_and_pictures_of_several_sizes_are_refused(augment, numbers):
    made = simulation(augment, model=net(nn.Flatten(), nn.Linear(numbers, 3)))
    with pytest.raises(CounterpoiseError, match="same shape, or smaller pictures that are all of one size; this is of"):
        made.advance()
