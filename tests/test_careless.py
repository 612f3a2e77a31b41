"""Careless calls of the Python interface: each is answered with a sentence that says what is wrong."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from helpers import digits

import counterpoise as cp
from counterpoise.errors import CounterpoiseError
from counterpoise.local import Schedule

FED = functools.cache(lambda: digits(3))
X, Y = np.zeros((6, 4), "f"), np.arange(6) % 2
SGD = (0.1, lambda w: {}, lambda w, g, state, lr: (w, state))


def run(**given: object) -> object:
    return cp.simulate(**{"method": "fedavg", "federation": FED(), "model": cp.models.linear, "rounds": 1} | given)


def drawn(*clients: object) -> object:
    return run(cohort=lambda seed, round, population: clients[0] if len(clients) == 1 else list(clients))


def trained(**given: object) -> object:
    return run(local=cp.Local(**given), engine=cp.Engine(backend="per-client"))


def hooked(**hooks: object) -> object:
    method = cp.methods.fedavg().adding(local=cp.Part("mine", **hooks))
    return run(method=method, engine=cp.Engine(backend="per-client"))


def lying(**given: object) -> object:
    return run(adversary=cp.Adversary(**({"reply": lambda cohort, acting: cohort} | given)))


def arrays(**given: object) -> object:
    return cp.Federation.from_arrays(X, Y, **{"partition": cp.iid(2)} | given)


def dealt(assign: object) -> object:
    return arrays(partition=cp.Partition(2, assign))


KEPT = {"client_state": lambda start: {"v": start}, "when_lost": "it starts again"}

MISTAKES = {
    # ---- simulate
    "model a type": (lambda: run(model=dict), "factory returned dict, not an nn.Module"),
    "local a dict": (lambda: run(local={}), r"local must be made by cp\.Local\(\.\.\.\); this is of type dict"),
    "metrics a list": (lambda: run(metrics=[print]), r"metrics must be a list of names"),
    "metrics by number": (lambda: run(metrics={3: print}), "or a dictionary of names and functions"),
    "on_round a number": (lambda: run(on_round=3), r"on_round must be a function on_round\(record\), not 3"),
    "on_round of nothing": (lambda: run(on_round=lambda: 1), r"on_round\(record\), but the function given takes \(\)"),
    "log a number": (lambda: run(log=3), "log takes loggers or their names"),
    "log not called": (lambda: run(log=cp.logs.tensorboard), "log takes loggers or their names"),
    "logger of numbers": (lambda: cp.logs.Logger(1, 2, 3), r"Logger: begin must be a function begin\(start\), not 1"),
    "out a number": (lambda: run(out=3), "out must be the path of a run's folder, not 3"),
    "resume of nothing": (lambda: cp.resume(None), "folder must be the path of a run's folder, not None"),
    "keep a number": (lambda: run().save(3), "folder must be the path of a run's folder, not 3"),
    # ---- who takes part
    "sampler of nothing": (lambda: run(cohort=lambda: [0]), r"cohort\(seed, round, population\), but .* takes \(\)"),
    "sampler gives none": (lambda: drawn(None), "sampler must return client numbers, not None"),
    "sampler gives one": (lambda: drawn(3), "sampler must return client numbers, not 3"),
    "sampler gives texts": (lambda: drawn("a", "b"), "sampler must return client numbers, not "),
    "sampler gives parts": (lambda: drawn(0.5, 1.5), "sampler must return client numbers, not "),
    "sampler gives a table": (lambda: drawn(torch.tensor([[0, 1]])), "sampler must return client numbers, not "),
    "availability of numbers": (lambda: cp.Availability(3, 4), r"Availability: call must be a function call\(seed, "),
    "availability gives a list": (
        lambda: run(cohort=cp.Availability(lambda seed, round, held: [0, 1], lambda held: 2)),
        r"call must return a pair: .* It returned \[0, 1\]",
    ),
    # ---- adversaries
    "adversary of one": (lambda: run(adversary=lambda cohort: cohort), r"adversary\(round, cohort\), but .*\(cohort\)"),
    "reply a number": (lambda: lying(reply=3), r"Adversary: reply must be a function reply\(cohort, acting\), not 3"),
    "noise of two": (
        lambda: lying(noise=lambda cohort, acting: 0),
        r"noise\(cohort, acting, drawn\), but the function",
    ),
    "data gives none": (lambda: lying(data=lambda fed, who: None), "data must return the changed federation, not None"),
    "liars nested": (lambda: lying(clients=[[1]]), r"clients must be numbers from 0 to 2, not \[\[1\]\]"),
    "liars below 0": (
        lambda: lying(clients=-1),
        "clients must be a list of their numbers, or how many to draw, not -1",
    ),
    "liars a text": (
        lambda: lying(clients="x"),
        "clients must be a list of their numbers, or how many to draw, not 'x'",
    ),
    "liars an array": (lambda: lying(clients=np.arange(2)), "clients must be a list of their numbers"),
    "fraction a text": (
        lambda: lying(fraction="x"),
        "Adversary: option fraction must be a number at least 0 and at most 1 or",
    ),
    "often above 1": (
        lambda: lying(often=2),
        "Adversary: option often must be a number at least 0 and at most 1, not 2",
    ),
    "first 0": (lambda: lying(first=0), "Adversary: option first must be a whole number at least 1, not 0"),
    # ---- data
    "partition of a number": (lambda: dealt(4), r"Partition: assign must be a function assign\(column, seed\), not 4"),
    "partition gives lists": (lambda: dealt(lambda column, seed: [[0], [1]]), "assign must return Table.of.*not list"),
    "seed a text": (lambda: arrays(seed="x"), "seed must be a whole number"),
    "fractions for identities": (
        lambda: arrays(partition=cp.natural(), identities=[0.5] * 6),
        "identities must be one whole number or name for each of the 6 samples",
    ),
    "features a text": (
        lambda: cp.load("digits", partition=cp.iid(5), features="rotation"),
        r"features must be a feature skew such as cp\.rotation\(45\), not 'rotation'",
    ),
    "features a number": (lambda: arrays(features=3), "features must be a feature skew such as .*, not 3"),
    "clients a number": (lambda: cp.Federation.from_clients(3), "clients must be a list of pairs .*, not 3"),
    "clients an array": (lambda: cp.Federation.from_clients(X), "client 0 must be a pair of inputs and targets"),
    "clients a dataset": (
        lambda: cp.Federation.from_clients(torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4))),
        r"not one torch Dataset. Deal it with a recipe: Federation.from_datasets\(dataset, partition=",
    ),
    "test a dataset": (
        lambda: arrays(test=torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4))),
        "the test set: inputs are a torch Dataset. Give it to Federation.from_datasets",
    ),
    "loss a text": (lambda: run(loss="mse"), "There is no loss 'mse'.*Known: cross-entropy, squared-error"),
    "lr by another name": (lambda: cp.sgd(learning_rate=0.1), "Did you mean 'lr'?"),
    "personal curve": (
        lambda: cp.Run("m", 0, torch.nn.Linear(1, 1)).curve("personal_accuracy"),
        "There is no metric 'personal_accuracy' in the rounds of this run. Did you mean 'accuracy'",
    ),
    "clients dealt again": (lambda: cp.Federation.from_clients([(X, Y)], partition=cp.iid(2)), "takes no partition"),
    "federation of numbers": (lambda: cp.Federation(1, 2, 3), "base must be Samples, not 1"),
    "client by text": (lambda: FED().only("x"), "There is no client x; they are numbered from 0 to 2"),
    "client by another name": (
        lambda: cp.Federation.from_datasets({"north": (X, Y), "south": (X, Y)}).only("noth"),
        "There is no client 'noth'. Did you mean 'north'",
    ),
    "group norm of a number": (lambda: cp.models.with_group_norm(3), "with_group_norm takes a module, such as"),
    # ---- local training
    "augment of one": (lambda: cp.Local(augment=lambda x: x), r"augment\(inputs, keys\), but .* takes \(x\)"),
    "augment gives none": (lambda: trained(augment=lambda x, keys: None), "same shape, .*; this is of type NoneType"),
    "augment drops samples": (
        lambda: trained(augment=lambda x, keys: x[:1]),
        r"same shape, .*; this is of shape \(1, ",
    ),
    "rate a text": (lambda: cp.Optimizer("x", *SGD[1:]), "Optimizer: lr must be a number, not 'x'"),
    "decay a text": (lambda: cp.Optimizer(*SGD, weight_decay="x"), "Optimizer: weight_decay must be a number, not 'x'"),
    "init a dict": (lambda: cp.Optimizer(0.1, {}, SGD[2]), r"Optimizer: init must be a function init\(w\), not \{\}"),
    "init gives none": (
        lambda: trained(optimizer=cp.Optimizer(0.1, lambda w: None, SGD[2])),
        "The optimizer's init must return a dictionary, not NoneType",
    ),
    "step of two": (
        lambda: cp.Optimizer(0.1, SGD[1], lambda w, g: w),
        r"step\(w, g, state, lr\), but .* takes \(w, g\)",
    ),
    "schedule a number": (lambda: Schedule(3), r"Schedule: factor must be a function factor\(round\), not 3"),
    "schedule gives none": (
        lambda: trained(schedule=Schedule(lambda round: None)),
        "round 1 must be a number, not None",
    ),
    # ---- methods and hooks
    "method by number": (lambda: cp.Method(3), "A method's name must be a text, not 3"),
    "part for a name": (lambda: cp.methods.fedavg().adding(cp.Part("a")), "A method's name must be a text, not Part"),
    "chain of nothing": (lambda: cp.methods.fedavg().replacing(local=None), "local must be a tuple of parts, not None"),
    "trace below 0": (
        lambda: hooked(trace_every=-1),
        "part mine: trace_every must be a whole number at least 0, not -1",
    ),
    "state of none": (lambda: hooked(server_state=lambda w: None), "server_state must return a dictionary of tensors"),
    "record of numbers": (lambda: hooked(client_record=lambda w: {"a": 1}), "client_record must .*, not a int"),
    "kept a vector": (lambda: hooked(client_state=lambda w: w, when_lost="x"), "client_state must .*, not Tensor"),
    "sends numbers": (lambda: hooked(broadcast=lambda state: {"a": 3}), "broadcast must return a .*, not a int"),
    "memo of none": (
        lambda: hooked(begin=lambda client: None),
        "begin must return a dictionary of tensors, not NoneType",
    ),
    "memo lost": (
        lambda: hooked(begin=lambda client: {}, after_step=lambda client, step: None),
        "part mine: its memo must stay a dictionary of tensors and not become NoneType",
    ),
    "finish gives none": (
        lambda: hooked(finish=lambda client, reply: None),
        "finish must return a cp.Reply, not NoneType",
    ),
    "reports numbers": (
        lambda: hooked(finish=lambda client, reply: cp.Reply(reply.update, {"a": 3})),
        "finish must give reports as a dictionary of tensors, not a int",
    ),
    "personal of nothing": (
        lambda: hooked(personal=lambda w, state: w),
        "part mine has personal but keeps nothing on clients, so it would never be asked; lay out in client_state",
    ),
    "personal of none": (lambda: hooked(**KEPT, personal=lambda w, state: None), "personal must return a vector of"),
    "personal too short": (lambda: hooked(**KEPT, personal=lambda w, state: w[:3]), r"not float32\[3\]"),
    "no curvature": (lambda: hooked(gradient=lambda client, step, g: step.curvature(g)), r"second_order=True"),
    "no such output": (
        lambda: hooked(gradient=lambda client, step, g: step.output_at(client.start, "featurs").sum() * g),
        "The model has no method 'featurs'",
    ),
    "another model": (
        lambda: hooked(apply=lambda r: r.but(model=r.model[:3])),
        r"must return a model of .*, not float32\[3\]",
    ),
    "a note of one": (
        lambda: hooked(apply=lambda r: r.noting(a=3)),
        "the note a must be a tensor .* 3 clients, not int",
    ),
    "a note too long": (lambda: hooked(apply=lambda r: r.noting(a=torch.zeros(9))), "the note a must be a tensor"),
    "excluded by list": (lambda: hooked(apply=lambda r: r.but(excluded=[1])), "excluded must give the reason for each"),
    "verdict a number": (
        lambda: hooked(apply=lambda r: r.but(verdicts={0: 3})),
        "client 0 must be a cp.Verdict, not 3",
    ),
}


@pytest.mark.parametrize(("call", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_careless_call_is_answered_with_a_sentence(call, sentence) -> None:
    with pytest.raises(CounterpoiseError, match=sentence):
        call()


def test_a_sampler_may_return_an_array() -> None:
    run(cohort=lambda seed, round, population: np.array([0, 2]))
    run(cohort=lambda seed, round, population: list(np.array([0, 2])))


def test_read_only_arrays_such_as_those_of_pandas_are_taken_without_a_warning(recwarn) -> None:
    x = X.copy()
    x.flags.writeable = False
    torch.set_warn_always(True)
    try:
        cp.Federation.from_arrays(x, Y, partition=cp.iid(2))
    finally:
        torch.set_warn_always(False)
    assert not recwarn.list
