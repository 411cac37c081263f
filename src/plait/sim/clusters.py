"""What a simulation runs on: a cluster file, a list of nodes, or a line such as ``V100:3x4,P100:2x8``."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plait.errors import PlaitError
from plait.hardware.catalog import UnknownAccelerator, predicted_speed
from plait.hardware.device import Node
from plait.sim.live_setting import node_of
from plait.sim.rounds.views import Machines
from plait.sim.speeds import Speeds
from plait.spec.cluster import Cluster, Project

_PART = re.compile(r"^(?P<name>[^:]+):(?:(?P<nodes>\d+)x)?(?P<devices>\d+)$")


class BadCluster(PlaitError):
    """The description of the simulated cluster cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCluster:
    """Nodes, prices and the administrator's file where there is one. ``notes`` are for people."""

    nodes: tuple[Node, ...]
    prices_per_hour: Mapping[str, float] = field(default_factory=dict)
    cluster: Cluster = field(default_factory=Cluster)
    notes: tuple[str, ...] = ()

    @property
    def capacity(self) -> dict[str, int]:
        """Devices by type, in the order in which types first appear."""
        found: dict[str, int] = {}
        for node in self.nodes:
            for device in node.devices:
                found[device.accelerator_type] = found.get(device.accelerator_type, 0) + 1
        return found

    @property
    def projects(self) -> tuple[Project, ...]:
        """Projects of the administrator's file."""
        return self.cluster.projects

    def speeds(self, reference: str | None = None) -> Speeds:
        """Returns relative speeds of the types; recorded durations are those on ``reference`` (the most common)."""
        capacity = self.capacity
        by_type = {d.accelerator_type: d.speed for node in self.nodes for d in node.devices}
        return Speeds(
            by_type=by_type, reference=reference or max(capacity, key=lambda name: capacity[name], default="")
        )

    def machines(self) -> Machines:
        """Returns the cluster as the simulators of rounds want it."""
        nodes: dict[str, list[int]] = {}
        for node in self.nodes:
            here: dict[str, int] = {}
            for device in node.devices:
                here[device.accelerator_type] = here.get(device.accelerator_type, 0) + 1
            for name, number in here.items():
                nodes.setdefault(name, []).append(number)
        return Machines(
            nodes={name: tuple(numbers) for name, numbers in nodes.items()}, prices_per_hour=self.prices_per_hour
        )


def read_cluster(text: str, prices: Mapping[str, float] | None = None) -> SimCluster:
    """Returns the cluster that ``text`` names: a YAML file, a CSV list of nodes, or nodes by type in one line.

    Args:
        text: ``cluster.yaml``; Alibaba's ``openb_node_list...csv`` (columns sn, gpu, model); or ``TYPE:NODESxDEVICES``
            parts joined by commas.
        prices: By type and device-hour; they override the file's.

    Raises:
        BadCluster: It is none of these.
    """
    path = Path(text)
    if path.suffix == ".csv":
        counts, cluster = _from_csv(path), Cluster()
    elif path.suffix in {".yaml", ".yml"} or path.exists():
        cluster, counts = _from_yaml(path)
    else:
        counts, cluster = _from_line(text), Cluster()
    speeds, notes = _speeds({name for _, name, _ in counts})
    nodes = tuple(node_of(node, name, number, speed=speeds[name]) for node, name, number in counts)
    return SimCluster(nodes=nodes, prices_per_hour=dict(prices or {}), cluster=cluster, notes=notes)


def _from_yaml(path: Path) -> tuple[Cluster, list[tuple[str, str, int]]]:
    from plait.spec.load import load_cluster

    cluster = load_cluster(path)
    if not cluster.nodes:
        raise BadCluster(f"{path}: names no nodes; a simulation needs them")
    return cluster, [(node.name, node.accelerator, node.slots) for node in cluster.nodes]


def _from_csv(path: Path) -> list[tuple[str, str, int]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"sn", "gpu", "model"} <= set(rows[0]):
        raise BadCluster(f"{path}: expected the columns sn, gpu and model")
    return [(row["sn"], row["model"], int(row["gpu"])) for row in rows if row["model"] and int(row["gpu"] or 0) > 0]


def _from_line(text: str) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = []
    for part in text.split(","):
        match = _PART.match(part.strip())
        if match is None:
            raise BadCluster(f"no cluster: {part.strip()!r}; write a file, or parts such as V100:3x4 (3 nodes of 4)")
        number = int(match["nodes"] or 1)
        found.extend((f"{match['name']}-{index}", match["name"], int(match["devices"])) for index in range(number))
    return found


def _speeds(types: set[str]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Returns relative speeds by published figures; the slowest known type stands in for unknown ones."""
    known: dict[str, float] = {}
    for name in sorted(types):
        try:
            known[name] = predicted_speed(_family(name), "fp16")[0]
        except UnknownAccelerator:
            continue
    slowest = min(known.values(), default=1.0)
    unknown = sorted(types - set(known))
    notes = (
        (f"no published figures for {', '.join(unknown)}: taken to be as fast as the slowest type",) if unknown else ()
    )
    return {name: known.get(name, slowest) for name in types}, notes


def _family(name: str) -> str:
    """Returns the catalogue's name for one with its memory behind it (``V100M16``: ``V100``)."""
    return re.sub(r"M\d+$", "", name)


def read_prices(parts: Sequence[str]) -> dict[str, float]:
    """Returns prices from ``TYPE=DOLLARS_PER_HOUR`` words; raises BadCluster for anything else."""
    found = {}
    for part in parts:
        name, separator, price = part.partition("=")
        try:
            found[name] = float(price)
        except ValueError:
            separator = ""
        if not separator or not name:
            raise BadCluster(f"no price: {part!r}; write TYPE=DOLLARS_PER_HOUR, such as A100=4.10")
    return found
