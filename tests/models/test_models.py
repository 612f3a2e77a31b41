"""The papers' models: their sizes, what they take, and the way out of batch normalisation."""

import pytest
import torch
from helpers import assert_close, blobs, double, flat, fresh, net, run
from torch import nn

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, sgd
from counterpoise.methods import fedavg
from counterpoise.models import MODELS


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def test_sizes_are_those_of_the_papers():
    assert parameters(cp.models.lenet5((1, 28, 28), 10)) == 61_706
    assert parameters(cp.models.light_cnn((1, 28, 28), 10)) == 21_840
    assert parameters(cp.models.mlp((3, 4), 5, hidden=7)) == 12 * 7 + 7 + 7 * 5 + 5
    assert parameters(cp.models.linear((1, 8, 8), 10)) == 650


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (28, 28), (1, 17, 23)])
@pytest.mark.parametrize("entry", list(MODELS), ids=lambda entry: entry.name)
def test_every_model_takes_pictures_and_can_learn_from_them(entry, shape):
    model = entry.factory(shape=shape, classes=4)
    outputs = model(torch.zeros(2, *shape) + torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)))
    assert outputs.shape == (2, 4)
    outputs.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_convolutions_and_dense_layers_are_as_many_as_the_names_say():
    for make, convolutions, dense in ((cp.models.light_cnn, 2, 2), (cp.models.cnn3, 2, 1), (cp.models.cnn6, 4, 2)):
        kinds = [type(m) for m in make((3, 32, 32), 10).modules()]
        assert (kinds.count(nn.Conv2d), kinds.count(nn.Linear)) == (convolutions, dense)
    kinds = [type(m) for m in cp.models.resnet18().modules()]
    assert (kinds.count(nn.Conv2d), kinds.count(nn.Linear), kinds.count(nn.BatchNorm2d)) == (17 + 3, 1, 0)


def test_dropout_of_the_light_cnn_is_an_option():
    kinds = [type(m) for m in cp.models.light_cnn(dropout=0.5).modules()]
    assert nn.Dropout2d in kinds
    assert nn.Dropout in kinds


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: cp.models.lenet5((64,), 10), r"model lenet5 takes images; these samples have shape \(64,\)"),
        (
            lambda: cp.models.lenet5((1, 8, 8), 10),
            "model lenet5 takes images of at least 12 x 12 pixels; these are 8 x 8",
        ),
        (lambda: cp.models.light_cnn((1, 15, 20), 10), "at least 16 x 16 pixels; these are 15 x 20"),
        (lambda: cp.models.resnet18((3, 32, 32), 10, groups=48), "groups"),
        (lambda: MODELS.make("lenet"), r"There is no model 'lenet'\. Did you mean 'lenet5'"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_a_sentence(make, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        make()


# ---------------------------------------------------------------- batch norm


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(6 * 36, 3)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def test_batch_norm_is_refused_by_name_and_group_norm_then_works():
    federation, model = blobs([4, 5], shape=(1, 8, 8)), Nested()
    with pytest.raises(
        CounterpoiseError,
        match=r"module 'body\.1' \(BatchNorm2d\) keeps running statistics.*cp\.models\.with_group_norm",
    ):
        Simulation(fedavg(), federation, model, engine=double())
    mended = cp.models.with_group_norm(model)
    assert isinstance(mended.body[1], nn.GroupNorm)
    assert isinstance(model.body[1], nn.BatchNorm2d)  # the user's own is left alone
    runs = []
    for backend in ("batched", "per-client"):
        local = Local(batch=4, optimizer=sgd(0.1))
        runs.append(run(Simulation(fedavg(), federation, mended, local=local, engine=double(backend=backend))))
    assert_close(*runs, runs[0] - flat(mended).double())


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(6), nn.SyncBatchNorm(6), nn.InstanceNorm1d(6, track_running_stats=True)]
)
def test_other_running_statistics_are_refused_too(norm):
    with pytest.raises(CounterpoiseError, match=r"module '1' \(\w+Norm\w*\) keeps running statistics"):
        Simulation(fedavg(), blobs([4]), nn.Sequential(nn.Linear(6, 6), norm, nn.Linear(6, 3)), engine=double())


class Centred(nn.Module):
    """A layer of a user's own that mixes the samples of a batch."""

    def forward(self, inputs):
        return inputs - inputs.mean(0)


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        (nn.BatchNorm1d(6, track_running_stats=False), "module '1' .* normalises over a batch"),
        (Centred(), "output for a sample depends on the other samples of its batch"),
    ],
)
def test_a_layer_that_mixes_samples_is_refused(layer, sentence):
    """Padding and the size of an evaluation's batch would change what such a model says."""
    with pytest.raises(CounterpoiseError, match=sentence):
        Simulation(fedavg(), blobs([4, 4]), net(nn.Linear(6, 6), layer, nn.Linear(6, 3)), engine=double())


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (6, 2), (7, 1), (48, 16)])
def test_group_norm_keeps_scale_and_shift_and_takes_the_groups_that_fit(channels, groups):
    norm = nn.BatchNorm2d(channels, eps=1e-3)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    new = cp.models.with_group_norm(nn.Sequential(norm))[0]
    assert (new.num_groups, new.num_channels, new.eps) == (groups, channels, 1e-3)
    assert torch.equal(new.weight, norm.weight)
    assert torch.equal(new.bias, norm.bias)
    assert isinstance(cp.models.with_group_norm(norm), nn.GroupNorm)


def test_batch_norm_without_scale_becomes_group_norm_without_scale():
    new = cp.models.with_group_norm(nn.Sequential(nn.BatchNorm2d(4, affine=False)))[0]
    assert new.weight is None


def test_a_model_in_double_precision_stays_in_double_precision():
    model = cp.models.with_group_norm(fresh(Nested()))
    assert {p.dtype for p in model.parameters()} == {torch.float64}
