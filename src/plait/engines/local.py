"""The embedded engine: agents as processes of this machine, which can pose as several unequal nodes."""

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from plait.engines import agent_processes
from plait.engines.agent_processes import AgentDirectory, AgentProcess
from plait.engines.emulation.hosts import EmulatedHosts, Host
from plait.engines.engine import Ability, EngineEvent, Launch, LaunchId, NodeGone, NodeUp
from plait.engines.this_machine import LOCAL_NODE, emulated_node, host_of, local_node
from plait.errors import PlaitError
from plait.hardware.device import Node
from plait.spec.cluster import Cluster
from plait.words import did_you_mean


class LocalEngine:
    """One agent for each node of the cluster file, or for this machine where the file names none.

    An emulated node has a network namespace, shaped links and a CPU quota of its own where this user may make them;
    ``limitations`` tells what is missing.
    """

    name = "local"
    abilities = frozenset(
        {
            Ability.GANG,
            Ability.MIXED_TYPES,
            Ability.SHRINK,
            Ability.GROW,
            Ability.LOGS,
            Ability.EMULATE,
            Ability.FAULTS,
        }
    )

    def __init__(self, cluster: Cluster, state_directory: Path, *, enforce: bool = True) -> None:
        """Describes the engine; nothing happens before ``prepare``.

        Args:
            cluster: The administrator's file.
            state_directory: Where node files, locks and the agents' own logs lie, below ``nodes``.
            enforce: False does without namespaces and control groups even where they could be made.
        """
        self._cluster = cluster
        self._record = state_directory.absolute() / "emulation.json"
        self._directory = AgentDirectory(state_directory.absolute() / "nodes")
        hosts = [host_of(node) for node in cluster.nodes] or [Host(name=LOCAL_NODE)]
        # A machine that poses as nothing but itself needs no namespaces.
        self._hosts = EmulatedHosts(hosts, enforce=enforce and bool(cluster.nodes))
        self._agents: dict[str, AgentProcess] = {}
        self._launches: dict[LaunchId, Launch] = {}
        self._numbers = count()
        self._pending: deque[EngineEvent] = deque()
        self._watched: set[int] = set()
        self._lock = threading.Lock()  # ``cancel`` may run in a thread while the loop listens to events
        self._wake: Callable[[], object] | None = None

    def prepare(self) -> str:
        """Makes the nodes, or finds those of a controller before this one; returns where agents reach this machine."""
        found = {host.name: self._directory.find(host.name) for host in self._hosts.hosts}
        living = {name: process for name, process in found.items() if process is not None}
        address = self._hosts.open(self._record, [process.guardian for process in living.values()])
        reachable = {name: process for name, process in living.items() if self._still_fits(name)}
        # An agent whose network has gone with an earlier controller can never come back.
        agent_processes.end(process for name, process in living.items() if name not in reachable)
        for name, process in reachable.items():
            self._hosts.adopt(name, process.guardian)
            self._agents[name] = process
            self._tell(NodeUp(node=name))
        return address

    def _still_fits(self, name: str) -> bool:
        known = self._directory.known_node(name)
        return known is not None and known.address == self._hosts.address(name)

    def limitations(self) -> tuple[str, ...]:
        """Says what of the cluster file could not be emulated."""
        return self._hosts.limitations if self._cluster.nodes else ()

    def discover(self) -> tuple[Node, ...]:
        """Returns the nodes; call it after ``prepare``."""
        if not self._cluster.nodes:
            return (local_node(self._hosts.address(LOCAL_NODE), self._hosts.ports(LOCAL_NODE)),)
        have_quotas = any(node.cpu_quota is not None for node in self._cluster.nodes)
        return tuple(
            emulated_node(
                node, self._hosts.address(node.name), self._hosts.ports(node.name), others_have_quotas=have_quotas
            )
            for node in self._cluster.nodes
        )

    def render(self, launch: Launch) -> str:
        """Returns the process list: for each node what it is like and the command of its agent."""
        shapes = {host.name: host for host in self._hosts.hosts}
        lines = [f"# engine local: {len(launch.nodes)} agents, one process each, under this user"]
        lines += [f"# not emulated: {sentence}" for sentence in self.limitations()]
        for node in launch.nodes:
            types = ", ".join(device.accelerator_type for device in node.devices)
            lines += ["", f"# node {node.id}: {types}; {_shape(shapes[node.id])}; address {node.address}"]
            lines.append(" ".join(self._directory.command(node, launch)))
        return "\n".join(lines) + "\n"

    def launch(self, launch: Launch) -> LaunchId:
        """Starts the agents that do not live yet; those that do are told the controller's present address."""
        launch_id = LaunchId(f"local-{next(self._numbers)}")
        self._launches[launch_id] = launch
        for node in launch.nodes:
            self._ensure(node, launch)
        return launch_id

    def _ensure(self, node: Node, launch: Launch) -> None:
        process = self._agents.get(node.id)
        if process is not None and process.has_ended:
            self._note_end(process)
            process = None
        self._directory.write(node, launch.controller)
        if process is None:
            entry = self._hosts.enter(node.id, self._directory.command(node, launch))
            self._agents[node.id] = self._directory.start(node, entry)
            self._tell(NodeUp(node=node.id))

    def _tell(self, event: EngineEvent) -> None:
        self._pending.append(event)
        if self._wake is not None:
            self._wake()

    def _note_end(self, process: AgentProcess) -> None:
        """Tells of an agent's end exactly once."""
        with self._lock:
            if self._agents.get(process.node) is not process:
                return
            del self._agents[process.node]
            if process.handle not in self._watched:  # else the listener closes it
                os.close(process.handle)
        self._tell(NodeGone(node=process.node, reason=process.reap()))

    async def events(self) -> AsyncIterator[EngineEvent]:
        """Yields starts and ends of agents within milliseconds; one listener at a time."""
        loop = asyncio.get_running_loop()
        news = asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(news.set)

        def ended(process: AgentProcess) -> None:
            self._note_end(process)
            loop.remove_reader(process.handle)
            with self._lock:
                self._watched.remove(process.handle)
                os.close(process.handle)

        try:
            while True:
                news.clear()
                with self._lock:
                    new = [process for process in self._agents.values() if process.handle not in self._watched]
                    self._watched.update(process.handle for process in new)
                for process in new:
                    loop.add_reader(process.handle, ended, process)
                while self._pending:
                    yield self._pending.popleft()
                await news.wait()
        finally:
            self._wake = None
            for handle in self._watched:
                loop.remove_reader(handle)
            self._watched.clear()

    def resize(self, launch_id: LaunchId, nodes: Sequence[str]) -> None:
        """Kills the agents that are not named, also frozen ones, without waiting; starts named ones that are gone."""
        launch = self._launch_of(launch_id)
        for node in launch.nodes:
            if node.id in nodes:
                self._ensure(node, launch)
            elif node.id in self._agents:
                agent_processes.kill_hard(self._agents[node.id])

    def cancel(self, launch_id: LaunchId) -> None:
        """Ends the agents, workers first, waits for it, and takes the nodes away with the last launch.

        Raises:
            PlaitError: Processes withstood SIGKILL; the message names their nodes.
        """
        launch = self._launch_of(launch_id)
        del self._launches[launch_id]
        with self._lock:  # the listener may close the handles of those that end meanwhile
            ending = [self._agents[node.id] for node in launch.nodes if node.id in self._agents]
            copies = [replace(process, handle=os.dup(process.handle)) for process in ending]
        left = agent_processes.end(copies)
        for process, copy in zip(ending, copies, strict=True):
            os.close(copy.handle)
            if process.node not in left:
                self._note_end(process)
        if left:
            raise PlaitError(f"processes of {', '.join(left)} cannot be killed")
        if not self._launches and not self._agents:
            self._hosts.close()
            self._record.unlink(missing_ok=True)

    def _launch_of(self, launch_id: LaunchId) -> Launch:
        if launch_id not in self._launches:
            raise PlaitError(f"there is no launch {launch_id!r}{did_you_mean(launch_id, self._launches)}")
        return self._launches[launch_id]

    # Faults with coordinates, for tests, benchmarks and the demonstration.

    def cut(self, node: str) -> None:
        """Takes the node's link down: what is sent is lost, and nobody is told."""
        self._hosts.set_link(self._known(node).node, is_up=False)

    def mend(self, node: str) -> None:
        """Takes the node's link up again."""
        self._hosts.set_link(self._known(node).node, is_up=True)

    def freeze(self, node: str) -> None:
        """Stops the node's agent and workers as a machine that hangs would."""
        agent_processes.freeze(self._known(node))

    def thaw(self, node: str) -> None:
        """Lets a frozen node go on."""
        agent_processes.thaw(self._known(node))

    def kill(self, node: str) -> None:
        """Ends the node at once, as a power failure would."""
        agent_processes.kill_hard(self._known(node))

    def _known(self, node: str) -> AgentProcess:
        if node not in self._agents:
            raise PlaitError(f"no agent runs on a node {node!r}{did_you_mean(node, self._agents)}")
        return self._agents[node]


def _shape(host: Host) -> str:
    quota = "no CPU quota" if host.cpu_quota is None else f"CPU quota {host.cpu_quota:g}"
    rates = [
        f"{direction} {rate / 1e6:g} MB/s"
        for direction, rate in (("up", host.up), ("down", host.down))
        if rate is not None
    ]
    return ", ".join([quota, *rates])
