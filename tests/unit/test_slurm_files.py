"""Slurm's files: devices of nodes, switches and blocks, several networks in one YAML file."""

import pytest

from plait.hardware.importers import read_dump
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.topology import Fragment


def read(text: str) -> Fragment:
    return read_dump(text.encode(), "file")


def names(fragment: Fragment, kind: str) -> list[str]:
    return [c.key for c in fragment.components if c.kind == kind]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Name=gpu File=/dev/nvidia[0-3]", [f"/dev/nvidia{n}" for n in range(4)]),
        ("name=GPU type=a100 file=/dev/nvidia0 COREs=0,1", ["/dev/nvidia0"]),
        ("NodeName=tux[08-10] Name=gpu File=/dev/nvidia0", [f"tux{n}:/dev/nvidia0" for n in ("08", "09", "10")]),
        ("NodeName=tux3  Name=gpu File=/dev/nvidia[0,2-3]", [f"tux3:/dev/nvidia{n}" for n in (0, 2, 3)]),
        ("Name=gpu File=/dev/nvidia0,/dev/nvidia2", ["/dev/nvidia0", "/dev/nvidia2"]),
        ("Name=gpu Type=mi300 Count=2", ["gpu#0", "gpu#1"]),
        ("Name=gpu File=/dev/dri/renderD[128-129]", ["/dev/dri/renderD128", "/dev/dri/renderD129"]),
        ("Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21", ["/dev/nvidia0"]),
        ('NodeName=n1 Name="gpu" \\\n   File=/dev/nvidia0   # the only one', ["n1:/dev/nvidia0"]),
        ("#Name=gpu File=/dev/nvidia9\nAutoDetect=nvml\nName=gpu File=/dev/nvidia1", ["/dev/nvidia1"]),
        ("Name=bandwidth Type=lustre Count=4G Flags=CountOnly\nName=gpu File=/dev/nvidia1", ["/dev/nvidia1"]),
    ],
)
def test_device_files_of_every_node(line: str, expected: list[str]) -> None:
    found = read(line + "\n")
    assert found.format == "slurm_gres_conf"
    assert names(found, "gpu") == expected


def test_links_are_connections_to_the_devices_in_order() -> None:
    text = "".join(
        f"Name=gpu File=/dev/nvidia{n} Links={','.join('-1' if m == n else '4' for m in range(3))}\n" for n in range(3)
    )
    found = read(text)
    assert {(link.a, link.b, link.count) for link in found.links} == {
        (f"/dev/nvidia{a}", f"/dev/nvidia{b}", 4) for a, b in ((0, 1), (0, 2), (1, 2))
    }


def test_core_numbers_of_slurm_are_no_cpus() -> None:
    (gpu,) = (c for c in read("Name=gpu File=/dev/nvidia0 Cores=0-3\n").components)
    assert gpu.locality.cpus is None
    assert "core numbers" in gpu.locality.why_unknown


@pytest.mark.parametrize("line", ["Name=gpu File=/dev/nvidia[0-3", "Name=gpu File=/dev/nvidia", "Name=gpu Fi le=x"])
def test_a_cut_line_makes_no_device(line: str) -> None:
    found = read(f"Name=gpu File=/dev/nvidia7\n{line}\n")
    assert names(found, "gpu") == ["/dev/nvidia7"]
    assert found.unread


def test_switches_make_a_tree_with_nodes_at_its_leaves() -> None:
    found = read(
        "# the fabric\nSwitchName=root Switches=leaf[1-2]\nswitchname=leaf1 nodes=n[01-02]\n"
        "SwitchName=leaf2 Nodes=n[03-04] LinkSpeed=100\n"
    )
    assert {c.key: c.parent for c in found.components} == {
        "root": None,
        "leaf1": "root",
        "leaf2": "root",
        "n01": "leaf1",
        "n02": "leaf1",
        "n03": "leaf2",
        "n04": "leaf2",
    }
    assert found.component("leaf2").extra == {"Nodes": "n[03-04]", "LinkSpeed": "100"}  # type: ignore[union-attr]


def test_a_switch_without_a_line_is_warned_of_and_a_node_under_two_switches_is_believed_under_neither() -> None:
    found = read("SwitchName=root Switches=leaf[1-2]\nSwitchName=leaf1 Nodes=n1\nSwitchName=other Nodes=n1\n")
    assert any("leaf2" in warning for warning in found.warnings)
    assert [line for line in found.unread if "n1 under" in line] == [
        "file: n1 under leaf1, since it is also under others",
        "file: n1 under other, since it is also under others",
    ]
    assert found.component("n1").parent is None  # type: ignore[union-attr]
    assert [(link.a, link.b) for link in found.links] == [("leaf1", "root")]


def test_switches_in_a_circle_do_not_hang() -> None:
    found = read("SwitchName=a Switches=b\nSwitchName=b Switches=a\n")
    assert names(found, "switch") == ["a", "b"]
    assert found.warnings


def test_blocks_and_their_sizes() -> None:
    found = read("BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockSizes=4,12\n")
    assert found.component("n5").parent == "b2"  # type: ignore[union-attr]
    assert any("12" in warning for warning in found.warnings)


