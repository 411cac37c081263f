"""Keeps agents on the engine's nodes: launches them, hears of dead ones, ends silent ones, starts them anew."""

import asyncio
import logging
from typing import Final

from plait.controller.agents import Switchboard, Timing
from plait.engines.engine import Engine, Launch, LaunchId, LaunchPending, NodeGone, NodeUp

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
"""Between the death of an agent and its next start; doubled while it keeps dying."""
STEADY_S: Final = 60.0
"""An agent that lived this long starts with the first pause again."""


class NodeWatch:
    """Launches one agent a node and decides when a node is lost for sure.

    Where the engine sees the agent's process a node is lost once its agent is dead; a silent agent is ended first.
    Elsewhere a node is lost once the lease of its agent has run out.
    """

    def __init__(self, engine: Engine, switchboard: Switchboard, timing: Timing) -> None:
        self.pending: dict[str, str] = {}
        """Launches that the engine holds back, and why."""
        self._engine = engine
        self._switchboard = switchboard
        self._timing = timing
        self._launch: Launch | None = None
        self._launch_id: LaunchId | None = None
        self._fenced: set[str] = set()
        self._pauses_s: dict[str, float] = {}
        self._up_s: dict[str, float] = {}
        self._revivals: set[asyncio.Task[None]] = set()

    def start(self, launch: Launch) -> None:
        """Starts the agents that do not run yet."""
        self._launch = launch
        self._launch_id = self._engine.launch(launch)

    async def watch(self) -> None:
        """Follows the engine until cancelled."""
        async for event in self._engine.events():
            match event:
                case NodeUp(node=node):
                    self._up_s[node] = asyncio.get_running_loop().time()
                case NodeGone(node=node, reason=reason):
                    self._fenced.discard(node)
                    await self._switchboard.lose(node, reason)
                    self._revive_later(node)
                case LaunchPending(launch=launch, reason=reason):
                    self.pending[launch] = reason
                    log.warning("launch %s waits: %s", launch, reason)

    async def check(self, now_s: float, started_s: float) -> None:
        """Looks at silent nodes; call it at each tick."""
        for node, silent_s in self._switchboard.silent_nodes(now_s, started_s).items():
            if node not in self._switchboard.seen_nodes:
                if silent_s > self._timing.lease_s + self._timing.lease_margin_s:
                    reason = f"its agent was not heard for {silent_s:.0f}s"
                    await self._switchboard.lose(node, reason, is_certain=False)
            elif silent_s > self._timing.fence_s and node not in self._fenced:
                self._fence(node, silent_s)

    async def end_agents(self) -> None:
        """Ends all agents with their workers, and starts none anew."""
        launch_id, self._launch_id, self._launch = self._launch_id, None, None
        await self.close()
        if launch_id is not None:
            await asyncio.to_thread(self._engine.cancel, launch_id)

    async def close(self) -> None:
        """Starts no more agents."""
        for revival in self._revivals:
            revival.cancel()
        await asyncio.gather(*self._revivals, return_exceptions=True)

    def _fence(self, node: str, silent_s: float) -> None:
        """Ends a silent agent, so that nothing of it can come back while its work runs elsewhere."""
        if self._launch is None or self._launch_id is None:
            return
        log.warning("node %s: its agent was silent for %.1fs and is ended", node, silent_s)
        self._fenced.add(node)
        others = [other.id for other in self._launch.nodes if other.id != node and other.id not in self._fenced]
        self._engine.resize(self._launch_id, others)

    def _revive_later(self, node: str) -> None:
        if self._launch is None or node not in {one.id for one in self._launch.nodes}:
            return
        now_s = asyncio.get_running_loop().time()
        was_steady = now_s - self._up_s.get(node, now_s) > STEADY_S
        pause_s = FIRST_PAUSE_S if was_steady else self._pauses_s.get(node, FIRST_PAUSE_S)
        self._pauses_s[node] = min(LONGEST_PAUSE_S, 2 * pause_s)
        revival = asyncio.create_task(self._revive(node, pause_s))
        self._revivals.add(revival)
        revival.add_done_callback(self._revivals.discard)

    async def _revive(self, node: str, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        if self._launch is None or self._launch_id is None:
            return
        nodes = [one.id for one in self._launch.nodes if one.id not in self._fenced]
        self._engine.resize(self._launch_id, nodes)
        log.info("node %s: its agent was started anew", node)
