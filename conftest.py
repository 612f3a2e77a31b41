"""Order and selection of tests, for the suite and the doctests alike."""

from __future__ import annotations

import os

import pytest

# Several processes share the cores: threads that have nothing to do sleep instead of spinning. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put slow tests last, leave deployments out unless they are asked for, skip what needs a GPU where there is none."""
    if "deploy" not in config.getoption("markexpr"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("deploy")])
        items[:] = [item for item in items if not item.get_closest_marker("deploy")]
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing:
        import torch

        if not torch.cuda.is_available():
            for item in needing:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
