"""Names and options: every mistake is told in a sentence that names it."""

import inspect
from typing import Annotated, Literal

import pytest

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
from counterpoise.federation import PARTITIONS
from counterpoise.local import OPTIMIZERS, SCHEDULES
from counterpoise.methods import METHODS, fedavg, fedavgm, fedprox
from counterpoise.models import MODELS
from counterpoise.registry import Option, Registry, Spec


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: METHODS.make("fedpox"),
            r"There is no method 'fedpox'\. Did you mean 'fedprox'\?$",
        ),
        (lambda: METHODS.make("zzz"), r"There is no method 'zzz'\. Known: "),
        (lambda: cp.methods.feddua(fedprox), r"method feddua wraps a method or the name of one, not <function"),
        (lambda: METHODS.make("fedprox", mu=-1), r"method fedprox: option mu must be a number at least 0, not -1\."),
        (lambda: METHODS.make("fedprox", mu="1"), r"option mu must be a number at least 0, not '1'"),
        (lambda: METHODS.make("fedprox", mu=float("nan")), r"option mu must be a number at least 0, not nan"),
        (lambda: METHODS.make("fedprox", mu=float("inf")), r"option mu must be a number at least 0, not inf"),
        (lambda: METHODS.make("fedprox", mu=True), r"option mu must be a number at least 0, not True"),
        (lambda: METHODS.make("fedprox", mu=None), r"option mu must be a number at least 0, not None"),
        (
            lambda: METHODS.make("fedprox", mus=1),
            r"There is no option 'mus' of method fedprox\. Did you mean 'mu'\? Others: lr\.",
        ),
        (lambda: METHODS.make("fedavg", lr=0), r"method fedavg: option lr must be a number above 0, not 0"),
        (lambda: fedavgm(beta=1), r"method fedavgm: option beta must be a number at least 0 and below 1, not 1"),
        (lambda: fedavgm(beta=[0.9]), r"option beta must be a number at least 0 and below 1, not \[0.9\]"),
        (lambda: fedprox(mu=0.1, lr=-2), r"option lr must be a number above 0, not -2"),
        (lambda: cp.sgd(), r"optimizer sgd needs the option lr: learning rate"),
        (lambda: cp.sgd("fast"), r"optimizer sgd: option lr must be a number above 0, not 'fast'"),
        (lambda: cp.sgd(0.1, momentum=1), r"option momentum must be a number at least 0 and below 1, not 1"),
        (lambda: cp.sgd(0.1, nesterov=1), r"option nesterov must be true or false, not 1"),
        (lambda: cp.sgd(0.1, nesterov=True), r"nesterov needs a momentum above 0"),
        (lambda: cp.sgd(0.1, weight_decay=-1), r"option weight_decay must be a number at least 0, not -1"),
        (
            lambda: cp.adam(0.1, beta2=1.0),
            r"optimizer adam: option beta2 must be a number at least 0 and below 1, not 1.0",
        ),
        (lambda: cp.adamw(0.1, weight_decay=-1), r"optimizer adamw: option weight_decay must be a number at least 0"),
        (
            lambda: cp.adam(0.1, betas=(0.9, 0.99)),
            r"There is no option 'betas' of optimizer adam\. Did you mean 'beta\d'",
        ),
        (lambda: cp.stairs(0), r"schedule stairs: option every must be a whole number at least 1, not 0"),
        (lambda: cp.stairs(1.5), r"option every must be a whole number at least 1, not 1.5"),
        (lambda: cp.exponential(1.1), r"option decay must be a number above 0 and at most 1, not 1.1"),
        (lambda: cp.constant(decay=1), r"schedule constant takes no options, but was given decay"),
        (
            lambda: cp.models.mlp((4,), 2, hidden=0),
            r"model mlp: option hidden must be a whole number at least 1, not 0",
        ),
    ],
)
def test_a_bad_option_is_refused_with_a_sentence(make, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: fedprox(0.1, 1.0, 5.0),
        lambda: cp.models.mlp(hidden=3),
        lambda: cp.Local(1, 32, None, None, None, None, None, 8),
        lambda: cp.simulate("fedavg", None, model="linear", rounds=1, lr=0.1),
        lambda: cp.simulate("fedavg", None, model="linear"),
        lambda: cp.load("digits", clients=3),
        lambda: cp.Engine(gpu=True),
        lambda: cp.Evaluation(each=2),
        lambda: cp.resume("runs/1", seed=1),
        lambda: fedavg(1.0, 2.0),
        lambda: fedprox(0.1, mu=0.2),
        lambda: cp.constant(0.5),
        lambda: cp.sgd(0.1, 0.9, False, 0.0, 7),
    ],
)
def test_arguments_that_have_no_place_are_refused(make):
    with pytest.raises(CounterpoiseError):
        make()


