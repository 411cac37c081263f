"""CPU quotas for processes of a benchmark, through cgroups version 1 or 2; the groups go when the block ends."""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

PERIOD_US = 20_000
PREFIX = "plaitbench"


class QuotaRefused(Exception):
    """This machine does not let the benchmark limit CPU time; the message says where it stopped."""


class Quotas:
    """Groups of processes, each held to a share of one core. Use as a context manager."""

    def __init__(self) -> None:
        self._version = 1 if Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").parent.is_dir() else 2
        self._root = Path("/sys/fs/cgroup/cpu" if self._version == 1 else "/sys/fs/cgroup")
        self._groups: list[Path] = []

    def __enter__(self) -> Self:
        for leftover in self._root.glob(f"{PREFIX}_*"):
            owner = leftover.name.split("_")[1]
            if not Path(f"/proc/{owner}").exists():
                self._remove(leftover)
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups:
            self._remove(group)

    def limit(self, index: int, cores: float, pids: Iterable[int]) -> None:
        """Puts processes together into group ``index``, which gets ``cores`` of one core's time."""
        group = self._root / f"{PREFIX}_{os.getpid()}_{index}"
        quota_us = int(PERIOD_US * cores)
        try:
            group.mkdir(exist_ok=True)
            self._groups.append(group)
            if self._version == 1:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            for pid in pids:
                (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise QuotaRefused(f"no CPU quota can be set here: {error}") from error

    def _remove(self, group: Path) -> None:
        with suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                with suppress(OSError):
                    (self._root / "cgroup.procs").write_text(pid)
        for _ in range(20):
            try:
                group.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.05)
            else:
                return
