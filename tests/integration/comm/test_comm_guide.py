"""The scripts of the guide "One slow link" run as they stand, under torchrun."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "one-slow-link.md"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def scripts() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_page_has_three_scripts() -> None:
    assert len(scripts()) == 3


@pytest.mark.parametrize("number", range(3))
def test_a_script_runs_under_torchrun(number: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(scripts()[number], encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PLAIT_", "GLOO_", "TORCH"))}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
        env={**environment, "OMP_NUM_THREADS": "1", "STEPS": "12", "WARM_UP_STEPS": "4"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if number == 0:
        sent = {int(count) for count in re.findall(r"sent (\d+) bytes", done.stdout)}
        # Four steps in bf16 and eight in one bit: 64 x 256 + 256 x 4 weights, 260 biases, half to the other and back.
        expected = 4 * 2 * 17_668 + 8 * (17_408 * 1.03125 / 8 + 2 * 260)
        assert len(re.findall("loss", done.stdout)) == 2
        assert all(abs(count / expected - 1) < 0.1 for count in sent)
