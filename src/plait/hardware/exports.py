"""What was found, in the form of Slurm's files: ``gres.conf`` for a node, ``topology.yaml`` for a network.

NCCL's topology file is written by :func:`plait.hardware.importers.nccl_write.write_nccl_xml`.
"""

from collections.abc import Sequence

from plait.errors import PlaitError
from plait.hardware.importers.hostlist import compress
from plait.hardware.topology import Component, Fragment


class NothingToExport(PlaitError):
    """A fragment holds nothing that this form could say."""


def write_gres_conf(fragment: Fragment, node: str | None = None) -> str:
    """Returns a ``gres.conf`` with one line for each accelerator: its device file, model and direct links.

    Parts of a device (MIG slices, dies) are left to Slurm's ``AutoDetect``. ``Cores`` are left out: they are Slurm's
    own numbers, which ``slurmd -C`` tells, not CPU numbers.

    Raises:
        NothingToExport: there is no accelerator whose number, and so whose device file, is known.
    """
    kinds = {c.key: c.kind for c in fragment.components}
    devices = [
        c
        for c in fragment.components
        if c.kind in {"gpu", "npu"} and c.index is not None and kinds.get(c.parent or "") != c.kind
    ]
    if not devices:
        raise NothingToExport(f"{fragment.origin}: no accelerator with a known number")
    counts = {(link.a, link.b): link.count for link in fragment.links if link.kind in {"nvlink", "xgmi"}}
    lines = []
    for device in sorted(devices, key=lambda c: c.index or 0):
        words = [f"NodeName={node}"] if node else []
        words.append(f"Name={device.kind}")
        if device.model:
            words.append(f"Type={_type(device.model)}")
        words.append(f"File={_device_file(device)}")
        linked = [counts.get((device.key, c.key), counts.get((c.key, device.key), 0)) for c in devices]
        if any(linked):
            linked[devices.index(device)] = -1
            words.append(f"Links={','.join(map(str, linked))}")
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def _type(model: str) -> str:
    return "_".join("".join(letter if letter.isalnum() else " " for letter in model.lower()).split())


def _device_file(device: Component) -> str:
    if device.name.startswith("/dev/"):
        return device.name
    if device.kind == "npu":
        return f"/dev/davinci{device.index}"
    return f"/dev/dri/renderD{128 + (device.index or 0)}" if device.vendor == "amd" else f"/dev/nvidia{device.index}"


def write_topology_yaml(fragment: Fragment, name: str = "default") -> str:
    """Returns the network as a ``topology.yaml``: its switches as a tree, or its blocks where it has no switches.

    Raises:
        NothingToExport: there is neither a switch with anything under it nor a block.
    """
    below: dict[str, list[Component]] = {}
    for component in fragment.components:
        below.setdefault(component.parent or "", []).append(component)
    head = f"- topology: {_text(name)}\n  cluster_default: true\n"
    switches = [c for c in fragment.components if c.kind == "switch" and below.get(c.key)]
    if switches:
        lines = "".join(_switch(switch, below[switch.key]) for switch in switches)
        return f"---\n{head}  tree:\n    switches:\n{lines}"
    blocks = [c for c in fragment.components if {"BlockName", "block"} & c.extra.keys() and below.get(c.key)]
    if not blocks:
        raise NothingToExport(f"{fragment.origin}: neither a switch with anything under it nor a block")
    sizes = next((c.extra["BlockSizes"] for c in fragment.components if "BlockSizes" in c.extra), "")
    base = sizes.split(",") if sizes else [str(min(len(below[c.key]) for c in blocks))]
    text = f"---\n{head}  block:\n    block_sizes:\n" + "".join(f"      - {size}\n" for size in base) + "    blocks:\n"
    return text + "".join(
        f"      - block: {_text(c.name)}\n        nodes: {_text(compress(_names(below[c.key])))}\n" for c in blocks
    )


def _switch(switch: Component, members: Sequence[Component]) -> str:
    text = f"      - switch: {_text(switch.name)}\n"
    for key, kind in (("children", "switch"), ("nodes", "node")):
        names = tuple(c.name for c in members if c.kind == kind)
        if names:
            text += f"        {key}: {_text(compress(names))}\n"
    return text


def _names(components: Sequence[Component]) -> tuple[str, ...]:
    return tuple(c.name for c in components if c.kind == "node")


def _text(name: str) -> str:
    """Returns a YAML scalar; quoted, for a name of digits alone would be a number."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
