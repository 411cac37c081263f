"""The running controller: one process that owns a state directory, its agents and its HTTP API."""

import asyncio
import datetime as dt
import ipaddress
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from plait.controller.agents import Switchboard, Timing
from plait.controller.endpoint import (
    TOKEN_NAME,
    Endpoint,
    StateLock,
    ensure_token,
    read_endpoint,
    read_token,
    write_endpoint,
)
from plait.controller.nodes import NodeWatch
from plait.controller.progress import ProgressBoard
from plait.controller.store import open_store
from plait.controller.writer import Proposal, View, Writer, propose_cluster
from plait.engines.engine import Engine, Launch
from plait.errors import ControllerUnreachable
from plait.schedule.events import Tick
from plait.spec.cluster import Cluster

log = logging.getLogger(__name__)

TICK_S: Final = 0.2
STALL_S: Final = 1.0
"""A tick later than this means that this process itself stood still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How a controller runs.

    Attributes:
        listen: ``host:port`` of the API; port 0 takes the port that it had last, or a free one.
        agents_port: Port for agents; 0 as above.
        ends_agents: Whether agents and workers end with a controller that is asked to end.
        die_with: The controller and all agents end when this process does.
        linger_s: An agent without workers and without a controller ends after so many seconds.
        timing: Time-outs; None takes those that fit the engine.
    """

    listen: str = "127.0.0.1:0"
    agents_port: int = 0
    ends_agents: bool = False
    die_with: int | None = None
    linger_s: float = 60.0
    timing: Timing | None = None


@dataclass(slots=True, kw_only=True)
class Controller:
    """What the API works on."""

    cluster: Cluster
    state_directory: Path
    writer: Writer
    switchboard: Switchboard
    board: ProgressBoard
    watch: NodeWatch
    limitations: tuple[str, ...] = ()
    pid: int = field(default_factory=os.getpid)
    started_at_s: float = field(default_factory=time.time)


def serve(cluster: Cluster, state_directory: Path, options: ServeOptions | None = None) -> int:
    """Runs a controller until SIGTERM or SIGINT; returns the exit code.

    Raises:
        ControllerAlreadyRuns: Another controller holds the state directory.
        StoreUnusable: The database is damaged or of another version.
    """
    options = options or ServeOptions()
    state_directory = state_directory.resolve()
    state_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = StateLock(state_directory)
    try:
        asyncio.run(_serve(cluster, state_directory, options))
    finally:
        lock.release()
    return 0


async def _serve(cluster: Cluster, state_directory: Path, options: ServeOptions) -> None:
    from plait.engines.registry import load_engine

    engine = load_engine(cluster, state_directory)
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # from now on, so that one who ends while it starts leaves nothing
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    async with running(cluster, state_directory, options, engine) as (controller, parts):
        await parts.until(asked, options.die_with)
        log.info("the controller ends")
        if options.ends_agents or options.die_with is not None:
            await controller.watch.end_agents()


@asynccontextmanager
async def running(
    cluster: Cluster, state_directory: Path, options: ServeOptions, engine: Engine
) -> AsyncIterator[tuple[Controller, "Parts"]]:
    """Runs a controller on an engine within this event loop; the caller holds the state directory's lock."""
    token = ensure_token(state_directory)
    writer = Writer(open_store(cluster.store, state_directory), time.time)
    timing = options.timing or Timing()
    board = ProgressBoard()
    switchboard = Switchboard(writer, board, token=token, state_directory=state_directory, timing=timing)
    controller = Controller(
        cluster=cluster,
        state_directory=state_directory,
        writer=writer,
        switchboard=switchboard,
        board=board,
        watch=NodeWatch(engine, switchboard, timing),
    )
    async with Parts() as parts:
        parts.at_end(writer.close)
        parts.start(writer.run())
        await writer.put(partial(propose_cluster, cluster))
        agents_host = engine.prepare()
        controller.limitations = engine.limitations()
        nodes = tuple(engine.discover())
        if cluster.engine == "local":
            switchboard.seen_nodes = frozenset(node.id for node in nodes)
        endpoint = await _open(controller, agents_host, options, parts)
        launch = Launch(
            nodes=nodes,
            controller=endpoint.agents,
            token_file=state_directory / TOKEN_NAME,
            die_with=options.die_with,
            linger_s=options.linger_s,
        )
        parts.start(controller.watch.watch())
        controller.watch.start(launch)
        parts.start(_tick(controller))
        yield controller, parts


