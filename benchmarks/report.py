"""The one form in which every benchmark ends: a line about the machine, and one JSON object as the last line."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


class BenchmarkFailed(Exception):
    """A worker ended early or a deadline passed; the message holds the end of its log."""


def machine() -> dict[str, object]:
    """Returns what a reader needs to judge the figures: processor, cores, memory in bytes, load, versions."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_1min": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": _torch_version(),
    }


def arguments(description: str) -> argparse.ArgumentParser:
    """Returns a parser with the three options that all benchmarks share; a benchmark may add its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions of the same measurement (under 60 s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of every random choice")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the last line to FILE as well")
    return parser


def finish(
    name: str,
    quick: bool,
    figures: Mapping[str, float | None],
    reasons: Mapping[str, str] | None = None,
    json_path: Path | str | None = None,
) -> None:
    """Prints the machine and the last line, and writes that line to ``json_path`` if given.

    A figure that could not be measured is None, and then ``reasons`` must say why under the same name.
    """
    reasons = dict(reasons or {})
    unexplained = sorted(key for key, value in figures.items() if value is None and key not in reasons)
    if unexplained:
        raise ValueError(f"figures without a value need a reason: {', '.join(unexplained)}")
    about = machine()
    sys.stdout.write("machine: " + ", ".join(f"{key} {value}" for key, value in about.items()) + "\n")
    result: dict[str, object] = {"benchmark": name, "quick": quick, "machine": about, "figures": dict(figures)}
    if reasons:
        result["reason"] = reasons
    line = json.dumps(result)
    if json_path is not None:
        Path(json_path).write_text(line + "\n", encoding="utf-8")
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run(
    name: str,
    description: str,
    measure: Callable[[argparse.Namespace], Mapping[str, float | None]],
    reasons: Mapping[str, str] | None = None,
) -> int:
    """Parses the shared options, measures and finishes; returns the exit code.

    Args:
        name: Of the script.
        description: Its docstring, whose first line is shown as help.
        measure: Returns the figures for the options.
        reasons: Why a figure may have no value; only those without one are told.
    """
    options = arguments(description.splitlines()[0]).parse_args()
    try:
        figures = measure(options)
    except BenchmarkFailed as failure:
        sys.stderr.write(f"failed: {failure}\n")
        return 1
    told = {key: reason for key, reason in (reasons or {}).items() if figures[key] is None}
    finish(name, options.quick, figures, told, options.json)
    return 0


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _torch_version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return None
