"""What an event changed of the scheduler's state, so that recovery decides nothing anew.

A restarted controller must stand exactly where the dead one stood, also when it is of another version of Plait that
would have decided otherwise. So the journal holds, beside each event, the entries of the state that it replaced.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from plait.schedule.state import ClusterState
from plait.wire import Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The step from one state to the next.

    Attributes:
        changed: The next state, whose maps hold only the entries that are new or replaced.
        gone: The keys that left each map, by the name of its field.
    """

    changed: ClusterState
    gone: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


DELTA: Codec[Delta] = Codec(Delta)


def delta_between(before: ClusterState, after: ClusterState) -> Delta:
    """Returns what leads from one state to the other; entries count as the same where they are the same object."""
    values: dict[str, Any] = {}
    gone: dict[str, tuple[str, ...]] = {}
    for name, old, new in _fields(before, after):
        if isinstance(new, Mapping):
            values[name] = {} if new is old else {key: new[key] for key in new if old.get(key) is not new[key]}
            left = () if new is old else tuple(key for key in old if key not in new)
            if left:
                gone[name] = left
        else:
            values[name] = new
    return Delta(changed=ClusterState(**values), gone=gone)


def after_delta(before: ClusterState, delta: Delta) -> ClusterState:
    """Returns the state that the delta leads to."""
    values: dict[str, Any] = {}
    for name, old, new in _fields(before, delta.changed):
        if isinstance(new, Mapping):
            kept = {key: value for key, value in old.items() if key not in delta.gone.get(name, ())}
            values[name] = {**kept, **new}
        else:
            values[name] = new
    return ClusterState(**values)


def _fields(one: ClusterState, other: ClusterState) -> list[tuple[str, Any, Any]]:
    return [(entry.name, getattr(one, entry.name), getattr(other, entry.name)) for entry in fields(ClusterState)]
