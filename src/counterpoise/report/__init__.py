"""The report: runs as one HTML page that opens anywhere, and its figures as files for papers."""

from counterpoise.report.report import write

__all__ = ["write"]
