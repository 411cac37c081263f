"""NCCL topology files read, written and read again say the same."""

from dataclasses import replace
from pathlib import Path

import pytest

from plait.hardware.importers import read_dump
from plait.hardware.importers.nccl_write import write_nccl_xml

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "data" / "topology" / "nccl-xml"
FILES = sorted(CORPUS.glob("*.xml")) if CORPUS.is_dir() else []

pytestmark = pytest.mark.skipif(not FILES, reason="no NCCL samples")


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_read_written_and_read_again_is_equal(path: Path) -> None:
    once = read_dump(path.read_bytes(), "file")
    assert once.components
    assert read_dump(write_nccl_xml(once), "file") == once


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_fragment_of_another_source_keeps_devices_and_links(path: Path) -> None:
    """The same content under another format's name takes the road that sysfs and hwloc fragments take."""
    once = read_dump(path.read_bytes(), "file")
    if not any(c.pci_address for c in once.components):
        pytest.skip("no PCI level")
    again = read_dump(write_nccl_xml(replace(once, format="sysfs")), "file")
    addresses = [{c.pci_address for c in f.components if c.kind in {"gpu", "nic"}} for f in (once, again)]
    assert addresses[0] == addresses[1]
    counts = [{(link.a, link.b): link.count for link in f.links if link.b != "?"} for f in (once, again)]
    assert counts[0] == counts[1]
