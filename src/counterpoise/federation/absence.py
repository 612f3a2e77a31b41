"""Why a client takes no part in a round, in the words that are put on record."""

__all__ = ["AWAY", "DROPPED", "FAILED", "SILENT"]

DROPPED = "it dropped out of the round"
"""Of a straggler."""
SILENT = "it did not reply"
AWAY = "it is not connected"
FAILED = "its training failed"
"""Of clients of a deployment."""
