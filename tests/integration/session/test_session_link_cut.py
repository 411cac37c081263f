"""A link that is gone for a moment: the same members go on in the same step, and the timeline names the link."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.engines.emulation.hosts import EmulatedHosts, Host
from plait.engines.emulation.network import missing_tools

DEADLINE_S = 60.0
STEPS = 120
MEMBERS = ("w0", "w1")
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or bool(missing_tools()), reason="needs root, iproute2 and util-linux"),
]


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {DEADLINE_S:g} s for {what}"
        time.sleep(0.02)


def times_sent_again(pid: int) -> int:
    """Returns how often the kernel has repeated a segment of any connection in a process's network."""
    rows = Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    return max(int(row.split()[6], 16) for row in rows)


def start(hosts: EmulatedHosts, member: str, folder: Path, seeds: dict[str, str]) -> subprocess.Popen[bytes]:
    entry = hosts.enter(member, [sys.executable, str(Path(__file__).with_name("cut_worker.py"))])
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PLAIT_")},
        **dict(entry.environment),
        "PLAIT_MEMBER": member,
        "PLAIT_LISTEN": seeds[member],
        "PLAIT_SEEDS": ",".join(f"{name}@{address}" for name, address in seeds.items()),
        "PLAIT_RUN_DIR": str(folder),
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
        "CUT_STEPS": str(STEPS),
        "CUT_TIMEOUT_S": "40",
    }
    with (folder / f"{member}.log").open("wb") as log:
        return subprocess.Popen(
            entry.command, pass_fds=entry.descriptors, env=environment, stdout=log, stderr=subprocess.STDOUT
        )


@pytest.mark.slow
def test_a_cut_of_a_moment_is_survived_in_the_same_step_and_named(tmp_path: Path) -> None:
    def said(member: str) -> str:
        return (tmp_path / f"{member}.log").read_text(encoding="utf-8", errors="replace")

    def rows() -> list[dict[str, Any]]:
        timeline = tmp_path / "timeline" / "w0.jsonl"
        lines = timeline.read_text(encoding="utf-8").split("\n")[:-1] if timeline.exists() else []
        return [json.loads(line) for line in lines]

    def steps() -> list[tuple[int, tuple[str, ...]]]:
        return [(row["step"], tuple(row["members"])) for row in rows() if row["kind"] == "step"]

    hosts = EmulatedHosts([Host(name=member) for member in MEMBERS])
    hosts.open()
    workers: list[subprocess.Popen[bytes]] = []
    try:
        seeds = {member: f"{hosts.address(member)}:{hosts.ports(member)[0]}" for member in MEMBERS}
        workers += [start(hosts, member, tmp_path, seeds) for member in MEMBERS]
        until(lambda: len(steps()) > 20, "twenty steps")
        hosts.set_link("w1", is_up=False)
        until(lambda: times_sent_again(workers[0].pid) >= 3, "a segment that was sent three times")
        hosts.set_link("w1", is_up=True)
        codes = [worker.wait(DEADLINE_S) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        hosts.close()
    assert codes == [0, 0], said("w0") + said("w1")
    ends = {said(member).partition("weights ")[2] for member in MEMBERS}
    assert len(ends) == 1
    assert steps() == [(step, MEMBERS) for step in range(STEPS)]
    stalls = [row for row in rows() if row["kind"] == "stall"]
    assert stalls
    assert stalls[0]["links"][0]["members"] == ["w1"]
    assert stalls[0]["links"][0]["retries"] >= 1
    assert stalls[0]["links"][0]["unsent_bytes"] > 0
    assert stalls[0]["waited_s"] > 8 * stalls[0]["usual_s"]
