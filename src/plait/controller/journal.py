"""What the controller writes down: one record an event, with the commands it led to and where it came from."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Discriminator

from plait.schedule.commands import Command
from plait.schedule.events import Event
from plait.wire import Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A person's submission: the same ``request_id`` always means the same job, also after a restart."""

    request_id: str
    directory: str
    digest: str
    kind: Literal["submission"] = "submission"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """An agent process took up its node; every worker of an earlier process of that node is dead."""

    incarnation: str
    kind: Literal["registration"] = "registration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The event stands for report ``number`` of this agent process, which must not count twice."""

    incarnation: str
    number: int
    kind: Literal["report"] = "report"


Note = Submission | Registration | Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line of the journal.

    The commands are kept beside the event: what was once decided is carried out as it was decided.
    """

    event: Annotated[Event, Discriminator("kind")]
    commands: tuple[Annotated[Command, Discriminator("kind")], ...] = ()
    note: Annotated[Note, Discriminator("kind")] | None = None


RECORD: Codec[Record] = Codec(Record)
