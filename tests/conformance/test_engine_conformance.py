"""What every engine has to do. A new engine adds one row to ``ENGINES``."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plait.agent.processes import all_processes, environment_of
from plait.engines.emulation.network import missing_tools
from plait.engines.engine import Ability, Engine, EngineEvent, Launch, NodeGone, NodeUp
from plait.engines.local import LocalEngine
from plait.engines.this_machine import emulated_node
from plait.errors import PlaitError
from plait.spec.cluster import Cluster, EmulatedNode

DEADLINE_S = 30.0
GOLDEN = Path(__file__).parents[1] / "golden"
NODES = (
    EmulatedNode(name="big", accelerator="A100", cpu_quota=1.0, uplink_bytes_per_s=125e6, downlink_bytes_per_s=125e6),
    EmulatedNode(name="pair", accelerator="V100", slots=2, cpu_quota=0.5),
    EmulatedNode(name="small", accelerator="T4", cpu_quota=0.25, uplink_bytes_per_s=12.5e6),
)


class Candidate(NamedTuple):
    """An engine under test: how to make one, and whether a second one over the same state finds the first's agents."""

    make: Callable[[Path], Engine]
    kill: Callable[[Any, str], None]
    needs_root: bool = False


ENGINES = {
    "local-plain": Candidate(lambda state: LocalEngine(Cluster(nodes=NODES), state, enforce=False), LocalEngine.kill),
    "local-emulated": Candidate(lambda state: LocalEngine(Cluster(nodes=NODES), state), LocalEngine.kill, True),
}


@pytest.fixture(params=sorted(ENGINES))
def candidate(request: pytest.FixtureRequest) -> Candidate:
    chosen = ENGINES[request.param]
    if chosen.needs_root and (os.geteuid() != 0 or missing_tools()):
        pytest.skip("needs root, iproute2 and util-linux")
    return chosen


class Listener:
    """Gathers an engine's events."""

    def __init__(self, engine: Engine) -> None:
        self.heard: list[EngineEvent] = []
        self._task = asyncio.get_running_loop().create_task(self._listen(engine))

    async def _listen(self, engine: Engine) -> None:
        async for event in engine.events():
            self.heard.append(event)

    async def until(self, kind: type, node: str) -> EngineEvent:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for event in self.heard:
                    if isinstance(event, kind) and getattr(event, "node", None) == node:
                        return event
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


