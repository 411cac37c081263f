"""NCCL's graph files (``NCCL_GRAPH_DUMP_FILE``): the rings and trees it chose, by rank number; no topology."""

from plait.hardware.importers.safe_xml import Element
from plait.hardware.topology import Component, ComponentKind, Fragment

NAME = "nccl_xml"
ROOT_KEY = "system"
GPU_TAGS = frozenset({"gpu", "apu"})
"""``apu`` is what FlagCX writes."""


def read_graphs(root: Element, origin: str, unread: tuple[str, ...]) -> Fragment:
    """Returns one table a graph: its attributes under ``("graph", name)``, its channels under ``("channel", number)``.

    A channel is its steps in order, ``net:0 gpu:2 gpu:3``. What the graphs name are components without a place.
    """
    tables: dict[str, dict[tuple[str, str], str]] = {}
    extra = {**root.attributes, "root": root.tag}
    components = {ROOT_KEY: Component(key=ROOT_KEY, name=root.tag, kind="other", extra=extra)}
    strange: list[str] = []
    for number, graph in enumerate(root.all("graph")):
        table = {("graph", name): value for name, value in graph.attributes.items()}
        for n, channel in enumerate(graph.all("channel")):
            steps = [f"{e.tag}:{e.attributes.get('dev', '')}" for e in channel.children]
            table["channel", str(n)] = " ".join(steps)
            for element in channel.children:
                named = _named(element)
                if named is None:
                    strange.append(f"{origin}:{element.line}: <{element.tag}> in a channel")
                else:
                    components.setdefault(named.key, named)
        tables[f"graph {number}"] = table
    return Fragment(
        origin=origin,
        format=NAME,
        components=tuple(components.values()),
        unread=(*unread, *strange),
        hides=("links", "numa", "pci"),
        tables=tables,
    )


def whole(text: str) -> int | None:
    """Returns a whole number of 0 or more, ``None`` for anything else (-1 is NCCL's unknown)."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _named(element: Element) -> Component | None:
    number = whole(element.attributes.get("dev", ""))
    kind: ComponentKind | None = "gpu" if element.tag in GPU_TAGS else "nic" if element.tag == "net" else None
    if kind is None or number is None:
        return None
    return Component(key=f"{element.tag}{number}", name=f"{element.tag}{number}", kind=kind, index=number)
