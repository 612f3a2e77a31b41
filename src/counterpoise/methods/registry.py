"""The registry of methods."""

from __future__ import annotations

from counterpoise.method import Method
from counterpoise.registry import Registry

__all__ = ["METHODS"]

METHODS: Registry[Method] = Registry("method", Method)
