"""``plait devices`` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plait.cli.main import execute

XML = """\
<nvidia_smi_log><attached_gpus>2</attached_gpus>
<gpu id="00000000:3B:00.0"><product_name>NVIDIA A100-SXM4-80GB</product_name>
<fb_memory_usage><total>81920 MiB</total></fb_memory_usage></gpu>
<gpu id="00000000:5E:00.0"><product_name>NVIDIA Strange Card</product_name>
<fb_memory_usage><total>9000 MiB</total></fb_memory_usage></gpu>
</nvidia_smi_log>
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = execute(arguments)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    file = tmp_path / "dump.xml"
    file.write_text(XML)
    return file


def test_types_come_with_reasons(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "devices", "--from", str(dump))
    assert code == 0
    lines = out.splitlines()
    (row,) = (line for line in lines if line.startswith("GPU0 "))
    assert "A100-SXM4-80GB" in row
    assert "80 GiB" in row
    assert "0000:3b:00.0" in row
    assert "2039" in row, "memory bandwidth of this form, not of the 40 GB one"
    assert "228 TFLOPS bf16" in row
    assert any("81920 MiB fit 80 GiB" in line for line in lines)
    assert any("no type of the catalogue is called 'NVIDIA Strange Card'" in line for line in lines)


def test_programs_get_units_in_names(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "devices", "--from", str(dump), "--json")
    assert code == 0
    first, second = json.loads(out)["devices"]
    assert (first["accelerator_type"], first["family"]) == ("A100-SXM4-80GB", "A100")
    assert first["memory_bytes"] == 81920 * 2**20
    assert first["memory_bytes_per_s"] == 2039e9
    assert first["speed"]["precision"] == "bf16"
    assert "of which 73% last" in first["speed"]["reason"]
    assert first["numa_nodes"] is None, "unknown is null"
    assert (second["accelerator_type"], second["speed"]) == (None, None)
    assert "Strange Card" in second["match"]


def test_this_machine_without_torch() -> None:
    program = (
        "import json, sys\nfrom plait.cli.main import execute\n"
        "code = execute(['devices', '--json'])\nsys.stderr.write(json.dumps([code, sorted(sys.modules)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stderr)
    assert code == 0
    assert not {"torch", "numpy"} & set(modules)
    devices = json.loads(done.stdout)["devices"]
    assert devices[-1]["accelerator_type"] == "CPU"
    assert devices[-1]["memory_bytes"] > 0


def test_emulated_devices_show(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_FAKE_DEVICES", "V100:2,Ascend910B")
    code, out, _ = run(capsys, "devices", "--json")
    assert code == 0
    types = [device["accelerator_type"] for device in json.loads(out)["devices"]]
    assert types == ["V100", "V100", "Ascend910B", "CPU"]


def test_capture_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = tmp_path / "out.tar"
    code, out, _ = run(capsys, "devices", "--capture", str(archive))
    assert code == 0
    assert f"plait devices --from {archive}" in out
    code, out, _ = run(capsys, "devices", "--from", str(archive))
    assert code == 0
    assert "CPU" in out


def test_what_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "devices", "--from", str(tmp_path / "none"))
    assert code == 1
    assert err.startswith("plait: ")
    assert "no such file" in err
    code, _, err = run(capsys, "devices", "--from", str(tmp_path), "--capture", str(tmp_path / "x.tar"))
    assert code == 2
    assert "takes no --from" in err
