"""The command line: `counterpoise methods`, `presets`, `run`, `compare`, `report` and so on."""

import sys

from counterpoise.loading import loading

__all__ = ["main"]


def main() -> None:
    """Run the command line. Ctrl-C while its modules are loaded is told like any other."""
    try:
        with loading():
            from counterpoise.cli.app import main as run
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        raise SystemExit(130) from None
    run()
