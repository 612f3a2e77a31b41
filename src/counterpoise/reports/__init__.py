"""The report: runs as one HTML page that opens anywhere, and its figures as files for papers."""

from counterpoise.reports.export import export
from counterpoise.reports.report import write

__all__ = ["export", "write"]
