"""Why a client takes no part in a round, in the words that are put on record."""

__all__ = ["AWAY", "DROPPED", "FAILED", "SILENT"]

DROPPED = "it dropped out of the round"
"""For stragglers."""
SILENT = "it did not reply"
AWAY = "it is not connected"
FAILED = "its training failed"
"""AWAY and FAILED are for clients of a deployment."""
