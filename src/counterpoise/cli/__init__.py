"""The command line: `counterpoise methods`, `presets`, `run`, `compare`, `report` and so on."""

from counterpoise.cli.app import main

__all__ = ["main"]
