"""Tests of devices that the scheduler keeps from work, and questions about their health."""

import asyncio
import json
import os
import sys
from pathlib import Path

from plait.agent.children import Answer, Children
from plait.agent.environment import MARK, VISIBLE_DEVICES_LABEL, VISIBLE_IDS_LABEL
from plait.agent.messages import CheckDevice
from plait.agent.reports import Reports
from plait.hardware.device import Device, Node
from plait.hardware.health import DeviceHealth, decoded, vendor_of

HEALTH_LIMIT_S = 3.0
"""So long the report of a worker's end may wait for its device's driver."""

_KINDS = {"nvidia": "cuda", "amd": "cuda", "ascend": "npu"}


class DeviceTests:
    """Runs at most one test a device; a test that is asked for again while it runs answers under the newer number."""

    def __init__(self, node: Node, state_directory: Path, children: Children, reports: Reports) -> None:
        self._node = node
        self._state_directory = state_directory
        self._children = children
        self._reports = reports
        self._wanted: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        labels = dict(node.labels)
        self._variable = labels.get(VISIBLE_DEVICES_LABEL)
        self._ids = labels[VISIBLE_IDS_LABEL].split(",") if labels.get(VISIBLE_IDS_LABEL) else []
        self.vendor = vendor_of(self._variable, tuple(os.environ))
        """Whose driver knows the devices; None where nobody does."""

    def begin(self, order: CheckDevice) -> None:
        """Begins a test; its outcome is reported."""
        is_running = order.device in self._wanted
        self._wanted[order.device] = order.test
        if not is_running:
            task = asyncio.get_running_loop().create_task(self._test(order))
            self._tasks.add(task)  # the loop itself keeps only weak references
            task.add_done_callback(self._tasks.discard)

    async def _test(self, order: CheckDevice) -> None:
        device = next((device for device in self._node.devices if device.id == order.device), None)
        if device is None:
            passed, detail = False, "this node has no such device"
        else:
            answer = await self._children.ask(self._command(device), self._environment(device), order.limit_s)
            passed, detail = read_finding(answer)
        self._reports.checked(order.device, self._wanted.pop(order.device), passed=passed, detail=detail)

    def _command(self, device: Device) -> list[str]:
        vendor = [] if self.vendor is None else ["--vendor", self.vendor, "--index", str(self.number_of(device))]
        kind = _KINDS.get(self.vendor or "", "cpu")
        return [sys.executable, "-m", "plait.train.device_check", *vendor, "--kind", kind]

    def _environment(self, device: Device) -> dict[str, str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", MARK: f"{self._state_directory}:test"}
        if self._variable is not None:
            environment |= {self._variable: str(self.number_of(device)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return environment

    def number_of(self, device: Device) -> int:
        """Returns the driver's number of a device."""
        name = self._ids[device.index] if device.index < len(self._ids) else ""
        return int(name) if name.isdigit() else device.index

    async def health(self) -> dict[str, DeviceHealth]:
        """Returns what the driver says of this node's devices now; empty where it says nothing in time."""
        if self.vendor is None:
            return {}
        environment = {**os.environ, MARK: f"{self._state_directory}:test"}
        command = [sys.executable, "-m", "plait.hardware.health", self.vendor]
        answer = await self._children.ask(command, environment, HEALTH_LIMIT_S)
        try:
            found = {health.index: health for health in decoded(answer.line or "[]")}
        except ValueError:
            return {}
        numbers = {device.id: self.number_of(device) for device in self._node.devices}
        return {device: found[number] for device, number in numbers.items() if number in found}


def read_finding(answer: Answer) -> tuple[bool, str]:
    """Returns whether the device passed, and what was found; a test that broke off is one that failed."""
    if answer.line is None:
        return False, f"the test {answer.why}" if not answer.why.startswith("no answer") else answer.why
    try:
        told = json.loads(answer.line)
        return bool(told["passed"]), str(told["detail"])
    except (ValueError, KeyError, TypeError):
        return False, f"the test said {answer.line[:100]!r}"
