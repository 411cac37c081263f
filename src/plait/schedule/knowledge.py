"""What is known of tasks beyond their files: rates, remaining work, deadlines; a planner or a simulator tells it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from plait.schedule.domain import TaskKey
from plait.schedule.policy import Configuration, Rate
from plait.schedule.state import ClusterState


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of one task now; the fields are those of ``TaskView``, None where nobody knows."""

    rates: Mapping[Configuration, Rate] = field(default_factory=dict)
    remaining_work: float | None = None
    done_work: float | None = None
    restart_cost_s: float | None = None
    weight: float = 1.0
    deadline_at_s: float | None = None


NOTHING_KNOWN = Known()


class Knowledge(Protocol):
    """Answers what is known of a task. It must answer the same for the same state, so that runs can be replayed."""

    def of(self, state: ClusterState, key: TaskKey) -> Known:
        """Returns what is known of this open task."""
        ...
