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
_CONTROL_NAME_BYTES = 16


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


def steady(connection: socket.socket) -> None:
    """Has a connection carry long streams evenly.

    BBR lets a stream pause for 0.2 s now and then to measure its delay (Cardwell et al., BBR, ACM Queue 14(5), 2016;
    its ``ProbeRTT``), a fifth of a sum that takes a second. Where it rules the host, CUBIC takes its place on this
    connection; nothing happens where CUBIC may not be used, or another control rules.
    """
    with contextlib.suppress(OSError):
        if control_of(connection).startswith("bbr"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")


def control_of(connection: socket.socket) -> str:
    """Returns the name of a connection's congestion control.

    Raises:
        OSError: It is closed, or not one of TCP.
    """
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _CONTROL_NAME_BYTES)
    return told.rstrip(b"\0").decode()


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
