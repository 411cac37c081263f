"""``plait serve``: the controller."""

import logging
import os
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from plait.cli.options import ClusterOption, JsonOption, StateOption
from plait.cli.output import print_json, say

ANNOUNCE_POLL_S = 0.05


def serve(
    *,
    cluster: ClusterOption = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the API listens.")] = "127.0.0.1:0",
    end_agents: Annotated[bool, typer.Option("--end-agents", help="End agents and workers with it, too.")] = False,
    die_with: Annotated[int | None, typer.Option(metavar="PID", help="End when this process does.")] = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run the controller until Ctrl-C or SIGTERM.

    Another one on the same state directory goes on where the last one stopped, even a killed one. Agents and workers go
    on meanwhile, unless --end-agents is given.
    """
    from plait.cli.connection import state_directory
    from plait.controller.service import ServeOptions
    from plait.controller.service import serve as run_controller
    from plait.spec.cluster import Cluster
    from plait.spec.load import load_cluster

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise typer.BadParameter(f"--listen wants HOST:PORT such as 127.0.0.1:9400, got {listen!r}")
    directory = state_directory(state)
    description = load_cluster(cluster) if cluster is not None else Cluster()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    threading.Thread(target=_announce, args=(directory, as_json), daemon=True).start()
    return run_controller(
        description, directory, ServeOptions(listen=listen, ends_agents=end_agents, die_with=die_with)
    )


def _announce(directory: Path, as_json: bool) -> None:
    """Says where the controller of this process listens, once it does."""
    from plait.controller.endpoint import read_endpoint
    from plait.errors import ControllerUnreachable

    while True:
        try:
            endpoint = read_endpoint(directory)
        except ControllerUnreachable:
            endpoint = None
        if endpoint is not None and endpoint.pid == os.getpid():
            break
        time.sleep(ANNOUNCE_POLL_S)
    if as_json:
        print_json({"state": str(directory), "api": endpoint.api, "agents": endpoint.agents, "pid": endpoint.pid})
    else:
        say(f"controller: API {endpoint.api}, agents {endpoint.agents}, state {directory}")
