"""What is written for Slurm is read back as the same by the readers of Slurm's files."""

import pytest

from plait.hardware.exports import NothingToExport, write_gres_conf, write_topology_yaml
from plait.hardware.importers import read_dump
from plait.hardware.topology import Component, Fragment, Link


def gpu(index: int, vendor: str = "nvidia", parent: str | None = None) -> Component:
    return Component(
        key=f"0000:0{index}:00.0", name=f"GPU{index}", kind="gpu", vendor=vendor, index=index, model="A100-SXM4 80GB",
        parent=parent,
    )  # fmt: skip


def test_gres_has_a_line_for_each_device_with_its_links() -> None:
    devices = tuple(gpu(n) for n in range(3))
    links = tuple(
        Link(a=devices[a].key, b=devices[b].key, kind="nvlink", count=4 + a) for a, b in ((0, 1), (0, 2), (1, 2))
    )
    text = write_gres_conf(Fragment(origin="x", format="x", components=devices, links=links), "n1")
    assert text.splitlines()[1] == "NodeName=n1 Name=gpu Type=a100_sxm4_80gb File=/dev/nvidia1 Links=4,-1,5"
    found = read_dump(text.encode(), "gres.conf")
    assert [c.key for c in found.components] == [f"n1:/dev/nvidia{n}" for n in range(3)]
    assert {(link.a[-1], link.b[-1], link.count) for link in found.links} == {
        ("0", "1", 4),
        ("0", "2", 4),
        ("1", "2", 5),
    }
    assert found.unread == ()


def test_parts_are_left_out_and_amd_has_other_files() -> None:
    part = gpu(1, "amd", parent="0000:00:00.0")
    text = write_gres_conf(Fragment(origin="x", format="x", components=(gpu(0, "amd"), part)))
    assert text == "Name=gpu Type=a100_sxm4_80gb File=/dev/dri/renderD128\n"


@pytest.mark.parametrize(
    "text",
    [
        "SwitchName=root Switches=leaf[8-11]\n"
        + "".join(f"SwitchName=leaf{n} Nodes=n{n}[01-04]\n" for n in range(8, 12)),
        "BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockSizes=4,8\n",
    ],
    ids=["tree", "blocks"],
)
def test_a_network_is_written_as_yaml_with_the_same_tree(text: str) -> None:
    before = read_dump(text.encode(), "topology.conf")
    after = read_dump(write_topology_yaml(before, "net").encode(), "topology.yaml")
    assert after.warnings == after.unread == ()
    below = [
        {(c.name, (c.parent or "").rpartition("/")[2]) for c in f.components if c.kind in {"switch", "node"}}
        for f in (before, after)
    ]
    root = {("root", "")} & below[0]
    assert below[0] - root == below[1] - {("root", "")}


def test_nothing_is_written_where_nothing_is_known() -> None:
    empty = Fragment(origin="x", format="x")
    with pytest.raises(NothingToExport, match="no accelerator"):
        write_gres_conf(empty)
    with pytest.raises(NothingToExport, match="neither a switch"):
        write_topology_yaml(empty)
