"""Which links of a topology file both of their ends tell, and which hang in the air."""

from collections.abc import Mapping, Sequence

from plait.hardware.topology import Component, Conflict, Link

UNKNOWN_PEER = "?"
"""Far end of a link whose file names the device itself as target (virtual machines do): it exists, unknown where."""


def unsure_links(links: Sequence[Link], components: Mapping[str, Component]) -> list[Conflict]:
    """Returns the pairs of devices of which only one tells the link, or each another count."""
    counts: dict[tuple[str, str, str], list[int]] = {}
    for link in links:
        if link.kind in {"nvlink", "xgmi"} and link.b != UNKNOWN_PEER:
            counts.setdefault((link.kind, link.a, link.b), []).append(link.count)
    conflicts = []
    for (kind, a, b), said in counts.items():
        peer = components.get(b)
        back = counts.get((kind, b, a), [])
        is_switch = peer is not None and peer.kind == "switch"
        if len(set(said)) > 1 or (not is_switch and sum(said) != sum(back) and (not back or a < b)):
            other = "not in this file" if peer is None else f"{kind} x{sum(back)}"
            told = (f"{a}: {kind} x{', x'.join(map(str, said))}", f"{b}: {other}")
            conflicts.append(Conflict(subject=f"link of {a} and {b}", said=told))
    return conflicts


def without_strays(links: Sequence[Link]) -> tuple[list[Link], list[Link]]:
    """Returns the links that are believed, and those to oneself of devices that do name other peers.

    The latter are what is left where the lines between two devices were lost.
    """
    placed = {link.a for link in links if link.b != UNKNOWN_PEER and link.kind != "c2c"}
    strays = [link for link in links if link.kind != "c2c" and link.b == UNKNOWN_PEER and link.a in placed]
    return [link for link in links if link not in strays], strays
