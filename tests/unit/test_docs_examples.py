"""The Python examples of the documentation run as they stand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "README.zh.md", "docs/guide/training.md")
TIMEOUT_S = 110
FOREIGN = ("PLAIT_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_RANK", "MASTER_")


def program_of(page: str) -> str:
    """Returns the Python blocks of a page as one program, each on the lines where the page has it."""
    lines, inside = [], False
    for line in page.splitlines():
        if line.startswith("```"):
            inside = line == "```python"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines) + "\n"


def test_a_program_is_the_python_blocks_on_their_own_lines() -> None:
    page = "text\n```python\na = 1\n```\nmore\n```console\n$ no\n```\n```python\nprint(a)\n```\n"
    assert program_of(page) == "\n\na = 1\n\n\n\n\n\n\nprint(a)\n\n"


@pytest.mark.parametrize("name", PAGES)
def test_the_examples_of_a_page_run(name: str, tmp_path: Path) -> None:
    program = program_of((ROOT / name).read_text(encoding="utf-8"))
    assert "plait.session(" in program
    script = tmp_path / f"{Path(name).name}.py"
    script.write_text(program, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(script)],
        cwd=tmp_path,
        env={**environment, "OMP_NUM_THREADS": "1", "PLAIT_RUN_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "timeline").glob("*.jsonl")), "no step was committed"


@pytest.mark.parametrize("name", PAGES)
def test_both_readmes_and_the_guide_hold_examples(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8").count("```python\n") >= 1
