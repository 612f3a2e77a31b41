"""Clients that send another update, break or hold wrong labels: each against numpy, and only those who act."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import BACKENDS, Spy, blobs, data_of, double, small

from counterpoise.adversary import ADVERSARIES, Adversary
from counterpoise.engine import Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import Federation
from counterpoise.federation.assignment import Drawn, Table
from counterpoise.federation.samples import Samples
from counterpoise.local import Local, sgd
from counterpoise.method import Cohort
from counterpoise.methods import METHODS

UPDATES = ("sign-flip", "scaled", "noisy", "free-rider", "inner-product", "little-is-enough", "mimic")
SIZES = (5, 9, 7, 12, 6, 8, 10)


def cohort(clients: int = 5, size: int = 40, seed: int = 0) -> Cohort:
    """Replies of clients 10, 11, ... with normal updates."""
    rng = np.random.default_rng(seed)
    updates = torch.from_numpy(rng.standard_normal((clients, size)) + 0.5)
    counts = torch.arange(1, clients + 1, dtype=torch.float64)
    variates = torch.from_numpy(3 * rng.standard_normal((clients, size)) - 1)
    reports = {
        "part": {"told": updates[:, 0].clone()},
        "other": {"variate": variates, "short": variates[:, 1:].clone()},
        "coarse": {"variate": variates.float()},
    }
    return Cohort(tuple(range(10, 10 + clients)), updates, counts, counts, reports)


def acting(*places: int, clients: int = 5) -> torch.Tensor:
    return torch.tensor([place in places for place in range(clients)])


def arrived(name: str, replies: Cohort, acts: torch.Tensor, **options) -> tuple[np.ndarray, np.ndarray]:
    """The updates and variates that arrive; all but the actors' is untouched."""
    updates, variates = replies.updates.clone(), replies.reports["other"]["variate"].clone()
    after = ADVERSARIES.make(name, **options).replies(0, 1, replies, acts)
    assert torch.equal(replies.updates, updates)  # the replies given are not written into
    assert torch.equal(replies.reports["other"]["variate"], variates)
    assert torch.equal(after.updates[~acts], updates[~acts])
    assert torch.equal(after.reports["other"]["variate"][~acts], variates[~acts])
    assert after.ids == replies.ids
    assert torch.equal(after.examples, replies.examples)
    assert torch.equal(after.reports["part"]["told"], replies.reports["part"]["told"])
    assert torch.equal(after.reports["other"]["short"], replies.reports["other"]["short"])
    assert after.reports["coarse"]["variate"].dtype == torch.float32
    return after.updates.numpy(), after.reports["other"]["variate"].numpy()


def sent(name: str, replies: Cohort, acts: torch.Tensor, **options) -> np.ndarray:
    return arrived(name, replies, acts, **options)[0]


def test_clients_that_turn_are_honest_before_and_after() -> None:
    turned = ADVERSARIES.make("sign-flip", clients=[0], first=3, last=4)
    found = [bool(turned.acting(0, round, (0, 1), torch.tensor([0]))[0]) for round in range(1, 6)]
    assert found == [False, False, True, True, False]
    with pytest.raises(CounterpoiseError, match="first is 8 and last is 4, so nobody would ever act"):
        Adversary(clients=[0], first=8, last=4)


# ---------------------------------------------------------------- each against numpy

RULES = [
    ("sign-flip", {}, lambda own, honest: -own),
    ("sign-flip", {"scale": 2.5}, lambda own, honest: -2.5 * own),
    ("scaled", {}, lambda own, honest: 10 * own),
    ("scaled", {"factor": 0.5}, lambda own, honest: 0.5 * own),
    ("free-rider", {}, lambda own, honest: 0 * own),
    ("inner-product", {"scale": 0.7}, lambda own, honest: -0.7 * np.mean(honest, axis=0) + 0 * own),
    ("little-is-enough", {}, lambda own, honest: np.mean(honest, axis=0) - 1.5 * np.std(honest, axis=0) + 0 * own),
    ("mimic", {}, lambda own, honest: honest[0] + 0 * own),
]


@pytest.mark.parametrize("places", [(1, 3), (0,), (0, 1, 2, 3)])
@pytest.mark.parametrize(("name", "options", "rule"), RULES)
def test_what_is_sent(name, options, rule, places):
    """The honest clients' statistics leave the liars out, however far off these are. Long reports are forged alike."""
    replies = cohort()
    replies.updates[list(places)] *= 100
    replies.reports["other"]["variate"][list(places)] *= 100
    trained = replies.updates.numpy(), replies.reports["other"]["variate"].numpy()
    for own, found in zip(trained, arrived(name, replies, acting(*places), **options), strict=True):
        honest = np.delete(own, places, axis=0)
        np.testing.assert_allclose(found[list(places)], rule(own[list(places)], honest), rtol=1e-13)


