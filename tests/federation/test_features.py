"""Feature skew: each client's pictures are its own, and nobody else's change."""

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import SKEWS, Federation

CLIENTS, EACH = 4, 30


def federation(features, shape=(3, 8, 8), value=128, partition=None, **settings):
    x = np.full((CLIENTS * EACH, *shape), value, dtype=np.uint8)
    y = np.arange(len(x)) % 3
    owners = np.arange(len(x)) // EACH
    return Federation.from_arrays(
        x, y, partition=owners if partition is None else partition, features=features, heldout=0.2, **settings
    )


def of(fed, client):
    """A client's own pictures, held-out ones included."""
    ids = torch.tensor([client])
    rows = torch.cat([fed.train.rows(ids)[0], fed.heldout.rows(ids)[0]])
    return fed.base.inputs[rows].double()


def test_noise_grows_from_the_first_client_to_the_last():
    fed = federation(cp.noise(20))
    found = [float(of(fed, i).std()) for i in range(CLIENTS)]
    assert found == pytest.approx([5, 10, 15, 20], rel=0.05)
    assert [float(of(fed, i).mean()) for i in range(CLIENTS)] == pytest.approx([128] * 4, abs=1)
    first = of(fed, 3)
    assert len({tuple(p.flatten().tolist()) for p in first}) == EACH  # every picture its own noise


def test_the_first_clients_noise_may_be_told():
    found = [float(of(federation(cp.noise(21, first=0)), i).std()) for i in range(CLIENTS)]
    assert found == pytest.approx([0, 7, 14, 21], rel=0.05, abs=0.01)
    falling = [float(of(federation(cp.noise(5, first=20)), i).std()) for i in range(CLIENTS)]
    assert falling == pytest.approx([20, 15, 10, 5], rel=0.05)
    alone = federation(cp.noise(12, first=0), partition=cp.iid(1))
    assert float(of(alone, 0).std()) == pytest.approx(12, rel=0.05)


TEST = (np.full((40, 3, 8, 8), 128, np.uint8), np.arange(40) % 3)


def test_the_test_set_is_noised_once_for_each_client_as_its_own_samples_are():
    fed = federation(cp.noise(21, first=0), test=TEST, skewed_test=True)
    copies = fed.test.inputs.view(CLIENTS, 40, 3, 8, 8)
    assert copies.double().std((1, 2, 3, 4)).tolist() == pytest.approx([0, 7, 14, 21], rel=0.05, abs=0.01)
    assert fed.test.targets.tolist() == [*TEST[1]] * CLIENTS
    # No two pictures have the same noise, neither in two copies nor in the training set.
    noise = torch.cat([copies[1:].flatten(0, 1), fed.base.inputs[EACH:]]).double().flatten(1)
    noise = noise - 128
    noise /= noise.norm(dim=1, keepdim=True)
    assert float((noise @ noise.T - torch.eye(len(noise))).abs().max()) < 0.5


def test_targets_with_several_numbers_are_repeated_with_their_pictures():
    y = np.arange(8.0).reshape(4, 2)
    given = {"partition": [[0, 1], [2, 3]], "features": cp.noise(5), "skewed_test": True}
    for targets in (y, {"a": y, "b": y[:, 0]}):
        fed = Federation.from_arrays(TEST[0][:4], targets, test=(TEST[0][:4], targets), **given)
        found = fed.test.targets["a"] if isinstance(targets, dict) else fed.test.targets
        assert found.tolist() == [*y.tolist(), *y.tolist()]


@pytest.mark.parametrize("skew", [cp.colour(0.5), cp.rotation(90)])
def test_a_copy_of_the_test_set_is_what_its_client_would_see(skew):
    x = np.random.default_rng(0).integers(0, 256, (1, 3, 8, 8), dtype=np.uint8).repeat(CLIENTS * EACH, 0)
    fed = Federation.from_arrays(
        x,
        np.zeros(len(x), int),
        partition=np.arange(len(x)) // EACH,
        test=(x[:5], np.zeros(5, int)),
        features=skew,
        skewed_test=True,
        heldout=0,
    )
    for client in range(CLIENTS):
        assert torch.equal(fed.test.inputs[5 * client : 5 * client + 5].double(), of(fed, client)[:5])
    assert len(torch.unique(fed.test.inputs, dim=0)) == CLIENTS


def test_a_large_test_set_is_skewed_block_by_block(monkeypatch):
    whole = federation(cp.noise(20), test=TEST, skewed_test=True).test.inputs
    monkeypatch.setattr("counterpoise.federation.features._BLOCK", 7)
    assert torch.equal(federation(cp.noise(20), test=TEST, skewed_test=True).test.inputs, whole)


def test_a_skewed_test_set_is_loaded_kept_and_resumed(tmp_path):
    fed = cp.load("digits", partition=cp.iid(3), features=cp.noise(2, first=0), skewed_test=True)
    plain = cp.load("digits", partition=cp.iid(3), features=cp.noise(2, first=0))
    assert len(fed.test) == 3 * len(plain.test)
    assert torch.equal(fed.test.inputs[: len(plain.test)], plain.test.inputs)  # the first client sees no noise
    assert fed.fingerprint != plain.fingerprint
    settings = {"model": cp.models.linear, "rounds": 2}
    cp.simulate("fedavg", fed, out=tmp_path / "run", on_round=lambda record: record.round == 1, **settings)
    assert cp.resume(tmp_path / "run").accuracy == cp.simulate("fedavg", fed, **settings).accuracy


