"""The command line: `counterpoise methods | presets | data | partition | run | resume | compare | sweep | runs`."""

from counterpoise.cli.app import main

__all__ = ["main"]
