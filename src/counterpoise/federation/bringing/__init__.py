"""What users have, turned into arrays: torch data sets, loaders and arrays, for each client or in one piece.

`forms` decides which form something has and makes it a `Source`, whose samples can be read in blocks. `gathering` reads
all sources into one array. `samples` says what one sample becomes.
"""

from counterpoise.federation.bringing.clients import Brought, bring
from counterpoise.federation.bringing.source import Columns

__all__ = ["Brought", "Columns", "bring"]
