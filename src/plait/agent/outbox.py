"""Reports that the controller has not acknowledged yet; they outlive any number of lost connections."""

from collections import deque
from dataclasses import dataclass, field

from plait.agent.messages import DeviceChecked, LinkStall, WorkerDown, WorkerUp

Report = WorkerUp | WorkerDown | DeviceChecked | LinkStall


@dataclass(slots=True)
class Outbox:
    """Keeps numbered reports in order until they are acknowledged."""

    _kept: deque[Report] = field(default_factory=deque)
    _last_number: int = 0

    def next_number(self) -> int:
        """Returns the number of the next report; numbers rise by 1 from 1."""
        self._last_number += 1
        return self._last_number

    def add(self, report: Report) -> None:
        """Keeps a report whose number came from ``next_number``."""
        self._kept.append(report)

    def acknowledge(self, number: int) -> None:
        """Forgets every report up to and including ``number``."""
        while self._kept and self._kept[0].number <= number:
            self._kept.popleft()

    def pending(self) -> tuple[Report, ...]:
        """Returns what is still unacknowledged, oldest first."""
        return tuple(self._kept)
