"""What this machine has to offer: accelerators if there are any, else its processor."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from plait.agent.environment import VISIBLE_DEVICES_LABEL
from plait.engines.emulation.hosts import Host
from plait.errors import PlaitError
from plait.hardware.device import Device, Node
from plait.spec.cluster import EmulatedNode

LOCAL_NODE = "local"
CPU = "CPU"
MOST_CPU_DEVICES = 8


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def nvidia_devices(device_directory: Path = Path("/dev")) -> tuple[str, ...]:
    """Returns the accelerator type of each NVIDIA device, in their order; empty where there is none."""
    files = [path for path in device_directory.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    if not files or shutil.which("nvidia-smi") is None:
        return ()
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    names = [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
    return tuple(accelerator_type(name) for name in names)


def accelerator_type(product_name: str) -> str:
    """Returns the catalogue's word for a product, such as A100 for ``NVIDIA A100-SXM4-40GB``, else the name itself."""
    from plait.hardware.catalog import family_of, match_model

    found = match_model(product_name).accelerator_type
    return family_of(found) if found is not None else product_name.removeprefix("NVIDIA ").replace(" ", "-")


def _speed(accelerator: str) -> float:
    from plait.hardware.catalog import predicted_speed

    try:
        return predicted_speed(accelerator, "fp32")[0]
    except PlaitError:  # a type that the catalogue lacks counts as one until it is measured
        return 1.0


def _memory_of_type(accelerator: str) -> int | None:
    from plait.hardware.catalog import capability

    try:
        return capability(accelerator).memory_bytes
    except PlaitError:
        return None


def local_node(address: str, ports: tuple[int, int]) -> Node:
    """Returns this machine as one node: its NVIDIA devices, else a CPU device for each core, at most 8."""
    types = nvidia_devices()
    if types:
        memories = [_memory_of_type(name) for name in types]
        speeds = [_speed(name) for name in types]
        labels: tuple[tuple[str, str], ...] = ((VISIBLE_DEVICES_LABEL, "CUDA_VISIBLE_DEVICES"),)
    else:
        num_devices = min(_num_cores(), MOST_CPU_DEVICES)
        types = (CPU,) * num_devices
        memories = [_memory_bytes() // num_devices] * num_devices
        speeds = [1.0] * num_devices
        labels = ()
    devices = tuple(
        Device(
            id=f"{LOCAL_NODE}/{index}",
            node=LOCAL_NODE,
            index=index,
            accelerator_type=types[index],
            memory_bytes=memories[index],
            speed=speeds[index],
        )
        for index in range(len(types))
    )
    return Node(id=LOCAL_NODE, address=address, devices=devices, first_port=ports[0], num_ports=ports[1], labels=labels)


def host_of(node: EmulatedNode) -> Host:
    """Returns the host that stands for a node of the cluster file."""
    return Host(
        name=node.name,
        cpu_quota=node.cpu_quota,
        up=node.uplink_bytes_per_s,
        down=node.downlink_bytes_per_s,
        slots=node.slots,
    )


def emulated_speed(node: EmulatedNode, *, others_have_quotas: bool) -> float:
    """Returns the relative speed of one device of an emulated node.

    Its real speed is its part of the CPU quota. A node without a quota has a core for each device where other nodes
    have quotas, and counts by the published figures of its type where none has.
    """
    if node.cpu_quota is not None:
        return node.cpu_quota / node.slots
    return min(1.0, _num_cores() / node.slots) if others_have_quotas else _speed(node.accelerator)


def emulated_node(node: EmulatedNode, address: str, ports: tuple[int, int], *, others_have_quotas: bool) -> Node:
    """Returns the node that an agent registers for a node of the cluster file."""
    speed = emulated_speed(node, others_have_quotas=others_have_quotas)
    memory_bytes = node.memory_bytes or _memory_of_type(node.accelerator)
    devices = tuple(
        Device(
            id=f"{node.name}/{index}",
            node=node.name,
            index=index,
            accelerator_type=node.accelerator,
            memory_bytes=memory_bytes,
            speed=speed,
        )
        for index in range(node.slots)
    )
    return Node(
        id=node.name,
        address=address,
        devices=devices,
        first_port=ports[0],
        num_ports=ports[1],
        labels=(("emulated", "true"),),
    )
