import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("savers", "loaders"), [(4, 3), (3, 4)])
def test_a_state_is_read_on_another_number_of_ranks_and_hardly_more_than_it(
    tmp_path: Path, savers: int, loaders: int
) -> None:
    command = [
        sys.executable,
        str(Path(__file__).parents[3] / "benchmarks" / "workers" / "reshard_ranks.py"),
        str(tmp_path / "x"),
        str(savers),
        str(loaders),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    told = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert sorted(one["rank"] for one in told) == list(range(loaders))
    for one in told:
        assert one["held"] > 10_000_000
        assert one["read"] <= 1.05 * one["held"], one
