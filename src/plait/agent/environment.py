"""What the agent adds to a worker's environment for its node."""

import fcntl
import json
import os
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from plait.agent.messages import StartWorker
from plait.hardware.device import Node

MARK = "PLAIT_WORKER_MARK"
"""Carried by every process of a worker, also by those that changed their session: it says whom they belong to."""

VISIBLE_DEVICES_LABEL = "visible_devices"
"""Label of a node whose value names the variable that limits which devices a process sees."""

VISIBLE_IDS_LABEL = "visible_ids"
"""Label of a node with what that variable calls each device, joined by commas, where it is not the device's index."""

DEFAULT_FROZEN_LIMIT_S = 5.0
_SIOCGIFADDR = 0x8915


def interface_of(address: str) -> str | None:
    """Returns the network interface that holds an IPv4 address, or None."""
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def visible_devices(node: Node, order: StartWorker) -> str:
    """Returns the value of the variable that limits the devices a worker sees.

    An unchanged script picks device number ``LOCAL_RANK``. So a worker with one device sees the whole node, its own
    device at just that place; a worker with several sees only its own.
    """
    labelled = dict(node.labels).get(VISIBLE_IDS_LABEL)
    names = labelled.split(",") if labelled else [str(device.index) for device in node.devices]
    named = dict(zip((device.id for device in node.devices), names, strict=True))
    own = [name for device, name in named.items() if device in order.device_ids]
    if len(own) != 1:
        return ",".join(own)
    others = [name for name in names if name not in own]
    place = min(int(dict(order.environment).get("LOCAL_RANK", "0")), len(others))
    return ",".join((*others[:place], *own, *others[place:]))


def worker_environment(
    node: Node,
    order: StartWorker,
    *,
    inherited: Mapping[str, str],
    socket_path: Path,
    interface: str | None,
    mark: str,
) -> dict[str, str]:
    """Returns the complete environment of a worker: the agent's own, then the order's, then that of the node."""
    environment = {**inherited, **dict(order.environment)}
    if "PATH" not in dict(order.environment):
        # So that the command `python` is one that has Plait, also where its virtual environment is not activated.
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{inherited.get('PATH', os.defpath)}"
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment["PLAIT_AGENT"] = str(socket_path)
    environment[MARK] = mark
    if interface is not None:
        # A name that the agent was started with is one of another network; only the job's own word counts.
        environment["GLOO_SOCKET_IFNAME"] = dict(order.environment).get("GLOO_SOCKET_IFNAME", interface)
    variable = dict(node.labels).get(VISIBLE_DEVICES_LABEL)
    if variable and order.device_ids:
        if VISIBLE_IDS_LABEL in dict(node.labels) and variable not in dict(order.environment):
            # What the agent itself was started with is in the ids already.
            environment.pop(variable, None)
        environment.setdefault(variable, visible_devices(node, order))
        if variable == "CUDA_VISIBLE_DEVICES":
            # CUDA's own order is by speed; the numbers here are those of the driver, by PCI address.
            environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    return environment


def frozen_limit_s(order: StartWorker, configured_s: float | None) -> float:
    """Returns for how long a worker may be frozen: as configured, else the job's heartbeat time-out, else 5 s."""
    if configured_s is not None:
        return configured_s
    try:
        job = json.loads(dict(order.environment).get("PLAIT_JOB", "{}"))
        return float(job["failure"]["heartbeat_timeout_s"])
    except (ValueError, KeyError, TypeError):
        return DEFAULT_FROZEN_LIMIT_S
