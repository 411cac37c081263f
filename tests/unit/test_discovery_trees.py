"""Machines of every vendor as captured trees of files and outputs: what discovery makes of them."""

import json
import os
import sys
from pathlib import Path

import pytest

from plait.hardware.captures import UnreadableMachine, read_machine, write_capture
from plait.hardware.contexts import CapturedContext, DirectoryTree, LiveContext
from plait.hardware.discovery import MATCH, SHARE, devices_of, discover, leaves_of
from plait.hardware.own_devices import own_devices
from plait.hardware.topology import Component, Fragment
from plait.hardware.values import Source
from plait.hardware.vendors.amd import Amd
from plait.hardware.vendors.isolation import probe_apart
from plait.hardware.visible import visible_nvidia

GIB = 2**30
KFD = "sys/class/kfd/kfd/topology/nodes"
PCI = "sys/bus/pci/devices"

NPU_SMI = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 93.7        36                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3322 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | Warning       | 95.1        37                0    / 0             |
| 0                         | 0000:C2:00.0  | 0           0    / 0          3322 / 65536         |
+===========================+===============+====================================================+
"""
NPU_MAP = (
    "\tNPU ID     Chip ID    Chip Logic ID    Chip Name\n"
    "\t0          0          4                Ascend 910B3\n"
    "\t0          1          -                Mcu\n"
    "\t1          0          5                Ascend 910B3\n"
)
NPU_TOPO = (
    "\t       NPU0       NPU1       CPU Affinity\n"
    "NPU0       X          HCCS       144-167\n"
    "NPU1       HCCS       X          144-167\n"
)


def machine(root: Path, files: dict[str, str], env: dict[str, str] | None = None) -> CapturedContext:
    for name, text in {"proc/cpuinfo": "model name\t: Some CPU\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return CapturedContext(DirectoryTree(root), env=env)


def accelerators(found: Fragment) -> list[Component]:
    return [device for device in devices_of(found) if device.kind in {"gpu", "npu"}]


def amd_gpu(number: int, *, device: str, simd: int, hive: int = 7) -> dict[str, str]:
    bus = 0x10 + number
    address = f"0000:{bus:02x}:00.0"
    peers = [other for other in range(2) if other != number]
    properties = (
        f"cpu_cores_count 0\nsimd_count {simd}\nsimd_per_cu 4\nvendor_id 4098\ndevice_id {int(device, 16)}\n"
        f"location_id {bus << 8}\ndomain 0\nhive_id {hive}\ngpu_id {1000 + number}\ngfx_target_version 90010\n"
    )
    node = f"{KFD}/{number + 1}"
    files = {
        f"{PCI}/{address}/vendor": "0x1002\n",
        f"{PCI}/{address}/device": f"{device}\n",
        f"{PCI}/{address}/class": "0x038000\n",
        f"{PCI}/{address}/numa_node": f"{number}\n",
        f"{PCI}/{address}/current_link_speed": "16.0 GT/s PCIe\n",
        f"{PCI}/{address}/current_link_width": "16\n",
        f"{PCI}/{address}/mem_info_vram_total": f"{64 * GIB - (1 << 24)}\n",
        f"{PCI}/{address}/mem_info_vram_used": f"{1 << 24}\n",
        f"{PCI}/{address}/product_name": "AMD Instinct MI250X/MI250\n",
        f"{PCI}/{address}/hwmon/hwmon3/power1_average": "89000000\n",
        f"{PCI}/{address}/hwmon/hwmon3/power1_cap": "500000000\n",
        f"{PCI}/{address}/ras/umc_err_count": f"ue: {number}\nce: 4\n",
        f"{node}/properties": properties,
        f"{node}/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {64 * GIB - (1 << 24)}\n",
    }
    for link, peer in enumerate(peers):
        files[f"{node}/io_links/{link}/properties"] = (
            f"type 11\nnode_from {number + 1}\nnode_to {peer + 1}\nweight 15\n"
            "min_bandwidth 50000\nmax_bandwidth 200000\n"
        )
    return files


def test_amd_without_any_library(tmp_path: Path) -> None:
    ctx = machine(tmp_path, {**amd_gpu(0, device="0x740c", simd=440), **amd_gpu(1, device="0x740c", simd=416)})
    found = discover(ctx)
    first, second = accelerators(found)
    assert (first.accelerator_type, second.accelerator_type) == ("MI250X", "MI250"), "told by their compute units"
    assert (first.extra["compute_units"], second.extra["compute_units"]) == ("110", "104")
    assert first.memory_bytes.value == 64 * GIB - (1 << 24)
    assert first.locality.numa_nodes == (0,)
    assert (first.health, second.health) == ("ok", "1 uncorrectable memory errors")
    assert (first.extra["power_w"], first.extra["power_limit_w"]) == ("89", "500")
    xgmi = [link for link in found.links if link.kind == "xgmi"]
    assert [(link.count, link.bytes_per_s.value) for link in xgmi] == [(4, 200e9)]
    assert first.extra["package"] == second.extra["package"] == "package of 0000:10:00.0"


def test_amdsmi_is_asked_in_a_child_where_it_works(tmp_path: Path) -> None:
    (tmp_path / "amdsmi.py").write_text(
        "print('amdsmi says hello to everybody')\n"
        "class AmdSmiMemoryType:\n    VRAM = 0\n"
        "def amdsmi_init(): pass\n"
        "def amdsmi_shut_down(): pass\n"
        "def amdsmi_get_processor_handles(): return ['a', 'b']\n"
        "def amdsmi_get_gpu_device_bdf(h): return '0000:%02x:00.0' % (5 if h == 'a' else 6)\n"
        "def amdsmi_get_gpu_asic_info(h): return {'market_name': 'AMD Instinct MI300X', 'device_id': '0x74a1'}\n"
        "def amdsmi_get_gpu_memory_total(h, kind): return 196592 << 20\n"
        "def amdsmi_get_gpu_device_uuid(h): raise RuntimeError('not in this version')\n"
        "def amdsmi_get_power_info(h): return {'current_socket_power': 140, 'average_socket_power': 'N/A'}\n"
        "def amdsmi_get_pcie_info(h):\n"
        "    return {'pcie_static': {'max_pcie_width': 16, 'max_pcie_speed': 32000}, 'pcie_metric': {}}\n"
        "def amdsmi_get_gpu_total_ecc_count(h): return {'uncorrectable_count': 0, 'correctable_count': 2}\n"
        "def amdsmi_topo_get_link_type(a, b): return {'hops': 1, 'type': 'AMDSMI_LINK_TYPE_XGMI'}\n"
        "def amdsmi_get_minmax_bandwidth_between_processors(a, b):\n"
        "    return {'min_bandwidth': 50000, 'max_bandwidth': 64000}\n"
        "def amdsmi_topo_get_link_weight(a, b): return 15\n"
        "def amdsmi_is_P2P_accessible(a, b): return True\n"
    )
    found = probe_apart(Amd(), LiveContext(env={**os.environ, "PYTHONPATH": str(tmp_path)}), 60.0)
    assert found.error is None
    assert found.source is Source.LIBRARY
    assert [(gpu.pci_address, gpu.model, gpu.uuid) for gpu in found.components] == [
        ("0000:05:00.0", "AMD Instinct MI300X", None),
        ("0000:06:00.0", "AMD Instinct MI300X", None),
    ]
    assert found.components[0].memory_bytes.value == 196592 << 20
    assert (found.components[0].pci.max_generation, found.components[0].health) == (5, "ok")
    (link,) = found.links
    assert (link.kind, link.p2p, link.bytes_per_s.value) == ("xgmi", "ok", 64e9)


def test_amdsmi_that_cannot_be_imported_is_no_accident(tmp_path: Path) -> None:
    (tmp_path / "amdsmi.py").write_text("print('no library')\nraise KeyError('libamd_smi.so')\n")
    found = probe_apart(Amd(), LiveContext(env={**os.environ, "PYTHONPATH": str(tmp_path)}), 60.0)
    assert found.components == ()
    assert found.error is not None
    assert "libamd_smi.so" in found.error


def test_ascend(tmp_path: Path) -> None:
    outputs = {
        "commands/npu-smi info.txt": NPU_SMI,
        "commands/npu-smi info -m.txt": NPU_MAP,
        "commands/npu-smi info -t topo.txt": NPU_TOPO,
    }
    found = discover(machine(tmp_path, outputs))
    first, second = accelerators(found)
    assert (first.accelerator_type, first.index, first.health) == ("Ascend910B3", 4, "ok")
    assert (second.pci_address, second.index, second.health) == ("0000:c2:00.0", 5, "Warning")
    assert first.memory_bytes.value == 65536 * 2**20
    assert first.extra["power_w"] == "93.7"
    assert [link.kind for link in found.links if {link.a, link.b} == {first.key, second.key}] == ["hccs"]


def test_jetson(tmp_path: Path) -> None:
    sensor = "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon2"
    files = {
        "proc/device-tree/compatible": "nvidia,p3737-0000+p3701-0005\0nvidia,p3701-0005\0nvidia,tegra234\0",
        "proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0",
        "proc/meminfo": "MemTotal:       64349060 kB\n",
        f"{sensor}/in1_label": "VDD_GPU_SOC\n",
        f"{sensor}/in1_input": "19000\n",
        f"{sensor}/curr1_input": "400\n",
        "sys/class/thermal/thermal_zone1/type": "gpu-thermal\n",
        "sys/class/thermal/thermal_zone1/temp": "48500\n",
        "commands/nvpmodel -q.txt": "NV Power Mode: MAXN\n0\n",
        "commands/nvidia-smi.txt": "NVIDIA-SMI 540.3.0\n",
    }
    found = discover(machine(tmp_path, files))
    (gpu,) = accelerators(found)
    assert (gpu.accelerator_type, gpu.vendor, gpu.health) == ("JetsonOrin", "nvidia", "ok")
    assert gpu.memory_bytes.value == 64349060 * 1024
    assert gpu.extra["shares_host_memory"] == "yes"
    assert (gpu.extra["power_mode"], gpu.extra["power_w"], gpu.extra["temperature_c"]) == ("MAXN", "7.6", "48.5")


def test_nvidia_by_recorded_outputs_and_the_files_of_its_driver(tmp_path: Path) -> None:
    address = "0000:3b:00.0"
    files = {
        f"{PCI}/{address}/vendor": "0x10de\n",
        f"{PCI}/{address}/device": "0x20b7\n",
        f"{PCI}/{address}/class": "0x030200\n",
        f"{PCI}/{address}/numa_node": "1\n",
        f"{PCI}/{address}/local_cpulist": "16-31\n",
        "commands/nvidia-smi -q -x.txt": (
            "<nvidia_smi_log><attached_gpus>1</attached_gpus>"
            '<gpu id="00000000:3B:00.0"><product_name>NVIDIA A30</product_name>'
            "<fb_memory_usage><total>24576 MiB</total></fb_memory_usage></gpu></nvidia_smi_log>"
        ),
    }
    found = discover(machine(tmp_path, files))
    (gpu,) = accelerators(found)
    assert (gpu.key, gpu.accelerator_type) == (address, "A30")
    assert gpu.locality.numa_nodes == (1,)
    assert gpu.locality.cpus == frozenset(range(16, 32))
    assert "24576 MiB fit 24 GiB" in gpu.extra[MATCH]
    assert any("nvidia-smi topo -m" in warning for warning in found.warnings), "what was not recorded is told"


def test_gpus_hang_under_bridges_and_are_whole_all_the_same(tmp_path: Path) -> None:
    """On a real host the parent of a GPU is a bridge: only slices are parts."""
    tree = tmp_path / "sys/devices/pci0000:3a"
    for number, bus in enumerate(("3b", "3c")):
        bridge = tree / f"0000:3a:0{number}.0"
        gpu = bridge / f"0000:{bus}:00.0"
        gpu.mkdir(parents=True)
        for place, device, class_ in ((bridge, "0x2030", "0x060400"), (gpu, "0x20b7", "0x030200")):
            vendor = "0x10de" if place is gpu else "0x8086"
            for name, text in (("vendor", vendor), ("device", device), ("class", class_), ("numa_node", "0")):
                (place / name).write_text(text)
            bus_entry = tmp_path / PCI / place.name
            bus_entry.parent.mkdir(parents=True, exist_ok=True)
            bus_entry.symlink_to("/" + str(place.relative_to(tmp_path)))
    gpus = "".join(
        f'<gpu id="00000000:{bus}:00.0"><product_name>NVIDIA A30</product_name>'
        "<fb_memory_usage><total>24576 MiB</total></fb_memory_usage></gpu>"
        for bus in ("3B", "3C")
    )
    log = f"<nvidia_smi_log><attached_gpus>2</attached_gpus>{gpus}</nvidia_smi_log>"
    found = discover(machine(tmp_path, {"commands/nvidia-smi -q -x.txt": log}))
    assert [gpu.parent for gpu in accelerators(found)] == ["0000:3a:00.0", "0000:3a:01.0"]
    assert [leaf.key for leaf in leaves_of(found)] == ["0000:3b:00.0", "0000:3c:00.0"]
    assert visible_nvidia(accelerators(found), {"CUDA_VISIBLE_DEVICES": "1"}).keys == ("0000:3c:00.0",)
    own = own_devices("box", found, {"CUDA_VISIBLE_DEVICES": "1"})
    assert [(device.index, device.accelerator_type) for device in own.devices] == [(0, "A30")]
    assert own.ids == ("1",)
    assert found.conflicts == ()


def test_a_gpu_without_a_driver_is_seen_and_not_offered(tmp_path: Path) -> None:
    address = "0000:3b:00.0"
    files = {f"{PCI}/{address}/{n}": t for n, t in (("vendor", "0x10de"), ("device", "0x20b5"), ("class", "0x030200"))}
    found = discover(machine(tmp_path, files))
    (gpu,) = accelerators(found)
    assert gpu.accelerator_type == "A100-PCIE-80GB"
    assert any(warning.startswith("nvidia: ") for warning in found.warnings)
    own = own_devices("box", found, {})
    assert [device.accelerator_type for device in own.devices] == ["CPU"]
    assert any("no driver or tool" in note for note in own.notes)


def test_fake_devices(tmp_path: Path) -> None:
    few = discover(machine(tmp_path / "a", {}, {"PLAIT_FAKE_DEVICES": "A100:2,V100-PCIE-16GB"}))
    assert [device.accelerator_type for device in accelerators(few)] == ["A100", "A100", "V100-PCIE-16GB"]
    text = (
        "devices:\n  - {type: A100-SXM4-80GB, count: 2, numa: [0, 1], health: [ok, 'slowed: hot']}\n"
        "links:\n  - {between: [0, 1], kind: nvlink, count: 12, gb_per_s: 300}\n"
    )
    ctx = machine(tmp_path / "b", {"etc/devices.yaml": text}, {"PLAIT_FAKE_DEVICES": "/etc/devices.yaml"})
    found = discover(ctx)
    first, second = accelerators(found)
    assert (first.locality.numa_nodes, second.locality.numa_nodes) == ((0,), (1,))
    assert second.health == "slowed: hot"
    (link,) = (link for link in found.links if link.kind == "nvlink")
    assert (link.count, link.bytes_per_s.value, link.bytes_per_s.source) == (12, 300e9, Source.USER)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a100:2", "did you mean 'A100'"),
        ("/etc/none.yaml", "neither TYPE:COUNT,... nor a file"),
        ("/etc/bad.yaml", "wants a list under `devices`"),
    ],
)
def test_wrong_descriptions_of_fake_devices(tmp_path: Path, text: str, words: str) -> None:
    found = discover(machine(tmp_path, {"etc/bad.yaml": "- 1\n"}, {"PLAIT_FAKE_DEVICES": text}))
    assert accelerators(found) == []
    assert any(words in warning for warning in found.warnings)


def test_the_processors_are_always_there_with_what_they_may_use(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal:       32000000 kB\n",
        "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-3,8\n",
        "sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
    }
    (cpu,) = devices_of(discover(machine(tmp_path, files)))
    assert (cpu.accelerator_type, cpu.model) == ("CPU", "Some CPU")
    assert cpu.memory_bytes.value == 8 * GIB
    assert (cpu.extra["cores"], cpu.extra["quota_cores"]) == ("5", "1.5")
    assert cpu.locality.cpus == frozenset({0, 1, 2, 3, 8})


def test_leaves_are_slices_where_a_device_is_cut(tmp_path: Path) -> None:
    text = (
        "<nvidia_smi_log><attached_gpus>1</attached_gpus>"
        '<gpu id="00000000:3B:00.0"><product_name>NVIDIA A100-SXM4-40GB</product_name>'
        "<fb_memory_usage><total>40960 MiB</total></fb_memory_usage><mig_devices><mig_device><index>0</index>"
        "<gpu_instance_id>1</gpu_instance_id><compute_instance_id>0</compute_instance_id>"
        "<fb_memory_usage><total>20096 MiB</total></fb_memory_usage></mig_device></mig_devices></gpu></nvidia_smi_log>"
    )
    file = tmp_path / "q.xml"
    file.write_text(text)
    found = read_machine(file)
    (leaf,) = leaves_of(found)
    assert leaf.name == "GPU0 MIG 0"
    assert (leaf.accelerator_type, SHARE in leaf.extra) == ("A100-SXM4-40GB", False)
    assert leaf.extra[MATCH] == "a slice of GPU0"


def test_one_vendor_is_offered_with_what_the_environment_shows(tmp_path: Path) -> None:
    files = {**amd_gpu(0, device="0x740c", simd=440), **amd_gpu(1, device="0x740c", simd=440)}
    found = discover(machine(tmp_path, files))
    own = own_devices("box", found, {"HIP_VISIBLE_DEVICES": "1"})
    assert [(device.id, device.index, device.accelerator_type) for device in own.devices] == [("box/0", 0, "MI250X")]
    assert own.devices[0].memory_bytes == 64 * GIB, "the size on the label, which jobs ask for"
    assert own.devices[0].numa_node == 1
    assert own.variable == "HIP_VISIBLE_DEVICES"
    assert any("the environment hides it" in note for note in own.notes)


def test_a_capture_reads_as_the_machine_and_holds_no_names(tmp_path: Path) -> None:
    uuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
    information = f"Model: \t\t NVIDIA A30\nGPU UUID: \t {uuid}\nBus Location: 0000:3b:00.0\n"
    xml = (
        "<nvidia_smi_log><timestamp>Sun Nov 29</timestamp><attached_gpus>1</attached_gpus>"
        f'<gpu id="00000000:3B:00.0"><product_name>NVIDIA A30</product_name><uuid>{uuid}</uuid>'
        "<serial>1324420012345</serial><fb_memory_usage><total>24576 MiB</total></fb_memory_usage></gpu>"
        "</nvidia_smi_log>"
    )
    files = {
        **{
            f"{PCI}/0000:3b:00.0/{n}": t for n, t in (("vendor", "0x10de"), ("device", "0x20b7"), ("class", "0x030200"))
        },
        f"{PCI}/0000:3b:00.0/unique_id": "d2f1a9be77665544\n",
        "proc/driver/nvidia/gpus/0000:3b:00.0/information": information,
        "proc/self/status": "Name:\tsecret\nUid:\t1234\nCpus_allowed_list:\t0-3\n",
        "commands/nvidia-smi -q -x.txt": xml,
    }
    ctx = machine(tmp_path / "machine", files)
    archive = tmp_path / "out.tar"
    counts = write_capture(ctx, archive)
    assert counts["commands"] >= 1
    found, again = discover(ctx), read_machine(archive)
    wanted = [(d.key, d.accelerator_type, d.memory_bytes.value, d.health, d.locality) for d in devices_of(found)]
    assert [
        (d.key, d.accelerator_type, d.memory_bytes.value, d.health, d.locality) for d in devices_of(again)
    ] == wanted
    assert len(again.components) == len(found.components)
    held = archive.read_bytes()
    for secret in (b"8932f937", b"1324420012345", b"secret", b"d2f1a9be77665544", b"Sun Nov 29"):
        assert secret not in held
    (gpu,) = accelerators(again)
    assert gpu.uuid == "GPU-00000000-0000-0000-0000-000000000001", "the same number wherever it stood"


def test_a_capture_of_this_host_reads_as_this_host(tmp_path: Path) -> None:
    archive = tmp_path / "host.tar"
    write_capture(LiveContext(), archive)
    again, now = read_machine(archive), discover(LiveContext(), limit_s=60.0)
    assert {c.key for c in again.components} == {c.key for c in now.components}
    assert [d.accelerator_type for d in devices_of(again)] == [d.accelerator_type for d in devices_of(now)]


def test_a_folder_of_outputs_is_one_machine(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text(NPU_SMI)
    (tmp_path / "two.txt").write_text(NPU_TOPO)
    (tmp_path / "notes.txt").write_text("call Bob\n")
    found = read_machine(tmp_path)
    assert [npu.accelerator_type for npu in accelerators(found)] == ["Ascend910B3", "Ascend910B3"]
    assert any("notes.txt" in warning for warning in found.warnings)


@pytest.mark.parametrize("content", [None, b"", b"nothing of the kind", b"BZh9garbage"])
def test_what_describes_no_machine_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "x"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UnreadableMachine, match="x"):
        read_machine(file)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UnreadableMachine, match="empty"):
        read_machine(empty)


def test_discovery_loads_neither_torch_nor_vendor_libraries() -> None:
    import subprocess

    program = (
        "import json, sys\n"
        "from plait.hardware.contexts import LiveContext\nfrom plait.hardware.discovery import discover\n"
        "discover(LiveContext())\nprint(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "pynvml", "amdsmi", "torch_npu", "numpy"} & set(json.loads(done.stdout))
