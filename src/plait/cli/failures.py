"""What a verb may fail with, and the exit code that each failure has."""

from collections.abc import Iterable

from plait.errors import ControllerUnreachable, PlacementImpossible, PlaitError, SpecError
from plait.words import did_you_mean

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
UNKNOWN = 4
INTERRUPTED = 130
_OF_HTTP_STATUS: dict[int | None, int] = {400: USAGE, 404: UNKNOWN, 422: USAGE}
"""Exit codes of what the controller refuses; read by attribute, as its client loads slowly."""


class UnknownName(PlaitError):
    """A job, task, worker or node that the controller does not know."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """Returns the error for a ``kind`` (job, node, ...) called ``name``, with the nearest right word if one is near."""
    names = sorted(known)
    hint = did_you_mean(name, names)
    if hint:
        return UnknownName(f"there is no {kind} {name!r}{hint}")
    if not names:
        return UnknownName(f"there is no {kind} {name!r}; there are none at all")
    return UnknownName(f"there is no {kind} {name!r}; there are {', '.join(names[:8])}{' ...' if names[8:] else ''}")


def exit_code_of(error: PlaitError) -> int:
    """Returns the exit code of a verb that ended with this error."""
    if isinstance(error, UnknownName):
        return UNKNOWN
    if isinstance(error, ControllerUnreachable):
        return UNREACHABLE
    if isinstance(error, (SpecError, PlacementImpossible)):
        return USAGE
    return _OF_HTTP_STATUS.get(getattr(error, "status", None), FAILED)
