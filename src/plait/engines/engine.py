"""What an engine is: it only places one agent on each node and tells of lost nodes.

Ranks, heartbeats, membership and the killing of orphans are Plait's own and the same on every engine.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal, NewType, Protocol

from plait.hardware.device import Node

LaunchId = NewType("LaunchId", str)


class Ability(Enum):
    """What an engine can do; the support table of the documentation is generated from these."""

    GANG = "starts all agents of a launch or none"
    MIXED_TYPES = "one launch spans several accelerator types"
    SHRINK = "gives nodes back while the others go on"
    GROW = "adds nodes to a running launch"
    PREEMPT = "may take nodes away at any time"
    LOGS = "keeps what each agent prints"
    EMULATE = "makes unequal nodes on one machine"
    FAULTS = "can cut, freeze and kill a node on request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Agents to be started.

    Attributes:
        nodes: One agent each, as ``discover`` returned them.
        controller: ``host:port`` at which the agents reach the controller; the host is what ``prepare`` returned.
        token_file: The file with the bearer token that the agents present.
        die_with: Process id whose end ends the agents; None lets them outlive the process that launched them.
        linger_s: An agent without workers and without a controller ends after this many seconds.
    """

    nodes: tuple[Node, ...]
    controller: str
    token_file: Path
    die_with: int | None = None
    linger_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUp:
    """The agent's process of this node runs; it registers with the controller by itself."""

    node: str
    kind: Literal["node_up"] = "node_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGone:
    """The node's agent ended or the engine took the node away; its workers are dead."""

    node: str
    reason: str
    kind: Literal["node_gone"] = "node_gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPending:
    """The engine cannot start these agents yet, and why."""

    launch: LaunchId
    reason: str
    kind: Literal["launch_pending"] = "launch_pending"


EngineEvent = NodeUp | NodeGone | LaunchPending


class Engine(Protocol):
    """Where agents come from. Engines are found by name through the entry point group ``plait.engines``.

    An engine class is constructed as ``EngineClass(cluster, state_directory)``. The order of calls is ``prepare``,
    ``discover``, ``launch``; after a restart of the controller the same order finds the agents that still live.
    """

    name: str
    abilities: frozenset[Ability]

    def prepare(self) -> str:
        """Returns the host address at which agents will reach the controller; known before any agent starts."""
        ...

    def limitations(self) -> tuple[str, ...]:
        """Says in plain sentences what of the cluster file this engine cannot do here."""
        ...

    def discover(self) -> Sequence[Node]:
        """Returns the nodes that this engine can place agents on."""
        ...

    def render(self, launch: Launch) -> str:
        """Returns exactly what ``launch`` would do, as text for people and golden files."""
        ...

    def launch(self, launch: Launch) -> LaunchId:
        """Starts one agent on each node that has none yet."""
        ...

    def events(self) -> AsyncIterator[EngineEvent]:
        """Yields what happens to nodes, for as long as the caller listens."""
        ...

    def resize(self, launch_id: LaunchId, nodes: Sequence[str]) -> None:
        """Keeps exactly the named nodes of the launch: ends the other agents, starts those that are missing."""
        ...

    def cancel(self, launch_id: LaunchId) -> None:
        """Ends every agent of the launch with all its processes and leaves nothing behind."""
        ...
