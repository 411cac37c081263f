"""Plait trains one model on a cluster of unequal devices.

``import plait`` is cheap: PyTorch is imported only when a training name such as :func:`session` is first used.
"""

from typing import TYPE_CHECKING

from plait.errors import PlaitError

if TYPE_CHECKING:
    from plait.train.devices.virtual import VirtualDevice
    from plait.train.optimizers import OneBitAdam, OneBitLamb, ZeroOneAdam
    from plait.train.session import Session, session

__all__ = [
    "OneBitAdam",
    "OneBitLamb",
    "PlaitError",
    "Session",
    "VirtualDevice",
    "ZeroOneAdam",
    "__version__",
    "session",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name in {"session", "Session"}:
        from plait.train import session as module

        return getattr(module, name)
    if name == "VirtualDevice":
        from plait.train.devices.virtual import VirtualDevice

        return VirtualDevice
    if name in {"OneBitAdam", "OneBitLamb", "ZeroOneAdam"}:
        from plait.train import optimizers

        return getattr(optimizers, name)
    raise AttributeError(f"module 'plait' has no attribute {name!r}")
