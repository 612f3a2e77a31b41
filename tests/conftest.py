"""Settings shared by all tests."""

import gc
import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "counterpoise", deadline=None, max_examples=20, derandomize=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile("counterpoise")

# A script's background ignores Ctrl-C, and nohup a closed terminal. Programs under test would inherit that, but not a
# handler: they start with the usual one. With nohup, the suite itself still outlives its terminal.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, lambda *_: None)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


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
