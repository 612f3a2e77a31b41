"""What is recorded on a GPU, with recordings that play on a CPU: buffers filled in time, and the same numbers."""

import pytest
import torch
from helpers import ALL_METHODS, blobs, double, small

from counterpoise.engine import Simulation, batched
from counterpoise.engine.trees import fill, own
from counterpoise.local import Local, sgd
from counterpoise.method import Part, Reply
from counterpoise.methods import METHODS, avg

SIZES = [1, 9, 4, 13, 6, 9, 9, 5]  # in chunks of 2: some of the same shape, and scripts that need padding


class Played:
    """A `Recording` without a GPU: what it gives lies in the same buffers after every call."""

    def __init__(self, function, *arguments, into=None, fused=False):
        self.function, self.arguments, self.into = function, arguments, into
        before = own(arguments)
        given = function(*arguments)
        fill(arguments, before)  # a recording tries its phase, and what it tried is not to be seen
        self.result = own(given) if into is None else into

    def __call__(self):
        fill(self.result, self.function(*self.arguments))
        return self.result


@pytest.mark.parametrize("name", [*ALL_METHODS, "feddua:scaffold"])
def test_recorded_chunks_compute_what_plain_ones_do(name, monkeypatch):
    monkeypatch.setattr(batched, "Recording", Played)

    def models(recorded):
        simulation = Simulation(
            METHODS.make(name),
            blobs(SIZES, probe=1, proxy=12),
            small(),
            cohort=6,
            seed=3,
            local=Local(epochs=2, batch=4, optimizer=sgd(0.1, momentum=0.5)),
            engine=double(backend="batched", chunk=2),
        )
        if recorded:
            simulation.backend.records = True

            def ahead(round):
                """As on a GPU: the next round is prepared, and its batches copied, when this one was trained."""
                simulation._ready = simulation._prepare(round, *simulation._draw(round))

            monkeypatch.setattr(simulation, "_look_ahead", ahead)
        for _ in range(3):
            simulation.advance()
            yield simulation.server.model

    for recorded, plain in zip(models(True), models(False), strict=True):
        assert torch.allclose(recorded, plain, rtol=1e-12, atol=1e-14)


def test_what_a_traced_client_passes_on_is_its_own(monkeypatch):
    monkeypatch.setattr(batched, "Recording", Played)
    part = Part(
        "who",
        begin=lambda client: {"who": client.index.to(client.start.dtype)},
        finish=lambda client, reply: Reply(reply.update, dict(client.memo)),
        trace_every=1,
    )
    engine = double(backend="batched", chunk=2)
    simulation = Simulation(avg().adding(upload=part), blobs([5] * 6), small(), engine=engine)
    simulation.backend.records = True
    heard = simulation.train(simulation.open())
    assert heard.cohort.reports["who"]["who"].tolist() == [*range(6)]
