"""Scenario files as they are written: a cluster, jobs, what happens, and what is expected."""

from typing import Annotated, Literal

from pydantic import Field

from plait.spec import fields as f
from plait.spec.cluster_document import ClusterDocument, EmulatedNode
from plait.spec.document import Document
from plait.spec.job_document import JobDocument, Task
from plait.spec.scenario import ConstraintKind


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