def test_a_test_set_that_is_too_large_for_every_client_is_told(monkeypatch):
    monkeypatch.setattr("counterpoise.federation.features.machine_memory", lambda: 30_000)
    with pytest.raises(
        CounterpoiseError, match=r"of 4 clients sees it takes 30.7 kB, and this machine has 30 kB[.] Use fewer clients"
    ):
        federation(cp.noise(20), test=TEST, skewed_test=True)


def test_bytes_stay_bytes_and_in_range():
    fed = federation(cp.noise(100), value=250)
    assert fed.base.inputs.dtype == torch.uint8
    assert float(of(fed, 3).max()) == 255
    assert float(of(fed, 3).min()) < 200


@pytest.mark.parametrize("skew", [cp.noise(20), cp.colour(1)])
def test_no_pixel_is_brighter_than_the_set_can_be(skew):
    """Digits have levels up to 16 of a byte's 255."""
    seen = cp.load("digits", partition=cp.iid(3), features=skew).base.inputs
    plain = cp.load("digits", partition=cp.iid(3)).base.inputs
    assert int(seen.max()) == 16
    assert not torch.equal(seen, plain)


def test_a_quarter_turn_is_exact():
    picture = np.random.default_rng(0).integers(0, 256, (1, 1, 6, 6), dtype=np.uint8)
    fed = Federation.from_arrays(
        picture.repeat(40, 0),
        np.arange(40) % 2,
        partition=[[i] for i in range(40)],
        features=cp.rotation(90, steps=2),
        heldout=0,
    )
    left, right = np.rot90(picture[0, 0], 1), np.rot90(picture[0, 0], -1)
    turned = [fed.base.inputs[i, 0].numpy() for i in range(40)]
    assert all(np.array_equal(t, left) or np.array_equal(t, right) for t in turned)
    assert any(np.array_equal(t, left) for t in turned)
    assert any(np.array_equal(t, right) for t in turned)


def test_a_clients_pictures_are_all_turned_alike_and_another_clients_otherwise():
    x = np.random.default_rng(0).integers(0, 256, (1, 1, 9, 9), dtype=np.uint8).repeat(12, 0)
    fed = Federation.from_arrays(
        x, np.zeros(12, int), partition=np.arange(12) // 3, features=cp.rotation(45), heldout=0
    )
    found = [of(fed, i) for i in range(4)]
    assert all(torch.equal(f[0], f[1]) for f in found)
    assert len({tuple(f[0].flatten().tolist()) for f in found}) == 4


def test_colours_change_by_factors_of_the_clients_own():
    fed = federation(cp.colour(0.5), value=100)
    factors = torch.stack([of(fed, i).mean((0, 2, 3)) / 100 for i in range(CLIENTS)])
    assert float(factors.min()) >= 0.5
    assert float(factors.max()) <= 1.5
    assert len(torch.unique(factors)) == CLIENTS * 3
    assert all(float(of(fed, i).std(0).max()) == 0 for i in range(CLIENTS))


@pytest.mark.parametrize("skew", [cp.noise(20), cp.rotation(45), cp.colour(0.5)])
def test_a_skew_repeats_and_leaves_the_servers_sets_alone(skew):
    settings = {"probe": 2, "proxy": 5, "test": (np.full((4, 3, 8, 8), 128, np.uint8), np.zeros(4, int))}
    one, two, other = (federation(skew, partition=cp.iid(4), seed=s, **settings) for s in (0, 0, 1))
    assert one.fingerprint == two.fingerprint != other.fingerprint
    for samples in (one.probe, one.proxy, one.test):
        assert (samples.inputs == 128).all()
    assert one.clients == 4


def test_every_skew_loads_by_name_on_grey_and_colour_pictures():
    for entry in SKEWS:
        option = next(p for p in entry.parameters.values() if p.required)
        skew = SKEWS.make(entry.name, **{option.name: 0.5})
        assert cp.load("digits", partition=cp.iid(3), features=skew).source["features"]["name"] == entry.name


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: cp.load("synthetic", partition=cp.iid(3), features=cp.noise(1)), "changes pictures of bytes"),
        (
            lambda: cp.load("digits", partition=cp.draws(3), features=cp.noise(1)),
            "Clients that draw from a shared base share its pictures",
        ),
        (
            lambda: federation(cp.noise(1), partition=[[0, 1], [1, 2]]),
            "needs a partition that gives each sample to one client",
        ),
        (lambda: federation(None, test=TEST, skewed_test=True), "so it needs a test set and features"),
        (lambda: federation(cp.noise(1), skewed_test=True), "so it needs a test set and features"),
        (lambda: cp.noise(1, first=-1), "option first must be a number at least 0 or nothing, not -1"),
        (lambda: cp.rotation(200), "option degrees must be a number above 0 and at most 180, not 200"),
        (lambda: cp.colour(0), "option strength must be a number above 0 and at most 1, not 0"),
    ],
)
def test_a_skew_that_cannot_be_is_refused(make, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        make()
