"""A picture of some nodes: sockets, switches, devices, NICs, links coloured by bandwidth, and the matrix below."""

from plait.hardware.picture.render import render

__all__ = ["render"]