class Controller:
    """Notes which nodes register, and from where; says welcome to each."""

    def __init__(self) -> None:
        self.registered: list[str] = []
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, host: str) -> str:
        listener = bound(host)
        address = f"{host}:{listener.getsockname()[1]}"
        await self.serve(listener)
        return address

    async def serve(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._talk, sock=listener)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                if b'"register"' in line:
                    self.registered.append(line.split(b'"id":"')[1].split(b'"')[0].decode())
                    writer.write(b'{"kind":"welcome","heartbeat_interval_s":0.2}\n')
        writer.close()

    async def until(self, *nodes: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not set(nodes) <= set(self.registered):  # noqa: ASYNC110 - other processes make it true
                await asyncio.sleep(0.01)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()


@pytest.fixture
async def controller() -> AsyncIterator[Controller]:
    one = Controller()
    yield one
    one.close()


def processes_of(state: Path) -> set[int]:
    """Returns the processes whose working directory or environment shows that they belong to the cluster."""
    found = set()
    for process in all_processes():
        with contextlib.suppress(OSError):
            if process.state not in "ZX" and Path(f"/proc/{process.pid}/cwd").readlink().is_relative_to(state):
                found.add(process.pid)
        if any(str(state) in value for name, value in environment_of(process.pid).items() if name.startswith("PLAIT_")):
            found.add(process.pid)
    return found - {os.getpid()}


async def begin(engine: Engine, controller: Controller, state: Path) -> Launch:
    address = await controller.open(engine.prepare())
    token = state / "token"
    token.write_text("secret")
    return Launch(nodes=tuple(engine.discover()), controller=address, token_file=token, die_with=os.getpid())


async def test_agents_of_all_nodes_come_up_and_register(
    candidate: Candidate, controller: Controller, tmp_path: Path
) -> None:
    engine = candidate.make(tmp_path)
    launch = await begin(engine, controller, tmp_path)
    listener = Listener(engine)
    launch_id = engine.launch(launch)
    try:
        for node in launch.nodes:
            await listener.until(NodeUp, node.id)
        await controller.until(*(node.id for node in launch.nodes))
        assert not [event for event in listener.heard if isinstance(event, NodeGone)]
    finally:
        await asyncio.to_thread(engine.cancel, launch_id)
        await listener.close()
    assert sorted(controller.registered) == sorted(node.id for node in launch.nodes)


async def test_cancel_leaves_nothing_and_tells_of_every_node(
    candidate: Candidate, controller: Controller, tmp_path: Path
) -> None:
    engine = candidate.make(tmp_path)
    launch = await begin(engine, controller, tmp_path)
    listener = Listener(engine)
    launch_id = engine.launch(launch)
    await controller.until(*(node.id for node in launch.nodes))
    assert len(processes_of(tmp_path)) >= len(launch.nodes)
    await asyncio.to_thread(engine.cancel, launch_id)
    assert processes_of(tmp_path) == set()
    for node in launch.nodes:
        await listener.until(NodeGone, node.id)
    await listener.close()
    with pytest.raises(PlaitError, match=launch_id):
        engine.cancel(launch_id)


async def test_a_killed_node_is_told_once_and_can_be_started_again(
    candidate: Candidate, controller: Controller, tmp_path: Path
) -> None:
    engine = candidate.make(tmp_path)
    launch = await begin(engine, controller, tmp_path)
    listener = Listener(engine)
    launch_id = engine.launch(launch)
    victim, *others = [node.id for node in launch.nodes]
    try:
        await controller.until(victim, *others)
        candidate.kill(engine, victim)
        await listener.until(NodeGone, victim)
        assert [event for event in listener.heard if isinstance(event, NodeGone)] == [
            await listener.until(NodeGone, victim)
        ]
        controller.registered.clear()
        engine.resize(launch_id, [victim, *others])
        await controller.until(victim)
        assert controller.registered == [victim]
    finally:
        await asyncio.to_thread(engine.cancel, launch_id)
        await listener.close()


async def test_resize_keeps_exactly_the_named_nodes(
    candidate: Candidate, controller: Controller, tmp_path: Path
) -> None:
    engine = candidate.make(tmp_path)
    launch = await begin(engine, controller, tmp_path)
    listener = Listener(engine)
    launch_id = engine.launch(launch)
    first, *others = [node.id for node in launch.nodes]
    try:
        await controller.until(first, *others)
        engine.resize(launch_id, [first])
        for node in others:
            await listener.until(NodeGone, node)
        assert first not in {event.node for event in listener.heard if isinstance(event, NodeGone)}
        assert processes_of(tmp_path)
    finally:
        await asyncio.to_thread(engine.cancel, launch_id)
        await listener.close()


def launch_and_vanish(candidate: Candidate, state: Path, launch: Launch, listen: Callable[[str], str]) -> None:
    """Launches from a process that then ends as if it were killed; ``listen`` gets the address that agents use."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            engine = candidate.make(state)
            theirs.sendall(engine.prepare().encode())
            controller = theirs.recv(100).decode()
            engine.launch(replace(launch, nodes=tuple(engine.discover()), controller=controller))
        os._exit(0)
    with ours, theirs:
        ours.sendall(listen(ours.recv(100).decode()).encode())
    os.waitpid(child, 0)


def bound(host: str) -> socket.socket:
    return socket.create_server((host, 0))


async def test_a_second_controller_finds_the_agents_and_starts_no_more(
    candidate: Candidate, controller: Controller, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    launch = Launch(nodes=(), controller="", token_file=token, die_with=os.getpid())
    listeners: list[socket.socket] = []

    def listen(host: str) -> str:
        listeners.append(bound(host))
        return f"{host}:{listeners[0].getsockname()[1]}"

    launch_and_vanish(candidate, tmp_path, launch, listen)
    await controller.serve(listeners[0])
    nodes = [node.name for node in NODES]
    await controller.until(*nodes)
    controller.close()
    before = processes_of(tmp_path)
    second = candidate.make(tmp_path)
    successor = Controller()
    address = await successor.open(second.prepare())
    again = replace(launch, nodes=tuple(second.discover()), controller=address)
    launch_id = second.launch(again)
    listener = Listener(second)
    try:
        for node in nodes:
            await listener.until(NodeUp, node)
        await successor.until(*nodes)
        assert processes_of(tmp_path) == before
        candidate.kill(second, nodes[0])
        await listener.until(NodeGone, nodes[0])
    finally:
        await asyncio.to_thread(second.cancel, launch_id)
        await listener.close()
        successor.close()
    assert processes_of(tmp_path) == set()


def test_the_rendered_launch_is_the_golden_text(candidate: Candidate) -> None:
    engine = candidate.make(Path("/state"))
    addresses = (f"198.18.7.{11 + number}" for number in range(len(NODES)))
    nodes = tuple(emulated_node(node, next(addresses), (21000, 1000), others_have_quotas=True) for node in NODES)
    launch = Launch(nodes=nodes, controller="198.18.7.1:9400", token_file=Path("/state/token"), die_with=4711)
    text = engine.render(launch).replace(sys.executable, "python")
    assert text == (GOLDEN / f"engine_{engine.name}.txt").read_text("utf-8")


def test_abilities_are_known_and_gangs_are_a_must(candidate: Candidate, tmp_path: Path) -> None:
    engine = candidate.make(tmp_path)
    assert engine.abilities <= set(Ability)
    assert Ability.GANG in engine.abilities
    assert engine.name


def test_the_address_for_agents_can_be_listened_on_before_any_starts(candidate: Candidate, tmp_path: Path) -> None:
    engine = candidate.make(tmp_path)
    with socket.create_server((engine.prepare(), 0)) as listener:
        address = f"{listener.getsockname()[0]}:{listener.getsockname()[1]}"
        engine.cancel(engine.launch(Launch(nodes=(), controller=address, token_file=tmp_path / "token")))
