"""The report: runs as one HTML page that opens anywhere, and its figures as files for papers."""

from counterpoise.report.export import export
from counterpoise.report.report import write

__all__ = ["export", "write"]
