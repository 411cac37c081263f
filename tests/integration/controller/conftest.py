"""A controller on an engine that does nothing, and an agent that is played by the test over real TCP."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import pytest
from pydantic import Discriminator

from plait.agent.messages import (
    Acknowledge,
    FromAgent,
    Heartbeat,
    KnownWorker,
    Register,
    StartWorker,
    ToAgent,
    Welcome,
    WorkerDown,
    WorkerUp,
)
from plait.controller.agents import Timing
from plait.controller.endpoint import read_endpoint, read_token
from plait.controller.service import Controller, ServeOptions, running
from plait.engines.engine import Ability, EngineEvent, Launch, LaunchId
from plait.hardware.device import Device, Node
from plait.spec.cluster import Cluster
from plait.spec.job import FailureCause, Job, Task, WorkerRange
from plait.wire import Codec

DEADLINE_S = 20.0
TO_AGENT: Codec[ToAgent] = Codec(Annotated[ToAgent, Discriminator("kind")])
FROM_AGENT: Codec[FromAgent] = Codec(Annotated[FromAgent, Discriminator("kind")])
T = TypeVar("T", bound=ToAgent)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition; the test fails where it does not come true."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 -- what is waited for happens in other tasks and threads
            await asyncio.sleep(0.01)


class FakeEngine:
    """Places nothing; tells of what the test says."""

    name = "local"
    abilities: frozenset[Ability] = frozenset()

    def __init__(self) -> None:
        self.happenings: asyncio.Queue[EngineEvent] = asyncio.Queue()
        self.kept: list[tuple[str, ...]] = []
        self.nodes: tuple[Node, ...] = ()

    def prepare(self) -> str:
        return "127.0.0.1"

    def limitations(self) -> tuple[str, ...]:
        return ("nothing is real here",)

    def discover(self) -> Sequence[Node]:
        return self.nodes

    def render(self, launch: Launch) -> str:
        return launch.controller

    def launch(self, launch: Launch) -> LaunchId:
        return LaunchId(launch.controller)

    async def events(self) -> AsyncIterator[EngineEvent]:
        while True:
            yield await self.happenings.get()

    def resize(self, launch_id: LaunchId, nodes: Sequence[str]) -> None:
        self.kept.append(tuple(nodes))

    def cancel(self, launch_id: LaunchId) -> None:
        self.kept.append(())


class FakeAgent:
    """One agent's end of the conversation."""

    def __init__(self, node: Node, incarnation: str) -> None:
        self.node = node
        self.incarnation = incarnation
        self.workers: tuple[KnownWorker, ...] = ()
        self.heard: list[ToAgent] = []
        self.is_refused = False
        self._number = 0
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None

    async def connect(self, state: Path, token: str | None = None) -> "FakeAgent":
        await self.hang_up()
        self.is_refused = False
        host, _, port = read_endpoint(state).agents.partition(":")
        reader, self._writer = await asyncio.open_connection(host, int(port))
        self.heard.clear()
        self._listening = asyncio.create_task(self._listen(reader))
        self.say(
            Register(
                token=token or read_token(state), node=self.node, incarnation=self.incarnation, workers=self.workers
            )
        )
        return self

    async def welcome(self) -> Welcome:
        return await self.next(Welcome)

    async def next(self, kind: type[T], number: int = 1) -> T:
        """Returns the ``number``-th message of this kind since the connection."""
        await until(lambda: sum(isinstance(message, kind) for message in self.heard) >= number)
        return [message for message in self.heard if isinstance(message, kind)][number - 1]

    def orders(self) -> list[tuple[str, str]]:
        return [(m.kind, m.worker_id) for m in self.heard if isinstance(m, StartWorker) or m.kind == "stop_worker"]

    def say(self, message: FromAgent) -> None:
        assert self._writer is not None
        self._writer.write(FROM_AGENT.encode(message) + b"\n")

    def up(self, order: StartWorker, number: int | None = None) -> int:
        number = self._next(number)
        self.say(WorkerUp(number=number, attempt_id=order.attempt_id, worker_id=order.worker_id, pid=1))
        return number

    def down(
        self, order: StartWorker, exit_code: int = 0, number: int | None = None, failure: FailureCause = "user"
    ) -> int:
        number = self._next(number)
        self.say(
            WorkerDown(
                number=number,
                attempt_id=order.attempt_id,
                worker_id=order.worker_id,
                exit_code=exit_code,
                signal=None,
                failure=None if exit_code == 0 else failure,
            )
        )
        return number

    async def acknowledged(self, number: int) -> None:
        await until(lambda: any(isinstance(m, Acknowledge) and m.number >= number for m in self.heard))

    async def beat(self) -> None:
        while True:
            self.say(Heartbeat())
            await asyncio.sleep(0.1)

    async def hang_up(self) -> None:
        if self._writer is not None and self._listening is not None:
            self._writer.close()
            await self._listening
            self._writer = None

    def _next(self, number: int | None) -> int:
        self._number = self._number + 1 if number is None else number
        return self._number

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self.heard.append(TO_AGENT.decode(line))
        except ConnectionError:
            pass
        self.is_refused = not self.heard


def node(name: str, slots: int = 2) -> Node:
    devices = tuple(
        Device(id=f"{name}/{index}", node=name, index=index, accelerator_type="T4", memory_bytes=16 * 2**30)
        for index in range(slots)
    )
    return Node(id=name, address="127.0.0.1", devices=devices)


def known(order: StartWorker, *, alive: bool = True) -> KnownWorker:
    return KnownWorker(attempt_id=order.attempt_id, worker_id=order.worker_id, alive=alive)


def job(name: str = "digits", workers: int = 1, **rules: object) -> Job:
    task = Task(name="train", command=("true",), workers=WorkerRange(min=workers, max=workers))
    return Job(name=name, tasks=(task,), **rules)  # type: ignore[arg-type]


@asynccontextmanager
async def controller_at(
    state: Path, engine: FakeEngine | None = None, timing: Timing | None = None, cluster: Cluster | None = None
) -> AsyncIterator[Controller]:
    options = ServeOptions(timing=timing or Timing(heartbeat_timeout_s=60.0, fence_s=60.0))
    async with running(cluster or Cluster(), state, options, engine or FakeEngine()) as (controller, _):
        yield controller


class Stage:
    """What a test needs, as one fixture, for helpers of a test folder cannot be imported."""

    controller_at = staticmethod(controller_at)
    until = staticmethod(until)
    node = staticmethod(node)
    known = staticmethod(known)
    job = staticmethod(job)

    def __init__(self, state: Path) -> None:
        self.state = state
        self.agents: list[FakeAgent] = []

    async def agent(
        self, name: str = "n0", incarnation: str = "a", workers: tuple[KnownWorker, ...] = (), slots: int = 2
    ) -> FakeAgent:
        """Connects an agent and waits until it is taken in."""
        agent = FakeAgent(node(name, slots), incarnation)
        agent.workers = workers
        self.agents.append(agent)
        await agent.connect(self.state)
        await agent.welcome()
        return agent

    def unconnected(self, name: str, incarnation: str) -> FakeAgent:
        """Returns an agent that has not said anything yet."""
        agent = FakeAgent(node(name), incarnation)
        self.agents.append(agent)
        return agent

    def engine(self) -> FakeEngine:
        """Returns an engine that the test speaks for."""
        return FakeEngine()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    state = tmp_path / "state"
    state.mkdir()
    stage = Stage(state)
    yield stage
    for agent in stage.agents:
        await agent.hang_up()
