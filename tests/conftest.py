"""Settings shared by all tests."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "counterpoise", deadline=None, max_examples=20, derandomize=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile("counterpoise")

# A script's background ignores Ctrl-C, and nohup a closed terminal. Programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# They do not inherit a handler, so with nohup only the suite outlives its terminal. Its workers, which are programs too,
# learn of nohup from the environment.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or "COUNTERPOISE_TESTS_NOHUP" in os.environ:
    os.environ["COUNTERPOISE_TESTS_NOHUP"] = "1"
    signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_collection_finish() -> None:
    """What is loaded by now stays until the end, so no garbage collection need walk through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread():
    """Small tensors are slower on two threads than on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def without_workers() -> Iterator[None]:
    """Comparisons and studies run in this process."""
    from workers import in_this_process

    with in_this_process():
        yield
