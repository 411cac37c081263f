"""The live NVML path: nvidia-ml-py over a library of our own (``native/fake_nvml.c``), in real child processes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from plait.hardware.contexts import LiveContext
from plait.hardware.discovery import SHARE, devices_of, discover, leaves_of
from plait.hardware.topology import Component, Fragment
from plait.hardware.values import Source
from plait.hardware.vendors.isolation import probe_apart
from plait.hardware.vendors.nvidia import Nvidia

SOURCE = Path(__file__).parent / "native" / "fake_nvml.c"
COMPILER = shutil.which("gcc") or shutil.which("cc")
SHORT_S = 2.0

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the invented NVML with")


def build(directory: Path, *flags: str) -> Path:
    directory.mkdir()
    command = [str(COMPILER), "-shared", "-fPIC", *flags, "-o", str(directory / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("nvml")
    return {"new": build(root / "new"), "old": build(root / "old", "-DOLD_DRIVER")}


def probe(
    libraries: dict[str, Path], *, board: str = "a100", fault: str = "none", age: str = "new", limit_s: float = 60.0
) -> Fragment:
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": str(libraries[age]),
        "FAKE_NVML_BOARD": board,
        "FAKE_NVML_FAULT": fault,
        "PATH": str(libraries[age]),
    }
    return probe_apart(Nvidia(), LiveContext(env=env), limit_s)


def gpus(fragment: Fragment) -> list[Component]:
    return [component for component in fragment.components if component.parent is None]


def test_eight_gpus_with_all_that_nvml_tells(libraries: dict[str, Path]) -> None:
    found = probe(libraries)
    assert found.error is None
    assert found.source is Source.LIBRARY
    whole = gpus(found)
    assert [gpu.name for gpu in whole] == [f"GPU{n}" for n in range(8)]
    first = whole[0]
    assert (first.key, first.pci_address) == ("0000:07:00.0", "0000:07:00.0")
    assert first.uuid == "GPU-00000000-0000-0000-0000-000000000000"
    assert first.model == "NVIDIA A100-SXM4-80GB"
    assert (first.memory_bytes.value, first.memory_bytes.source) == (81920 * 2**20, Source.LIBRARY)
    assert (first.pci.generation, first.pci.max_generation, first.pci.lanes) == (1, 4, 16)
    assert first.pci.is_idle_reading, "an idle GPU lowers its link"
    assert first.health == "ok"
    assert first.extra["driver_version"] == "550.54.15"
    assert (first.extra["vendor"], first.extra["device"]) == ("0x10de", "0x20b2")
    assert (first.extra["power_w"], first.extra["power_limit_w"]) == ("61", "400")
    assert first.extra["compute_capability"] == "8.0"
    assert first.extra["memory_used_bytes"] == str(512 * 2**20)


def test_nvlink_through_a_switch_is_what_the_weaker_end_has(libraries: dict[str, Path]) -> None:
    found = probe(libraries)
    counts = {(link.a, link.b): link.count for link in found.links if link.kind == "nvlink"}
    assert len(counts) == 28
    with_gpu_1 = {count for ends, count in counts.items() if "0000:0b:00.0" in ends}
    assert with_gpu_1 == {10}, "two links of GPU 1 are down"
    assert {count for ends, count in counts.items() if "0000:0b:00.0" not in ends} == {12}
    paths = {frozenset((link.a, link.b)): link.kind for link in found.links if link.kind != "nvlink"}
    assert paths[frozenset(("0000:07:00.0", "0000:0b:00.0"))] == "pix"
    assert paths[frozenset(("0000:07:00.0", "0000:4c:00.0"))] == "node"
    assert paths[frozenset(("0000:07:00.0", "0000:cb:00.0"))] == "sys"


def test_direct_nvlink_is_counted_by_pair(libraries: dict[str, Path]) -> None:
    found = probe(libraries, board="v100")
    counts = {(link.a[5:7], link.b[5:7]): link.count for link in found.links if link.kind == "nvlink"}
    assert counts[("07", "0b")] == 2
    assert counts[("07", "48")] == 1
    assert counts[("07", "88")] == 1
    assert ("07", "cb") not in counts, "no link, none invented"
    assert len(counts) == 12


def test_pairs_that_may_not_reach_each_other(libraries: dict[str, Path]) -> None:
    found = probe(libraries, board="l4")
    assert not [link for link in found.links if link.kind == "nvlink"]
    p2p = {(link.a, link.b): link.p2p for link in found.links}
    assert p2p[("0000:07:00.0", "0000:4c:00.0")] == "ok"
    assert p2p[("0000:07:00.0", "0000:88:00.0")] == "refused"


def test_mig_instances_are_parts(libraries: dict[str, Path]) -> None:
    found = probe(libraries)
    parts = [component for component in found.components if component.parent is not None]
    assert [part.parent for part in parts] == ["0000:cb:00.0"] * 2
    assert parts[0].uuid == parts[0].key == "MIG-00000000-0000-0000-0000-000000000701"
    assert parts[0].memory_bytes.value == 40192 * 2**20
    assert parts[1].extra["gpu_instance_id"] == "9"
    assert parts[1].extra["multiprocessor_count"] == "14"


def test_an_old_driver_costs_only_what_it_lacks(libraries: dict[str, Path]) -> None:
    found = probe(libraries, age="old")
    assert found.error is None
    assert len(found.components) == 8, "it knows no MIG"
    assert all(gpu.memory_bytes.value and gpu.health == "ok" for gpu in found.components)
    assert any("nvmlDeviceGetMigMode" in hidden for hidden in found.hides)
    assert not [link for link in found.links if link.kind == "nvlink"], "where the links end is not told"


def test_health(libraries: dict[str, Path]) -> None:
    sick = probe(libraries, fault="sick")
    health = {gpu.name: gpu.health for gpu in gpus(sick)}
    assert health["GPU2"] == "3 uncorrectable memory errors since the driver was loaded"
    assert health["GPU5"] == "slowed: hardware thermal limit"
    assert health["GPU0"] == "ok"
    assert any("GPU2" in warning for warning in sick.warnings)
    lost = gpus(probe(libraries, fault="lost"))
    assert len(lost) == 8
    assert lost[3].health == "lost: gpu is lost"
    assert lost[4].health == "ok"


@pytest.mark.parametrize("fault", ["hang", "hang-late"])
def test_a_hanging_driver_is_stopped(libraries: dict[str, Path], fault: str) -> None:
    found = probe(libraries, fault=fault, limit_s=SHORT_S)
    assert found.components == ()
    assert found.error is not None
    assert "no answer within 2 s, stopped" in found.error


def test_a_crash_and_noise_hurt_nobody(libraries: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    crashed = probe(libraries, fault="crash")
    assert crashed.error is not None
    assert "crashed (SIGSEGV)" in crashed.error
    noisy = probe(libraries, fault="noise")
    assert noisy.error is None
    assert len(gpus(noisy)) == 8
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


def test_a_library_without_a_driver_says_so(libraries: dict[str, Path]) -> None:
    found = probe(libraries, fault="no-driver")
    assert found.error == "NVML: driver not loaded"


def test_the_command_line_tool_stands_in(libraries: dict[str, Path], tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = topo ]; then\n'
        '  printf "\\tGPU0\\tGPU1\\tCPU Affinity\\nGPU0\\t X \\tNV4\\t0-7\\nGPU1\\tNV4\\t X \\t0-7\\n"\n'
        "  exit 255\nfi\n"
        'printf "<nvidia_smi_log><attached_gpus>2</attached_gpus>"\n'
        "for n in 1 2; do\n"
        '  printf "<gpu id=\\"00000000:0$n:00.0\\"><product_name>NVIDIA A30</product_name>"\n'
        '  printf "<fb_memory_usage><total>24576 MiB</total></fb_memory_usage></gpu>"\n'
        "done\n"
        'printf "</nvidia_smi_log>"\n'
    )
    tool.chmod(0o755)
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": str(libraries["new"]),
        "FAKE_NVML_FAULT": "crash",
        "PATH": f"{tmp_path}:/bin",
    }
    found = probe_apart(Nvidia(), LiveContext(env=env), 60.0)
    assert found.error is None
    assert [(gpu.pci_address, gpu.model) for gpu in found.components] == [
        ("0000:01:00.0", "NVIDIA A30"),
        ("0000:02:00.0", "NVIDIA A30"),
    ]
    assert [(link.kind, link.count) for link in found.links] == [("nvlink", 4)]
    assert any("crashed" in warning for warning in found.warnings)


def test_a_hanging_tool_costs_its_own_answer(libraries: dict[str, Path], tmp_path: Path) -> None:
    """The log comes, the matrix never does: what came stands."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\n"
        '[ "$1" = topo ] && exec sleep 1000\n'
        'printf "<nvidia_smi_log><attached_gpus>1</attached_gpus><gpu id=\\"00000000:01:00.0\\">"\n'
        'printf "<product_name>NVIDIA A30</product_name></gpu></nvidia_smi_log>"\n'
    )
    tool.chmod(0o755)
    own = {
        "LD_LIBRARY_PATH": str(libraries["new"]),
        "FAKE_NVML_FAULT": "no-driver",
        "PATH": f"{tmp_path}:/bin:/usr/bin",
    }
    found = probe_apart(Nvidia(), LiveContext(env={**os.environ, **own}), 4.0)
    assert found.error is None
    assert [gpu.model for gpu in found.components] == ["NVIDIA A30"]
    assert any("topo -m" in warning and "stopped" in warning for warning in found.warnings)


def test_the_whole_machine(libraries: dict[str, Path]) -> None:
    env = {**os.environ, "LD_LIBRARY_PATH": str(libraries["new"])}
    found = discover(LiveContext(env=env), limit_s=60.0)
    devices = {device.name: device for device in devices_of(found)}
    assert devices["GPU0"].accelerator_type == "A100-SXM4-80GB"
    assert devices["CPU"].accelerator_type == "CPU"
    assert devices["GPU7 MIG 0"].extra[SHARE] == "0.4286"
    assert devices["GPU7 MIG 0"].accelerator_type == "A100-SXM4-80GB"
    names = [leaf.name for leaf in leaves_of(found)]
    assert names == [f"GPU{n}" for n in range(7)] + ["GPU7 MIG 0", "GPU7 MIG 1"]
