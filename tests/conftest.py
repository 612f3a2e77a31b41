"""Settings shared by all tests."""

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "counterpoise", deadline=None, max_examples=20, derandomize=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile("counterpoise")


@pytest.fixture(autouse=True)
def _one_thread():
    """Small tensors are slower on two threads than on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