@pytest.mark.parametrize("name", UPDATES)
def test_nobody_acts_and_nobody_is_honest(name):
    replies = cohort()
    sent(name, replies, acting())
    everyone = sent(name, replies, acting(*range(5)))
    assert np.isfinite(everyone).all()
    if name in ("inner-product", "little-is-enough", "mimic"):  # nobody to look at: they send their own
        assert (everyone == replies.updates.numpy()).all()


def test_noise_is_as_long_as_it_says_and_normal():
    replies = cohort(size=20_000)
    own, variates = replies.updates.numpy(), replies.reports["other"]["variate"].numpy()
    found, told = arrived("noisy", replies, acting(0, 2), level=0.3)
    for true, noised in ((own, found), (variates, told)):
        added = (noised - true)[[0, 2]]
        np.testing.assert_allclose(np.linalg.norm(added, axis=1), 0.3 * np.linalg.norm(true[[0, 2]], axis=1), rtol=0.03)
    added = (found - own)[[0, 2]]
    scaled = added / added.std(axis=1, keepdims=True)
    assert np.abs(scaled.mean(1)).max() < 0.03
    assert (scaled**4).mean(1) == pytest.approx(3.0, abs=0.3)  # a uniform draw has 1.8
    assert abs(np.corrcoef(scaled)[0, 1]) < 0.03  # each liar draws its own
    assert (sent("noisy", replies, acting(0), level=0) == own).all()


@pytest.mark.parametrize("name", ["noisy", "free-rider"])
def test_noise_follows_from_seed_round_and_client_alone(name):
    """Backends round differently; a draw keyed by the update's bits would differ wholly."""
    liars, replies, acts = ADVERSARIES.make(name, level=1.0), cohort(), acting(0, 3)
    near = Cohort(replies.ids, replies.updates * (1 + 1e-12), replies.examples, replies.steps, replies.reports)
    found = liars.replies(0, 1, replies, acts).updates
    torch.testing.assert_close(liars.replies(0, 1, near, acts).updates, found, rtol=1e-9, atol=1e-9)
    for seed, round in ((0, 2), (1, 1)):
        other = liars.replies(seed, round, replies, acts).updates
        assert not torch.isclose(other[0], found[0]).any()
    alone = replies.keep(torch.arange(5) != 1)  # who else is there changes no draw
    drawn = liars.replies(0, 1, alone, torch.tensor([True, False, True, False])).updates[2]
    ratio = drawn / found[3] if name == "free-rider" else drawn - found[3]
    assert float(ratio.std()) < 1e-12


def test_a_free_rider_is_as_long_as_honest_clients_are():
    replies = cohort(size=20_000)
    replies.updates[1] *= 100  # of the liar's own training nothing is left
    own = replies.updates.numpy()
    found = sent("free-rider", replies, acting(1), level=2.0)[1]
    honest = np.linalg.norm(np.delete(own, 1, axis=0), axis=1).mean()
    assert np.linalg.norm(found) == pytest.approx(2 * honest, rel=0.03)
    assert abs(np.corrcoef(found, own[1])[0, 1]) < 0.03


# ---------------------------------------------------------------- who acts


def test_who_and_when_follow_from_the_seed_and_the_name():
    one, other = ADVERSARIES.make("mimic", clients=5), ADVERSARIES.make("noisy", clients=5)
    assert one.who(0, 100).tolist() == one.who(0, 100).tolist() == sorted(set(one.who(0, 100).tolist()))
    assert len({tuple(a.who(seed, 100).tolist()) for a in (one, other) for seed in (0, 1)}) == 4
    assert ADVERSARIES.make("mimic", clients=[7, 3, 3]).who(0, 10).tolist() == [3, 7]
    assert len(ADVERSARIES.make("mimic", fraction=0.25).who(0, 40)) == 10


def test_sometimes_is_as_often_as_it_says():
    liars = ADVERSARIES.make("sign-flip", clients=[0, 2], often=0.3)
    who = liars.who(5, 4)
    acts = torch.stack([liars.acting(5, round, [0, 1, 2, 3], who) for round in range(2000)]).double()
    assert acts.mean(0).tolist() == pytest.approx([0.3, 0, 0.3, 0], abs=0.04)
    assert abs(float(torch.corrcoef(acts[:, [0, 2]].T)[0, 1])) < 0.08  # each decides for itself


