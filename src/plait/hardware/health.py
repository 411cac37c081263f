"""What a driver says of the health of its devices now, as one JSON line: ``python -m plait.hardware.health NAME``.

It runs in a process of its own, for drivers hang and crash. What the words mean for work is told by `kind_of`.
"""

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from plait.hardware.topology import Fragment

HealthKind = Literal["ok", "slowed", "bad", "gone", "unknown"]

_VENDOR_OF = {
    "CUDA_VISIBLE_DEVICES": "nvidia",
    "HIP_VISIBLE_DEVICES": "amd",
    "ASCEND_RT_VISIBLE_DEVICES": "ascend",
}
_ERRORS = re.compile(r"(\d+) uncorrectable memory errors")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """One device as its driver sees it.

    Attributes:
        index: The driver's number of it.
        health: The driver's word, ``None`` where it says nothing.
        pci_address: Where it is on the bus, ``None`` where that is not told.
    """

    index: int
    health: str | None
    pci_address: str | None = None

    @property
    def kind(self) -> HealthKind:
        """What the word means."""
        return kind_of(self.health)

    @property
    def memory_errors(self) -> int:
        """Memory errors that could not be corrected, as far as the word counts them."""
        found = _ERRORS.search(self.health or "")
        return int(found[1]) if found is not None else 0


def kind_of(health: str | None) -> HealthKind:
    """Returns what a driver's word on a device means: ``bad`` and ``gone`` are no places for work."""
    if health is None:
        return "unknown"
    word = health.lower()
    if word == "ok":
        return "ok"
    if word.startswith("slowed"):
        return "slowed"
    return "gone" if word.startswith(("lost", "down")) else "bad"


def vendor_of(variable: str | None, environment: Sequence[str]) -> str | None:
    """Returns whom to ask about the devices of a node: by the variable that limits them; described ones: ``fake``."""
    if variable in _VENDOR_OF:
        return _VENDOR_OF[variable]
    return "fake" if "PLAIT_FAKE_DEVICES" in environment else None


def health_of(found: Fragment) -> tuple[DeviceHealth, ...]:
    """Returns the whole accelerators of a probe's answer."""
    return tuple(
        DeviceHealth(index=component.index, health=component.health, pci_address=component.pci_address)
        for component in found.components
        if component.kind in {"gpu", "npu"} and component.parent is None and component.index is not None
    )


def ask(vendor: str) -> tuple[DeviceHealth, ...]:
    """Asks a vendor's driver in this process; empty where it does not answer."""
    # Only here: the agent, which stays small, needs the words and no probes.
    from plait.hardware.contexts import LiveContext
    from plait.hardware.vendors import VENDORS

    probe = next(one for one in VENDORS if one.name == vendor)
    return health_of(probe.probe(LiveContext()))


def encoded(devices: Sequence[DeviceHealth]) -> str:
    """Returns one line of JSON."""
    return json.dumps([asdict(device) for device in devices])


def decoded(line: str) -> tuple[DeviceHealth, ...]:
    """Returns what ``encoded`` gave; raises ``ValueError`` for anything else."""
    try:
        return tuple(DeviceHealth(**row) for row in json.loads(line))
    except TypeError as error:
        raise ValueError(f"no list of devices: {error}") from error


def main(arguments: Sequence[str]) -> int:
    """Prints the line for the vendor of this name."""
    sys.stdout.write(encoded(ask(arguments[0])) + "\n")
    sys.stdout.flush()
    # Some drivers crash while they are unloaded, when the answer has long been given.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
