"""The life of one agent, from its first connection to its end."""

import asyncio
import contextlib
import logging
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from plait.agent.controller_link import ControllerLink
from plait.agent.guardian import unblock_signals
from plait.agent.outbox import Outbox
from plait.agent.reports import Reports
from plait.agent.strays import kill_leftovers
from plait.agent.supervisor import NodeSetting, Supervisor
from plait.agent.worker_socket import listen, socket_path
from plait.hardware.device import Node
from plait.wire import Codec

SHUTDOWN_GRACE_S = 1.0
_FLUSH_S = 0.5
_LOOK_S = 0.2
_NODE: Codec[Node] = Codec(Node)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSetting:
    """How an agent was started; see ``plait.agent.main.run``."""

    controller: str
    token_file: Path
    node_file: Path
    state_directory: Path
    linger_s: float
    frozen_limit_s: float | None


def present_address(setting: AgentSetting) -> str:
    """Returns where the controller is now: the file ``controller`` of the state directory, else as started."""
    try:
        return (setting.state_directory / "controller").read_text(encoding="utf-8").strip() or setting.controller
    except OSError:
        return setting.controller


async def _until_useless(supervisor: Supervisor, link: ControllerLink, linger_s: float) -> None:
    """Keeps the lease; returns once there have been neither workers nor a controller for ``linger_s`` seconds."""
    useful_at = time.monotonic()
    while time.monotonic() - useful_at < linger_s:
        if link.lease_ran_out:
            supervisor.lease_ran_out()
        if supervisor.num_workers or link.is_connected:
            useful_at = time.monotonic()
        await asyncio.sleep(_LOOK_S)
    logger.info("no workers and no controller for %g s", linger_s)


async def _live(setting: AgentSetting) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    unblock_signals()
    state = setting.state_directory
    if leftovers := kill_leftovers(state):
        logger.warning("killed %d processes that a former agent of this node had left", leftovers)
    node = _NODE.decode(setting.node_file.read_bytes())
    path = socket_path(state)
    outbox = Outbox()
    link = ControllerLink(outbox, lambda: present_address(setting), setting.token_file)
    supervisor = Supervisor(
        NodeSetting(
            node=node,
            state_directory=state,
            incarnation=uuid.uuid4().hex,
            socket_path=path,
            frozen_limit_s=setting.frozen_limit_s,
            token_file=setting.token_file,
        ),
        Reports(outbox, link),
    )
    server = await listen(path, supervisor)
    tasks: list[asyncio.Task[None]] = [
        asyncio.create_task(work)
        for work in (
            link.run(supervisor.registration, supervisor.obey),
            supervisor.watch(),
            _until_useless(supervisor, link, setting.linger_s),
            _wait(stopped),
        )
    ]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await supervisor.stop_all(SHUTDOWN_GRACE_S, "the agent ends")
    await link.flush(_FLUSH_S)
    for task in tasks:
        task.cancel()
    server.close()
    path.unlink(missing_ok=True)
    failed = [error for task in done if (error := task.exception()) is not None]
    for error in failed:
        logger.error("the agent ended by a fault of its own", exc_info=error)
    return 1 if failed else 0


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def live(setting: AgentSetting) -> int:
    """Lives until told to end or useless; returns the exit code."""
    with contextlib.suppress(KeyboardInterrupt):
        return asyncio.run(_live(setting))
    return 130
