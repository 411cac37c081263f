"""Price windows: when a task with ``run_during`` may start, and what a device costs now."""

from collections.abc import Mapping

from plait.schedule.state import ClusterState
from plait.spec.cluster import PriceWindow, Reservation
from plait.words import did_you_mean

DAY_S = 86400


def is_open(window: PriceWindow | Reservation, day_s: float) -> bool:
    """Says whether the window or reservation holds at ``day_s`` seconds after midnight.

    One that ends where it starts always does.
    """
    if window.from_s < window.to_s:
        return window.from_s <= day_s < window.to_s
    return day_s >= window.from_s or day_s < window.to_s


def closed_reason(state: ClusterState, name: str | None) -> str | None:
    """Returns why a task that wants to run during window ``name`` may not start now, or None where it may."""
    if name is None:
        return None
    windows = [window for window in state.config.windows if window.name == name]
    if not windows:
        return _unknown(state, name)
    day_s = state.day_s()
    if day_s is None:
        return f"waits for price window {name!r}; the time of day is not known yet"
    if any(is_open(window, day_s) for window in windows):
        return None
    wait_s = min((window.from_s - day_s) % DAY_S for window in windows)
    opens_s = (day_s + wait_s) % DAY_S
    clock = f"{int(opens_s // 3600):02d}:{int(opens_s % 3600 // 60):02d}"
    return f"waits for price window {name!r}, which opens at {clock}"


def _unknown(state: ClusterState, name: str) -> str:
    known = sorted({window.name for window in state.config.windows})
    hint = did_you_mean(name, known) or (f"; there are {', '.join(known)}" if known else "; it has none")
    return f"waits for price window {name!r}, which the cluster does not have{hint}"


def prices(state: ClusterState) -> Mapping[str, float]:
    """Returns the price per device and hour by type: that of the open windows, overridden by announced prices."""
    day_s = state.day_s()
    current: dict[str, float] = {}
    for window in state.config.windows:
        if day_s is not None and is_open(window, day_s):
            current.update(window.price_per_hour)
    return {**current, **state.prices_per_hour}


def price_at(state: ClusterState, name: str, day_s: float) -> float | None:
    """Returns what the windows say that a device of the type costs at this time of day; None where none says it."""
    found = None
    for window in state.config.windows:
        if is_open(window, day_s):
            found = dict(window.price_per_hour).get(name, found)
    return found