def test_so_many_of_every_round():
    """FedDua's other reading: one of each round's ten, whoever they are."""
    liars = ADVERSARIES.make("claims", clients=0, a_round=1)
    ids = [3, 14, 15, 92, 65]
    acts = torch.stack([liars.acting(0, round, ids, liars.who(0, 100)) for round in range(1, 1001)])
    assert (acts.sum(1) == 1).all()
    assert acts.double().mean(0).tolist() == pytest.approx([0.2] * 5, abs=0.05)
    assert not liars.acting(0, 1, [], liars.who(0, 100)).any()
    three = ADVERSARIES.make("claims", a_round=3)
    assert int(three.acting(0, 1, [4, 5], three.who(0, 100)).sum()) == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"clients": [1, 9]}, "adversary mimic: clients must be numbers from 0 to 6, not [1, 9]."),
        ({"clients": 8}, "adversary mimic: there are only 7 clients, so 8 of them cannot act."),
    ],
)
def test_clients_who_are_not_there(options, sentence):
    with pytest.raises(CounterpoiseError) as error:
        simulated("fedavg", ADVERSARIES.make("mimic", **options))
    assert str(error.value) == sentence


# ---------------------------------------------------------------- in a run


def simulated(method, adversary, *, cohort=None, seed=0, federation=None, **engine) -> Simulation:
    return Simulation(
        METHODS.make(method) if isinstance(method, str) else method,
        federation or blobs(SIZES),
        small(),
        adversary=adversary,
        cohort=cohort,
        seed=seed,
        local=Local(epochs=2, batch=4, optimizer=sgd(0.1)),
        engine=double(**{"backend": "per-client"} | engine),
    )


@pytest.mark.parametrize("name", [*UPDATES, "nan", "crashed", "twice", "label-flip"])
def test_a_run_repeats_whatever_the_chunk_and_the_backend(name):
    options = {"level": 1.0} if name == "free-rider" else {}
    found = []
    for engine in (
        {"backend": "per-client"},
        {"backend": "per-client"},
        *({"backend": "batched", "chunk": c} for c in (1, 3)),
    ):
        simulation = simulated("fedavg", ADVERSARIES.make(name, clients=2, **options), cohort=5, **engine)
        records = [simulation.advance() for _ in range(2)]
        found.append((simulation.server.model, [r.liars for r in records], [r.outcome.excluded for r in records]))
    assert torch.equal(found[0][0], found[1][0])
    for model, liars, excluded in found[1:]:
        assert (liars, excluded) == found[0][1:]
        assert float((model - found[0][0]).norm()) <= 1e-9 * float(found[0][0].norm())


def test_those_who_act_are_on_record():
    simulation = simulated("fedavg", ADVERSARIES.make("sign-flip", clients=[1, 4], often=0.5), cohort=5)
    liars = ADVERSARIES.make("sign-flip", clients=[1, 4], often=0.5)
    for _ in range(8):
        record = simulation.advance()
        acts = liars.acting(0, record.round, record.cohort, torch.tensor([1, 4]))
        assert record.liars == tuple(c for c, a in zip(record.cohort, acts.tolist(), strict=True) if a)
        assert set(record.liars) <= {1, 4}


@pytest.mark.parametrize(
    ("name", "options", "times"),
    [
        ("sign-flip", {}, -1.0),
        ("scaled", {"factor": 3.0}, 3.0),
        ("free-rider", {}, 0.0),
        ("scaled-update", {"factor": 3.0}, 3.0),
        ("silent-claim", {}, 0.0),
    ],
)
def test_scaffold_is_told_a_change_that_is_forged_as_the_update_is(name, options, times):
    spy = Spy()
    simulated("scaffold", spy).advance()
    factors = torch.ones(len(SIZES), dtype=torch.float64)
    factors[[1, 4]] = times
    forged = simulated("scaffold", ADVERSARIES.make(name, clients=[1, 4], **options))
    forged.advance()
    expected = factors @ spy.cohorts[0].reports["control-variates"]["change"] / len(SIZES)
    torch.testing.assert_close(forged.server.state["control-variates"]["c"], expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nan", "its update holds NaN or infinity"),
        ("crashed", "it did not reply"),
        ("twice", "it replied more than once"),
    ],
)
def test_a_broken_client_is_left_out_and_the_others_go_on(name, reason, backend):
    simulation = simulated("fedavg", ADVERSARIES.make(name, clients=[2, 5]), backend=backend)
    without = simulated("fedavg", None, cohort=lambda seed, round, n: torch.tensor([0, 1, 3, 4, 6]), backend=backend)
    for _ in range(2):
        record, expected = simulation.advance(), without.advance()
        assert record.liars == (2, 5)
        assert record.outcome.excluded == {2: reason, 5: reason}
        assert record.outcome.weights == pytest.approx(expected.outcome.weights)
    torch.testing.assert_close(simulation.server.model, without.server.model)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, lambda y: 2 - y),
        ({"of": 0, "to": 1}, lambda y: np.where(y == 0, 1, y)),
        ({"to": 1}, lambda y: 0 * y + 1),
        ({"of": 2}, lambda y: np.where(y == 2, 0, y)),
    ],
)
def test_label_flip_changes_the_liars_training_labels_alone(options, rule):
    federation = blobs([20] * 4, heldout=0.25)
    before = federation.base.targets.clone()
    flipped = simulated("fedavg", ADVERSARIES.make("label-flip", clients=[1, 3], **options), federation=federation)
    assert torch.equal(federation.base.targets, before)  # the caller's federation stays
    for client in range(4):
        x, y = data_of(federation, client)
        seen_x, seen_y = data_of(flipped.trainer.federation, client)
        assert torch.equal(x, seen_x)
        assert (seen_y.numpy() == (rule(y.numpy()) if client in (1, 3) else y.numpy())).all()
    held = federation.heldout.rows(torch.arange(4)).flatten()
    assert torch.equal(flipped.trainer.federation.base.targets[held], before[held])
    assert flipped.advance().liars == (1, 3)


