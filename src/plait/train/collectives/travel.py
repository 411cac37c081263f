"""How long a step's exchanges were under way, as one member saw it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Timed(Protocol):
    """A work that knows what it carries and when.

    Attributes:
        codec: The name of what crosses between islands.
        size_bytes: Of the values in fp32.
        begun_s: When it began, by the monotonic clock.
        over_s: When its result was in place; ``None`` while it is under way.
    """

    codec: str
    size_bytes: int
    begun_s: float
    over_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Travel:
    """What the exchanges of one step carried.

    Attributes:
        codec: Of all of them.
        sizes_bytes: Of each, of its values in fp32.
        seconds: How long at least one of them was under way.
    """

    codec: str
    sizes_bytes: tuple[int, ...]
    seconds: float


def travel_of(works: Sequence[Any]) -> Travel | None:
    """Returns what exchanges that are over carried; ``None`` where none was timed, or they went in several codecs."""
    timed = [work for work in works if isinstance(work, Timed)]
    codecs = {work.codec for work in timed}
    if len(codecs) != 1:
        return None
    seconds, until_s = 0.0, 0.0
    for work in sorted(timed, key=lambda work: work.begun_s):
        if work.over_s is None:
            return None
        seconds += max(0.0, work.over_s - max(work.begun_s, until_s))
        until_s = max(until_s, work.over_s)
    return Travel(codec=codecs.pop(), sizes_bytes=tuple(work.size_bytes for work in timed), seconds=seconds)


class TimedBackEnd:
    """A sum by the back end; its end is when its owner sees it."""

    codec = "fp32"

    def __init__(self, work: Any, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.begun_s = time.monotonic()
        self.over_s: float | None = None
        self._work = work

    def is_completed(self) -> bool:
        """Whether the result is in place, or never will be."""
        is_completed = bool(self._work.is_completed())
        if is_completed and self.over_s is None:
            self.over_s = time.monotonic()
        return is_completed

    def wait(self, timeout: timedelta | None = None) -> None:
        """Waits until the result is in place.

        Raises:
            RuntimeError: The group broke, or the time is over.
        """
        self._work.wait() if timeout is None else self._work.wait(timeout)
        if self.over_s is None:
            self.over_s = time.monotonic()
