"""``plait explain placement``: devices, slowest link and reasons, from what a tool printed; jobs as before."""

import json
from pathlib import Path

import pytest

from plait.cli.main import execute

# Two pairs of bridged devices behind two sockets, and a NIC.
MATRIX = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tSYS\tSYS\tPIX\t0-15\t0
GPU1\tNV4\t X \tSYS\tSYS\tNODE\t0-15\t0
GPU2\tSYS\tSYS\t X \tNODE\tSYS\t16-31\t1
GPU3\tSYS\tSYS\tNODE\t X \tSYS\t16-31\t1
mlx5_0\tPIX\tNODE\tSYS\tSYS\t X
"""


@pytest.fixture
def matrix(tmp_path: Path) -> str:
    path = tmp_path / "topo.txt"
    path.write_text(MATRIX, encoding="utf-8")
    return str(path)


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert execute(["explain", "placement", *words]) == 0
    return capsys.readouterr().out


def test_tells_devices_link_and_why_others_lose(matrix: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = explained(capsys, matrix, "--devices", "2", "--model", "NVIDIA A100-SXM4-40GB")
    assert out.startswith("2 devices of 4 free: GPU0, GPU1\n")
    assert "slowest link: GPU0-GPU1 (nvlink):" in out
    assert "why: its slowest link GPU0-GPU1 has" in out


def test_takes_only_free_devices_by_number_or_name(matrix: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(explained(capsys, matrix, "--devices", "2", "--free", "0,GPU2,3", "--json"))
    assert document["free"] == ["GPU0", "GPU2", "GPU3"]
    assert document["devices"] == ["GPU2", "GPU3"]
    assert document["is_exact"] is True
    assert document["bottleneck"]["is_lower_bound"] is True
    first = document["alternatives"][0]
    assert first["devices"] == ["GPU0", "GPU2"]
    assert first["reason"].startswith("its best ring has to pass GPU0-GPU2")


def test_several_nodes_name_their_devices(matrix: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(explained(capsys, f"a={matrix}", f"b={matrix}", "--devices", "3", "--json"))
    assert len(document["free"]) == 8
    assert all(name.startswith("a/") for name in document["devices"])


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["placement", "{file}"], 2, "needs --devices K"),
        (["placement", "{file}", "--devices", "5"], 1, "a group of 5 devices cannot be made: 4 are free"),
        (["placement", "{file}", "--devices", "2", "--free", "0,GPU9"], 4, "there is no device 'GPU9'; did you mean"),
        (["placement", "{file}.no", "--devices", "2"], 1, "no such file"),
        (["resnet50-1", "--devices", "2"], 2, "go with `plait explain placement`"),
        (["resnet50-1", "{file}"], 2, "go with `plait explain placement`"),
    ],
)
def test_misuse_is_told(
    words: list[str], code: int, told: str, matrix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["explain", *(word.replace("{file}", matrix) for word in words)]) == code
    assert told in capsys.readouterr().err
