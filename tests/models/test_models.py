"""The papers' models: their sizes, what they take, and the way out of batch normalisation."""

from itertools import pairwise

import pytest
import torch
from helpers import assert_close, blobs, double, flat, fresh, net, required, run
from torch import nn
from torch.nn import functional

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Local, sgd
from counterpoise.methods import fedavg
from counterpoise.models import MODELS
from counterpoise.models.building import build_model


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def test_sizes_are_those_of_the_papers():
    assert parameters(cp.models.lenet5((1, 28, 28), 10)) == 61_706
    assert parameters(cp.models.light_cnn((1, 28, 28), 10)) == 21_840
    assert parameters(cp.models.mlp((3, 4), 5, hidden=7)) == 12 * 7 + 7 + 7 * 5 + 5
    assert parameters(cp.models.linear((1, 8, 8), 10)) == 650


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (28, 28), (1, 17, 23)])
@pytest.mark.parametrize("entry", [e for e in MODELS if "vocabulary" not in e.parameters], ids=lambda entry: entry.name)
def test_every_model_but_those_of_language_takes_pictures_and_can_learn_from_them(entry, shape):
    if entry.name == "vgg11" and min(shape[-2:]) < 32:
        with pytest.raises(CounterpoiseError, match="model vgg11 takes images of at least 32 x 32 pixels; these are"):
            entry.factory(shape=shape, classes=4)
        return
    model = entry.factory(shape=shape, classes=4, **required(entry))
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
        (lambda: cp.models.resnet18((3, 32, 32), 10, stem="5x5"), "option stem must be one of 3x3, 7x7, not '5x5'"),
        (lambda: cp.models.lenet5((1, 15, 20), 10, padding=0), "at least 16 x 16 pixels; these are 15 x 20"),
        (lambda: cp.models.conv2(widths=[64]), r"model conv2: widths must be two or more whole numbers.*not \[64\]"),
        (lambda: cp.models.conv2(widths=[64, 0]), "widths must be two or more whole numbers from 1 to 65536"),
        (
            lambda: cp.models.linear({"a": (3,), "b": (2,)}, 2),
            r"model linear takes .* in one piece; these have parts \(a, b\)",
        ),
        (lambda: cp.models.mlp(((3,), (4, 4)), 2), r"model mlp takes samples in one piece; these have parts \(2\)"),
        (lambda: cp.models.cnn3({"a": (3,)}, 2), r"model cnn3 takes samples in one piece"),
        (lambda: MODELS.make("lenet"), r"There is no model 'lenet'\. Did you mean 'lenet5'"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_a_sentence(make, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        make()


# ---------------------------------------------------------------- models of other projects


def convolved(*widths, kernel, padding):
    """Convolutions from each width to the next, each with ReLU."""
    layers = [(nn.Conv2d(a, b, kernel, stride=1, padding=padding), nn.ReLU()) for a, b in pairwise(widths)]
    return [layer for pair in layers for layer in pair]


def two(channels, first, second):
    return [
        *(*convolved(channels, first, kernel=5, padding=0), nn.MaxPool2d(2, 2)),
        *(*convolved(first, second, kernel=5, padding=0), nn.MaxPool2d(2, 2)),
        nn.Flatten(),
    ]


def lenet(channels, flat):
    return [
        *two(channels, 6, 16),
        *(nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    ]


def stacked(*groups):
    return [layer for group in groups for layer in (*convolved(*group, kernel=3, padding=1), nn.MaxPool2d(2, 2))]


PLAIN = [
    (cp.models.lenet5, {"padding": 0}, (3, 32, 32), lenet(3, 400), 62_006),
    (cp.models.lenet5, {"padding": 0}, (1, 28, 28), lenet(1, 256), 44_426),
    (
        cp.models.conv2,
        {},
        (3, 32, 32),
        [*two(3, 64, 64), *(nn.Linear(1600, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10))],
        797_962,
    ),
    (
        cp.models.conv2,
        {"widths": [32, 64, 512]},
        (1, 28, 28),
        [*two(1, 32, 64), *(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))],
        582_026,
    ),
    (
        cp.models.moderate_cnn,
        {},
        (3, 32, 32),
        [
            *stacked((3, 32, 64), (64, 128, 128), (128, 256, 256)),
            *(nn.Flatten(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)),
        ],
        3_491_530,
    ),
    (
        cp.models.vgg11,
        {},
        (3, 32, 32),
        [
            *stacked((3, 64), (64, 128), (128, 256, 256), (256, 512, 512), (512, 512, 512)),
            *(nn.Flatten(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)),
        ],
        9_750_922,
    ),
]


@pytest.mark.parametrize(("make", "options", "shape", "layers", "count"), PLAIN)
def test_models_of_other_projects_are_these_layers(make, options, shape, layers, count):
    ours, plain = make(shape, 10, **options).eval(), nn.Sequential(*layers)
    assert parameters(ours) == parameters(plain) == count
    nn.utils.vector_to_parameters(flat(ours), plain.parameters())
    inputs = torch.rand(3, *shape, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(ours(inputs), plain(inputs), rtol=1e-5, atol=1e-6)


def test_dropouts_stand_where_the_projects_have_them():
    kinds = {nn.Dropout: "drop", nn.Dropout2d: "drop2d", nn.Linear: "dense", nn.MaxPool2d: "pool"}

    def told(model):
        return [(kinds[type(m)], getattr(m, "p", None)) for m in model.modules() if type(m) in kinds]

    dense, pool = ("dense", None), ("pool", None)
    assert told(cp.models.vgg11()) == [*[pool] * 5, ("drop", 0.5), dense, ("drop", 0.5), dense, dense]
    assert told(cp.models.moderate_cnn()) == [
        *(pool, pool, ("drop2d", 0.05), pool),
        *(("drop", 0.1), dense, dense, ("drop", 0.1), dense),
    ]


def resnet_by_hand(weights, inputs):
    """ResNet-18 with the 7 x 7 stem and two groups, from its parameters in order."""

    def norm(x):
        return functional.group_norm(x, 2, next(weights), next(weights))

    def block(x, stride):
        kept = [next(weights) for _ in range(6)]
        y = functional.conv2d(x, kept[0], stride=stride, padding=1)
        y = functional.relu(functional.group_norm(y, 2, kept[1], kept[2]))
        y = functional.group_norm(functional.conv2d(y, kept[3], padding=1), 2, kept[4], kept[5])
        return functional.relu(y + (norm(functional.conv2d(x, next(weights), stride=2)) if stride == 2 else x))

    x = functional.relu(norm(functional.conv2d(inputs, next(weights), stride=2, padding=3)))
    x = functional.max_pool2d(x, 3, stride=2, padding=1)
    for stride in (1, 1, 2, 1, 2, 1, 2, 1):
        x = block(x, stride)
    return functional.linear(x.mean((2, 3)), next(weights), next(weights))


@pytest.mark.parametrize("side", [24, 32])
def test_resnet_with_the_7x7_stem_is_torchvisions_with_two_groups(side):
    model = cp.models.resnet18((3, side, side), 10, groups=2, stem="7x7")
    assert parameters(model) == 11_181_642
    assert parameters(cp.models.resnet18((3, side, side), 100, groups=2, stem="7x7")) == 11_181_642 + 90 * 513
    inputs = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    weights = iter(list(model.parameters()))
    assert torch.allclose(model(inputs), resnet_by_hand(weights, inputs), rtol=1e-4, atol=1e-5)
    assert next(weights, None) is None


def test_initial_weights_are_those_of_the_projects():
    """Deviations: sqrt(2 / (outputs x area)), in torchvision's ResNet and in VGG-11, which has no shifts."""
    torch.manual_seed(0)
    for model in (cp.models.resnet18(groups=2, stem="7x7"), cp.models.vgg11()):
        for layer in (m for m in model.modules() if isinstance(m, nn.Conv2d)):
            expected = (2 / (layer.out_channels * layer.kernel_size[0] ** 2)) ** 0.5
            assert float(layer.weight.detach().std()) == pytest.approx(expected, rel=0.05)
            assert float(layer.weight.detach().abs().max()) > 3 * expected  # normal, not uniform
            assert layer.bias is None or not bool(layer.bias.any())


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


class Noisy(nn.Module):
    """A layer of a user's own that draws random numbers in evaluation too, as ``F.dropout(x)`` does."""

    def forward(self, inputs):
        return inputs + torch.rand_like(inputs)


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        (nn.BatchNorm1d(6, track_running_stats=False), "module '1' .* normalises over a batch"),
        (Centred(), "output for a sample depends on the other samples of its batch"),
        (Noisy(), r"random even in evaluation: .* Use nn.Dropout .*training=self.training"),
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


def lazy():
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(2))


@pytest.mark.parametrize("model", [lazy, lazy()], ids=["factory", "module"])
def test_lazy_layers_get_their_sizes_from_the_federation_and_their_weights_from_the_seed(model):
    x, y = torch.rand(8, 1, 5, 6), torch.arange(8) % 2
    federation = cp.Federation.from_datasets([(x, y)], heldout=0)
    starts = [build_model(model, federation, seed) for seed in (0, 0, 1)]
    assert [tuple(p.shape) for p in starts[0].parameters()] == [(4, 1, 3, 3), (4,), (2, 4 * 3 * 4), (2,)]
    first, same, other = (flat(start) for start in starts)
    assert torch.equal(first, same)
    assert not torch.allclose(first, other)
    assert cp.simulate("fedavg", federation, model=model, rounds=1).status == "finished"
    if isinstance(model, nn.Module):
        assert isinstance(model[2], nn.LazyLinear), "the user's own module is left as it was"


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.LazyLinear(2)),
            r"cannot take this federation's samples of shape \(1, 5, 6\)",
        ),
        (nn.Sequential(nn.LazyBatchNorm2d(), nn.Flatten()), "a lazy batch norm. Call the model once before"),
    ],
)
def test_lazy_layers_that_cannot_get_their_sizes_are_told_in_a_sentence(model, sentence):
    federation = cp.Federation.from_datasets([(torch.rand(8, 1, 5, 6), torch.arange(8) % 2)], heldout=0)
    with pytest.raises(CounterpoiseError, match=sentence):
        cp.simulate("fedavg", federation, model=model, rounds=1)