async def _open(controller: Controller, agents_host: str, options: ServeOptions, parts: "Parts") -> Endpoint:
    """Opens both ports and publishes them."""
    from plait.controller.api import ApiServer

    state_directory = controller.state_directory
    last_api_port, last_agents_port = _last_ports(state_directory)
    listener = _bind(options.listen, last_api_port)
    agents_port = await _open_switchboard(controller.switchboard, agents_host, options.agents_port, last_agents_port)
    parts.at_end(controller.switchboard.close)
    parts.at_end(controller.watch.close)
    api = ApiServer(controller, read_token(state_directory), listener)
    parts.at_end(api.close)
    parts.start(api.run())
    await api.ready()
    host, port = listener.getsockname()[:2]
    endpoint = Endpoint(api=f"http://{host}:{port}", agents=f"{agents_host}:{agents_port}", pid=os.getpid())
    write_endpoint(state_directory, endpoint)
    log.info("listening: API %s, agents %s", endpoint.api, endpoint.agents)
    if not ipaddress.ip_address(host).is_loopback:
        log.warning("the API is open to other machines at %s, without encryption", endpoint.api)
    return endpoint


async def _tick(controller: Controller) -> None:
    """Lets time pass for the scheduler, and looks after agents that are silent or slow."""
    loop = asyncio.get_running_loop()
    started_s = last_s = loop.time()
    while True:
        await asyncio.sleep(TICK_S)
        now_s = loop.time()
        if now_s - last_s > STALL_S:
            log.warning("the controller stood still for %.1fs", now_s - last_s)
            controller.switchboard.forgive(now_s - last_s)
            started_s += now_s - last_s
        last_s = now_s
        await controller.writer.put(_propose_tick)
        controller.switchboard.drop_silent(now_s)
        controller.switchboard.resend(now_s)
        await controller.watch.check(now_s, started_s)


def _propose_tick(view: View) -> Proposal:
    now = dt.datetime.fromtimestamp(view.at_s).astimezone()
    day_s = now.hour * 3600 + now.minute * 60 + now.second
    return Proposal(event=Tick(id=view.id, at_s=view.at_s, day_s=day_s))


class Parts:
    """The controller's long-running parts: when one fails, all end and the error is raised."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closings: list[Callable[[], Awaitable[None]]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        # The first to open, the writer and its store, is the last to close, after everything that uses it.
        for close in reversed(self._closings[1:]):
            await close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for close in self._closings[:1]:
            await close()

    def start(self, part: Coroutine[Any, Any, None]) -> None:
        """Runs a part until the end."""
        self._tasks.add(asyncio.create_task(part))

    def at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Calls ``close`` at the end, the last one first."""
        self._closings.append(close)

    async def until(self, asked: asyncio.Event, die_with: int | None) -> None:
        """Returns when the event is set or the process ``die_with`` has ended; raises what made a part fail."""
        waits = [asyncio.create_task(_flag(asked))]
        if die_with is not None:
            waits.append(asyncio.create_task(_until_dead(die_with)))
        try:
            done, _ = await asyncio.wait({*self._tasks, *waits}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for wait in waits:
                wait.cancel()


async def _flag(event: asyncio.Event) -> None:
    await event.wait()


async def _until_dead(pid: int) -> None:
    """Returns when the process has ended, also where nobody takes its exit status."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def _last_ports(state_directory: Path) -> tuple[int, int]:
    """Returns the ports of the controller before this one: agents and clients know them already."""
    try:
        last = read_endpoint(state_directory)
        return int(last.api.rpartition(":")[2]), int(last.agents.rpartition(":")[2])
    except (ControllerUnreachable, ValueError):
        return 0, 0


def _bind(listen: str, last_port: int) -> socket.socket:
    host, _, port = listen.rpartition(":")
    for candidate in dict.fromkeys((int(port) or last_port, int(port))):
        try:
            return socket.create_server((host, candidate), backlog=128)
        except OSError:
            if candidate == int(port):
                raise
    raise AssertionError(listen)


async def _open_switchboard(switchboard: Switchboard, host: str, port: int, last_port: int) -> int:
    for candidate in dict.fromkeys((port or last_port, port)):
        try:
            return await switchboard.open(host, candidate)
        except OSError:
            if candidate == port:
                raise
    raise AssertionError(port)
