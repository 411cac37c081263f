"""``plait nodes``: the devices of the cluster and who holds them."""

from typing import TYPE_CHECKING

from plait.cli.failures import OK
from plait.cli.options import JsonOption, StateOption
from plait.cli.output import human_bytes, human_duration, print_json, print_table, say

if TYPE_CHECKING:
    from plait.controller.answers import NodeAnswer


def nodes(state: StateOption = None, as_json: JsonOption = False) -> int:
    """List devices: type, memory, speed, and who holds them."""
    from plait.cli.connection import connect

    found = connect(state).nodes()
    if as_json:
        print_json(found)
    elif not found:
        say("no node has joined; `plait serve --cluster cluster.yaml` starts some, `plait agent` adds this machine")
    else:
        print_devices(found)
    return OK


def print_devices(found: "list[NodeAnswer]") -> None:
    """Prints one row for each device, the fastest first."""
    rows = [
        (
            device["device"],
            node_state(node) if node["state"] != "up" or device["state"] == "healthy" else device["state"],
            device["accelerator_type"],
            human_bytes(device["memory_bytes"]),
            f"{device['speed']:.3g}",
            device["worker"] or "free",
        )
        for node, device in sorted(
            ((node, device) for node in found for device in node["devices"]),
            key=lambda pair: (-pair[1]["speed"], pair[0]["node"]),
        )
    ]
    print_table(("DEVICE", "STATE", "TYPE", ">MEMORY", ">SPEED", "HELD BY"), rows)
    for node in found:
        for device in node["devices"]:
            if device["reason"]:
                say(device["reason"])


def node_state(node: "NodeAnswer") -> str:
    """Returns the state, with how long the node has been silent where that is longer than it should be."""
    if node["state"] == "lost" or node["is_connected"]:
        return node["state"]
    silent = human_duration(node["silent_s"])
    return f"{node['state']}, not connected" + (f" for {silent}" if silent else "")
