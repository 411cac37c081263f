"""The machines that probes look at answer the same questions alike."""

import io
import sys
import tarfile
from pathlib import Path

import pytest

from plait.hardware.context import CommandResult, Context
from plait.hardware.contexts import CapturedContext, DamagedArchive, DirectoryTree, LiveContext, archive_tree


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


def packed(format_: int, names: dict[str, bytes], links: dict[str, tuple[bytes, str]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format_) as tar:
        for name, content in names.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, (kind, target) in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            tar.addfile(member)
    return out.getvalue()


LONG = "/".join(["sys/devices/pci0000:00", *(f"0000:{n:02x}:00.0" for n in range(20))])


@pytest.mark.parametrize("format_", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_archives_of_every_format_with_long_names_and_links(format_: int) -> None:
    name = LONG if format_ != tarfile.USTAR_FORMAT else LONG[:200].rpartition("/")[0]
    links = {"c/sys/soft": (tarfile.SYMTYPE, f"../{name}/value"), "c/sys/hard": (tarfile.LNKTYPE, f"c/{name}/value")}
    if format_ == tarfile.USTAR_FORMAT:
        links = {
            "c/sys/soft": (tarfile.SYMTYPE, "devices/short"),
            "c/sys/hard": (tarfile.LNKTYPE, "c/sys/devices/short"),
        }
    data = packed(format_, {f"c/{name}/value": b"7", "c/sys/devices/short": b"7"}, links)
    tree, is_whole = archive_tree(data, "a.tar")
    context = CapturedContext(tree)
    assert is_whole
    assert context.read(f"/{name}/value") == b"7"
    assert context.read("/sys/soft") == b"7"
    assert context.read("/sys/hard") == b"7"


def test_a_changed_header_ends_an_archive_early_and_garbage_is_none() -> None:
    data = bytearray(packed(tarfile.GNU_FORMAT, {f"sys/devices/{n}": b"x" * 600 for n in range(4)}, {}))
    data[3 * 1536 + 5] ^= 1
    tree, is_whole = archive_tree(bytes(data), "a.tar")
    assert not is_whole
    assert CapturedContext(tree).list("/sys/devices") == ("0", "1", "2")
    with pytest.raises(DamagedArchive, match="not a tar archive"):
        archive_tree(b"x" * 2000, "a.tar")
