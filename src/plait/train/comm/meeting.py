"""How the members of a process group find each other's sockets."""

import fcntl
import os
import secrets
import socket
import struct

import torch
import torch.distributed as dist

from plait.errors import PlaitError
from plait.train.collectives.mesh import Mesh
from plait.train.collectives.mesh_builder import MeshBuilder

_CARD_BYTES = 256
_SIOCGIFADDR = 0x8915


def own_address() -> str:
    """Returns this host's IPv4 address on the network that leads to the others.

    That of the interface ``GLOO_SOCKET_IFNAME``, or the one from which ``MASTER_ADDR`` is reached.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if interface:
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface[:15].encode()))
            except OSError as error:
                raise PlaitError(f"GLOO_SOCKET_IFNAME is {interface}, which has no IPv4 address") from error
            return socket.inet_ntoa(answer[20:24])
        master = os.environ.get("MASTER_ADDR", "127.0.0.1")
        try:
            probe.connect((master, int(os.environ.get("MASTER_PORT", "1"))))
        except OSError as error:
            raise PlaitError(f"MASTER_ADDR is {master}, to which no route leads: {error.strerror}") from error
        return str(probe.getsockname()[0])


def meet(group: dist.ProcessGroup | None, island: str | None, timeout_s: float) -> tuple[Mesh, tuple[str, ...]]:
    """Connects all members of a group directly; returns the mesh and the name of each member's island.

    Raises:
        PlaitError: A member could not be reached.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    host = own_address()
    token = _told(group, secrets.token_hex(16))[0]  # the first member's; all show it to each other
    names = _told(group, island or host)
    builder = MeshBuilder(host, rank, size, token)
    try:
        addresses = _told(group, builder.address)
        mesh = builder.connect(addresses.__getitem__, timeout_s)
    except OSError as error:
        raise PlaitError(f"member {rank} at {host} could not reach all {size} members: {error}") from error
    finally:
        builder.close()
    return mesh, tuple(names)


def _told(group: dist.ProcessGroup | None, text: str) -> list[str]:
    """Tells all members a text of this one, on cards of one size, and returns theirs."""
    data = text.encode()
    if len(data) > _CARD_BYTES:
        raise PlaitError(f"the island's name has {len(data)} letters, which is too many: {text[:20]}...")
    has_cpu = "gloo" in dist.get_backend(group)
    device = torch.device("cpu") if has_cpu else torch.accelerator.current_accelerator()
    card = torch.frombuffer(bytearray(data.ljust(_CARD_BYTES, b"\0")), dtype=torch.uint8).to(device)
    cards = [torch.empty_like(card) for _ in range(dist.get_world_size(group))]
    dist.all_gather(cards, card, group=group)
    return [bytes(each.tolist()).rstrip(b"\0").decode() for each in cards]
