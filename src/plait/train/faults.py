"""Faults with coordinates: ``PLAIT_FAULTS="kill w1@40; freeze w2@60:exchange"`` strikes that member at that step."""

import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from plait.errors import PlaitError
from plait.words import nearest

Deed = Literal["kill", "freeze", "exit", "oom", "error", "reset"]
Point = Literal["start", "compute", "exchange", "commit"]
DEEDS: tuple[Deed, ...] = ("kill", "freeze", "exit", "oom", "error", "reset")
POINTS: tuple[Point, ...] = ("start", "compute", "exchange", "commit")
_FORM = re.compile(r"(\w+)\s+(\S+)@(\d+)(?::(\w+))?")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what is done to which member, at the given point of a global step."""

    deed: Deed
    member: str
    step: int
    point: Point = "start"

    def strike(self, reset: Callable[[], None]) -> None:
        """Does it to this process; ``reset`` breaks one of its connections."""
        match self.deed:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "exit":
                os._exit(77)
            case "oom":
                raise MemoryError(f"injected at step {self.step}")
            case "error":
                raise RuntimeError(f"injected at step {self.step}")
            case "reset":
                reset()


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Reads the faults of ``PLAIT_FAULTS``.

    Raises:
        PlaitError: an entry has another form, or an unknown deed or point.
    """
    faults = []
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        match = _FORM.fullmatch(entry)
        if match is None:
            raise PlaitError(f"PLAIT_FAULTS has {entry!r}; expected a form such as 'kill w1@40' or 'kill w1@40:commit'")
        deed, member, step, point = match.groups()
        faults.append(Fault(_one_of(deed, DEEDS), member, int(step), _one_of(point or "start", POINTS)))
    return tuple(faults)


T = TypeVar("T", bound=str)


def _one_of(word: str, known: tuple[T, ...]) -> T:
    for candidate in known:
        if candidate == word:
            return candidate
    near = nearest(word, known)
    hint = f"; did you mean {near!r}?" if near else f"; known are {', '.join(known)}"
    raise PlaitError(f"PLAIT_FAULTS has the word {word!r}{hint}")


class FaultInjector:
    """Strikes each fault of one member once."""

    def __init__(self, member: str, text: str) -> None:
        self.reset: Callable[[], None] = lambda: None
        """Breaks a connection to another member; whoever has connections sets it."""
        self._faults = [fault for fault in parse_faults(text) if fault.member == member]

    def reach(self, step: int, point: Point) -> None:
        """Says that this member has come to a point of a step."""
        for fault in list(self._faults):
            if fault.step == step and fault.point == point:
                self._faults.remove(fault)
                fault.strike(self.reset)
