"""The probe of ``/sys`` over hand-written trees: what is there, where it hangs, what is not told."""

import io
import tarfile
from collections.abc import Mapping

import pytest

from plait.hardware.contexts import CapturedContext, archive_tree
from plait.hardware.importers import read_dump
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.sysfs import probe_sysfs
from plait.hardware.topology import Component, Fragment


def archive(files: Mapping[str, str], links: Mapping[str, str] | None = None, root: str = "host/") -> bytes:
    """Returns a tar archive of these files and links under a directory of its own."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(root + name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(root + name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return out.getvalue()


def probe(files: Mapping[str, str], links: Mapping[str, str] | None = None) -> Fragment:
    return probe_sysfs(CapturedContext(archive_tree(archive(files, links), "test")[0]))


def get(fragment: Fragment, key: str) -> Component:
    component = fragment.component(key)
    assert component is not None, [c.key for c in fragment.components]
    return component


NODES = {
    "sys/devices/system/node/node0/cpulist": "0-1\n",
    "sys/devices/system/node/node0/distance": "10 21 40\n",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       1024 kB\nNode 0 MemFree: 5 kB\n",
    "sys/devices/system/node/node8/cpumap": "0000000c\n",
    "sys/devices/system/node/node8/distance": "21 10 40\n",
    "sys/devices/system/node/node255/cpulist": "\n",
    "sys/devices/system/node/node255/distance": "40 40 10\n",
    "sys/devices/system/node/possible": "0-255\n",
}
TREE = "sys/devices/pci0000:00/0000:00:01.0"
BRIDGE = {
    f"{TREE}/class": "0x060400\n",
    f"{TREE}/vendor": "0x8086\n",
    f"{TREE}/0000:01:00.0/class": "0x030200\n",
    f"{TREE}/0000:01:00.0/vendor": "0x10de\n",
    f"{TREE}/0000:01:00.0/numa_node": "8\n",
    f"{TREE}/0000:01:00.0/local_cpulist": "2-3\n",
    f"{TREE}/0000:01:00.0/current_link_speed": "2.5 GT/s PCIe\n",
    f"{TREE}/0000:01:00.0/current_link_width": "8\n",
    f"{TREE}/0000:01:00.0/max_link_speed": "16.0 GT/s PCIe\n",
    f"{TREE}/0000:01:00.0/max_link_width": "16\n",
    "proc/driver/nvidia/gpus/0000:01:00.0/numa_status": "Node:      255\nStatus:    online\n",
    "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-12\n",
}


def test_rows_of_distances_follow_the_ids_that_exist() -> None:
    found = probe(NODES)
    assert found.numa_distances[8, 0] == 21
    assert found.numa_distances[0, 255] == 40
    assert get(found, "numa0").memory_bytes.value == 1024 * 1024
    assert get(found, "numa8").locality.cpus == frozenset({2, 3})
    assert get(found, "numa255").locality.cpus == frozenset()


def test_a_row_of_another_length_is_said_and_not_used() -> None:
    found = probe({**NODES, "sys/devices/system/node/node8/distance": "21 10\n"})
    assert (8, 0) not in found.numa_distances
    assert any("node8" in line for line in found.unread)


def test_a_gpu_with_its_bridge_and_the_node_that_its_memory_is() -> None:
    found = probe(NODES | BRIDGE)
    gpu = get(found, "0000:01:00.0")
    assert (gpu.kind, gpu.parent, gpu.model, gpu.uuid) == ("gpu", "0000:00:01.0", "NVIDIA A100", "GPU-12")
    assert gpu.locality.numa_nodes == (8,)
    assert gpu.locality.gpu_numa_node == 255
    assert (gpu.pci.generation, gpu.pci.lanes, gpu.pci.max_generation, gpu.pci.max_lanes) == (1, 8, 4, 16)
    assert gpu.pci.is_idle_reading
    assert any("8 PCIe lanes of the 16" in warning for warning in found.warnings)


def test_minus_one_is_unknown_and_says_why() -> None:
    place = get(probe({**BRIDGE, f"{TREE}/0000:01:00.0/numa_node": "-1\n"}), "0000:01:00.0").locality
    assert (place.numa_nodes, place.why_unknown) == (None, "numa_node is -1")


def test_functions_that_only_the_bus_lists_are_found() -> None:
    found = probe({"sys/bus/pci/devices/0004:05:00.0/class": "0x030000\n"})
    gpu = get(found, "0004:05:00.0")
    assert (gpu.kind, gpu.vendor, gpu.parent) == ("gpu", None, None)


def test_virtual_functions_are_parts_of_the_physical_one() -> None:
    files = {
        "sys/devices/pci0000:00/0000:00:02.0/class": "0x020000\n",
        "sys/devices/pci0000:00/0000:00:02.1/class": "0x020000\n",
    }
    found = probe(files, {"sys/devices/pci0000:00/0000:00:02.1/physfn": "../0000:00:02.0"})
    assert get(found, "0000:00:02.1").parent == "0000:00:02.0"
    assert get(found, "0000:00:02.1").extra["virtual_function_of"] == "0000:00:02.0"


def test_a_domain_behind_a_controller_hangs_under_it() -> None:
    vmd = "sys/devices/pci0000:00/0000:00:0e.0"
    found = probe({f"{vmd}/class": "0x010400\n", f"{vmd}/pci10000:e0/10000:e0:06.0/class": "0x060400\n"})
    assert get(found, "10000:e0:06.0").parent == "0000:00:0e.0"


PORT = f"{TREE}/0000:02:00.0/infiniband/mlx5_0/ports/1"
NIC = {
    f"{TREE}/0000:02:00.0/class": "0x020700\n",
    f"{TREE}/0000:02:00.0/net/ib0/speed": "100000\n",
    f"{PORT}/rate": "200 Gb/sec (4X HDR)\n",
    f"{PORT}/state": "4: ACTIVE\n",
    f"{PORT}/link_layer": "InfiniBand\n",
}
CLASSES = {
    "sys/class/infiniband/mlx5_0": f"../../../{TREE}/0000:02:00.0/infiniband/mlx5_0",
    "sys/class/net/ib0": f"../../../{TREE}/0000:02:00.0/net/ib0",
    "sys/bus/pci/devices/0000:02:00.0": f"../../../../{TREE}/0000:02:00.0",
}


def test_a_nic_is_named_by_its_fabric_device_and_has_the_rate_of_its_port() -> None:
    nic = get(probe(BRIDGE | NIC, CLASSES), "0000:02:00.0")
    assert (nic.name, nic.rate_bytes_per_s.value, nic.health) == ("mlx5_0", 25e9, "active")
    assert (nic.extra["infiniband"], nic.extra["net"]) == ("mlx5_0", "ib0")
    assert nic.extra["port.1.link_layer"] == "InfiniBand"


def test_a_port_that_is_down_prints_a_rate_that_is_not_believed() -> None:
    found = probe(BRIDGE | NIC | {f"{PORT}/state": "1: DOWN\n"}, CLASSES)
    nic = get(found, "0000:02:00.0")
    assert (nic.rate_bytes_per_s.value, nic.health) == (None, "down")
    assert any("mlx5_0" in warning for warning in found.warnings)


@pytest.mark.parametrize(("speed", "rate"), [("25000\n", 3.125e9), ("-1\n", None), ("0\n", None), ("", None)])
def test_network_speeds_are_megabits_and_minus_one_is_unknown(speed: str, rate: float | None) -> None:
    files = {
        "sys/devices/pci0000:00/0000:00:03.0/class": "0x020000\n",
        "sys/devices/pci0000:00/0000:00:03.0/virtio0/net/eth0/speed": speed,
    }
    links = {"sys/bus/pci/devices/0000:00:03.0": "../../../../sys/devices/pci0000:00/0000:00:03.0"}
    nic = get(probe(files, links), "0000:00:03.0")
    assert (nic.name, nic.rate_bytes_per_s.value) == ("eth0", rate)


def test_a_software_fabric_device_has_no_place() -> None:
    files = {"sys/devices/virtual/infiniband/rxe0/ports/1/rate": "2.5 Gb/sec (1X SDR)\n"}
    found = probe(files, {"sys/class/infiniband/rxe0": "../../devices/virtual/infiniband/rxe0"})
    assert get(found, "rxe0").parent is None


def kfd(node: int, name: str) -> str:
    return f"sys/class/kfd/kfd/topology/nodes/{node}/{name}"


def test_kfd_tells_memory_and_links_of_amd_gpus() -> None:
    files = {
        kfd(0, "properties"): "cpu_cores_count 64\nsimd_count 0\n",
        kfd(1, "properties"): "cpu_cores_count 0\nsimd_count 416\nlocation_id 49408\ndomain 0\ngpu_id 7\n",
        kfd(2, "properties"): "cpu_cores_count 0\nsimd_count 416\nlocation_id 50688\ndomain 0\n",
        kfd(1, "mem_banks/0/properties"): "heap_type 1\nsize_in_bytes 68702699520\n",
        kfd(1, "io_links/0/properties"): "type 2\nnode_from 1\nnode_to 0\nmin_bandwidth 312\nmax_bandwidth 16000\n",
        kfd(1, "io_links/1/properties"): "type 11\nnode_to 2\nweight 15\nmin_bandwidth 50000\nmax_bandwidth 200000\n",
        kfd(2, "io_links/0/properties"): "type 11\nnode_to 1\nweight 15\nmin_bandwidth 50000\nmax_bandwidth 200000\n",
        "sys/bus/pci/devices/0000:c1:00.0/class": "0x038000\n",
        "sys/bus/pci/devices/0000:c1:00.0/vendor": "0x1002\n",
        "sys/bus/pci/devices/0000:c6:00.0/class": "0x038000\n",
    }
    found = probe(NODES | files)
    assert get(found, "0000:c1:00.0").memory_bytes.value == 68702699520
    xgmi = [link for link in found.links if link.kind == "xgmi"]
    assert [(link.a, link.b, link.count) for link in xgmi] == [("0000:c1:00.0", "0000:c6:00.0", 4)]
    assert xgmi[0].bytes_per_s.value == 200e9
    assert ("0000:c1:00.0", "numa0") in {(link.a, link.b) for link in found.links if link.kind == "pcie"}


def cpu(number: int, package: int | None, together: str) -> dict[str, str]:
    path = f"sys/devices/system/cpu/cpu{number}/topology"
    identity = {} if package is None else {f"{path}/physical_package_id": f"{package}\n"}
    return {f"{path}/core_siblings_list": together, f"{path}/thread_siblings_list": f"{number}", **identity}


def test_packages_by_who_is_together() -> None:
    files = cpu(0, 0, "0-1") | cpu(1, 0, "0-1") | cpu(2, 4, "2") | {"sys/devices/system/cpu/cpu9/online": "0\n"}
    found = probe(files)
    assert {c.key: c.locality.cpus for c in found.components if c.kind == "cpu"} == {
        "package0": frozenset({0, 1}),
        "package4": frozenset({2}),
    }
    assert get(found, "machine").extra == {"cores": "3", "threads": "3"}


def test_packages_without_numbers_and_with_the_same_number() -> None:
    unnumbered = probe(cpu(0, None, "0-1") | cpu(1, None, "0-1") | cpu(2, None, "2"))
    assert [c.key for c in unnumbered.components if c.kind == "cpu"] == ["package at cpu0", "package at cpu2"]
    twins = probe(cpu(0, 0, "0") | cpu(1, 0, "1"))
    assert [c.key for c in twins.components if c.kind == "cpu"] == ["package0", "package0 at cpu1"]


def test_an_archive_of_it_is_a_dump_in_any_compression_and_from_inside_sys() -> None:
    plain = archive(NODES | BRIDGE)
    whole = read_dump(plain, "tree")
    import bz2
    import gzip
    import lzma

    for data in (bz2.compress(plain), gzip.compress(plain), lzma.compress(plain)):
        assert read_dump(data, "tree") == whole
    inside = archive({name.removeprefix("sys/"): text for name, text in NODES.items()}, root="./")
    assert read_dump(inside, "tree").numa_distances == whole.numa_distances


def test_a_cut_archive_yields_what_is_there_and_says_so() -> None:
    found = read_dump(archive(NODES | BRIDGE)[:7000], "tree")
    assert any("cut off" in line for line in found.unread)
    assert any(c.kind == "numa" for c in found.components)


@pytest.mark.parametrize("data", [b"BZh91AY&SY" + bytes(50), b"\x1f\x8b" + bytes(50), archive({"etc/motd": "hello"})])
def test_what_is_no_tree_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableDump):
        read_dump(data, "file")


def test_links_that_lead_in_circles_or_out_of_the_tree_do_not_hang() -> None:
    links = {"sys/bus/pci/devices/0000:01:00.0": "0000:01:00.0", "sys/class/net/a": "../../../../../../etc/passwd"}
    assert probe(NODES, links).component("numa0") is not None
