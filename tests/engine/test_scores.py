"""Metrics by name: their values against NumPy's, their limits, and their way through a configuration."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import counterpoise as cp
from counterpoise.engine.scores import LOSSES, METRICS, cross_entropy, limits_of, named_metrics
from counterpoise.errors import CounterpoiseError
from counterpoise.runs.build import setup
from counterpoise.runs.config import override, parse, read
from counterpoise.runs.starting import run_setup

OUTPUTS = np.random.default_rng(0).normal(size=(20, 6))
LABELS = np.random.default_rng(1).integers(6, size=20)
SOFTMAX = np.exp(OUTPUTS) / np.exp(OUTPUTS).sum(1, keepdims=True)
RANKS = (OUTPUTS[np.arange(20), LABELS, None] < OUTPUTS).sum(1)


def value(name, outputs=OUTPUTS, targets=LABELS, **options):
    return METRICS.make(name, **options)(torch.from_numpy(outputs), torch.from_numpy(targets)).numpy()


@pytest.mark.parametrize("k", [1, 2, 5, 6, 9])
def test_top_k_counts_the_targets_among_the_k_largest_outputs(k):
    assert value("top-k", k=k).tolist() == (k > RANKS).astype(float).tolist()


def test_accuracy_is_top_1():
    assert value("accuracy").tolist() == value("top-k", k=1).tolist()


def test_the_brier_score_is_the_squared_distance_from_the_truth():
    assert value("brier") == pytest.approx(((SOFTMAX - np.eye(6)[LABELS]) ** 2).sum(1))


@pytest.mark.parametrize("shape", [(20,), (20, 1), (20, 3)])
def test_errors_of_regression(shape):
    outputs, targets = (np.random.default_rng(seed).normal(size=shape) for seed in (2, 3))
    difference = (outputs - targets).reshape(20, -1)
    assert value("squared-error", outputs, targets) == pytest.approx((difference**2).mean(1))
    assert value("absolute-error", outputs, targets) == pytest.approx(np.abs(difference).mean(1))


def test_rows_of_fractions_are_chances_of_classes():
    outputs, chances = torch.from_numpy(OUTPUTS), torch.from_numpy(SOFTMAX[::-1].copy())
    found = cross_entropy(outputs, chances)
    assert found.numpy() == pytest.approx(-(SOFTMAX[::-1] * np.log(SOFTMAX)).sum(1))
    assert torch.equal(found, F.cross_entropy(outputs, chances, reduction="none"))
    assert torch.equal(cross_entropy(outputs[:6], chances[:6]), found[:6])  # as many samples as classes


def test_a_run_learns_from_soft_labels():
    fed = cp.Federation.from_arrays(OUTPUTS, SOFTMAX, partition=[range(10), range(10, 20)], test=(OUTPUTS, SOFTMAX))
    run = cp.simulate("fedavg", fed, model=torch.nn.Linear(6, 6), loss=cross_entropy, rounds=1, progress=False)
    assert "accuracy" not in run.rounds[-1].metrics


def test_one_output_with_an_axis_meets_targets_without_one():
    assert value("squared-error", OUTPUTS[:, :1], OUTPUTS[:, 1]) == pytest.approx((OUTPUTS[:, 0] - OUTPUTS[:, 1]) ** 2)


def test_metrics_say_their_limits():
    limits = {"accuracy": (0, 1), "top-k": (0, 1), "brier": (0, 2)}
    limits |= dict.fromkeys(("squared-error", "absolute-error"), (0, math.inf))
    assert {entry.name: limits_of(METRICS.make(entry.name)) for entry in METRICS} == limits
    assert limits_of(LOSSES.make("cross-entropy")) == limits_of(cross_entropy) == (0, math.inf)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("accuracy", "metrics must be a list of names"),
        (["acuracy"], "Did you mean 'accuracy'"),
        (["top-k", "top-k"], "a metric is named twice"),
        ([{"name": "top-k", "k": 0}], "k"),
    ],
)
def test_metrics_that_are_none_are_refused(given, sentence):
    with pytest.raises(CounterpoiseError, match=sentence):
        named_metrics(given)


def test_named_metrics_are_kept_with_the_run_and_need_not_be_given_again(tmp_path):
    settings = ['metrics=["accuracy", {name = "top-k", k = 1}]', "rounds=1", "data.samples=200"]
    made = setup(parse(override(read("quickstart")[0], settings), "x"))
    run = run_setup(made, out=tmp_path / "run")
    assert run.settings["metrics"] == [{"name": "accuracy"}, {"name": "top-k", "k": 1}]
    assert "own" not in run.settings
    again = cp.resume(tmp_path / "run", rounds=2)
    for record in again.rounds:
        assert record.metrics["top-k"] == record.metrics["accuracy"]
