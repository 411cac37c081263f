"""Which forms of the kernels are at hand: Numba on processors, Triton on graphics devices."""

import functools
import importlib
import importlib.util
from types import ModuleType

from plait.errors import PlaitError

_HERE = "plait.train.compression"


def numba_kernels(wanted: bool | None) -> ModuleType | None:
    """Returns the Numba kernels, ``None`` if they are not wanted.

    Args:
        wanted: ``None``: where Numba is installed.

    Raises:
        PlaitError: They are wanted and Numba is not installed.
    """
    if wanted is False:
        return None
    if _is_installed("numba"):
        return importlib.import_module(f"{_HERE}.cpu")
    if wanted:
        raise PlaitError("Numba is not installed; install it with: pip install 'plait[fast]'")
    return None


def graphics_kernels() -> ModuleType:
    """Returns the Triton kernels.

    Raises:
        PlaitError: Triton is not installed.
    """
    if not _is_installed("triton"):
        raise PlaitError("Triton is not installed, and compression on a graphics device needs it: pip install triton")
    return importlib.import_module(f"{_HERE}.gpu")


@functools.cache
def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
