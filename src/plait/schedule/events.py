"""Everything that can happen to the cluster, as values. The live controller and the simulator feed the same ones.

Each event carries ``id`` (unique, rising), ``at_s`` (seconds on the feeder's clock) and ``cause`` (the id of the
event that led to it, if any), so that a run can be recorded and replayed.
"""

from dataclasses import dataclass
from typing import Literal

from plait.hardware.device import Node
from plait.schedule.domain import Deed
from plait.spec.cluster import Cluster
from plait.spec.job import FailureCause, Job, WorkerRange


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stamp:
    id: int
    at_s: float
    cause: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted(_Stamp):
    """A job was accepted (it is durable by now). ``command_directory`` is where relative commands run."""

    job_id: str
    job: Job
    kind: Literal["job_submitted"] = "job_submitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled(_Stamp):
    """A person asked to cancel the job."""

    job_id: str
    kind: Literal["job_cancelled"] = "job_cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRequested(_Stamp):
    """A person asked for another elastic range of one task."""

    job_id: str
    task: str
    workers: WorkerRange
    kind: Literal["resize_requested"] = "resize_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined(_Stamp):
    """An agent registered its node (first time or again)."""

    node: Node
    kind: Literal["node_joined"] = "node_joined"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost(_Stamp):
    """A node's agent is gone: workers there are dead (they die with their agent) or unreachable.

    Where ``is_certain`` is False its lease ran out: elastic workers there may live on, and only the group's own quorum
    decides who goes on.
    """

    node: str
    reason: str
    is_certain: bool = True
    kind: Literal["node_lost"] = "node_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrained(_Stamp):
    """A person asked that no new work goes to the node and that elastic work leaves it."""

    node: str
    kind: Literal["node_drained"] = "node_drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResumed(_Stamp):
    """A drained node takes work again."""

    node: str
    kind: Literal["node_resumed"] = "node_resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLost(_Stamp):
    """A device failed while its node goes on."""

    device: str
    reason: str
    kind: Literal["device_lost"] = "device_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReturned(_Stamp):
    """A lost device is healthy again."""

    device: str
    kind: Literal["device_returned"] = "device_returned"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTested(_Stamp):
    """A quarantined device has been tested on its node. ``test`` is the ``cause`` of the command that asked for it."""

    device: str
    test: int
    passed: bool
    detail: str
    kind: Literal["device_tested"] = "device_tested"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(_Stamp):
    """The agent started this worker's process."""

    attempt_id: str
    worker_id: str
    kind: Literal["worker_started"] = "worker_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited(_Stamp):
    """A worker's process ended. ``failure`` is None for exit code 0.

    ``is_transient``: evidence says that the fault may not come again, so that a first one is forgiven. Where it says
    which of the worker's devices failed these are ``faulty_devices``; empty: any of them may have.
    """

    attempt_id: str
    worker_id: str
    exit_code: int | None
    signal: int | None = None
    failure: FailureCause | None = None
    detail: str = ""
    is_transient: bool = False
    faulty_devices: tuple[str, ...] = ()
    kind: Literal["worker_exited"] = "worker_exited"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultInjected(_Stamp):
    """A person asked that this fault be done to a running worker, to see what follows."""

    attempt_id: str
    worker_id: str
    deed: Deed
    kind: Literal["fault_injected"] = "fault_injected"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStalled(_Stamp):
    """A worker waited for others because a link gave no answer; nobody left. ``reason`` says what counters showed."""

    attempt_id: str
    worker_id: str
    is_transient: bool
    reason: str
    kind: Literal["link_stalled"] = "link_stalled"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReported(_Stamp):
    """Progress of an attempt from one of its members; ``elastic`` says that its workers regroup by themselves."""

    attempt_id: str
    step: int
    total_steps: int | None
    samples_per_s: float
    elastic: bool
    split: tuple[tuple[str, int], ...] = ()
    reason: str = ""
    kind: Literal["step_reported"] = "step_reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceChanged(_Stamp):
    """The price of one device of the type, per hour, from now on."""

    accelerator_type: str
    price_per_hour: float
    kind: Literal["price_changed"] = "price_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfigured(_Stamp):
    """The administrator's file from now on: policy and price windows. Fed where it differs from the last one."""

    cluster: Cluster
    kind: Literal["cluster_configured"] = "cluster_configured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(_Stamp):
    """Time passed; retries with back-off, price windows and rounds look at ``at_s``. ``day_s`` is the time of day."""

    day_s: int = 0
    kind: Literal["tick"] = "tick"


Event = (
    JobSubmitted
    | JobCancelled
    | ResizeRequested
    | NodeJoined
    | NodeLost
    | NodeDrained
    | NodeResumed
    | DeviceLost
    | DeviceReturned
    | DeviceTested
    | WorkerStarted
    | WorkerExited
    | FaultInjected
    | LinkStalled
    | StepReported
    | PriceChanged
    | ClusterConfigured
    | Tick
)
