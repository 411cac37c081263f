"""``plait topology`` as a user types it, on files written here; the live host only where nothing else will do."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from plait.cli.main import execute
from plait.hardware.topology import Fragment

TOPO = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tSYS\tSYS\tPIX\t0-15\t0
GPU1\tNV12\t X \tSYS\tSYS\tPIX\t0-15\t0
GPU2\tSYS\tSYS\t X \tNV12\tSYS\t16-31\t1
GPU3\tSYS\tSYS\tNV12\t X \tSYS\t16-31\t1
NIC0\tPIX\tPIX\tSYS\tSYS\t X \t\t

NIC Legend:

  NIC0: mlx5_0
"""

IBSTAT = """\
CA 'mlx5_0'
\tCA type: MT4123
\tNumber of ports: 1
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 200
\t\tLink layer: InfiniBand
"""


@pytest.fixture
def topo(tmp_path: Path) -> Path:
    path = tmp_path / "topo.txt"
    path.write_text(TOPO, encoding="utf-8")
    return path


@pytest.fixture
def ibstat(tmp_path: Path) -> Path:
    path = tmp_path / "ibstat.txt"
    path.write_text(IBSTAT, encoding="utf-8")
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert execute(["topology", *words]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    return dict(json.loads(said(capsys, *words, "--json")))


def test_a_bare_matrix_shows_links_as_printed_and_ranges(topo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, str(topo))
    assert "NV12" in text
    assert "SYS" in text
    assert "150-530" in text
    assert text.count("give --model") == 1
    assert "264" not in text


def test_a_nic_of_a_bare_matrix_is_not_said_to_be_up(topo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (nic,) = document(capsys, str(topo))["nics"]
    assert (nic["name"], nic["fabric"], nic["is_up"], nic["rate_bytes_per_s"]) == ("NIC0", "rdma", None, None)
    assert "NIC0 mlx5_0" in said(capsys, str(topo))


def test_links_are_told_where_their_rates_are_not(topo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    links = document(capsys, str(topo))["arrays"]["links"]
    assert links["axes"] == ["device", "device"]
    assert links["values"][0] == ["", "NV12", "SYS", "SYS"]


@pytest.mark.parametrize(("option", "word"), [("--model", "A1000000"), ("--cpu", "Abacus 3")])
def test_a_hint_that_means_nothing_is_refused(
    topo: Path, option: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["topology", str(topo), option, word]) != 0
    assert repr(word) in capsys.readouterr().err


def test_a_model_turns_links_into_figures(topo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, str(topo), "--model", "A100-SXM4-40GB", "--cpu", "AMD EPYC 7742")
    assert "264~" in text
    assert "16~" in text
    assert "all 12 pairs at once" in text


def test_several_files_of_one_node_are_one_node(topo: Path, ibstat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, str(topo), str(ibstat), "--model", "A100-SXM4-40GB")
    assert found["axes"]["node"] == ["node"]
    (nic,) = found["nics"]
    assert (nic["name"], nic["rate_bytes_per_s"], nic["fabric"]) == ("mlx5_0", 25e9, "infiniband")
    rates = found["arrays"]["nic_bytes_per_s"]
    assert rates["axes"] == ["device", "nic"]
    assert rates["values"][0] == [pytest.approx(23e9)]
    assert rates["values"][2] == [pytest.approx(11.5e9)]


def test_the_document_holds_axes_units_sources_and_null_for_unknown(
    topo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, str(topo))
    values = found["arrays"]["bytes_per_s"]["values"]
    assert found["arrays"]["bytes_per_s"]["axes"] == ["device", "device"]
    assert values[0][1] is None
    assert found["arrays"]["low_bytes_per_s"]["values"][0][1] == pytest.approx(12 * 14.0625e9 * 0.88)
    assert found["arrays"]["source"]["values"][0][1] == "default"
    assert found["arrays"]["known"]["values"][0][1] is False
    assert found["all_pairs_bytes_per_s"] is None
    assert any(entry["to"] == "node/GPU1" for entry in found["details"])


def test_nodes_are_told_apart(topo: Path, ibstat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, f"a={topo}", f"a={ibstat}", f"b={topo}", f"b={ibstat}", "--model", "A100-SXM4-40GB")
    assert found["axes"]["node"] == ["a", "b"]
    assert found["arrays"]["fabrics"]["values"][0][1] == "infiniband"
    assert found["arrays"]["node_bytes_per_s"]["values"][0][1] == pytest.approx(23e9)


def test_pictures_and_nccl_files_are_written(topo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg, nccl = tmp_path / "out.svg", tmp_path / "out.xml"
    said(capsys, str(topo), "--svg", str(svg), "--nccl", str(nccl))
    assert ET.parse(svg).getroot().tag.endswith("svg")
    assert ET.parse(nccl).getroot().tag == "system"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["no-such-file"], "no-such-file: no such file or directory"),
        (["{garbage}"], "garbage.txt: nothing in it is known"),
        (["{topo}", "--measure"], "takes no files"),
        (["{topo}", "--from", "x"], "not both"),
        (["--from", "{garbage}"], "garbage.txt: nothing in it is known"),
        (["{empty}"], "empty.txt: the file is empty"),
        (["{binary}"], "blob.bin: the file is binary"),
        (["{archive}"], "letters.tar: the archive holds neither /sys nor outputs of tools"),
        (["{directory}"], "nothing-inside holds neither a captured tree nor an output"),
        (["--answer", "here"], "'here' is not [HOST:]PORT"),
        (["a={topo}", "b={topo}", "--nccl", "x.xml"], "one node's file"),
    ],
)
def test_complaints_are_one_sentence_that_names_the_file(
    words: list[str], complaint: str, topo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    garbage = tmp_path / "garbage.txt"
    garbage.write_text("nothing of the kind\n", encoding="utf-8")
    paths = {"topo": topo, "garbage": garbage, "empty": tmp_path / "empty.txt", "binary": tmp_path / "blob.bin"}
    paths |= {"archive": tmp_path / "letters.tar", "directory": tmp_path / "nothing-inside"}
    paths["empty"].touch()
    paths["binary"].write_bytes(bytes(range(256)) * 4)
    paths["directory"].mkdir()
    with tarfile.open(paths["archive"], "w") as tar:
        tar.add(garbage, "letter.txt")
    filled = [word.format(**paths) for word in words]
    assert execute(["topology", *filled]) != 0
    text = capsys.readouterr().err
    assert complaint in text
    assert text.count("\n") == 1


def test_a_captured_directory_is_a_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = tmp_path / "box" / "sys" / "devices" / "system" / "node"
    for number, distance in ((0, "10 21"), (1, "21 10")):
        directory = node / f"node{number}"
        directory.mkdir(parents=True)
        (directory / "cpulist").write_text(f"{number}\n", encoding="ascii")
        (directory / "distance").write_text(f"{distance}\n", encoding="ascii")
    for words in (["--from", str(tmp_path / "box")], [str(tmp_path / "box")]):
        found = document(capsys, *words)
        assert len(found["axes"]["numa"]) == 2
    assert "NUMA distance" in said(capsys, "--from", str(tmp_path / "box"))


def test_what_pairs_share_without_a_known_capacity_makes_their_sum_a_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "measured.txt"
    table = "\n".join(f"  {i}" + "".join("   53.00" if i != j else "  900.00" for j in range(4)) for i in range(4))
    title = "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D     0      1      2      3\n"
    file.write_text(f"{title}{table}\n", encoding="utf-8")
    classes = tmp_path / "classes.txt"
    classes.write_text(TOPO.replace("NV12", "PIX"), encoding="utf-8")
    assert "at most 636 GB/s together" in said(capsys, str(file), str(classes))
    found = document(capsys, str(file), str(classes))
    assert found["all_pairs_bytes_per_s"] is None
    assert found["measurements"][0]["unit"] == "GB/s"


def test_what_has_no_devices_says_what_it_has(ibstat: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "node: 1 NIC (ibstat)" in said(capsys, str(ibstat))
    file = tmp_path / "topology.conf"
    file.write_text("SwitchName=s0 Nodes=n[0-3]\nSwitchName=s1 Switches=s0\n", encoding="utf-8")
    assert "node: 2 switches, 4 nodes" in said(capsys, str(file))


def test_the_package_is_run_like_the_command(topo: Path) -> None:
    words = [sys.executable, "-m", "plait", "topology", str(topo), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["axes"]["device"][0] == "node/GPU0"


def test_this_host_has_at_least_its_processor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = document(capsys)
    assert found["devices"]
    assert any("--measure" in note for note in found["notes"])


def test_warnings_alike_are_told_once(topo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from plait.cli.topology_view import show
    from plait.hardware.affinity import build

    fragment = Fragment(origin="t", format="t")
    lines = [f"0000:0{i}:00.0 is idle" for i in range(8)] + ["something else"]
    show({"n": fragment}, build({"n": fragment}), lines, [])
    text = capsys.readouterr().out
    assert text.count("is idle") == 3
    assert "and 5 more like this" in text
    assert "something else" in text
