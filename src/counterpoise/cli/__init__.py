"""The command line: `counterpoise methods | presets | run | resume`."""

from counterpoise.cli.app import main

__all__ = ["main"]
