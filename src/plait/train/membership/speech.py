"""What members say to one another, what happens to them, and what they do: the values of the protocol."""

from dataclasses import dataclass
from typing import NamedTuple


class Ballot(NamedTuple):
    """Orders proposals; also names the generation that one becomes."""

    number: int
    proposer: str

    def __str__(self) -> str:
        return f"{self.number}.{self.proposer}"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A ballot and the members it names, sorted."""

    ballot: Ballot
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A stopped worker's word: ``applied`` steps (None: it has no state yet), the reduced gradient it ``held``.

    ``payload`` is the worker's own JSON (its share of the current step, its last vote); the protocol only carries it.
    """

    applied: int | None
    held: bool = False
    payload: str = ""


# What members say to one another.


@dataclass(frozen=True, slots=True)
class Prepare:
    """The proposer asks these members to go on together; ``leaving`` ones are asked to report only."""

    ballot: Ballot
    members: tuple[str, ...]
    leaving: tuple[str, ...]
    gone: frozenset[str]


@dataclass(frozen=True, slots=True)
class Accept:
    """The sender has stopped its worker and promises nothing more in its old generation."""

    ballot: Ballot
    report: Report


@dataclass(frozen=True, slots=True)
class Refuse:
    """``installed`` tells a proposer that was left out what the group has become; ``seen`` lets it outbid.

    ``gone`` is whom the sender knew to be dead: more news may give the same members a quorum.
    """

    ballot: Ballot
    seen: Ballot
    installed: Proposal | None
    gone: frozenset[str]


@dataclass(frozen=True, slots=True)
class Install:
    """Every member has accepted; these are their reports."""

    ballot: Ballot
    members: tuple[str, ...]
    reports: tuple[tuple[str, Report], ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """These can never act again (their process is dead) or have left; first-hand knowledge, passed on."""

    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class Complaint:
    """The sender cannot hear ``silent``, or (None) its exchange in the generation ``ballot`` failed."""

    ballot: Ballot
    silent: str | None


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The sender hears this member again: what it complained of it holds no more."""

    ballot: Ballot
    member: str


@dataclass(frozen=True, slots=True)
class JoinAsk:
    """The sender wants in and has live connections to ``reaches``."""

    reaches: frozenset[str]


@dataclass(frozen=True, slots=True)
class LeaveAsk:
    """The sender's worker wants to leave and has stopped at a step boundary."""


@dataclass(frozen=True, slots=True)
class Done:
    """The sender's worker has committed the last step of the run."""


Message = Prepare | Accept | Refuse | Install | Gone | Complaint | Withdrawn | JoinAsk | LeaveAsk | Done

# What happens at this member.


@dataclass(frozen=True, slots=True)
class Heard:
    """A live connection to the member exists (again)."""

    member: str


@dataclass(frozen=True, slots=True)
class Silent:
    """Nothing was heard from the member for the heartbeat time-out."""

    member: str


@dataclass(frozen=True, slots=True)
class Died:
    """The member's process is gone for sure."""

    member: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The worker has stopped at a safe point, promises nothing more in its generation, and reports."""

    report: Report


@dataclass(frozen=True, slots=True)
class ExchangeFailed:
    """The worker's exchange broke; it has stopped as well."""

    report: Report


@dataclass(frozen=True, slots=True)
class WantsToLeave:
    """The worker wants to leave; it has stopped at a step boundary."""

    report: Report


@dataclass(frozen=True, slots=True)
class Finished:
    """The worker has committed the last step; it still answers."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message came in."""

    sender: str
    message: Message


Input = Heard | Silent | Died | Stopped | ExchangeFailed | WantsToLeave | Finished | Received

# What this member does.


@dataclass(frozen=True, slots=True)
class Send:
    """Sends a message."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Ask the worker to stop at its next safe point and report."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """The worker goes on in this generation; it decides from the reports what it has to do first."""

    ballot: Ballot
    members: tuple[str, ...]
    reports: tuple[tuple[str, Report], ...]


@dataclass(frozen=True, slots=True)
class Expelled:
    """The group went on without this member; only a new member may join it."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Released:
    """The group has taken note that this worker leaves; its process may end."""


@dataclass(frozen=True, slots=True)
class AllDone:
    """Every member has committed the last step; processes may end."""


Output = Send | StopWorker | GoOn | Expelled | Released | AllDone
