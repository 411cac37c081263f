"""Runs the mixed example from nothing, writes a report about it, and checks that it did what it promises.

``make demo`` calls this. It exits with 0 only if the job succeeded, the loss fell, no step is missing, and the loss of
a device was survived.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from plait.monitor.report import write_report
from plait.monitor.summary import RunSummary, summarise
from plait.monitor.timeline import Timeline, read_timeline

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
STEPS = 200
GLOBAL_BATCH_SIZE = 96
LOST = "w1"
LOSS_AT_MOST = 2.6  # nats a byte; a model that only knows how often each byte occurs reaches about 3.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "demo", help="directory of the run, written anew")
    parser.add_argument("--limit", type=float, default=420.0, metavar="S", help="seconds that the job may take")
    options = parser.parse_args()
    out: Path = options.out.resolve()
    for old in (out, ROOT / "runs" / "mixed" / "checkpoint"):
        shutil.rmtree(old, ignore_errors=True)
    out.mkdir(parents=True)

    code = run_job(out / "state", options.limit)
    if code != 0:
        print(f"the job ended with exit code {code}; its logs are under {out / 'state'}", file=sys.stderr)
        return code
    run_dir = next(iter(sorted((out / "state" / "jobs").glob("*/run"))), out / "state" / "jobs" / "run")
    timeline = read_timeline(run_dir)
    report = out / "report.html"
    write_report(run_dir, report, title="mixed: one model on A100, V100, T4 and CPU")
    summary = summarise(timeline)
    faults = [*faults_of(timeline)]
    for fault in faults:
        print(f"failed: {fault}", file=sys.stderr)
    print(told(summary))
    print(f"report: {report}")
    return 1 if faults else 0


def run_job(state: Path, limit_s: float) -> int:
    """Runs ``plait run`` with its own controller state and returns its exit code."""
    command = [sys.executable, "-m", "plait.cli.main", "run", str(HERE / "job.yaml")]
    command += ["--cluster", str(HERE / "cluster.yaml"), "--state", str(state)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        print(f"the job was not done after {limit_s:.0f} s", file=sys.stderr)
        process.terminate()
        return process.wait(30) or 1


def faults_of(timeline: Timeline) -> Iterator[str]:
    """Yields what is wrong with the run, one sentence each."""
    steps = sorted(row.step for row in timeline.steps)
    if len(steps) != STEPS or steps != list(range(steps[0], steps[0] + STEPS)):
        yield f"expected {STEPS} steps without a hole, got {len(steps)}"
    short = [row.step for row in timeline.steps if row.samples != GLOBAL_BATCH_SIZE]
    if short:
        yield f"expected {GLOBAL_BATCH_SIZE} samples in each step; it differs in steps {short[:5]}"
    losses = [row.loss for row in timeline.steps if row.loss is not None]
    if len(losses) < STEPS // 2:
        yield f"only {len(losses)} steps recorded a loss"
    else:
        last = sum(losses[-10:]) / 10
        if not last < min(LOSS_AT_MOST, losses[0]):
            yield f"the loss should end below {LOSS_AT_MOST}; it went from {losses[0]:.3f} to {last:.3f}"
    lost = [row for row in timeline.memberships if LOST in row.lost]
    if not lost:
        yield f"{LOST} was to be lost, and no membership row tells of it"
    elif not any(row.step > lost[0].step for row in timeline.steps):
        yield f"no step was committed after {LOST} was lost at step {lost[0].step}"


def told(summary: RunSummary) -> str:
    """Returns the run in three lines."""
    losses = [f"{loss:.3f}" for _, _, loss in summary.losses] or ["not recorded"]
    lines = [f"loss {losses[0]} -> {losses[-1]} nats a byte in {summary.num_steps} steps, {summary.duration_s:.0f} s"]
    gap = summary.longest_gap_s
    standstill = "" if gap is None else f"; the work stood still for {gap:.2f} s at most"
    changes = [event.what for event in summary.events if event.kind in {"lost", "joined"}]
    lines.append(f"{'; '.join(changes) or 'the group never changed'}{standstill}")
    share = summary.share_of_speed_ratio
    lines.append(f"{summary.samples_per_s:.0f} samples/s, {share:.2f} of the sum of the devices' speeds")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
