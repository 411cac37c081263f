"""Unequal hosts on one machine, as well as this machine and this user allow; the engine and benchmarks share them."""

import json
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from plait.engines.emulation.claims import Claim
from plait.engines.emulation.cpu_groups import CpuGroups
from plait.engines.emulation.network import EmulationImpossible, Namespace, Switch, missing_tools
from plait.engines.emulation.ports import LOOPBACK, PORTS_PER_HOST, claim_ports, rejoin_ports
from plait.errors import PlaitError

NAMESPACE_FIRST_PORT = 21000
NAMESPACE_NUM_PORTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What one host shall be like.

    Attributes:
        name: Unique; letters, digits, ``-`` and ``_``.
        cpu_quota: Cores that all processes of the host get together; None sets no limit.
        up: Bytes a second that it can send; None leaves the rate open.
        down: Bytes a second that it can receive; None leaves the rate open.
        slots: Processes that share the quota; matters only where the quota cannot be enforced.
    """

    name: str
    cpu_quota: float | None = None
    up: float | None = None
    down: float | None = None
    slots: int = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """How to run a command on a host: what to run instead, what it must inherit, what to add to its environment."""

    command: tuple[str, ...]
    descriptors: tuple[int, ...]
    environment: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Record:
    """What a later process needs to join in. ``ports`` are the first ports of each host where there is no network."""

    key: str
    switch_inode: int | None
    subnet: str | None
    has_groups: bool
    ports: tuple[int, ...]
    lacks: tuple[str, ...]


class EmulatedHosts:
    """Hosts that exist from ``open`` to ``close``, or until the last of the processes that use them has ended."""

    def __init__(self, hosts: Sequence[Host], *, enforce: bool = True) -> None:
        """Describes the hosts.

        Args:
            hosts: At least one.
            enforce: False takes the way of a machine that has neither namespaces nor control groups.
        """
        self.hosts = tuple(hosts)
        self._numbers = {host.name: number for number, host in enumerate(self.hosts)}
        self._enforce = enforce
        self._key = ""
        self._switch: Switch | None = None
        self._namespaces: dict[str, Namespace] = {}
        self._groups: CpuGroups | None = None
        self._ports: list[tuple[int, Claim]] = []
        self._lacks: list[str] = []

    def open(self, record: Path | None = None, living: Iterable[int] = ()) -> str:
        """Makes the hosts, or joins those of a cluster that still lives; returns the address of this machine.

        Args:
            record: Where to note what a later process needs to join in.
            living: Processes of the cluster that still live; they hold what is to be joined.
        """
        if not self._join(record, tuple(living)):
            self._make()
        if record is not None:
            record.parent.mkdir(parents=True, exist_ok=True)
            fresh = record.with_suffix(".new")
            fresh.write_text(json.dumps(asdict(self._noted())), encoding="utf-8")
            fresh.replace(record)
        return self.host_address

    @property
    def host_address(self) -> str:
        """Where processes on the hosts reach this machine."""
        return LOOPBACK if self._switch is None else self._switch.host_address

    @property
    def cpu_group(self) -> Path | None:
        """The control group that holds all processes of all hosts, where there is one."""
        return None if self._groups is None else self._groups.root

    @property
    def limitations(self) -> tuple[str, ...]:
        """What could not be emulated, in plain sentences."""
        return tuple(self._lacks)

    def address(self, name: str) -> str:
        """Returns the host's address, the same from everywhere."""
        return LOOPBACK if self._switch is None else self._switch.address(self._numbers[name])

    def ports(self, name: str) -> tuple[int, int]:
        """Returns (first port, number of ports) that the host's processes may listen on."""
        if self._switch is not None:
            return NAMESPACE_FIRST_PORT, NAMESPACE_NUM_PORTS
        return self._ports[self._numbers[name]][0], PORTS_PER_HOST

    def enter(self, name: str, command: Sequence[str]) -> Entry:
        """Returns how to run a command on a host; the host's namespace is made where it has gone.

        Raises:
            EmulationImpossible: The hosts are not open.
        """
        if not self._key:
            raise EmulationImpossible(f"host {name} does not exist yet, or no more: the hosts are not open")
        host = self.hosts[self._numbers[name]]
        words = tuple(command)
        descriptors: list[int] = []
        environment: list[tuple[str, str]] = []
        if self._switch is not None:
            namespace = self._namespace(host, self._switch)
            words = namespace.enter(words)
            descriptors += [namespace.descriptor, self._switch.namespace.descriptor]
        elif self._ports:
            descriptors.append(self._ports[self._numbers[name]][1].descriptor)
        if self._groups is not None:
            way_in = self._groups.make(host.name, host.cpu_quota)
            words = ("/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(way_in), *words)
            descriptors.append(self._groups.descriptor)
        elif host.cpu_quota is not None:
            environment.append(("PLAIT_DUTY_RATIO", f"{min(1.0, host.cpu_quota / host.slots):g}"))
        return Entry(words, tuple(descriptors), tuple(environment))

    def set_link(self, name: str, *, is_up: bool) -> None:
        """Pulls or plugs the host's cable.

        Raises:
            EmulationImpossible: The hosts have no links of their own here.
        """
        if self._switch is None:
            raise EmulationImpossible(f"the link of {name} cannot be cut: {self._lacks[0]}")
        self._namespace(self.hosts[self._numbers[name]], self._switch)
        self._switch.set_link(self._numbers[name], is_up=is_up)

    def reshape(self, name: str, up: float | None, down: float | None) -> None:
        """Gives a host other link rates, in bytes a second; None leaves a rate open."""
        if self._switch is None:
            raise EmulationImpossible(f"the link of {name} has no rate: {self._lacks[0]}")
        self._namespace(self.hosts[self._numbers[name]], self._switch).shape("eth0", up)
        self._switch.namespace.shape(f"p{self._numbers[name]}", down)

    def close(self) -> None:
        """Removes everything; processes that are still on the hosts are killed where control groups can find them."""
        if self._groups is not None:
            self._groups.close()
            self._groups = None
        for namespace in self._namespaces.values():
            namespace.close()
        self._namespaces.clear()
        if self._switch is not None:
            self._switch.namespace.close()
            self._switch = None
        for _, held in self._ports:
            held.close()
        self._ports.clear()
        self._key = ""

    def _namespace(self, host: Host, switch: Switch) -> Namespace:
        if host.name not in self._namespaces:
            namespace = Namespace.make()
            switch.plug_in(namespace, self._numbers[host.name])
            self._namespaces[host.name] = namespace
            self.reshape(host.name, host.up, host.down)
        return self._namespaces[host.name]

    def _make(self) -> None:
        self._key = secrets.token_hex(4)
        lack = self._why_no_network()
        if lack is None:
            try:
                self._switch = Switch.make(self._key)
                for host in self.hosts:
                    self._namespace(host, self._switch)
            except (EmulationImpossible, OSError) as error:
                self._forget_network()
                lack = str(error)
        if lack is not None:
            self._say_no_network(lack)
            self._ports = claim_ports(len(self.hosts))
        self._make_groups(joins=False)

    def _why_no_network(self) -> str | None:
        if not self._enforce:
            return "emulation is switched off"
        if os.geteuid() != 0:
            return "network namespaces need root"
        lacking = missing_tools()
        return f"the command {lacking[0]} is not installed" if lacking else None

    def _forget_network(self) -> None:
        for namespace in self._namespaces.values():
            namespace.close()
        self._namespaces.clear()
        if self._switch is not None:
            self._switch.namespace.close()
            self._switch = None

    def _say_no_network(self, why: str) -> None:
        shaped = [host.name for host in self.hosts if host.up is not None or host.down is not None]
        what = f"; the link rates of {', '.join(shaped)} are not applied" if shaped else ""
        self._lacks.append(f"all nodes share this machine's loopback address ({why}){what}")

    def _make_groups(self, *, joins: bool) -> None:
        limited = [host.name for host in self.hosts if host.cpu_quota is not None]
        try:
            self._groups = CpuGroups.open(self._key, joins=joins, allowed=self._enforce)
            for host in self.hosts:
                self._groups.make(host.name, host.cpu_quota)
        except (PlaitError, OSError) as error:
            if self._groups is not None:
                self._groups.close()
                self._groups = None
            if limited:
                self._lacks.append(
                    f"the CPU quotas of {', '.join(limited)} are not enforced ({error}); Plait's own training loop"
                    " sleeps in proportion, other programs run at full speed"
                )

    def _noted(self) -> _Record:
        return _Record(
            key=self._key,
            switch_inode=self._switch.namespace.inode if self._switch else None,
            subnet=str(self._switch.subnet) if self._switch else None,
            has_groups=self._groups is not None,
            ports=tuple(first for first, _ in self._ports),
            lacks=self.limitations,
        )

    def _join(self, record: Path | None, living: tuple[int, ...]) -> bool:
        """Joins what living processes hold; returns whether that succeeded."""
        if record is None or not living:
            return False
        try:
            noted = _Record(**json.loads(record.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return False
        if noted.switch_inode is not None and noted.subnet is not None:
            if not self._join_switch(noted.switch_inode, noted.subnet, living):
                return False
        else:
            self._ports = rejoin_ports(noted.ports)
        self._key = noted.key
        self._lacks = list(noted.lacks)
        if noted.has_groups:
            self._make_groups(joins=True)
        return True

    def _join_switch(self, inode: int, subnet: str, living: tuple[int, ...]) -> bool:
        found = next((found for pid in living if (found := Namespace.held_by(pid, inode)) is not None), None)
        if found is None:
            return False
        self._switch = Switch.with_subnet(found, subnet)
        return True

    def adopt(self, name: str, pid: int) -> None:
        """Takes over the namespace of a host from a process that lives in it."""
        if self._switch is not None and name not in self._namespaces:
            self._namespaces[name] = Namespace.of_process(pid)
