"""What the command line loads: measured as modules in a process of its own, not as time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "numpy", "starlette", "uvicorn", "sqlite3", "asyncio", "sphinx")
JOB = """\
apiVersion: v1
name: digits
tasks:
  - name: train
    command: [python, train.py]
    resources:
      any_of: [{accelerator: A100}]
"""
PROGRAM = """\
import json, sys
from plait.cli.main import execute
code = execute(sys.argv[1:])
sys.stderr.write(json.dumps({"code": code, "modules": sorted(sys.modules)}))
"""


def loaded(*arguments: str) -> tuple[int, set[str]]:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    told = json.loads(ended.stderr[ended.stderr.index('{"code"') :])
    return told["code"], {name.partition(".")[0] for name in told["modules"]}


def test_help_loads_nothing_heavy() -> None:
    code, modules = loaded("--help")
    assert code == 0
    assert "typer" in modules
    assert modules.isdisjoint({*HEAVY, "pydantic", "yaml", "http"})


@pytest.mark.parametrize("verb", ["run", "status", "serve", "agent"])
def test_help_of_a_verb_loads_nothing_heavy(verb: str) -> None:
    code, modules = loaded(verb, "--help")
    assert code == 0
    assert modules.isdisjoint({*HEAVY, "yaml"})


def test_validate_loads_nothing_heavy(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB, encoding="utf-8")
    code, modules = loaded("validate", str(file))
    assert code == 0
    assert "yaml" in modules
    assert modules.isdisjoint(HEAVY)


def test_status_loads_nothing_heavy(tmp_path: Path) -> None:
    code, modules = loaded("status", "--state", str(tmp_path))
    assert code == 3
    assert "http" in modules
    assert modules.isdisjoint(HEAVY)
