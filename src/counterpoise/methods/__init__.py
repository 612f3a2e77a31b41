"""The methods, one module for each paper, and the registry that lists them."""

from counterpoise.methods.adabest import adabest
from counterpoise.methods.around import averaged, bounded, capped, consensus_trust, memory, pace, steady
from counterpoise.methods.counterpoise import counterpoise
from counterpoise.methods.ditto import ditto
from counterpoise.methods.feda4 import feda4
from counterpoise.methods.fedatt import fedatt
from counterpoise.methods.fedavg import avg, fedavg
from counterpoise.methods.fedavgm import fedavgm
from counterpoise.methods.fedbac import fedbac, fedbac_soft
from counterpoise.methods.feddc import feddc
from counterpoise.methods.feddua import feddua
from counterpoise.methods.feddyn import feddyn
from counterpoise.methods.fednova import fednova
from counterpoise.methods.fedoaed import fedoaed
from counterpoise.methods.fedopt import fedadagrad, fedadam, fedyogi
from counterpoise.methods.fedprox import fedprox
from counterpoise.methods.fedvarp import clusterfedvarp, fedvarp
from counterpoise.methods.krum import bulyan, krum, multi_krum
from counterpoise.methods.median import median, trimmed_mean
from counterpoise.methods.mifa import mifa
from counterpoise.methods.moon import moon
from counterpoise.methods.qffl import qffl
from counterpoise.methods.registry import METHODS
from counterpoise.methods.rfa import rfa
from counterpoise.methods.scaffold import scaffold

__all__ = [
    "METHODS",
    "adabest",
    "averaged",
    "avg",
    "bounded",
    "bulyan",
    "capped",
    "clusterfedvarp",
    "consensus_trust",
    "counterpoise",
    "ditto",
    "feda4",
    "fedadagrad",
    "fedadam",
    "fedatt",
    "fedavg",
    "fedavgm",
    "fedbac",
    "fedbac_soft",
    "feddc",
    "feddua",
    "feddyn",
    "fednova",
    "fedoaed",
    "fedprox",
    "fedvarp",
    "fedyogi",
    "krum",
    "median",
    "memory",
    "mifa",
    "moon",
    "multi_krum",
    "pace",
    "qffl",
    "rfa",
    "scaffold",
    "steady",
    "trimmed_mean",
]
