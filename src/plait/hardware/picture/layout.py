"""Where the things of one node go: sockets in a row, switches under them, a column for every device and NIC."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plait.hardware.affinity.links import endpoints_of, links_between
from plait.hardware.affinity.routes import socket_of, switch_sets
from plait.hardware.nics import nics_of
from plait.hardware.topology import Component, Fragment, Link

COLUMN = 92.0
GAP = 16.0
UNPLACED = "place unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: a device, a NIC above it, or either alone; ``x`` is its left edge."""

    x: float
    device: Component | None
    nic: Component | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Columns under one switch, or under a socket directly where ``switch`` is empty."""

    switch: str
    columns: tuple[Column, ...]

    @property
    def x(self) -> float:
        """Left edge."""
        return self.columns[0].x

    @property
    def width(self) -> float:
        """From the left edge of the first column to the right edge of the last."""
        return self.columns[-1].x + COLUMN - self.columns[0].x


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """A box of one socket or NUMA node with its branches."""

    title: str
    branches: tuple[Branch, ...]

    @property
    def is_placed(self) -> bool:
        """Whether it is known which socket this is."""
        return self.title != UNPLACED

    @property
    def x(self) -> float:
        """Left edge of the first branch."""
        return self.branches[0].x

    @property
    def width(self) -> float:
        """Of all branches."""
        last = self.branches[-1]
        return last.x + last.width - self.branches[0].x


def lay_out(fragment: Fragment, left: float) -> tuple[Socket, ...]:
    """Returns the sockets of a node from left to right; things whose place is unknown stand in a box of their own."""
    devices, nics = endpoints_of(fragment), nics_of(fragment)
    links = links_between(fragment, devices, devices)
    sockets = socket_of(fragment, devices, links)
    sets = sorted(switch_sets(fragment, devices, links), key=lambda s: len(s.members))
    switch_of = {d.key: next((s.id for s in sets if d.key in s.members), "") for d in devices}
    nic_links = links_between(fragment, devices, nics)
    homes = {n.key: _nic_home(n, devices, nic_links, sockets, switch_of) for n in nics}
    titles = _titles(devices, nics, sockets, homes)
    found: list[Socket] = []
    x = left
    for socket, title in titles.items():
        members = [d for d in devices if sockets.get(d.key, -1) == socket]
        own_nics = [n for n in nics if homes[n.key][0] == socket]
        branches: list[Branch] = []
        for switch in dict.fromkeys([*(switch_of[d.key] for d in members), *(homes[n.key][1] for n in own_nics)]):
            below = [d for d in members if switch_of[d.key] == switch]
            beside = [n for n in own_nics if homes[n.key][1] == switch]
            count = max(len(below), len(beside))
            columns = tuple(
                Column(
                    x=x + i * COLUMN,
                    device=below[i] if i < len(below) else None,
                    nic=beside[i] if i < len(beside) else None,
                )
                for i in range(count)
            )
            branches.append(Branch(switch=switch, columns=columns))
            x += count * COLUMN + GAP
        found.append(Socket(title=title, branches=tuple(branches)))
        x += GAP
    return tuple(found)


def right_edge(sockets: Sequence[Socket], left: float) -> float:
    """Returns where the last socket ends."""
    return max((socket.x + socket.width for socket in sockets), default=left + 2 * COLUMN)


def _nic_home(
    nic: Component,
    devices: Sequence[Component],
    links: Mapping[tuple[str, str], Link],
    sockets: Mapping[str, int],
    switch_of: Mapping[str, str],
) -> tuple[int, str]:
    """Returns the socket and the switch at which a NIC hangs: those of the device that it is nearest to."""
    order = {"pix": 0, "pxb": 1, "phb": 2, "node": 3}
    near = [
        (order[kind], i, device)
        for i, device in enumerate(devices)
        if (link := links.get((device.key, nic.key))) is not None and (kind := str(link.kind)) in order
    ]
    if near:
        rank, _, device = min(near, key=lambda entry: entry[:2])
        return sockets.get(device.key, -1), switch_of[device.key] if rank == 0 else ""
    numa = nic.locality.numa_nodes
    beside = [d for d in devices if numa and d.locality.numa_nodes == numa]
    if beside:
        return sockets.get(beside[0].key, -1), ""
    return (-2 if numa is None else -3 - numa[0]), ""


def _titles(
    devices: Sequence[Component],
    nics: Sequence[Component],
    sockets: dict[str, int],
    homes: dict[str, tuple[int, str]],
) -> dict[int, str]:
    titles: dict[int, str] = {}
    for device in devices:
        socket = sockets.get(device.key, -1)
        numa = {n for d in devices if sockets.get(d.key, -1) == socket for n in d.locality.numa_nodes or ()}
        listed = ", ".join(str(n) for n in sorted(numa))
        titles[socket] = f"NUMA {listed}" if listed and socket >= 0 else UNPLACED
    if len(titles) == 1 and UNPLACED in titles.values():
        titles = dict.fromkeys(titles, "CPU")
    for nic in nics:
        home = homes[nic.key][0]
        numa = set(nic.locality.numa_nodes or ())
        titles.setdefault(home, f"NUMA {min(numa)}" if numa else UNPLACED)
    return titles
