"""The command line: `counterpoise methods`, `presets`, `run`, `compare`, `report` and so on."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line. Ctrl-C while its modules are loaded is told like any other."""
    try:
        from counterpoise.cli.app import main as run
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        raise SystemExit(130) from None
    run()
