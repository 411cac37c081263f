"""What an agent and its controller say to each other: JSON lines over one TCP connection that the agent opens.

The first line of an agent is ``Register``; everything an agent reports is kept (with a rising ``number``) until the
controller has acknowledged it, so a controller that was away misses nothing. Orders are idempotent: an agent that
gets a ``StartWorker`` for a worker it already has or had answers with that worker's present state.
"""

from dataclasses import dataclass
from typing import Literal

from plait.hardware.device import Node
from plait.schedule.domain import Deed
from plait.spec.job import FailureCause


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWorker:
    """A worker that the agent runs or has run since it came up."""

    attempt_id: str
    worker_id: str
    alive: bool
    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """The agent's first word. ``incarnation`` changes whenever the agent process is new.

    ``copies`` is where this node takes copies of other nodes' snapshots, ``host:port``; empty where it takes none.
    """

    token: str
    node: Node
    incarnation: str
    copies: str = ""
    workers: tuple[KnownWorker, ...] = ()
    kind: Literal["register"] = "register"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """I am here; at most 1 s apart. ``sent_s`` is on the agent's own monotonic clock and comes back in the answer."""

    sent_s: float | None = None
    kind: Literal["heartbeat"] = "heartbeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUp:
    """The worker's process runs."""

    number: int
    attempt_id: str
    worker_id: str
    pid: int
    kind: Literal["worker_up"] = "worker_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDown:
    """The worker's process ended."""

    number: int
    attempt_id: str
    worker_id: str
    exit_code: int | None
    signal: int | None
    failure: FailureCause | None
    detail: str = ""
    is_transient: bool = False
    faulty_devices: tuple[str, ...] = ()
    kind: Literal["worker_down"] = "worker_down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Latest progress line of a worker; only the newest matters, so it is never resent.

    ``device_samples_per_s`` adds the measured speeds of the group's devices: the rate they would have if none waited.
    """

    attempt_id: str
    worker_id: str
    step: int
    total_steps: int | None
    samples_per_s: float
    loss: float | None
    generation: str
    split: tuple[tuple[str, int], ...] = ()
    reason: str = ""
    elastic: bool = True
    device_samples_per_s: float | None = None
    kind: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChecked:
    """The answer to a ``CheckDevice``: whether work may go to the device again, and what was found."""

    number: int
    device: str
    test: int
    passed: bool
    detail: str
    kind: Literal["device_checked"] = "device_checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStall:
    """A worker waited for others because a link gave no answer; what that was by the counters of this node."""

    number: int
    attempt_id: str
    worker_id: str
    is_transient: bool
    reason: str
    kind: Literal["link_stall"] = "link_stall"


FromAgent = Register | Heartbeat | WorkerUp | WorkerDown | Progress | DeviceChecked | LinkStall


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The controller takes the agent in and answers each heartbeat with ``Acknowledge``.

    After ``lease_s`` seconds without an answer the agent ends the workers that no surviving peer can fence off, for
    the controller may start them elsewhere; None where the controller can see by itself which agents are dead.
    """

    heartbeat_interval_s: float
    lease_s: float | None = None
    kind: Literal["welcome"] = "welcome"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """Every report up to ``number`` is durable at the controller.

    ``heartbeat_sent_s`` echoes the heartbeat that this answers. A lease counts from there and not from when the answer
    arrives: an answer that was long on its way must not make the lease longer than the controller believes.
    """

    number: int
    heartbeat_sent_s: float | None = None
    kind: Literal["acknowledge"] = "acknowledge"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorker:
    """Start one process. ``environment`` is complete apart from what the agent adds for its device."""

    attempt_id: str
    worker_id: str
    rank: int
    command: tuple[str, ...]
    working_directory: str
    environment: tuple[tuple[str, str], ...]
    device_ids: tuple[str, ...]
    log_directory: str
    kind: Literal["start_worker"] = "start_worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWorker:
    """SIGTERM to the worker's process group, SIGKILL after ``grace_s``."""

    attempt_id: str
    worker_id: str
    grace_s: float
    reason: str = ""
    kind: Literal["stop_worker"] = "stop_worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class TellLost:
    """Tell this agent's workers of the attempt that ``lost`` are dead for sure, so that they regroup at once."""

    attempt_id: str
    lost: tuple[str, ...]
    kind: Literal["tell_lost"] = "tell_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckDevice:
    """Test a device that is kept from work, within ``limit_s``. ``test`` comes back in the answer."""

    device: str
    test: int
    limit_s: float
    kind: Literal["check_device"] = "check_device"


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectFault:
    """Do this to a worker, as a drill; one that does not run is none to do it to."""

    attempt_id: str
    worker_id: str
    deed: Deed
    kind: Literal["inject_fault"] = "inject_fault"


ToAgent = Welcome | Acknowledge | StartWorker | StopWorker | TellLost | CheckDevice | InjectFault
