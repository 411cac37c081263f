"""What a job is, as frozen values: the domain side of ``job.yaml``."""

from dataclasses import dataclass, field
from typing import Literal

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
FailureCause = Literal["oom", "network", "device_fault", "user", "lost", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRange:
    """Elastic range of a task: it runs with any number of workers from ``min`` to ``max``."""

    min: int = 1
    max: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """One kind of device that a worker may run on; ``count`` devices of it for each worker."""

    accelerator: str
    memory_bytes: int | None = None
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Kinds of device that a task may use; with ``mix`` one task may span several of them."""

    any_of: tuple[DeviceRequest, ...] = ()
    mix: bool = True


Domain = Literal["node", "rack"]
"""A node, or the nodes of a rack, which fail and are reached together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRules:
    """Where the workers of a gang may be, relative to each other.

    Attributes:
        within: All workers are within one of these; None: anywhere.
        at_most: So many workers are in one ``per`` at most, so that its loss costs no more; None: no bound.
        per: The fault domain that ``at_most`` counts and that ``spread`` fills evenly.
        strategy: ``pack`` on as few nodes as hold them, or ``spread`` over as many domains as there are.
    """

    within: Domain | None = None
    at_most: int | None = None
    per: Domain = "node"
    strategy: Literal["pack", "spread"] = "pack"

    @property
    def is_plain(self) -> bool:
        """Whether nothing is asked for, so that the gang goes on as few nodes as hold it, anywhere."""
        return self.within is None and self.at_most is None and self.strategy == "pack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One vertex of a job's DAG. ``needs`` names the tasks that must have succeeded before it starts.

    ``expected_runtime_s`` is what its user expects; nothing is stopped when it is over. ``max_price_per_hour`` is the
    most that one of its devices may cost.
    """

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    workers: WorkerRange = field(default_factory=WorkerRange)
    resources: Resources = field(default_factory=Resources)
    run_during: str | None = None
    placement: PlacementRules = field(default_factory=PlacementRules)
    expected_runtime_s: float | None = None
    max_price_per_hour: float | None = None
    environment: tuple[tuple[str, str], ...] = ()
    working_directory: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePrecision:
    """The type that devices of one accelerator type compute in, and the operators replaced there."""

    accelerator_type: str
    precision: Precision
    custom_ops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionPlan:
    """Each device computes in its own type; gradients meet in ``reduce``."""

    global_precision: Precision = "fp32"
    device_specific: tuple[DevicePrecision, ...] = ()
    reduce: Precision = "fp32"

    def of(self, accelerator_type: str) -> DevicePrecision:
        """Returns the entry of this accelerator type, or the global one."""
        for entry in self.device_specific:
            if entry.accelerator_type == accelerator_type:
                return entry
        return DevicePrecision(accelerator_type=accelerator_type, precision=self.global_precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """How gradients travel; sessions refuse ``powersgd``."""

    compression: Literal["none", "fp16", "onebit_adam", "powersgd", "topk"] = "none"
    warmup_steps: int = 0
    overlap: bool = True
    bucket_bytes: int = 25 * 2**20
    timeout_s: float = 60.0
    measure: Literal["auto", "now", "never"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """A global step is ``micro_batches`` (K) micro-batches of ``global_batch_size / micro_batches`` samples."""

    global_batch_size: int
    micro_batches: int | None = None
    split: Literal["even", "by_throughput"] = "by_throughput"
    learning_rate: Literal["none", "linear", "sqrt", "adascale"] = "none"
    bitwise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTier:
    """Checkpoints on a disk of the node under ``path``, every ``interval_s`` seconds; the last ``keep`` are kept."""

    path: str
    interval_s: float = 60.0
    keep: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A durable checkpoint every ``interval_s`` seconds under ``url``; the last ``keep`` are kept.

    Attributes:
        url: Where they lie.
        interval_s: Time between two; a guess where ``is_automatic``.
        asynchronous: Whether training goes on while one is written.
        keep: How many are kept.
        keep_every_steps: The first at or after each multiple of so many steps is kept for good; None for none.
        keep_best: So many with the lowest score are kept too.
        bytes_per_s: The most that is sent to ``url`` on average; None for no bound.
        is_automatic: Whether the interval follows what saves cost and how often something fails.
        local: Checkpoints on a disk of the node, in front of those under ``url``.
        peer_interval_s: Time between two copies in the memory of another node; None for no copies.
    """

    url: str
    interval_s: float = 300.0
    asynchronous: bool = True
    keep: int = 3
    keep_every_steps: int | None = None
    keep_best: int = 0
    bytes_per_s: float | None = None
    is_automatic: bool = False
    local: LocalTier | None = None
    peer_interval_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRules:
    """What happens by cause. ``heartbeat_*`` are those between workers and between agents and the controller."""

    max_restarts: int = 10
    oom: Literal["shrink_microbatch", "restart", "fail"] = "shrink_microbatch"
    device_fault: Literal["drop_device", "restart", "fail"] = "drop_device"
    network: Literal["wait", "restart", "fail"] = "wait"
    heartbeat_interval_s: float = 0.2
    heartbeat_timeout_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTier:
    """One tier of the data cache; ``size_bytes`` may be open for the shared tier."""

    tier: Literal["device", "nvme", "shared"]
    path: str | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """Where samples come from and how they are cached and prefetched."""

    source: str
    cache: tuple[CacheTier, ...] = ()
    predictor: Literal["none", "sequential", "markov", "lstm"] = "sequential"
    depth: int = 16
    workers: int | Literal["auto"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A DAG of tasks with the rules that hold for all of them. ``deadline_s`` counts from the submission."""

    name: str
    tasks: tuple[Task, ...]
    project: str = "default"
    priority: int = 0
    deadline_s: float | None = None
    precision: PrecisionPlan = field(default_factory=PrecisionPlan)
    communication: Communication = field(default_factory=Communication)
    batching: Batching | None = None
    checkpoint: Checkpoint | None = None
    failure: FailureRules = field(default_factory=FailureRules)
    data: DataSpec | None = None

    def task(self, name: str) -> Task:
        """Returns the task of this name; raises ``KeyError`` where there is none."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise KeyError(name)
