"""The Python examples of the page on groups of devices run, and print what the page says they find."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "device-groups.md"


def test_examples_run_one_after_another(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    printed = []
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})
        printed.append(capsys.readouterr().out)
    group, units, negotiation, virtual = printed
    assert group.startswith("(2, 3) its slowest link 2-3 has 24 GB/s")
    assert len(units.splitlines()) == 2
    lines = negotiation.splitlines()
    assert len(lines) == 5
    assert [line.split(": ")[1] for line in lines[:4]] == ["chosen", "rejected", "rejected", "chosen"]
    assert lines[4] == "bf16 ['nccl', 'rccl'] gloo"
    assert virtual.count("implementation=") == 2