def test_a_missing_option_is_named_even_when_another_is_given_by_place():
    with pytest.raises(CounterpoiseError, match="partition dirichlet needs the option clients"):
        cp.dirichlet(0.5)


def test_options_may_be_given_by_place_or_by_name():
    assert fedprox(0.3, 2.0).spec == fedprox(lr=2.0, mu=0.3).spec == Spec("fedprox", {"mu": 0.3, "lr": 2.0})
    assert cp.dirichlet(0.5, 10).spec.plain() == {"name": "dirichlet", "alpha": 0.5, "clients": 10, "minimum": 2}


def test_whole_numbers_pass_as_numbers_and_the_other_way_round():
    assert fedprox(mu=1).spec.options["mu"] == 1.0
    assert isinstance(fedprox(mu=1).spec.options["mu"], float)
    assert isinstance(cp.stairs(3.0).spec.options["every"], int)


@pytest.mark.parametrize("registry", [METHODS, OPTIMIZERS, SCHEDULES, PARTITIONS, MODELS, cp.augment.AUGMENTS])
def test_every_entry_says_what_it_is_and_what_its_options_mean(registry):
    assert list(registry)
    for entry in registry:
        assert entry.summary.endswith(".") or "(" in entry.summary
        for parameter in entry.parameters.values():
            assert parameter.option.meaning
            assert parameter.kind()
            if not parameter.required and parameter.default is not None:
                assert parameter.check(parameter.default, entry.name) == parameter.default


def test_every_method_names_its_paper_and_makes_itself_again_from_its_spec():
    for entry in METHODS:
        assert entry.paper is not None
        assert entry.paper.year is None or entry.paper.year > 2000
        assert entry.group
        made = entry.factory()
        assert made.name == made.spec.name == (f"{entry.name}:fedavg" if entry.wraps else entry.name)
        plain = made.spec.plain()
        again = METHODS.make(plain.pop("name"), **plain)
        assert again.spec == made.spec
        assert [part.name for part in again.parts] == [part.name for part in made.parts]


def test_every_option_of_a_method_is_declared():
    for entry in METHODS:
        assert set(inspect.signature(entry.factory).parameters) - {entry.wraps} == set(entry.parameters)


def toys():
    registry = Registry("toy")

    @registry.register("thing")
    def thing(
        plain: int,
        kind: Annotated[Literal["soft", "hard"], Option("which")] = "soft",
        size: Annotated[int | None, Option("how large", low=2, below=9)] = None,
        title: Annotated[str, Option("what it is called")] = "x",
    ) -> dict:
        """A thing."""
        return {"plain": plain, "kind": kind, "size": size, "title": title}

    return registry, thing


def test_choices_and_absent_values_are_checked():
    registry, thing = toys()
    assert thing(5) == {"plain": 5, "kind": "soft", "size": None, "title": "x"}
    assert registry.make("thing", plain=1, kind="hard", size=8, title="y") == {
        "plain": 1,
        "kind": "hard",
        "size": 8,
        "title": "y",
    }
    with pytest.raises(CounterpoiseError, match="toy thing: option kind must be one of soft, hard, not 'mild'"):
        thing(1, kind="mild")
    with pytest.raises(
        CounterpoiseError, match="option size must be a whole number at least 2 and below 9 or nothing, not 9"
    ):
        thing(1, size=9)
    with pytest.raises(CounterpoiseError, match="option title must be str, not 3"):
        thing(1, title=3)
    with pytest.raises(CounterpoiseError, match="option kind must be one of soft, hard, not \\['soft'\\]"):
        thing(1, kind=["soft"])


@pytest.mark.parametrize(
    ("option", "good", "bad", "words"),
    [
        (Option("x"), [-1e9, 0, 1e9], [float("nan"), float("inf")], ""),
        (Option("x", low=0, high=1), [0, 1, 0.5], [-1e-9, 1.1], "at least 0 and at most 1"),
        (Option("x", above=0, below=1), [0.5], [0, 1], "above 0 and below 1"),
    ],
)
def test_a_range_includes_and_excludes_its_bounds_as_it_says(option, good, bad, words):
    assert option.range() == words
    assert all(option.allows(value) for value in good)
    assert not any(option.allows(value) for value in bad)


# ---------------------------------------------------------------- one around another