def test_an_expression_for_millions_of_nodes_is_not_expanded() -> None:
    found = read(
        "SwitchName=a Nodes=n[1-2]\nSwitchName=s1 Nodes=n[1-999999999]\nSwitchName=s2 Nodes=a[1-999]b[1-999]\n"
    )
    assert names(found, "node") == ["n1", "n2"]
    assert len(found.unread) == 2


YAML = """\
---
- topology: main
  cluster_default: true
  tree:
    switches:
      - switch: root
        children: s[1-2]
      - switch: s1
        nodes: n[1-2]
      - switch: s2
        nodes: [n3, n4]
- topology: blocks
  block:
    block_sizes: [2, 4]
    blocks:
      - {block: b1, nodes: "n[1-2]"}
      - {block: b2, nodes: "n[3-4]"}
- topology: plain
  flat: true
"""


def test_a_yaml_file_holds_several_networks_and_nodes_hang_under_the_default_one() -> None:
    found = read(YAML)
    assert found.format == "slurm_topology_yaml"
    assert found.component("n3").parent == "main/s2"  # type: ignore[union-attr]
    assert {link.b for link in found.links if link.a == "n3"} == {"main/s2", "blocks/b2"}
    assert found.warnings == ()


@pytest.mark.parametrize("wrap", ["{}", "Here it is:\n\n{}\nthanks", "$ cat topology.yaml\n{}$ \n"])
def test_greetings_around_it_are_skipped(wrap: str) -> None:
    assert read(wrap.format(YAML)).components == read(YAML).components


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("  block: [1, 2]", "a dictionary is expected"),
        ('  tree: "SwitchName=s1"', "a dictionary is expected"),
        ("  ring: 5", "a dictionary is expected"),
        ("  ring:\n    rings: ring0", "a list is expected"),
        ("  tree:\n    switches: s1", "a list is expected"),
        ("  torus3d:\n    toruses: t1", "a list is expected"),
        (
            "  torus3d:\n    toruses:\n      - name: t\n        dims: {x: 1, y: 1, z: 1}\n        placements: no",
            "a list",
        ),
        ("  block:\n    block_sizes: [four]", "a whole number"),
        ("  flat: true\n  tree:\n    switches: []", "mutually exclusive"),
        ("  ring:\n    rings: []\n  torus3d:\n    toruses: []", "mutually exclusive"),
        ("  cluster_default: perhaps\n  flat: true", "true or false"),
        ("  flat:\n    alpha_step_rank: [1]", "true or false"),
    ],
)
def test_wrong_types_are_refused_with_the_place(body: str, problem: str) -> None:
    with pytest.raises(UnreadableDump, match=problem) as caught:
        read(f"- topology: net\n{body}\n")
    assert "topology net" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "warning"),
    [
        ("  block:\n    block_sizes: [4, 12]\n    blocks:\n      - {block: b, nodes: 'n[1-4]'}", "power-of-two"),
        ("  flat: false", "nothing to load"),
        ("  ring:\n    rings:\n      - {ring: r, nodes: 'n[1-17]'}", "a ring holds 16"),
        (
            "  torus3d:\n    toruses:\n      - {name: t, dims: {x: 2, y: 2, z: 1}, nodes: 'n[1-5]'}",
            "5 nodes for 4 cells",
        ),
        ("  tree:\n    switches:\n      - {switch: a, children: b}", "b under net/a has no line"),
        ("  tree:\n    swiches: []", "did you mean 'switches'"),
        ("  tree:\n    switches:\n      - {nodes: n1}", "without switch"),
    ],
)
def test_what_parses_but_cannot_work_is_warned_of(body: str, warning: str) -> None:
    found = read(f"- topology: net\n{body}\n")
    assert any(warning in said for said in found.warnings), found.warnings


@pytest.mark.parametrize("text", ["topology: x\n", "- topology: &a x\n  flat: *a\n", "- topology: [\n"])
def test_what_is_no_list_of_networks_is_refused(text: str) -> None:
    with pytest.raises(UnreadableDump):
        read(text)


def test_a_lost_line_between_two_switches_is_noticed() -> None:
    with pytest.raises(UnreadableDump, match="'nodes' is there twice"):
        read(YAML.replace("      - switch: s2\n", ""))


def test_a_switch_cannot_be_below_itself() -> None:
    found = read("SwitchName=s1 Switches=s[1-2]\nSwitchName=s2 Nodes=n1\n")
    assert names(found, "switch") == ["s2"]


def test_a_switch_of_unreadable_nodes_is_there_all_the_same() -> None:
    found = read("SwitchName=s1 Nodes=bgl[000x733]\nSwitchName=s2 Nodes=n1\n")
    assert names(found, "switch") == ["s1", "s2"]
    assert any("s1" in line for line in found.unread)


@pytest.mark.parametrize("text", ["NAME=Ubuntu\nVERSION=22.04\n", "name = value\n", "hostname=a name=b\n"])
def test_other_files_with_names_are_no_gres_conf(text: str) -> None:
    with pytest.raises(UnreadableDump):
        read(text)
