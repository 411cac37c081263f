"""Job files as they are written."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from plait.spec import fields as f
from plait.spec.document import Count, Document
from plait.spec.job import Precision

ReducePrecision = Literal["fp64", "fp32", "bf16", "fp16"]


class Workers(Document):
    """How many workers a task may run with."""

    min: Count = 1
    """Fewest workers that the task makes sense with; it waits for that many devices."""
    max: Count | None = None
    """Most workers that it can use; the same as ``min`` where left out."""


class DeviceRequest(Document):
    """One kind of device that a worker may run on."""

    accelerator: f.Accelerator
    """Accelerator type, as its vendor writes it."""
    memory: f.Size | None = None
    """Memory that a device must have at least."""
    count: Count = 1
    """Devices of this type for each worker."""


class Resources(Document):
    """Devices that a task may use."""

    any_of: Annotated[list[DeviceRequest], Field(min_length=1)] | None = None
    """Kinds of device, any of which will do; every kind where left out."""
    mix: bool = True
    """Whether one task may span several kinds; with ``false`` all its workers get one kind."""


class Placement(Document):
    """Where the workers of a task may be, relative to each other."""

    within: Literal["node", "rack"] | None = None
    """All workers are on one node, or on the nodes of one rack; anywhere where left out."""
    at_most: Count | None = None
    """Most workers in one fault domain, so that its loss costs no more."""
    per: Literal["node", "rack"] = "node"
    """The fault domain that ``at_most`` counts and ``spread`` fills evenly."""
    strategy: Literal["pack", "spread"] = "pack"
    """Whether as few nodes as possible are used, or workers are spread over the fault domains."""


class Task(Document):
    """One step of a job."""

    name: f.Name
    """Name within the job."""
    command: f.Command
    """Program and arguments of every worker, as a list; no shell reads it."""
    needs: list[f.Text] = Field(default_factory=list)
    """Tasks that must have succeeded before this one starts."""
    workers: Annotated[Workers, f.WORKERS] = Field(default_factory=Workers)
    """Range that the task may shrink and grow in."""
    resources: Resources = Field(default_factory=Resources)
    """Devices that it may use."""
    run_during: f.Name | None = None
    """A window of the cluster's ``price_windows``; the task starts only within it."""
    placement: Placement = Field(default_factory=Placement)
    """Where its workers may be, relative to each other."""
    expected_runtime: f.Duration | None = None
    """How long it will probably run, for forecasts and reservations; nothing is stopped when it is over."""
    max_price_per_hour: Annotated[float, Field(gt=0)] | None = None
    """Most that one device may cost; the task waits, shrinks or stops while all that it could use cost more."""
    env: dict[f.EnvironmentName, f.Text] = Field(default_factory=dict)
    """Environment variables of every worker."""
    working_directory: f.FilePath | None = None
    """Directory that workers start in; where the job was submitted from, if left out."""


class DevicePrecision(Document):
    """What devices of one accelerator type compute in."""

    type: f.Accelerator
    """Accelerator type."""
    precision: Precision
    """Type that these devices compute in."""
    custom_ops: list[f.CustomOp] = Field(default_factory=list)
    """Operators to replace by the device's own kernels."""


class PrecisionPlan(Document):
    """What devices compute in, and what their gradients meet in."""

    global_: Annotated[Precision, Field(alias="global")] = "fp32"
    """Type that every device computes in which has no entry of its own."""
    device_specific: list[DevicePrecision] = Field(default_factory=list)
    """Entries for single accelerator types."""
    reduce: ReducePrecision = "fp32"
    """Type that gradients meet in, whatever each device computes in."""


class Compression(Document):
    """How gradients are made smaller on the wire."""

    algorithm: Literal["none", "fp16", "onebit_adam", "powersgd", "topk"] = "none"
    """Published name of the algorithm."""
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """Steps that travel uncompressed at first."""


class Communication(Document):
    """How gradients travel between workers."""

    compression: Compression = Field(default_factory=Compression)
    """How they are made smaller."""
    overlap: bool = True
    """Whether they travel while the backward pass still runs."""
    bucket_size: f.Size = 25 * 2**20
    """Gradients that travel together."""
    timeout: f.Duration = 60.0
    """Time after which an exchange counts as stuck."""
    measure: Literal["auto", "now", "never"] = "auto"
    """When a session measures its network to choose by which ways gradients travel: where it pays, soon, or never."""


class Batching(Document):
    """How a global step is cut and dealt."""

    global_batch_size: Annotated[int, Field(ge=1, le=1_000_000_000)]
    """Samples of one step over all devices; it never changes with the number of workers."""
    micro_batches: Count | None = None
    """Equal pieces a step is cut into (K); Plait chooses where left out. It must divide ``global_batch_size``."""
    split: Literal["even", "by_throughput"] = "by_throughput"
    """Whether devices get equal shares, or shares by their measured speed."""
    learning_rate: Literal["none", "linear", "sqrt", "adascale"] = "none"
    """Rule that scales the learning rate when the program itself changes the global batch."""
    bitwise: bool = False
    """Whether any split must give bit for bit the same weights; slower."""


