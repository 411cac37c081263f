"""What a worker and its agent say to each other: JSON lines over the Unix socket named by ``PLAIT_AGENT``."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A worker's first line: it is elastic and wants to hear of losses."""

    attempt_id: str
    worker_id: str
    kind: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressLine:
    """Where the worker stands."""

    step: int
    total_steps: int | None = None
    samples_per_s: float = 0.0
    loss: float | None = None
    generation: str = ""
    split: tuple[tuple[str, int], ...] = ()
    reason: str = ""
    elastic: bool = True
    device_samples_per_s: float | None = None
    kind: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledLine:
    """The worker waited far longer than usual for others, and links of this host gave no answer."""

    step: int
    waited_s: float
    reason: str
    kind: Literal["stalled"] = "stalled"


FromWorker = Hello | ProgressLine | StalledLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """These workers are dead for sure."""

    lost: tuple[str, ...]
    kind: Literal["lost"] = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Leave the group at the next step boundary, then exit with code 0."""

    kind: Literal["leave"] = "leave"


ToWorker = Lost | Leave
