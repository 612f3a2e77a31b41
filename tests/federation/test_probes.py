"""Probe sets that are made: from noise, or from the class means that clients report."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise.engine import Simulation
from counterpoise.errors import CounterpoiseError
from counterpoise.methods import feda4
from counterpoise.runs.config import parse

INPUTS = np.arange(16, dtype="f").reshape(8, 2)
TARGETS = np.array([0, 0, 1, 1, 1, 0, 0, 2])
OWNERS = [0, 0, 0, 0, 0, 1, 1, 1]


def made(probe, **settings):
    return cp.Federation.from_arrays(INPUTS, TARGETS, partition=OWNERS, probe=probe, heldout=0, **settings)


def test_class_means_are_averaged_by_counts_and_of_single_samples_nothing_is_reported():
    fed = made("means")
    assert fed.probe.targets.tolist() == [0, 1]  # of class 2 one client holds one sample
    assert torch.equal(fed.probe.inputs, torch.tensor([[6.0, 7.0], [6.0, 7.0]]))
    uneven = cp.Federation.from_arrays(INPUTS, [0] * 8, partition=[0, 0, 0, 0, 0, 0, 1, 1], probe="means", heldout=0)
    assert uneven.probe.inputs.tolist() == [[7.0, 8.0]]  # six samples of mean 5, two of mean 13
    assert fed.train.sizes(torch.tensor([0, 1])).tolist() == [5, 3]  # no sample is taken from anybody


def test_bytes_are_scaled_before_they_are_averaged():
    pixels = np.array([[0], [255], [51], [102]], dtype=np.uint8)
    fed = cp.Federation.from_arrays(pixels, [0, 0, 1, 1], partition=[0, 0, 0, 0], probe="means", heldout=0)
    inputs, _ = fed.probe.take(torch.arange(2), torch.float64)
    assert inputs.flatten().tolist() == pytest.approx([0.5, 0.3], abs=1e-7)


def test_noise_takes_no_sample_and_is_the_seeds():
    fed = made("noise")
    assert fed.probe.targets.tolist() == [0, 1, 2]
    assert fed.probe.inputs.shape == (3, 2)
    assert torch.equal(fed.probe.inputs, made("noise").probe.inputs)
    assert not torch.equal(fed.probe.inputs, made("noise", seed=1).probe.inputs)
    pixels = cp.Federation.from_arrays(
        np.full((4, 1, 8, 8), 255, np.uint8), [0, 1, 0, 1], partition=[0, 0, 1, 1], probe="noise", heldout=0
    )
    values = pixels.probe.take(torch.arange(2), torch.float64)[0]
    assert 0 <= values.min() < 0.1
    assert 0.9 < values.max() <= 1


@pytest.mark.parametrize("probe", ["noise", "means"])
def test_no_probe_is_made_of_tokens(probe, tmp_path):
    tokens = np.arange(16).reshape(8, 2)
    clients = [(tokens[:5], TARGETS[:5]), (tokens[5:], TARGETS[5:])]
    refused = rf"A probe set of {probe} cannot be made .* \(torch.int64\), such as tokens.* instead: probe=1."
    with pytest.raises(CounterpoiseError, match=refused):
        cp.Federation.from_clients(clients, probe=probe)
    np.savez(tmp_path / "tokens.npz", x=tokens, y=TARGETS)
    with pytest.raises(CounterpoiseError, match=refused):
        cp.load(str(tmp_path / "tokens.npz"), partition=cp.iid(clients=2), probe=probe)
    assert cp.Federation.from_clients(clients, probe=1).probe.inputs.dtype == torch.int64


def test_noise_keeps_to_the_range_of_the_data():
    fed = cp.load("digits", partition=cp.iid(clients=4), probe="noise")
    inputs = fed.probe.take(torch.arange(10), torch.float32)[0]
    assert float(inputs.min()) == -1.0
    assert float(inputs.max()) == 1.0


@pytest.mark.parametrize("probe", ["noise", "means"])
def test_feda4_runs_on_a_made_probe(probe):
    fed = cp.load("digits", partition=cp.dirichlet(0.5, clients=4), probe=probe)
    assert fed.source["probe"] == probe
    simulation = Simulation(feda4(), fed, cp.models.linear(fed.shape, 10))
    record = simulation.advance()
    assert len(record.outcome.notes["concentration"]) == 4
    assert sum(record.outcome.weights.values()) == pytest.approx(1)


def test_a_deployments_server_cannot_have_class_means():
    with pytest.raises(CounterpoiseError, match="a deployment has no message for that"):
        made("means").on_server()
    assert len(made("noise").on_server().probe) == 3


def test_bad_probes_are_refused_with_a_sentence():
    with pytest.raises(CounterpoiseError, match="probe"):
        made("nose")
    with pytest.raises(CounterpoiseError, match="these targets are not class numbers"):
        cp.Federation.from_arrays(INPUTS, TARGETS.astype("f"), partition=OWNERS, probe="means", heldout=0)
    with pytest.raises(CounterpoiseError, match="so none reports a class mean"):
        cp.Federation.from_arrays(INPUTS[:2], [0, 1], partition=[0, 1], probe="means", heldout=0)
    with pytest.raises(CounterpoiseError, match=r"data\.probe"):
        parse(
            {
                "rounds": 1,
                "data": {"name": "digits", "probe": "nose"},
                "method": {"name": "feda4"},
                "model": {"name": "mlp"},
            },
            "here",
        )
