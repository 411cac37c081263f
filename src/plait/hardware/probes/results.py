"""Measured figures of one machine on disk: keyed by drivers and wiring, and whether they still hold."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from plait.hardware.topology import Fragment

_FORMAT = 1
_OLDEST_S = 30 * 86400.0
_DRIFT_RATIO = 0.15
"""A spot check further off than this, and beyond the error bars, means that the figures no longer hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure.

    Attributes:
        what: ``copy``, ``host``, ``memory``, ``node``, ``matmul_bf16`` ..., ``together_...``.
        a: Key of the device, or name of the node.
        b: Of the other end; empty where there is none.
        value: bytes/s one direction; FLOP/s of a matrix product.
        latency_s: ``None`` where it was not measured.
        relative_error: Half the spread of the repetitions over the median.
        detail: How it was measured.
    """

    what: str
    a: str
    b: str = ""
    value: float
    latency_s: float | None = None
    relative_error: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All figures of a machine, when they were measured (seconds since 1970), and what it was then."""

    machine: str
    drivers: str
    measured_at_s: float
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to measure again, and why (not)."""

    is_stale: bool
    reason: str


def machine_hash(fragment: Fragment) -> str:
    """Returns a short name of a machine's wiring: what is there, of which model, linked how; not of its load."""
    things = sorted(
        (c.key, c.kind, c.model or "", str(c.pci.max_generation), str(c.pci.max_lanes))
        for c in fragment.components
        if c.kind in {"gpu", "npu", "nic", "cpu", "switch"}
    )
    links = sorted((*sorted((link.a, link.b)), link.kind, link.count) for link in fragment.links)
    text = json.dumps([things, links], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def driver_versions(fragment: Fragment) -> str:
    """Returns the drivers that the fragment names, and the kernel's version."""
    found = {
        f"{key.rpartition('.')[2]}={value}"
        for component in fragment.components
        for key, value in component.extra.items()
        if "driver" in key.casefold() and "version" in key.casefold()
    }
    return ", ".join([os.uname().release, *sorted(found)])


def verdict(
    kept: Results | None,
    *,
    machine: str,
    drivers: str,
    now_s: float,
    checks: Iterable[Figure] = (),
) -> Verdict:
    """Returns whether kept figures still hold.

    Args:
        kept: What was measured before.
        machine: :func:`machine_hash` now.
        drivers: :func:`driver_versions` now.
        now_s: Seconds since 1970.
        checks: A few figures measured just now, to compare.
    """
    if kept is None:
        return Verdict(is_stale=True, reason="nothing was measured on this machine yet")
    if kept.machine != machine:
        return Verdict(is_stale=True, reason="devices or links have changed since they were measured")
    if kept.drivers != drivers:
        return Verdict(is_stale=True, reason=f"drivers have changed from {kept.drivers} to {drivers}")
    age_s = now_s - kept.measured_at_s
    if age_s > _OLDEST_S:
        return Verdict(is_stale=True, reason=f"measured {age_s / 86400:.0f} days ago")
    known = {(f.what, f.a, f.b): f for f in kept.figures}
    for check in checks:
        before = known.get((check.what, check.a, check.b))
        if before is None:
            continue
        change = check.value / before.value - 1
        if abs(change) > max(_DRIFT_RATIO, before.relative_error + check.relative_error):
            pair = f"{check.a} to {check.b}" if check.b else check.a
            return Verdict(is_stale=True, reason=f"{check.what} {pair} has drifted by {change:+.0%}")
    return Verdict(is_stale=False, reason=f"measured {max(0.0, age_s) / 3600:.1f} hours ago with the same drivers")


def cache_directory(env: Mapping[str, str]) -> Path:
    """Returns where results are kept: ``plait/topology`` under the user's cache directory."""
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path(env.get("HOME", "~")).expanduser() / ".cache") / "plait" / "topology"


def keep(results: Results, directory: Path) -> Path:
    """Writes results for :func:`kept` and returns the file."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{results.machine}.json"
    document = {"format": _FORMAT, **asdict(results)}
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(document, indent=1), encoding="utf-8")
    draft.replace(path)
    return path


def kept(machine: str, directory: Path) -> Results | None:
    """Returns what was kept of a machine, ``None`` where nothing (readable) was."""
    try:
        document = json.loads((directory / f"{machine}.json").read_text(encoding="utf-8"))
        if document.pop("format") != _FORMAT:
            return None
        figures = tuple(Figure(**figure) for figure in document.pop("figures"))
        return Results(figures=figures, **document)
    except (OSError, ValueError, TypeError, KeyError):
        return None
