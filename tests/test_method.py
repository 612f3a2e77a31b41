"""Methods as values: chains, wrapping, replacing, and what cannot be put together."""

import dataclasses

import pytest

from counterpoise import parts
from counterpoise.errors import CounterpoiseError
from counterpoise.method import SLOTS, Method, Part
from counterpoise.methods import METHODS, counterpoise, fedavg, fedavgm, fedprox
from counterpoise.registry import Spec


def test_parts_act_in_the_order_of_the_slots():
    method = Method("all", **{slot: (Part(f"{slot}-1"), Part(f"{slot}-2")) for slot in reversed(SLOTS)})
    assert [part.name for part in method.parts] == [f"{slot}-{i}" for slot in SLOTS for i in (1, 2)]
    assert SLOTS == ("local", "upload", "trust", "weigh", "combine", "update")


def test_a_wrapped_method_keeps_the_old_one_as_it_was():
    plain = fedavgm()
    wrapped = plain.adding("careful", trust=Part("first")).adding(trust=Part("second"))
    assert [part.name for part in wrapped.trust] == ["first", "second"]
    assert (wrapped.name, wrapped.spec) == ("careful", Spec())
    assert plain.trust == ()
    assert plain.name == "fedavgm"
    assert wrapped.update == plain.update


def test_a_changed_method_is_not_taken_for_the_one_it_came_from():
    assert fedavg().spec.name == "fedavg"
    for changed in (
        fedavg().adding(trust=Part("a")),
        fedavg().replacing(weigh=()),
        dataclasses.replace(fedavg(), weigh=()),
    ):
        assert not changed.spec.name


def test_a_chain_can_be_replaced_by_one_part_or_several():
    one = fedavg().replacing(weigh=parts.uniform())
    assert [part.name for part in one.weigh] == ["uniform"]
    several = fedavg().replacing("other", trust=[Part("a"), Part("b")])
    assert [part.name for part in several.trust] == ["a", "b"]
    assert fedavg().replacing(weigh=()).weigh == ()


def test_one_part_of_a_chain_can_be_replaced_by_its_name():
    plain = counterpoise()
    mine = plain.replacing("mine", by_data=parts.uniform(), update=Part("step"))
    assert [part.name for part in mine.weigh] == ["memory", "bounded", "uniform", "capped"]
    assert (mine.weigh[0], mine.trust, mine.combine) == (plain.weigh[0], plain.trust, plain.combine)
    assert [part.name for part in mine.update] == ["step"]
    assert plain.replacing(by_data=()).weigh == (*plain.weigh[:2], plain.weigh[3])
    assert plain.replacing(weigh=(mine.weigh[2],)).weigh == (mine.weigh[2],)


def test_several_parts_can_be_added_at_once():
    added = fedavg().adding(trust=[Part("a"), Part("b")])
    assert [part.name for part in added.trust] == ["a", "b"]


def test_a_method_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        fedavg().name = "mine"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: fedprox().adding(local=parts.proximal(1.0)), "method fedprox has the part 'proximal' twice"),
        (lambda: fedavg().adding(locale=Part("x")), r"There is no slot 'locale' in a method\. Did you mean 'local'"),
        (
            lambda: fedavg().replacing(weight=Part("x")),
            r"There is no slot or part 'weight' in fedavg\. Did you mean 'weigh'\? Others: by_data, combine",
        ),
        (
            lambda: counterpoise().replacing(weigh=Part("mine")),
            r"slot weigh of counterpoise has 4 parts: memory, bounded, by-data, capped\. .* name it: "
            r"\.replacing\(by_data=\.\.\.\)\. .* give a tuple: \.replacing\(weigh=\(part,\)\)",
        ),
        (
            lambda: fedavg().adding(trust=Part("reader", reads=("means",))),
            r"There is no part 'means' in fedavg for reader to read\. Did you mean 'mean'",
        ),
        (
            lambda: fedavg().adding(local=Part("keeps", client_state=lambda start: {})),
            "part keeps keeps state on clients, so its when_lost must say what happens",
        ),
        (
            lambda: fedavg().replacing(weigh=parts.uniform),
            r"slot weigh must be .* Was a function given without its paren",
        ),
        (lambda: fedavg().adding(weigh=parts.uniform), r"slot weigh must be .* Was a function given without its paren"),
        (lambda: Method("m", weigh=3), r"method m: the slot weigh must be a tuple of parts, not 3\.$"),
        (lambda: fedavg().part("median"), r"There is no part 'median' in fedavg\. Did you mean 'mean'"),
    ],
)
def test_what_cannot_be_put_together_is_refused(make, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        make()


def test_a_part_is_found_by_its_name():
    assert fedavg().part("mean").apply is not None


def test_only_parts_with_client_hooks_run_on_clients():
    assert not parts.mean().on_client
    assert parts.proximal(0.1).on_client
    assert not parts.proximal(0.0).on_client  # a pull of nothing costs nothing


def test_every_method_that_keeps_state_on_clients_says_what_happens_when_it_is_lost():
    for entry in METHODS:
        for part in entry.factory().parts:
            assert part.client_state is None or part.when_lost


@pytest.mark.parametrize("numbers", [{"mu": "x"}, {"mu": float("nan")}, {"mu": float("inf")}, {5: 1.0}, 3, None])
def test_numbers_of_a_part_are_finite_and_have_names(numbers):
    with pytest.raises(CounterpoiseError, match="part mine: numbers must give finite numbers by name"):
        Part("mine", numbers=numbers)
    assert Part("mine", numbers={"mu": 1, "nu": 0.5}).numbers == {"mu": 1, "nu": 0.5}
