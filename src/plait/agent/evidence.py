"""Gathers what `plait.agent.judge` is given: drivers, the kernel's log, network counters, workers' last words."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from plait.agent.device_tests import DeviceTests
from plait.agent.judge import DAMAGED_TEXT, Evidence
from plait.agent.kernel_log import KernelLog
from plait.agent.link_counters import LinkHistory
from plait.agent.worker import Worker
from plait.agent.xid import DeviceWord, device_words
from plait.hardware.health import DeviceHealth
from plait.spec.job import FailureCause

LAST_WORDS_BYTES = 16 * 1024
_DAMAGED_KEPT_S = 3600.0


class Witness:
    """Looks on while workers run, and says what it has seen when one has ended."""

    def __init__(self, interface: str | None, tests: DeviceTests) -> None:
        self._tests = tests
        self._links = LinkHistory(interface)
        self._kernel = KernelLog()
        self._health: Mapping[str, DeviceHealth] = {}
        self._damaged: deque[float] = deque()

    def look(self) -> None:
        """Takes what is new; called about once a second."""
        self._links.look()
        self._kernel.look()

    async def of_end(self, worker: Worker, cause: FailureCause | None, detail: str) -> Evidence:
        """Returns the evidence for how a worker ended; asks the devices' driver only where that may tell something."""
        self.look()
        words = worker.log.tail(LAST_WORDS_BYTES)
        if DAMAGED_TEXT in words.lower():
            self._damaged.append(time.monotonic())
        devices = worker.order.device_ids
        before = self._health
        health = await self._health_now() if cause not in {"cancelled", "oom"} else {}
        return Evidence(
            cause=cause,
            detail=detail,
            health=tuple((device, before.get(device), health[device]) for device in devices if device in health),
            kernel=self._kernel_words(worker),
            link=self._links.change(),
            last_words=words,
            damaged_messages=self._damaged_of_late(),
        )

    def of_stall(self, stuck: str) -> Evidence:
        """Returns the evidence for a link that gives no answer."""
        self.look()
        return Evidence(cause=None, stuck=stuck, link=self._links.change())

    async def begin(self) -> None:
        """Asks the devices' driver how they are before any work: what it says then is nobody's fault later."""
        self._health = await self._tests.health()

    async def _health_now(self) -> Mapping[str, DeviceHealth]:
        """Returns how the devices are now; one that the driver shows no more is lost."""
        now = await self._tests.health()
        if not now:
            return {}
        gone = {
            device: replace(before, health="lost: its driver does not show it any more")
            for device, before in self._health.items()
            if device not in now
        }
        addresses = {device: before.pci_address for device, before in self._health.items()}
        self._health = {
            device: replace(found, pci_address=found.pci_address or addresses.get(device))
            for device, found in {**gone, **now}.items()
        }
        return self._health

    def _kernel_words(self, worker: Worker) -> tuple[tuple[str, DeviceWord], ...]:
        said = device_words(self._kernel.since(worker.started_at_s))
        known = self._health
        places = {known[device].pci_address: device for device in worker.order.device_ids if device in known}
        return tuple((places[word.pci_address], word) for word in said if word.pci_address in places)

    def _damaged_of_late(self) -> int:
        while self._damaged and time.monotonic() - self._damaged[0] > _DAMAGED_KEPT_S:
            self._damaged.popleft()
        return len(self._damaged)
