"""CPU quotas through control groups, version 1 or 2; what dead clusters left is removed."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from plait.engines.emulation.claims import Claim, claim, claims_directory, join_claim, try_exclusive
from plait.errors import PlaitError

PREFIX = "plait-"
PERIOD_US = 20_000
"""A short period keeps a throttled worker's micro-batches alike; the kernel's default is 100 ms."""

_SMALLEST_QUOTA_US = 1000
_PATIENCE_S = 5.0
_CLAIM_TRIES = 20


@dataclass(frozen=True, slots=True)
class CpuHierarchy:
    """Where quotas can be set; ``parent`` is the group below which ours are made."""

    version: int
    parent: Path


def find_hierarchy(mounts: str, own_cgroups: str) -> CpuHierarchy | None:
    """Returns the hierarchy that has the cpu controller, or None.

    Args:
        mounts: The text of ``/proc/mounts``.
        own_cgroups: The text of ``/proc/self/cgroup``.
    """
    fields = [line.split() for line in mounts.splitlines()]
    for _, place, kind, options, *_ in fields:
        if kind == "cgroup" and "cpu" in options.split(","):
            return CpuHierarchy(1, _own_group(Path(place), own_cgroups))
    for _, place, kind, *_ in fields:
        if kind == "cgroup2" and "cpu" in _words(Path(place) / "cgroup.controllers"):
            return CpuHierarchy(2, Path(place))
    return None


def _own_group(mount: Path, own_cgroups: str) -> Path:
    for line in own_cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            own = mount / path.lstrip("/")
            return own if own.is_dir() else mount
    return mount


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


class CpuGroups:
    """The groups of one cluster: one a host, below one of the cluster's own."""

    def __init__(self, hierarchy: CpuHierarchy, key: str, held: Claim) -> None:
        self._hierarchy = hierarchy
        self.root = hierarchy.parent / f"{PREFIX}{key}"
        """The cluster's own group, which holds those of its hosts."""
        self._claim = held

    @classmethod
    def open(cls, key: str, *, joins: bool, allowed: bool = True) -> "CpuGroups":
        """Makes the cluster's group, or joins it after a restart, having removed those of dead clusters.

        Raises:
            PlaitError: Quotas cannot be set here; the message says why.
        """
        if not allowed:
            raise PlaitError("emulation is switched off")
        mounts = Path("/proc/mounts").read_text(encoding="utf-8")
        hierarchy = find_hierarchy(mounts, Path("/proc/self/cgroup").read_text(encoding="utf-8"))
        if hierarchy is None:
            raise PlaitError("no control group hierarchy with the cpu controller is mounted")
        if not os.access(hierarchy.parent, os.W_OK):
            raise PlaitError(f"{hierarchy.parent} is not writable")
        remove_stale(hierarchy)
        held = _take_claim(key, joins=joins)
        groups = cls(hierarchy, key, held)
        try:
            groups._make_root()
        except OSError as error:
            groups.close()
            raise PlaitError(f"no control group can be made: {error}") from error
        return groups

    def _make_root(self) -> None:
        if self._hierarchy.version == 2:
            (self._hierarchy.parent / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")
        self.root.mkdir(exist_ok=True)
        if self._hierarchy.version == 2:
            (self.root / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")

    @property
    def descriptor(self) -> int:
        """The claim's descriptor; processes in the groups have to inherit it."""
        return self._claim.descriptor

    def make(self, host: str, quota_cores: float | None) -> Path:
        """Makes the group of a host; returns the file that a process writes its id into to enter.

        Args:
            host: Its name.
            quota_cores: CPU seconds a second that the host's processes get together; None sets no limit.
        """
        group = self.root / host
        group.mkdir(exist_ok=True)
        quota_us = None if quota_cores is None else max(_SMALLEST_QUOTA_US, round(PERIOD_US * quota_cores))
        if self._hierarchy.version == 1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
            (group / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us), encoding="ascii")
        else:
            limit = "max" if quota_us is None else str(quota_us)
            (group / "cpu.max").write_text(f"{limit} {PERIOD_US}", encoding="ascii")
        return group / "cgroup.procs"

    def close(self) -> None:
        """Kills what is left in the groups and removes them."""
        empty_and_remove(self.root)
        self._claim.close()


def _take_claim(key: str, *, joins: bool) -> Claim:
    for _ in range(_CLAIM_TRIES):
        held = join_claim(key) if joins else claim(key)
        if held is not None:
            return held
        time.sleep(0.005)  # another cluster is just looking whether the new file is a stale one
    raise PlaitError(f"another cluster holds the key {key}")


def remove_stale(hierarchy: CpuHierarchy, directory: Path | None = None) -> tuple[str, ...]:
    """Removes groups of clusters none of whose claim holders lives; returns their names."""
    claims = directory or claims_directory()
    removed = []
    for group in hierarchy.parent.glob(f"{PREFIX}*"):
        lock = claims / f"{group.name.removeprefix(PREFIX)}.lock"
        dead = try_exclusive(lock)
        if dead is not None:
            empty_and_remove(group)
            dead.remove()
            removed.append(group.name)
        elif not lock.exists():
            # Perhaps another container's, whose claims cannot be seen here: removed only if it is empty.
            _remove_empty(group)
    for lock in claims.glob("*.lock"):  # a dead cluster's claims that stand for no group
        if dead := try_exclusive(lock):
            dead.remove()
    return tuple(removed)


def _members(group: Path) -> Iterator[int]:
    for file in (group / "cgroup.procs", *group.glob("*/cgroup.procs")):
        yield from (int(pid) for pid in _words(file))


def empty_and_remove(group: Path) -> None:
    """Kills every process of the group and removes it; one whose processes do not die stays."""
    deadline = time.monotonic() + _PATIENCE_S
    while group.exists() and time.monotonic() < deadline:
        for pid in tuple(_members(group)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if _remove_empty(group):
            return
        time.sleep(0.01)


def _remove_empty(group: Path) -> bool:
    with contextlib.suppress(OSError):  # busy: a process is still ending in there
        for below in group.iterdir():
            if below.is_dir():
                below.rmdir()
        group.rmdir()
    return not group.exists()
