"""What a simulated run of the live machine is set up with: its physics, its jobs and its nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from plait.hardware.device import Device, Node
from plait.schedule import machine
from plait.schedule.state import ClusterState
from plait.sim.beliefs import Beliefs
from plait.sim.jobs import SimJob
from plait.spec.cluster import Cluster, PolicyChoice, PriceWindow, Project, Reservation
from plait.spec.job import DeviceRequest, FailureRules, Job, Resources, Task, WorkerRange

TASK = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """The physics of a run.

    Attributes:
        round_s: Time between the ticks at which policies begin a round.
        is_cyclic: Work is started and moved at rounds only, not at each event: what keeps long traces with thousands of
            open jobs quick.
        restart_s: From the start of an attempt (or a resize) until it makes progress again.
        checkpoint_s: Work since the last multiple of this is lost when an attempt ends early; 0: nothing is.
        node_mtbf_s: Mean time between failures of one node; None: none fails.
        repair_s: How long a failed node stays away.
        prices_per_hour: By type.
        windows: Prices by time of day; the trace begins at ``day_s`` after midnight.
        projects: Weights, quotas and limits by project.
        reservations: Devices kept for projects at times of the day.
        racks: Nodes by rack, for jobs that say where their workers may be.
        price_changes: (seconds from the beginning, type, price) in any order, as of spot markets.
        beliefs: What the policy is told of rates and remaining work.
        seed: Of failures.
        is_checked: Every state is held against the scheduler's own invariants; slow.
        keeps_timeline: Who held what when is kept, for reports and the checker.
    """

    round_s: float = 60.0
    is_cyclic: bool = False
    restart_s: float = 45.0
    checkpoint_s: float = 0.0
    node_mtbf_s: float | None = None
    repair_s: float = 1800.0
    prices_per_hour: Mapping[str, float] = field(default_factory=dict)
    windows: tuple[PriceWindow, ...] = ()
    projects: tuple[Project, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    racks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    price_changes: tuple[tuple[float, str, float], ...] = ()
    day_s: int = 0
    beliefs: Beliefs = field(default_factory=Beliefs)
    seed: int = 0
    is_checked: bool = False
    keeps_timeline: bool = False


def initial_state(options: LiveOptions) -> ClusterState:
    """Returns the state before the first event."""
    choice = PolicyChoice(round_s=options.round_s)
    cluster = Cluster(
        price_windows=options.windows,
        projects=options.projects,
        reservations=options.reservations,
        racks=options.racks,
        policy=choice,
    )
    state = machine.initial(cluster)
    # Nodes join all at once here, and there is nobody to be patient with.
    return replace(state, config=replace(state.config, settle_s=0.0, backoff_base_s=0.0, grace_s=0.0))


def spec_of(job: SimJob) -> Job:
    """Returns the job as it would be submitted to a live controller."""
    fewest, most = job.size_range
    types = job.allowed or tuple(dict.fromkeys(name for c in job.rates for name, _ in c.counts))
    task = Task(
        name=TASK,
        command=("simulated",),
        workers=WorkerRange(min=fewest, max=most),
        resources=Resources(any_of=tuple(DeviceRequest(accelerator=name) for name in types), mix=False),
    )
    return Job(
        name=job.id,
        tasks=(task,),
        project=job.project,
        priority=job.priority,
        failure=FailureRules(max_restarts=1_000_000),
    )


def node_of(name: str, accelerator_type: str, number: int, *, speed: float = 1.0) -> Node:
    """Returns a node for a simulation: so many devices of one type."""
    devices = tuple(
        Device(id=f"{name}/{index}", node=name, index=index, accelerator_type=accelerator_type, speed=speed)
        for index in range(number)
    )
    return Node(id=name, address=f"{name}.sim", devices=devices, num_ports=max(1000, 8 * number))
