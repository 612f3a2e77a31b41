"""Where files come from: the local data folder, or else the public place that a data set names."""

from counterpoise.federation.sources.download import Remote, download, md5
from counterpoise.federation.sources.folder import data_folder, ensure, here

__all__ = ["Remote", "data_folder", "download", "ensure", "here", "md5"]
