"""Cluster files as they are written."""

from typing import Annotated, Literal

from pydantic import Field

from plait.spec import fields as f
from plait.spec.document import Document


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
