"""Order and selection of tests, for the suite and the doctests alike."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow tests last and skip those that need a GPU where there is none."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing:
        import torch

        if not torch.cuda.is_available():
            for item in needing:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