WRAPPERS = [entry.name for entry in METHODS if entry.wraps]
INNER = [entry.name for entry in METHODS if not entry.wraps]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrappers_options_are_nobody_elses(wrapper) -> None:
    """On the command line and in a run's record all options stand side by side."""
    for name in INNER:
        assert not METHODS[wrapper].parameters.keys() & METHODS[name].parameters.keys(), name


@pytest.mark.parametrize("name", INNER)
def test_a_wrapped_method_has_the_options_of_both_and_makes_itself_again(name) -> None:
    entry = METHODS[f"feddua:{name}"]
    assert entry.name == f"feddua:{name}"
    assert entry.parameters.keys() == METHODS["feddua"].parameters.keys() | METHODS[name].parameters.keys()
    made = METHODS.make(f"feddua:{name}", patience=7)
    assert made.name == made.spec.name == f"feddua:{name}"
    assert made.spec.options["patience"] == 7
    options = dict(made.spec.plain())
    again = METHODS.make(options.pop("name"), **options)
    assert again.spec == made.spec
    assert [part.name for part in again.parts] == [part.name for part in made.parts]
    assert cp.methods.feddua(METHODS.make(name), patience=7).spec == made.spec
    assert cp.methods.feddua(name, patience=7).spec == made.spec


def test_options_go_to_whom_they_belong() -> None:
    made = METHODS.make("feddua:fedprox", mu=0.5, threshold=4)
    assert made.spec.options["mu"] == 0.5
    assert made.spec.options["threshold"] == 4
    assert made.local[0].name == "proximal"
    with pytest.raises(CounterpoiseError, match=r"There is no option 'mus' of method fedprox\. Did you mean 'mu'"):
        METHODS.make("feddua:fedprox", mus=1)
    with pytest.raises(CounterpoiseError, match=r"method feddua: option threshold must be a number above 0, not 0"):
        METHODS.make("feddua:fedprox", threshold=0)
    with pytest.raises(CounterpoiseError, match=r"There is no method 'fedpox'\. Did you mean 'fedprox'"):
        METHODS.make("feddua:fedpox")
    with pytest.raises(
        CounterpoiseError, match=r"fedavg cannot wrap another method, as in fedavg:avg\. These can: mem"
    ):
        METHODS.make("fedavg:avg")
    with pytest.raises(CounterpoiseError, match=r"median cannot wrap another method\. These can: memory, "):
        METHODS["median"].factory(fedavg())
    assert METHODS["feddua"].factory("fedprox(mu=0.5)").spec == METHODS.make("feddua:fedprox", mu=0.5).spec
    with pytest.raises(CounterpoiseError, match="There is no method ''"):
        METHODS.make("feddua:")


def test_wrappers_nest_and_each_keeps_its_own_state() -> None:
    made = METHODS.make("feddua:feddua:avg", lr=0.5, threshold=9)
    assert made.spec.options["threshold"] == 9
    assert made.name == made.spec.name == "feddua:feddua:avg"
    assert [part.name for part in made.trust] == ["counts", "counts-2"]
    assert made.spec.options["lr"] == 0.5
    thrice = METHODS.make("feddua:feddua:feddua:avg")
    assert [part.name for part in thrice.trust] == ["counts", "counts-2", "counts-3"]


def test_what_cannot_be_told_by_names_alone_has_none() -> None:
    """Two options of one name, and a method of one's own: a run must not be resumed with another method."""
    inner = cp.methods.feddua(fedavg(), threshold=2.0)
    assert cp.methods.feddua(inner, threshold=5.0).spec == Spec()
    assert cp.methods.feddua(cp.methods.feddua(fedavg()), threshold=5.0).spec.options["threshold"] == 5
    assert cp.methods.feddua(fedavg().adding(local=cp.parts.proximal(0.1))).spec == Spec()


def test_alone_it_is_around_fedavg() -> None:
    assert METHODS.make("feddua").spec == METHODS.make("feddua:fedavg").spec


def test_a_name_puts_at_most_eight_around_another():
    with pytest.raises(
        CounterpoiseError, match=r"The method 'feddua:.* wraps 9 entries around one; at most 8 are allowed"
    ):
        METHODS["feddua:" * 9 + "fedavg"]


@pytest.mark.parametrize("value", [10**17, 10**400, -(10**400)])
def test_a_whole_number_that_no_float_holds_exactly_is_taken_for_a_mistake(value):
    with pytest.raises(CounterpoiseError, match="numbers over 9007199254740992 are taken for a mistake"):
        cp.stairs(every=value)
