"""The machines that probes look at answer the same questions alike."""

import sys
from pathlib import Path

from plait.hardware.context import CommandResult, Context
from plait.hardware.contexts import CapturedContext, DirectoryTree, LiveContext


def test_a_live_host_reads_lists_and_follows_links(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"5\n")
    (tmp_path / "link").symlink_to("file")
    context: Context = LiveContext()
    assert context.read(str(tmp_path / "link")) == b"5\n"
    assert context.list(str(tmp_path)) == ("file", "link")
    assert context.link(str(tmp_path / "link")) == str((tmp_path / "file").resolve())
    assert context.read(str(tmp_path)) is None
    assert context.list(str(tmp_path / "none")) == ()
    assert context.link(str(tmp_path / "none")) is None


def test_devices_and_pipes_are_not_read() -> None:
    assert LiveContext().read("/dev/zero") is None


def test_commands_answer_with_status_and_both_outputs() -> None:
    context = LiveContext(env={"PATH": "/usr/bin:/bin", "LANG": "xx"})
    script = "import os, sys; print(os.environ['LC_ALL']); print('why', file=sys.stderr); sys.exit(3)"
    result = context.run([sys.executable, "-c", script])
    assert (result.code, result.stdout, result.stderr) == (3, "C\n", "why\n")


def test_a_missing_command_is_127_and_one_that_may_not_run_is_126(tmp_path: Path) -> None:
    plain = tmp_path / "tool"
    plain.write_text("x", encoding="utf-8")
    assert LiveContext().run(["plait-has-no-such-tool"]).code == 127
    assert LiveContext().run([str(plain)]).code == 126


def test_a_tool_that_hangs_is_stopped_with_its_children() -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"
    result = LiveContext(time_limit_s=0.5).run([sys.executable, "-c", child])
    assert result.code == 124
    assert "stopped after 0.5 s" in result.stderr


def test_a_captured_directory_keeps_links_inside(tmp_path: Path) -> None:
    (tmp_path / "sys/devices/x").mkdir(parents=True)
    (tmp_path / "sys/devices/x/value").write_text("1", encoding="utf-8")
    (tmp_path / "sys/class").mkdir()
    (tmp_path / "sys/class/x").symlink_to("../devices/x")
    (tmp_path / "sys/class/absolute").symlink_to("/sys/devices/x")
    (tmp_path / "sys/class/out").symlink_to("../../../../../../../etc")
    (tmp_path / "sys/class/loop").symlink_to("loop")
    context: Context = CapturedContext(DirectoryTree(tmp_path))
    assert context.read("/sys/class/x/value") == b"1"
    assert context.read("/sys/class/absolute/value") == b"1"
    assert context.link("/sys/class/x/value") == "/sys/devices/x/value"
    assert context.list("/sys/class/out") == ()
    assert context.link("/sys/class/loop") is None
    assert context.list("/sys/class") == ("absolute", "loop", "out", "x")


def test_recorded_outputs_answer_for_tools(tmp_path: Path) -> None:
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands/nvidia-smi topo -m.txt").write_text("GPU0", encoding="utf-8")
    context = CapturedContext(
        DirectoryTree(tmp_path), commands={"npu-smi info": CommandResult(1, "", "no device")}, env={"A": "b"}
    )
    assert context.run(["nvidia-smi", "topo", "-m"]).stdout == "GPU0"
    assert context.run(["npu-smi", "info"]).code == 1
    assert context.run(["rocm-smi"]).code == 127
    assert context.env == {"A": "b"}
