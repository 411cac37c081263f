"""CPU seconds that the command line takes to start: the median over fresh processes, user and system time together."""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from plait.cli.connection import answers, connect
from plait.cli.private_controller import PrivateController
from report import arguments, finish

JOB = """\
apiVersion: v1
name: start
tasks:
  - name: train
    command: [python, train.py]
    workers: {min: 1, max: 4}
    resources:
      any_of: [{accelerator: A100}, {accelerator: T4}]
"""
LIMIT_S = 0.5


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    repetitions = 3 if options.quick else 5
    with tempfile.TemporaryDirectory(prefix="plait-") as directory:
        job = Path(directory) / "job.yaml"
        job.write_text(JOB, encoding="utf-8")
        state = Path(directory) / "state"
        verbs = {
            "help": ["--help"],
            "validate": ["validate", str(job)],
            "status": ["status", "--state", str(state)],
        }
        with PrivateController(state=state, cluster=None) as controller:
            controller.wait_until(lambda: answers(connect(state)))
            # Interleaved, so that a slow moment of the machine meets every verb; the first round fills caches.
            rounds = [{name: cpu_s(command) for name, command in verbs.items()} for _ in range(repetitions + 1)][1:]
    figures: dict[str, float | None] = {}
    print(f"{'verb':10} {'CPU s':>7}   of at most {LIMIT_S} s")
    for name in verbs:
        figures[f"{name}_cpu_s"] = round(statistics.median(one[name] for one in rounds), 4)
        print(f"{name:10} {figures[f'{name}_cpu_s']:7.3f}")
    finish("cli_start", options.quick, figures, json_path=options.json)


def cpu_s(command: list[str]) -> float:
    """Returns user and system seconds of one fresh ``plait``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "plait.cli.main", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"plait {' '.join(command)} ended with code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
