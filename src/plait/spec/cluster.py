"""What a cluster is, as frozen values: the domain side of ``cluster.yaml``."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedNode:
    """A node that the local engine makes on this machine.

    ``cpu_quota`` is in cores; ``uplink_bytes_per_s`` shapes what the node sends, ``downlink_bytes_per_s`` what it
    receives; ``None`` leaves a rate open. ``slots`` devices of the type share the quota evenly. ``memory_bytes`` is
    that of each device; None: the smallest that its type is sold with.
    """

    name: str
    accelerator: str
    slots: int = 1
    cpu_quota: float | None = None
    uplink_bytes_per_s: float | None = None
    downlink_bytes_per_s: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceWindow:
    """From ``from_s`` to ``to_s`` seconds after midnight (may wrap) these prices per device and hour hold."""

    name: str
    from_s: int
    to_s: int
    price_per_hour: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """The scheduling policy by its published name, its weights, and the length of a round."""

    name: str = "fifo_backfill"
    weights: tuple[tuple[str, float], ...] = ()
    round_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What a project may count on, by accelerator type.

    ``quota`` is guaranteed: others use it while it is idle and give it back when the project's own tasks wait.
    ``limit`` is the most that it may hold at a time; what is missing there is not limited. ``weight`` is its part of
    what nobody is guaranteed, against the other projects that want it.
    """

    name: str
    weight: float = 1.0
    quota: tuple[tuple[str, int], ...] = ()
    limit: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Devices that only one project may hold from ``from_s`` to ``to_s`` seconds after midnight (may wrap), daily."""

    name: str
    project: str
    from_s: int
    to_s: int
    devices: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """When a device that failed gets no work, and how it comes back.

    A fault that evidence says is lasting quarantines at once, others do so once there were ``faults`` of them within
    ``window_s``. After ``cool_down_s`` a test of at most ``test_limit_s`` decides; each further quarantine doubles the
    time, up to ``longest_s``.
    """

    faults: int = 3
    window_s: float = 3600.0
    cool_down_s: float = 600.0
    longest_s: float = 86400.0
    test_limit_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The administrator's file: engine, policy, prices, store, and the nodes that are emulated if any.

    ``racks`` lists the nodes of each rack; a node that is in none is a rack of its own. With ``drills`` people may have
    faults done to running jobs.
    """

    engine: Literal["local", "slurm", "ray", "kubernetes"] = "local"
    nodes: tuple[EmulatedNode, ...] = ()
    policy: PolicyChoice = field(default_factory=PolicyChoice)
    price_windows: tuple[PriceWindow, ...] = ()
    projects: tuple[Project, ...] = ()
    racks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    reservations: tuple[Reservation, ...] = ()
    quarantine: Quarantine = field(default_factory=Quarantine)
    drills: bool = False
    store: str = "sqlite:///plait-state.db"
    listen: str = "127.0.0.1:9400"
    sample_interval_s: float = 5.0
