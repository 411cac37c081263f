"""What plait topology warns of: each warning where it belongs, and none where all is well."""

import dataclasses
import itertools
import struct
from collections.abc import Mapping

import pytest

from plait.hardware.affinity import PairFigure, build
from plait.hardware.context import CommandResult
from plait.hardware.findings import findings
from plait.hardware.probes.path_checks import path_warnings, redirects
from plait.hardware.topology import Component, Fragment, Link, LinkKind, Locality, PciPort
from plait.hardware.values import Source, Value


def gpus(count: int, model: str = "NVIDIA A100-SXM4-80GB", **fields: object) -> list[Component]:
    return [
        Component(
            **{  # type: ignore[arg-type]
                "key": f"GPU{i}",
                "name": f"GPU{i}",
                "kind": "gpu",
                "index": i,
                "model": model,
                "locality": Locality(numa_nodes=(0,)),
                **fields,
            }
        )
        for i in range(count)
    ]


def machine(
    *components: Component, kind: LinkKind = "nvlink", links: tuple[Link, ...] = (), **fields: object
) -> Fragment:
    keys = [c.key for c in components if c.kind == "gpu"]
    own = tuple(Link(a=a, b=b, kind=kind, count=12) for a, b in itertools.combinations(keys, 2))
    return Fragment(origin="t", format="t", components=components, links=own + links, **fields)  # type: ignore[arg-type]


def told(fragment: Fragment, figures: tuple[PairFigure, ...] = (), env: dict[str, str] | None = None) -> str:
    nodes = {"n": fragment}
    return "\n".join(findings(nodes, build(nodes, measurements=figures), env or {}))


def test_a_sound_machine_has_no_warnings() -> None:
    assert told(machine(*gpus(8))) == ""


def test_boards_without_their_nvlink() -> None:
    text = told(machine(*gpus(8, "NVIDIA H100 80GB HBM3"), kind="sys"))
    assert "show no NVLink" in text
    assert "show no NVLink" not in told(machine(*gpus(8, "NVIDIA A100-PCIE-40GB"), kind="sys"))


def test_unknown_numa_nodes_with_the_reason() -> None:
    text = told(machine(*gpus(2, locality=Locality(why_unknown="the range 0-1 is every node"))))
    assert "NUMA node of GPU0, GPU1 unknown (the range 0-1 is every node)" in text


def test_ports_below_their_best() -> None:
    narrow = PciPort(generation=4, lanes=8, max_generation=4, max_lanes=16)
    idle = PciPort(generation=1, lanes=16, max_generation=4, max_lanes=16, is_idle_reading=True)
    assert "has 8 of 16 PCIe lanes" in told(machine(*gpus(1, pci=narrow)))
    assert "works at PCIe 1 of 4 (read when idle" in told(machine(*gpus(1, pci=idle)))


def test_refused_peers() -> None:
    refused = machine(*gpus(2))
    refused = dataclasses.replace(refused, links=tuple(dataclasses.replace(x, p2p="refused") for x in refused.links))
    assert "refuses peer access on 1 pairs" in told(refused)
    assert "stock driver refuses" in told(machine(*gpus(2, "NVIDIA GeForce RTX 4090"), kind="phb"))


def test_nics_that_are_far_or_down() -> None:
    far = Component(key="n", name="mlx5_0", kind="nic")
    down = Component(key="m", name="mlx5_1", kind="nic", extra={"state": "Down"})
    links = tuple(Link(a=f"GPU{i}", b="n", kind="sys") for i in range(2))
    text = told(machine(*gpus(2), far, down, links=links))
    assert "mlx5_0 is on another socket than every accelerator" in text
    assert "port down: mlx5_1" in text


def test_devices_that_share_an_uplink() -> None:
    links: list[Link] = []
    kinds: dict[tuple[int, int], LinkKind] = {(0, 1): "pix", (2, 3): "pix"}
    for i, j in itertools.combinations(range(4), 2):
        links.append(Link(a=f"GPU{i}", b=f"GPU{j}", kind=kinds.get((i, j), "sys")))
    fragment = Fragment(origin="t", format="t", components=tuple(gpus(4, "A100-PCIE-40GB")), links=tuple(links))
    text = told(fragment)
    assert "GPU0, GPU1 share one uplink" in text
    assert "GPU2, GPU3 share one uplink" in text
    assert "share one uplink" not in told(machine(*gpus(4, "A100-PCIE-40GB"), kind="pix"))


