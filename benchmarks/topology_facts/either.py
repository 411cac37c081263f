"""A fact of which a source itself says several things."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Either:
    """The values that a source which contradicts itself gives; the model lists them as a conflict."""

    values: tuple[object, ...]
