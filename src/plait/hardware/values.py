"""A figure with where it came from: no number about hardware travels without its source."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class Source(IntEnum):
    """Where a figure comes from; the higher one is believed when two differ."""

    DEFAULT = 0
    CATALOGUE = 1
    SYSFS = 2
    CLI = 3
    LIBRARY = 4
    USER = 5
    MEASURED = 6


@dataclass(frozen=True, slots=True)
class Value(Generic[T]):
    """A figure, or ``None`` for unknown, with its source.

    Attributes:
        value: The figure in the unit that the field's name states; ``None`` is unknown and never enters arithmetic.
        source: Who says so.
        detail: The command, ``file:line``, catalogue row, or why it is unknown.
        relative_error: Half-width of the error bar over the value, ``None`` where nobody knows.
    """

    value: T | None
    source: Source = Source.DEFAULT
    detail: str = ""
    relative_error: float | None = None


UNKNOWN: Value[float] = Value(None)