def test_label_flip_says_what_it_cannot_do():
    with pytest.raises(CounterpoiseError, match=r"label-flip: to must be below the 3 classes, not 3\."):
        simulated("fedavg", ADVERSARIES.make("label-flip", to=3))
    with pytest.raises(CounterpoiseError, match=r"label-flip: of must be below the 3 classes, not 7\."):
        simulated("fedavg", ADVERSARIES.make("label-flip", of=7))
    drawn = replace(blobs(SIZES), train=Drawn(7, 20, 0, 5), heldout=Drawn(7, 20, 0, 2, 5))
    with pytest.raises(CounterpoiseError, match="a partition that gives each sample to one client"):
        simulated("fedavg", ADVERSARIES.make("label-flip"), federation=drawn)


@pytest.mark.parametrize(("train", "held"), [([[0, 1], [1, 2]], [[], []]), ([[0, 1], [2, 3]], [[4], [1]])])
def test_label_flip_does_not_poison_those_who_share_a_sample(train, held):
    """In training, or in what an honest client holds out."""

    def table(rows):
        owned = torch.tensor([(i, row) for i, own in enumerate(rows) for row in own]).long().reshape(-1, 2)
        return Table.of(owned[:, 0], owned[:, 1], 2)

    base = Samples.of(torch.randn(5, 3), torch.arange(5) % 3)
    federation = Federation(base, table(train), table(held), classes=3)
    with pytest.raises(CounterpoiseError, match="needs classes, and a partition that gives each sample to one client"):
        simulated("fedavg", ADVERSARIES.make("label-flip", clients=[0]), federation=federation)


def test_two_adversaries_act_one_after_the_other():
    """What the second sees is what the first has left: a mean that holds the first one's lie."""
    spy: list[Cohort] = []

    def watch(round, cohort):
        spy.append(cohort)
        return cohort

    both = [ADVERSARIES.make("scaled", factor=3.0, clients=[0, 1]), ADVERSARIES.make("inner-product", clients=[1, 2])]
    record = simulated("fedavg", [watch, *both, watch]).advance()
    honest, arrived = (seen.updates.numpy() for seen in spy)
    assert record.liars == (0, 1, 2)
    mean = np.mean([3 * honest[0], *honest[3:]], axis=0)
    np.testing.assert_allclose(arrived, [3 * honest[0], -mean, -mean, *honest[3:]], rtol=1e-12)


@pytest.mark.parametrize("name", [entry.name for entry in ADVERSARIES])
@pytest.mark.parametrize("method", ["krum", "feddua", "fedavgm"])
def test_every_adversary_goes_with_methods_of_every_kind(method, name):
    simulation = simulated(method, ADVERSARIES.make(name, clients=[6]))
    records = [simulation.advance() for _ in range(2)]
    assert [record.liars for record in records] == [(6,), (6,)]
    assert simulation.server.model.isfinite().all()
    assert not any(record.outcome.skipped for record in records)


def test_krum_does_not_choose_a_client_far_off():
    # Far off, and below the length at which no rule sees it.
    simulation = simulated("krum", ADVERSARIES.make("scaled", factor=20.0, clients=[6]))
    for _ in range(2):
        assert simulation.advance().outcome.weights[6] == 0


def test_an_adversary_of_ones_own():
    zero = Adversary(
        [3],
        reply=lambda cohort, acting: Cohort(
            cohort.ids, cohort.updates * ~acting[:, None], cohort.examples, cohort.steps, cohort.reports
        ),
    )
    made = simulated("fedavg", zero)
    rider = simulated("fedavg", ADVERSARIES.make("free-rider", clients=[3]))
    made.advance(), rider.advance()
    assert torch.equal(made.server.model, rider.server.model)
