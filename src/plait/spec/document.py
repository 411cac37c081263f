"""The YAML files as they are written: one class a mapping, one attribute a key. The docstrings reach the JSON Schema.

What one key may hold is said here; what several keys say together is checked in ``job_rules`` and ``cluster_rules``.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from plait.spec import fields as f
from plait.spec.job import Precision
from plait.spec.scenario import ConstraintKind

ReducePrecision = Literal["fp64", "fp32", "bf16", "fp16"]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Document(BaseModel):
    """A mapping of a YAML file; other keys than its own are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)


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


class Policy(Document):
    """Who runs next, and where."""

    name: f.Word = "fifo_backfill"
    """Published name of the policy."""
    weights: dict[f.Text, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Weight of each goal, for policies that have several; they sum to 1."""
    round: f.Duration = 60.0
    """Time between two decisions that may move running tasks."""


class PriceWindow(Document):
    """A part of the day, with its prices."""

    name: f.Name
    """Name that ``run_during`` of a task refers to."""
    from_: Annotated[f.TimeOfDay, Field(alias="from")]
    """Start, in quotes."""
    to: f.TimeOfDay
    """End, in quotes; before ``from`` where the window goes over midnight."""
    price_per_hour: dict[f.Accelerator, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Price of one device for one hour, by accelerator type, in one currency of your choice."""


class Link(Document):
    """The network of an emulated node."""

    up: f.Rate | None = None
    """Rate that the node sends at; open where left out."""
    down: f.Rate | None = None
    """Rate that it receives at; open where left out."""


class EmulatedNode(Document):
    """A node that the local engine makes on this machine."""

    name: f.NodeName
    """Name of the node."""
    accelerator: f.Accelerator
    """Type that its devices play."""
    slots: Annotated[int, Field(ge=1, le=1024)] = 1
    """How many devices it has; they share its cores evenly."""
    memory: f.Size | None = None
    """Memory of each device; the smallest that its type is sold with where left out."""
    cpu_quota: f.Cores | None = None
    """CPU cores that the node may use, such as 0.5; all where left out."""
    link: Link = Field(default_factory=Link)
    """Its network."""


class Monitor(Document):
    """Where the controller serves its figures, and how often it takes them."""

    listen: f.Listen = "127.0.0.1:9400"
    """Address and port."""
    sample_interval: f.Duration = 5.0
    """Time between two samples."""


class Project(Document):
    """What the jobs of a project may count on together."""

    name: f.Name
    """Name that ``project`` of a job refers to."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Its part of what nobody is guaranteed, against the other projects that want it."""
    quota: dict[f.Accelerator, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    """Devices that it is guaranteed, by accelerator type; others may use them while they are idle."""
    limit: dict[f.Accelerator, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    """The most devices that it may hold, by accelerator type; types left out are not limited."""


class Reservation(Document):
    """Devices kept for one project, every day."""

    name: f.Name
    """Name of the reservation."""
    project: f.Name
    """Project whose jobs may use the devices meanwhile."""
    from_: Annotated[f.TimeOfDay, Field(alias="from")]
    """Start, in quotes."""
    to: f.TimeOfDay
    """End, in quotes; before ``from`` where it goes over midnight."""
    devices: Annotated[dict[f.Accelerator, Annotated[int, Field(ge=1)]], Field(min_length=1)]
    """Devices that are kept, by accelerator type."""


class Quarantine(Document):
    """When a device that failed gets no work, and how it comes back."""

    faults: Annotated[int, Field(ge=1, le=1000)] = 3
    """So many faults within ``window`` quarantine a device; one that evidence says is lasting does so alone."""
    window: f.Duration = 3600.0
    """Faults further apart do not count together; so long after its test a device is watched."""
    cool_down: f.Duration = 600.0
    """Time before a quarantined device is tested; doubled after a test that failed and for a device that is watched."""
    longest: f.Duration = 86400.0
    """The longest time between two tests."""
    test_limit: f.Duration = 60.0
    """Time that a test may take; a device that gives no answer has failed it."""


class ClusterDocument(Document):
    """A cluster: where devices come from, who decides, what they cost."""

    api_version: Annotated[Literal["v1"], Field(alias="apiVersion")]
    """Version of this format."""
    engine: Literal["local", "slurm", "ray", "kubernetes"] = "local"
    """What starts agents on nodes."""
    nodes: list[EmulatedNode] = Field(default_factory=list)
    """Nodes that the local engine emulates; this machine as it is where left out."""
    policy: Policy = Field(default_factory=Policy)
    """Who runs next, and where."""
    price_windows: list[PriceWindow] = Field(default_factory=list)
    """Parts of the day with their prices; they do not overlap."""
    projects: list[Project] = Field(default_factory=list)
    """Weights, quotas and limits of projects; those left out have weight 1, no quota and no limit."""
    racks: dict[f.Name, Annotated[list[f.NodeName], Field(min_length=1)]] = Field(default_factory=dict)
    """Nodes by rack; a node that is in none is a rack of its own."""
    reservations: list[Reservation] = Field(default_factory=list)
    """Devices kept for projects at times of the day."""
    quarantine: Quarantine = Field(default_factory=Quarantine)
    """When a device that failed gets no work, and how it comes back."""
    drills: bool = False
    """Whether ``plait inject`` may do faults to running jobs."""
    store: f.StoreUrl = "sqlite:///plait-state.db"
    """Where the controller keeps its state."""
    monitor: Monitor = Field(default_factory=Monitor)
    """Figures of the running cluster."""


class ScenarioTask(Task):
    """A task of a scenario: as in a job file, but nothing is run, so that it needs no command."""

    command: f.Command = Field(default_factory=lambda: ["true"])
    """Program and arguments; of no meaning here."""
    elastic: bool = False
    """Whether its workers regroup by themselves, so that it can be resized while it runs."""


class ScenarioJob(JobDocument):
    """A job of a scenario: as in a job file, with the time of its submission."""

    api_version: Annotated[Literal["v1"], Field(alias="apiVersion")] = "v1"
    """Version of this format."""
    ago: f.Duration | None = None
    """How long before ``time`` it was submitted; just now where left out."""
    tasks: Annotated[list[ScenarioTask], Field(min_length=1)]  # type: ignore[assignment]
    """Steps of the job."""


class ScenarioCluster(ClusterDocument):
    """The cluster of a scenario: as in a cluster file; its nodes are taken to be there."""

    api_version: Annotated[Literal["v1"], Field(alias="apiVersion")] = "v1"
    """Version of this format."""
    nodes: Annotated[list[EmulatedNode], Field(min_length=1)]
    """Nodes of the cluster."""


class ScenarioEvent(Document):
    """Something that happened before ``time``; one thing an entry."""

    ago: f.Duration | None = None
    """How long before ``time``; just now where left out."""
    drain: f.NodeName | None = None
    """This node was drained."""
    resume: f.NodeName | None = None
    """This node was taken back."""
    lose: f.NodeName | None = None
    """This node was lost."""
    finish: f.Text | None = None
    """JOB or JOB/TASK succeeded, if it ran."""
    fail: f.Text | None = None
    """JOB or JOB/TASK was lost to a signal, if it ran."""
    cancel: f.Name | None = None
    """This job was cancelled."""
    price: dict[f.Accelerator, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """These prices per device and hour were announced; they override price windows."""


class ScenarioExpectation(Document):
    """What is expected of one waiting task."""

    job: f.Name
    """Name of the job."""
    task: f.Name | None = None
    """Name of the task; the job's only one where left out."""
    constraint: ConstraintKind
    """The binding constraint."""
    starts_in: f.Duration | None = None
    """How long after ``time`` it should be expected to start; not looked at where left out."""


class ScenarioDocument(Document):
    """A moment of a cluster that exists on paper, to ask why jobs wait."""

    api_version: Annotated[Literal["v1"], Field(alias="apiVersion")]
    """Version of this format."""
    name: f.Name
    """Name of the scenario."""
    cluster: ScenarioCluster
    """Nodes, policy, projects, prices, reservations."""
    time: f.TimeOfDay = 0
    """Time of day of the moment, in quotes; midnight where left out."""
    jobs: Annotated[list[ScenarioJob], Field(min_length=1)]
    """Jobs, in the order of their submission."""
    events: list[ScenarioEvent] = Field(default_factory=list)
    """What else happened before."""
    expect: list[ScenarioExpectation] = Field(default_factory=list)
    """What waiting tasks are expected to wait for."""
