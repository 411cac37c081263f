"""What the kernel tells of a TCP connection (``tcp(7)``), and how one is ended as a network would end it."""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct

_TCP_INFO_BYTES = 104
_RETRANSMITS_AT = 2
_SIOCOUTQ = 0x5411


def retries_of(connection: socket.socket) -> int:
    """Returns how often the oldest unconfirmed segment was sent again; 0 where nothing is known."""
    with contextlib.suppress(OSError):
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return info[_RETRANSMITS_AT]
    return 0


def unconfirmed_bytes(connection: socket.socket) -> int:
    """Returns how many bytes the kernel has taken that the other end has not confirmed; 0 where nothing is known."""
    with contextlib.suppress(OSError, ValueError):  # a closed socket has no descriptor
        count: int = struct.unpack("i", fcntl.ioctl(connection.fileno(), _SIOCOUTQ, b"\0" * 4))[0]
        return count
    return 0


def reset(connection: socket.socket) -> None:
    """Ends a connection at both ends at once with a TCP reset; both processes keep their sockets and notice.

    Raises:
        OSError: It was not connected.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    nowhere = struct.pack("H14x", socket.AF_UNSPEC)
    if libc.connect(connection.fileno(), nowhere, len(nowhere)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
