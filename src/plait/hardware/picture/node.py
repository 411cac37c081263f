"""One node: sockets above, switches and NICs under them, devices, and below these the links that bypass PCI Express."""

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from plait.hardware.affinity.links import endpoints_of
from plait.hardware.affinity.matrix import AffinityMatrix
from plait.hardware.picture.drawing import Drawing, Rect, rate_words
from plait.hardware.picture.layout import COLUMN, Branch, Socket, lay_out, right_edge
from plait.hardware.topology import Component, Fragment

_SOCKET_Y, _SOCKET_HEIGHT = 34.0, 26.0
_SWITCH_Y, _SWITCH_HEIGHT = 84.0, 20.0
_NIC_Y, _NIC_HEIGHT = 126.0, 30.0
_DEVICE_Y, _DEVICE_HEIGHT = 180.0, 42.0
_PAD = 14.0
_DIRECT_KINDS = frozenset({"nvlink", "xgmi", "hccs", "sio", "ub", "mx", "xelink", "mtlink", "mlulink", "mdf"})
_NAMES = {"nvlink": "NVLink", "xgmi": "xGMI", "hccs": "HCCS", "sio": "SIO", "mx": "MetaXLink", "xelink": "Xe Link"}


class NodePicture:
    """Draws one node with its upper left corner at a given place."""

    def __init__(self, node: str, fragment: Fragment, matrix: AffinityMatrix, corner: tuple[float, float]) -> None:
        """Lays the node out; ``corner`` is in pixels."""
        self._node = node
        self._fragment = fragment
        self._matrix = matrix
        self._left, self._top = corner
        self._drawing = Drawing()
        self._devices = endpoints_of(fragment)
        self._sockets = lay_out(fragment, self._left + _PAD)
        self._middles = {
            column.device.key: column.x + (COLUMN - 8) / 2
            for socket in self._sockets
            for branch in socket.branches
            for column in branch.columns
            if column.device is not None
        }

    def draw(self, drawing: Drawing) -> tuple[float, float]:
        """Draws the node and returns its right and lower edges."""
        for one, other in itertools.pairwise(self._sockets):
            self._between(one, other)
        for socket in self._sockets:
            self._socket(socket)
        bottom = self._direct_links() + _PAD
        right = right_edge(self._sockets, self._left + _PAD) + _PAD - 8
        models = sorted({d.model or d.accelerator_type or "unknown model" for d in self._devices})
        count = f"{len(self._devices)} device" + ("" if len(self._devices) == 1 else "s")
        drawing.box(Rect(self._left, self._top, right - self._left, bottom - self._top), "node")
        about = f"{self._node}: {count}" + (f", {', '.join(models[:3])}" if models else "")
        drawing.text((self._left + _PAD, self._top + 22), about, "title", room=right - self._left - 2 * _PAD)
        drawing.parts += self._drawing.parts
        return right, bottom

    def _between(self, one: Socket, other: Socket) -> None:
        links = (g for g in self._matrix.groups.values() if g.kind == "socket_link")
        group = next((g for g in links if g.id.startswith(f"{self._node}/")), None)
        if group is None or not (one.is_placed and other.is_placed):
            return
        y = self._top + _SOCKET_Y + _SOCKET_HEIGHT / 2
        rate = group.bytes_per_s.value
        tip = f"between sockets: {rate_words(rate)} GB/s, {group.bytes_per_s.detail}"
        self._drawing.path(f"M{one.x + one.width - 8:.1f} {y:.1f}H{other.x:.1f}", rate, tip)

    def _socket(self, socket: Socket) -> None:
        y = self._top + _SOCKET_Y
        self._drawing.box(Rect(socket.x, y, socket.width - 8, _SOCKET_HEIGHT), "box")
        self._drawing.text((socket.x + 8, y + 17), socket.title, "name", room=socket.width - 20)
        for branch in socket.branches:
            start = y + _SOCKET_HEIGHT
            if branch.switch:
                start = self._switch(branch, start)
            for column in branch.columns:
                if column.nic is not None:
                    self._nic(column.x, column.nic, start)
                if column.device is not None:
                    self._device(column.x, column.device, start)

    def _switch(self, branch: Branch, start: float) -> float:
        group = self._matrix.groups.get(f"{self._node}/{branch.switch}")
        rate = group.bytes_per_s.value if group else None
        y = self._top + _SWITCH_Y
        tip = f"uplink: {rate_words(rate)} GB/s" + (f", {group.bytes_per_s.detail}" if group else "")
        self._drawing.path(f"M{branch.x + 20:.1f} {start:.1f}V{y:.1f}", rate, tip)
        self._drawing.box(Rect(branch.x, y, branch.width - 8, _SWITCH_HEIGHT), "box", tip)
        words = f"switch, uplink {rate_words(rate)} GB/s" if branch.width > 1.5 * COLUMN else "switch"
        self._drawing.text((branch.x + 8, y + 14), words, "small", room=branch.width - 20)
        return y + _SWITCH_HEIGHT

    def _device(self, x: float, device: Component, start: float) -> None:
        y = self._top + _DEVICE_Y
        host = float(self._matrix.host_bytes_per_s[self._matrix.index(f"{self._node}/{device.key}")])
        rate = None if np.isnan(host) else host
        tip = f"{device.name} to host memory: {rate_words(rate)} GB/s"
        self._drawing.path(f"M{x + 6:.1f} {start:.1f}V{y:.1f}", rate, tip)
        tile = Rect(x, y, COLUMN - 8, _DEVICE_HEIGHT)
        name = self._matrix.names[self._matrix.index(f"{self._node}/{device.key}")]
        self._drawing.box(tile, "tile", f"{name} ({device.key}): {device.model or 'model unknown'}")
        self._drawing.text((x + 7, y + 17), name, "name", room=COLUMN - 18)
        self._drawing.text((x + 7, y + 33), _short(device), "soft small", room=COLUMN - 18)

    def _nic(self, x: float, nic: Component, start: float) -> None:
        y, left = self._top + _NIC_Y, x + 14
        rate = nic.rate_bytes_per_s.value
        self._drawing.path(f"M{left + 12:.1f} {start:.1f}V{y:.1f}", rate, f"{nic.name}: {rate_words(rate)} GB/s")
        self._drawing.box(Rect(left, y, COLUMN - 22, _NIC_HEIGHT), "tile", f"{nic.name} {nic.model or ''}")
        name = nic.name.removeprefix("0000:")
        self._drawing.text((left + 6, y + 13), name, "small", room=COLUMN - 32)
        self._drawing.text((left + 6, y + 25), f"{rate_words(rate)} GB/s", "soft small", room=COLUMN - 32)

    def _direct_links(self) -> float:
        """Draws links that bypass PCI Express and returns the lower end of everything."""
        y = self._top + _DEVICE_Y + _DEVICE_HEIGHT
        rows = {key: self._matrix.index(f"{self._node}/{key}") for key in self._middles}
        kinds, rates = self._matrix.kinds, self._matrix.bytes_per_s
        pairs = [
            (a, b) for a, b in itertools.combinations(self._middles, 2) if str(kinds[rows[a], rows[b]]) in _DIRECT_KINDS
        ]
        if not pairs:
            return y
        looks = {(str(kinds[rows[a], rows[b]]), rate_words(float(rates[rows[a], rows[b]]))) for a, b in pairs}
        if len(looks) == 1 and len(rows) > 2 and len(pairs) == len(rows) * (len(rows) - 1) // 2:
            first = float(rates[rows[pairs[0][0]], rows[pairs[0][1]]])
            return self._bar(next(iter(looks)), None if np.isnan(first) else first, y)
        return max(self._arc(pair, y) for pair in sorted(pairs, key=lambda p: -self._span(p)))

    def _bar(self, look: tuple[str, str], rate: float | None, y: float) -> float:
        kind, words = look
        name = _NAMES.get(kind, kind.upper())
        left, right = min(self._middles.values()), max(self._middles.values())
        for middle in self._middles.values():
            self._drawing.path(f"M{middle:.1f} {y:.1f}V{y + 26:.1f}", rate, f"{name}: {words} GB/s")
        self._drawing.box(Rect(left - 30, y + 26, right - left + 60, 22), "box")
        at = ((left + right) / 2, y + 41)
        self._drawing.text(at, f"{name}: every pair {words} GB/s", "name", anchor="middle", room=right - left + 50)
        return y + 48

    def _span(self, pair: tuple[str, str]) -> float:
        a, b = pair
        return float(abs(self._middles[a] - self._middles[b]))

    def _arc(self, pair: tuple[str, str], y: float) -> float:
        a, b = pair
        start, end = sorted((self._middles[a], self._middles[b]))
        widest = max(self._middles.values()) - min(self._middles.values())
        depth = 16 + 84 * float((self._span(pair) / max(1.0, widest)) ** 0.8)
        cell = self._matrix.cell(f"{self._node}/{a}", f"{self._node}/{b}")
        tip = f"{a} to {b}: {rate_words(cell.value)} GB/s, {cell.detail}"
        low = y + depth * 4 / 3
        self._drawing.path(
            f"M{start:.1f} {y:.1f}C{start:.1f} {low:.1f} {end:.1f} {low:.1f} {end:.1f} {y:.1f}", cell.value, tip
        )
        return y + depth


def draw_nodes(
    drawing: Drawing, nodes: Mapping[str, Fragment], matrix: AffinityMatrix, corner: tuple[float, float]
) -> Iterator[tuple[float, float]]:
    """Draws nodes one below another; yields the right and lower edges of each."""
    left, top = corner
    for name, fragment in nodes.items():
        right, bottom = NodePicture(name, fragment, matrix, (left, top)).draw(drawing)
        yield right, bottom
        top = bottom + 20


def _short(device: Component) -> str:
    words = device.accelerator_type or device.model or ""
    for maker in ("NVIDIA ", "GeForce ", "AMD ", "Instinct ", "Tesla ", "Graphics Device"):
        words = words.replace(maker, "")
    return words.strip() or device.vendor or "model unknown"
