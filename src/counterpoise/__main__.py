"""`python -m counterpoise` is `counterpoise`."""

from counterpoise.cli import main

main()
