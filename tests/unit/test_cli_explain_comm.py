"""``plait explain comm``: the table that a job's workers chose by, from wherever it lies."""

import json
from pathlib import Path

import pytest

from plait.cli.main import execute

DOCUMENT = {
    "network": {
        "island_of": [0, 0, 1, 1],
        "latency_s": [[1e-5, 2e-4], [2e-4, 1e-5]],
        "bytes_per_s": [[1e9, 12e6], [12e6, 1e9]],
        "uplink_bytes_per_s": [12.5e6, 12.5e6],
        "codec_s_per_byte": {"bf16": 5e-10},
    },
    "rows": [
        {
            "size_bytes": 4096,
            "choice": "plain",
            "predicted_s": 0.002,
            "reason": "nothing else is faster",
            "rivals": [["direct fp32", 0.003]],
        },
        {
            "size_bytes": 8 * 2**20,
            "choice": "islands fp32",
            "predicted_s": 0.67,
            "reason": "the slowest uplink carries each value once",
            "rivals": [["ring fp32", 1.0], ["direct fp32", 1.1], ["plain", 2.0]],
        },
    ],
    "switches": ["8388608 bytes: islands fp32 in place of plain, at exchange 96"],
}


def written(folder: Path, document: object = DOCUMENT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "0123456789abcdef.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_prints_links_choices_rivals_and_switches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["explain", "comm", str(written(tmp_path))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["0", "0,", "1", "100", "0.20"]
    assert "bf16: 2 GB/s of fp32, encoded and decoded" in lines
    row = next(line for line in lines if "8 MiB" in line)
    assert "islands fp32" in row
    assert "ring fp32 1e+03, direct fp32 1.1e+03" in row
    assert "plain 2e+03" not in row
    assert lines[-1] == "switched: 8388608 bytes: islands fp32 in place of plain, at exchange 96"


def test_finds_the_table_of_a_job_in_its_run_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from plait.controller.orders import run_directory

    written(run_directory(tmp_path, "slow-1") / "comm")
    assert execute(["explain", "comm", "slow-1", "--state", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == DOCUMENT


def test_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from plait.controller.orders import run_directory

    run_directory(tmp_path, "slow-1").mkdir(parents=True)
    assert execute(["explain", "comm", "slow-1", "--state", str(tmp_path)]) != 0
    assert "its script did not call CommEngine.tune()" in capsys.readouterr().err
    assert execute(["explain", "comm", "slow-2", "--state", str(tmp_path)]) == 4
    assert "slow-1" in capsys.readouterr().err
    assert execute(["explain", "comm"]) == 2
    assert "one job" in capsys.readouterr().err
    assert execute(["explain", "comm", str(written(tmp_path, {"rows": 3}))]) != 0
    assert "is no table of communication" in capsys.readouterr().err
