"""``plait agent``: the agent of one node."""

import os
import re
import socket
from pathlib import Path
from typing import Annotated

import typer

from plait.cli.options import JsonOption, StateOption
from plait.cli.output import print_json, say, warn

_DEVICES = re.compile(r"([A-Za-z0-9_-]+)(?::(\d+))?")


def agent(
    *,
    accelerator: Annotated[
        str | None,
        typer.Option(metavar="TYPE[:COUNT]", help="This node's devices, such as A100:2; those found unless given."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The node's name; the host's unless given.")] = None,
    address: Annotated[str, typer.Option(help="Where this node's workers listen.")] = "127.0.0.1",
    node_file: Annotated[Path | None, typer.Option(metavar="FILE", help="JSON that describes the node.")] = None,
    controller: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where agents are taken in.")] = None,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The controller's token.")] = None,
    die_with: Annotated[int | None, typer.Option(metavar="PID", help="End when this process does.")] = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run this machine's agent.

    It starts workers, watches them, and reports to the controller. The controller and its token come from the state
    directory unless they are given.
    """
    from plait.agent.main import default_state_directory, run
    from plait.cli.connection import state_directory
    from plait.controller.endpoint import TOKEN_NAME, read_endpoint

    directory = state_directory(state)
    where = controller or read_endpoint(directory).agents
    node = name or socket.gethostname().partition(".")[0]
    file = node_file
    if file is None:
        file = default_state_directory(node) / "node.json"
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        described = describe_node(node, address, accelerator) if accelerator else describe_machine(node, address)
        file.write_text(described, encoding="utf-8")
    shown = str(node_file) if node_file is not None else node
    if as_json:
        print_json({"node": shown, "controller": where, "pid": os.getpid()})
    else:
        say(f"agent of {shown} for the controller at {where}")
    return run(where, token_file or directory / TOKEN_NAME, file, die_with=die_with)


def describe_node(name: str, address: str, devices: str) -> str:
    """Returns the JSON of a node with devices such as ``A100:2``; raises typer.BadParameter for any other form."""
    from plait.hardware.catalog import UnknownAccelerator, capability, predicted_speed
    from plait.hardware.device import Device, Node
    from plait.wire import Codec

    match = _DEVICES.fullmatch(devices)
    if match is None or match[2] == "0":
        raise typer.BadParameter(f"--accelerator wants TYPE or TYPE:COUNT such as A100:2, got {devices!r}")
    try:
        found = capability(match[1])
    except UnknownAccelerator as error:
        raise typer.BadParameter(str(error)) from None
    speed, _ = predicted_speed(found.accelerator_type, "fp32")
    made = tuple(
        Device(
            id=f"{name}/{index}",
            node=name,
            index=index,
            accelerator_type=found.accelerator_type,
            memory_bytes=found.memory_bytes,
            speed=speed,
        )
        for index in range(int(match[2] or 1))
    )
    codec: Codec[Node] = Codec(Node)
    return codec.encode(Node(id=name, address=address, devices=made)).decode()


def describe_machine(name: str, address: str) -> str:
    """Returns the JSON of a node with the devices that this machine has; says on stderr what was left out and why."""
    from plait.agent.environment import VISIBLE_DEVICES_LABEL, VISIBLE_IDS_LABEL
    from plait.hardware.contexts import LiveContext
    from plait.hardware.device import Node
    from plait.hardware.discovery import discover
    from plait.hardware.own_devices import own_devices
    from plait.wire import Codec

    ctx = LiveContext()
    found = discover(ctx)
    own = own_devices(name, found, ctx.env)
    for note in (*found.warnings, *own.notes):
        warn(f"devices: {note}")
    labels = (
        () if own.variable is None else ((VISIBLE_DEVICES_LABEL, own.variable), (VISIBLE_IDS_LABEL, ",".join(own.ids)))
    )
    codec: Codec[Node] = Codec(Node)
    return codec.encode(Node(id=name, address=address, devices=own.devices, labels=labels)).decode()
