"""Readers of published file formats. None of them can run code: there is no pickle anywhere."""

from counterpoise.federation.readers.arrays import Raw, channels_first, read_archive, read_arrays
from counterpoise.federation.readers.cifar import read_cifar
from counterpoise.federation.readers.idx import read_idx
from counterpoise.federation.readers.stl import read_stl_images, read_stl_labels
from counterpoise.federation.readers.texts import read_texts

__all__ = [
    "Raw",
    "channels_first",
    "read_archive",
    "read_arrays",
    "read_cifar",
    "read_idx",
    "read_stl_images",
    "read_stl_labels",
    "read_texts",
]
