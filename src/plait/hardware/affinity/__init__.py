"""The affinity matrix: how fast every pair of devices is, alone and together with others, and who says so."""

from plait.hardware.affinity.build import build
from plait.hardware.affinity.contention import Achievable, Flow, Load
from plait.hardware.affinity.matrix import AffinityMatrix, Cell, Unknown, UnknownBandwidth, UnknownDevice
from plait.hardware.affinity.measured import PairFigure

__all__ = [
    "Achievable",
    "AffinityMatrix",
    "Cell",
    "Flow",
    "Load",
    "PairFigure",
    "Unknown",
    "UnknownBandwidth",
    "UnknownDevice",
    "build",
]