class LocalCheckpoints(Document):
    """Checkpoints on a disk of the node that trains, in front of those under ``url``."""

    path: f.FilePath
    """Directory on a local disk, an absolute path; several jobs may share it."""
    interval: f.Duration = 60.0
    """Time between two of them."""
    keep: Count = 2
    """How many of the last ones are kept."""


class PeerCopies(Document):
    """Copies of the training state in the memory of another node."""

    interval: f.Duration = 60.0
    """Time between two of them."""


class Checkpoint(Document):
    """Durable copies of the training state."""

    interval: f.Interval = 300.0
    """Time between two checkpoints; ``auto`` follows what one costs and how often something fails."""
    url: f.CheckpointUrl
    """Where they lie: an object store or a directory."""
    async_: Annotated[bool, Field(alias="async")] = True
    """Whether training goes on while one is written."""
    keep: Count = 3
    """How many of the last ones are kept."""
    keep_every: Count | None = None
    """Besides, the first one at or after each multiple of so many steps is kept for good; none where left out."""
    keep_best: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Besides, so many with the lowest score, as the program tells by ``run.score()``."""
    bandwidth: f.Rate | None = None
    """The most that is sent to ``url`` on average; no bound where left out."""
    local: LocalCheckpoints | None = None
    """Checkpoints on a disk of the node too, more often; none where left out."""
    peer: PeerCopies | None = None
    """Copies in the memory of another node; none where left out."""


class Heartbeat(Document):
    """How soon a dead or frozen worker is noticed."""

    interval: f.Duration = 0.2
    """Time between two signs of life."""
    timeout: f.Duration = 1.0
    """Silence after which a worker counts as lost; more than ``interval``."""


class Failure(Document):
    """What happens when something breaks, by cause."""

    max_restarts: Annotated[int, Field(ge=0, le=1_000_000)] = 10
    """How often one task may start again."""
    oom: Literal["shrink_microbatch", "restart", "fail"] = "shrink_microbatch"
    """When a device runs out of memory."""
    device_fault: Literal["drop_device", "restart", "fail"] = "drop_device"
    """When a device breaks."""
    network: Literal["wait", "restart", "fail"] = "wait"
    """When workers cannot reach each other."""
    heartbeat: Heartbeat = Field(default_factory=Heartbeat)
    """How soon a loss is noticed."""


class CacheTier(Document):
    """One tier of the data cache."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                {"if": {"properties": {"tier": {"const": "device"}}}, "then": {"required": ["size"]}},
                {"if": {"properties": {"tier": {"const": "nvme"}}}, "then": {"required": ["path", "size"]}},
                {"if": {"properties": {"tier": {"const": "shared"}}}, "then": {"required": ["path"]}},
            ]
        }
    )

    tier: Literal["device", "nvme", "shared"]
    """Where this tier lies: in device memory, on a local disk, or on a file system that all nodes share."""
    path: f.FilePath | None = None
    """Directory of the tier; ``nvme`` and ``shared`` need it."""
    size: f.Size | None = None
    """Most that it may hold; ``device`` and ``nvme`` need it."""


class Prefetch(Document):
    """What is read ahead of the program."""

    predictor: Literal["none", "sequential", "markov", "lstm"] = "sequential"
    """How the next samples are guessed."""
    depth: Annotated[int, Field(ge=0, le=1_000_000)] = 16
    """How many samples ahead."""


class Data(Document):
    """Where samples come from."""

    source: f.SourceUrl
    """The data set: an object store, a web address or a directory."""
    cache: list[CacheTier] = Field(default_factory=list)
    """Tiers, fastest first."""
    prefetch: Prefetch = Field(default_factory=Prefetch)
    """What is read ahead."""
    workers: f.LoaderWorkers = "auto"
    """Processes that load data for each worker."""


class JobDocument(Document):
    """A job: a graph of tasks, with rules that hold for all of them."""

    api_version: Annotated[Literal["v1"], Field(alias="apiVersion")]
    """Version of this format."""
    name: f.Name
    """Name of the job."""
    project: f.Name = "default"
    """The unit that fairness is counted in."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    """Jobs of a higher priority go first."""
    deadline: f.Duration | None = None
    """When it should be done, counted from its submission; for policies that weigh deadlines."""
    tasks: Annotated[list[Task], Field(min_length=1)]
    """Steps of the job; one task is the common case."""
    precision: PrecisionPlan = Field(default_factory=PrecisionPlan)
    """What devices compute in."""
    communication: Communication = Field(default_factory=Communication)
    """How gradients travel."""
    batching: Batching | None = None
    """How a global step is cut and dealt."""
    checkpoint: Checkpoint | None = None
    """Durable copies of the training state; none where left out."""
    failure: Failure = Field(default_factory=Failure)
    """What happens when something breaks."""
    data: Data | None = None
    """Where samples come from, if Plait is to cache and prefetch them."""
