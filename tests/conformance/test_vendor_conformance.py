"""What every vendor's probe keeps to, whatever the machine: a bare one, a broken one, one of recorded outputs."""

import os
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from plait.hardware.context import CommandResult
from plait.hardware.contexts import LiveContext
from plait.hardware.topology import Fragment
from plait.hardware.vendors import VENDORS, Vendor
from plait.hardware.vendors.isolation import probe_apart, probe_here

KINDS = {"gpu", "npu", "nic", "cpu", "numa", "switch", "bridge", "other"}

PCI = "/sys/bus/pci/devices"


class Pretended:
    """A machine of files and recorded outputs; every other command does not exist."""

    def __init__(
        self,
        files: Mapping[str, bytes] | None = None,
        outputs: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.files = dict(files or {})
        self.outputs = dict(outputs or {})
        self.env: Mapping[str, str] = dict(env or {})
        self.asked: list[str] = []

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def list(self, path: str) -> tuple[str, ...]:
        inside = path.rstrip("/") + "/"
        names = {file.removeprefix(inside).split("/")[0] for file in self.files if file.startswith(inside)}
        if path == "/usr/bin":
            names |= {words.split()[0] for words in self.outputs}
        return tuple(sorted(names))

    def link(self, path: str) -> str | None:
        inside = path.rstrip("/") + "/"
        return path if any(file == path or file.startswith(inside) for file in self.files) else None

    def run(self, argv: Sequence[str]) -> CommandResult:
        words = " ".join((argv[0].rpartition("/")[2], *argv[1:]))
        self.asked.append(words)
        if words in self.outputs:
            return CommandResult(0, self.outputs[words])
        return CommandResult(127, "", f"{argv[0]}: command not found")


def function(address: str, vendor: str, device: str, class_: str) -> dict[str, bytes]:
    words = {"vendor": vendor, "device": device, "class": class_, "numa_node": "1"}
    return {f"{PCI}/{address}/{name}": text.encode() for name, text in words.items()}


GARBAGE = "\x1b[31m\x00\ufffd|||| nonsense <xml><unclosed GPU0 GPU1\n" * 20
TOOLS = (
    "nvidia-smi -q -x",
    "nvidia-smi topo -m",
    "rocm-smi --showtopo",
    "npu-smi info",
    "npu-smi info -m",
    "nvpmodel -q",
)

TEGRA = {"/proc/device-tree/compatible": b"nvidia,p3737\0nvidia,tegra234\0"}

MACHINES = {
    "bare": Pretended(),
    "garbage in every file": Pretended(
        {
            **{path: GARBAGE.encode() for path in ("/proc/cpuinfo", "/proc/meminfo", "/proc/self/status")},
            "/sys/class/kfd/kfd/topology/nodes/1/properties": GARBAGE.encode(),
            "/sys/fs/cgroup/cpu.max": b"max max",
            "/sys/devices/system/node/node0/distance": b"\xff\xfe",
            f"{PCI}/0000:01:00.0/vendor": b"\xff",
        }
    ),
    "tools that print garbage": Pretended(
        {
            **function("0000:01:00.0", "0x10de", "0x20b2", "0x030200"),
            **function("0000:02:00.0", "0x1002", "0x74a1", "0x120000"),
            **function("0000:03:00.0", "0x19e5", "0xd802", "0x120000"),
        },
        dict.fromkeys(TOOLS, GARBAGE),
        {"PATH": "/usr/bin", "PLAIT_FAKE_DEVICES": "/nowhere.yaml"},
    ),
    "devices without tools": Pretended(
        {
            **function("0000:01:00.0", "0x10de", "0x20b2", "0x030200"),
            **function("0000:02:00.0", "0x1002", "0x74a1", "0x120000"),
            **function("0000:03:00.0", "0x19e5", "0xd802", "0x120000"),
        }
    ),
    "a board with its GPU inside": Pretended({**TEGRA, "/proc/device-tree/model": b"NVIDIA Jetson AGX Orin\0"}),
}


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Pretended:
    made = MACHINES[request.param]
    return Pretended(made.files, made.outputs, made.env)


@pytest.fixture(params=VENDORS, ids=lambda vendor: vendor.name)
def vendor(request: pytest.FixtureRequest) -> Vendor:
    found: Vendor = request.param
    return found


def check_fragment(fragment: Fragment) -> None:
    assert isinstance(fragment, Fragment)
    assert fragment.origin
    assert fragment.format
    keys = [component.key for component in fragment.components]
    assert len(set(keys)) == len(keys), "keys are unique in a fragment"
    for component in fragment.components:
        assert component.kind in KINDS
        assert component.name
        assert component.parent is None or component.parent in keys
        assert component.pci_address is None or re.fullmatch(
            r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", component.pci_address
        )
        for value in (component.memory_bytes, component.memory_bytes_per_s, component.rate_bytes_per_s):
            assert value.value is None or value.value > 0, "unknown is None, never 0"
        assert all(isinstance(key, str) and isinstance(text, str) for key, text in component.extra.items())
    for link in fragment.links:
        assert link.a != link.b
        assert link.count >= 1
        for rate in (link.bytes_per_s, link.reverse_bytes_per_s):
            assert rate.value is None or rate.value > 0
    assert pickle.loads(pickle.dumps(fragment)) == fragment, "it has to travel between processes"


def test_names_are_unique_and_everything_is_described() -> None:
    names = [vendor.name for vendor in VENDORS]
    assert len(set(names)) == len(names)
    for vendor in VENDORS:
        assert re.fullmatch(r"[a-z]+", vendor.name)
        assert vendor.ways
        assert vendor.finds
        assert type(vendor).__doc__


def test_a_probe_never_raises_and_keeps_the_form(vendor: Vendor, machine: Pretended) -> None:
    for use_library in (True, False):
        fragment = vendor.probe(machine, use_library=use_library)
        check_fragment(fragment)
        assert fragment.components or fragment.error is not None, "nothing found and no word why"
        if fragment.error is not None:
            assert "\n" not in fragment.error


def test_a_trace_runs_nothing(vendor: Vendor, machine: Pretended) -> None:
    trace = vendor.trace(machine)
    assert trace is None or trace
    assert machine.asked == []


def test_a_bare_machine_shows_the_processor_alone(vendor: Vendor) -> None:
    bare = Pretended()
    assert (vendor.trace(bare) is not None) == (vendor.name == "cpu")
    accelerators = [c for c in vendor.probe(bare).components if c.kind in {"gpu", "npu"}]
    assert accelerators == []


def test_a_probe_says_the_same_twice(vendor: Vendor, machine: Pretended) -> None:
    assert vendor.probe(machine) == vendor.probe(machine)


def test_it_runs_in_a_child_and_leaves_nothing_behind(vendor: Vendor) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    fragment = probe_apart(vendor, LiveContext(env=dict(os.environ)), limit_s=60.0)
    check_fragment(fragment)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


class Broken(Pretended):
    """A machine where every look ends in an exception."""

    def list(self, path: str) -> tuple[str, ...]:
        raise RuntimeError(f"cannot list {path}")

    def read(self, path: str) -> bytes | None:
        raise RuntimeError(f"cannot read {path}")


def test_a_probe_that_fails_is_told(vendor: Vendor) -> None:
    fragment = probe_here(vendor, Broken(env={"PLAIT_FAKE_DEVICES": "/x.yaml", "PATH": "/bin"}))
    check_fragment(fragment)
    assert fragment.error is not None
    assert "RuntimeError" in fragment.error
    assert fragment.components == ()