def test_different_models() -> None:
    mixed = [*gpus(1), dataclasses.replace(gpus(2)[1], model="Tesla V100-SXM2-16GB")]
    assert "different models in one node" in told(machine(*mixed))


def test_measured_pairs_below_what_is_expected_and_uneven_ones() -> None:
    slow = PairFigure(a="GPU0", b="GPU1", bytes_per_s=Value(20e9, Source.MEASURED, "copy"))
    text = told(machine(*gpus(2)), (slow,))
    assert "1 measured pairs are below 60%" in text
    assert "20 of 264 GB/s" in text
    assert "faster one way than the other" in text


@pytest.mark.parametrize(("name", "value"), [("NCCL_P2P_LEVEL", "LOC"), ("NCCL_P2P_DISABLE", "1")])
def test_settings_that_force_a_slow_path(name: str, value: str) -> None:
    assert f"{name}={value}" in told(machine(*gpus(2)), env={name: value})
    assert told(machine(*gpus(2)), env={name: "SYS"}) == ""


def test_what_sources_hide() -> None:
    assert "t does not show nvlink" in told(machine(*gpus(2), kind="pix", hides=("nvlink",)))


class Kernel:
    """A machine that is a dictionary of files."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.env: Mapping[str, str] = {}
        self.files = files

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def list(self, path: str) -> tuple[str, ...]:
        below = {p[len(path) + 1 :].split("/", 1)[0] for p in self.files if p.startswith(path + "/")}
        return tuple(sorted(below))

    def link(self, path: str) -> str | None:
        return path if path in self.files else None

    def run(self, argv: object) -> CommandResult:
        return CommandResult(127, "")


def config(control: int) -> bytes:
    """A configuration space with an extended capability before ACS, and this ACS control word."""
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)
    struct.pack_into("<IHH", space, 0x148, 0x000D | 1 << 16, 0x1F, control)
    return bytes(space)


@pytest.mark.parametrize(("control", "is_redirecting"), [(0x1D, True), (0x04, True), (0x11, False), (0x00, False)])
def test_acs_is_read_from_the_configuration_space(control: int, is_redirecting: bool) -> None:
    kernel = Kernel({"/sys/bus/pci/devices/0000:01:00.0/config": config(control)})
    assert redirects(kernel, "0000:01:00.0") == is_redirecting


def test_a_short_or_circular_configuration_space_says_nothing() -> None:
    loop = bytearray(4096)
    struct.pack_into("<I", loop, 0x100, 0x0001 | 1 << 16 | 0x100 << 20)
    for data in (b"", bytes(64), bytes(4096), bytes(loop)):
        assert not redirects(Kernel({"/sys/bus/pci/devices/a/config": data}), "a")
    assert not redirects(Kernel({}), "a")


def test_acs_and_iommu_are_told_for_paths_of_accelerators_only() -> None:
    bridge = Component(key="b", name="b", kind="bridge", pci_address="0000:01:00.0")
    other = Component(key="c", name="c", kind="bridge", pci_address="0000:02:00.0")
    device = dataclasses.replace(gpus(1)[0], parent="b")
    files = {f"/sys/bus/pci/devices/0000:0{i}:00.0/config": config(0x1D) for i in (1, 2)}
    fragment = Fragment(origin="t", format="t", components=(bridge, other, device))
    (warning,) = path_warnings(Kernel(files), fragment)
    assert "0000:01:00.0" in warning
    assert "0000:02:00.0" not in warning
    translating = Kernel({"/sys/kernel/iommu_groups/0/type": b"DMA-FQ\n"})
    assert "IOMMU" in path_warnings(translating, fragment)[0]
    passing = Kernel({"/sys/kernel/iommu_groups/0/type": b"identity\n"})
    assert path_warnings(passing, fragment) == ()
