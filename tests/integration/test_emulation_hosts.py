"""Emulated hosts for real: namespaces, links, quotas; what a killed user of them leaves behind. Needs root."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from plait.agent.processes import is_alive
from plait.engines.emulation.hosts import EmulatedHosts, Host
from plait.engines.emulation.network import missing_tools

DEADLINE_S = 30.0
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or bool(missing_tools()), reason="needs root, iproute2 and util-linux"),
]

SERVE = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000)); print("ready", flush=True)
while True:
    peer, _ = server.accept(); peer.sendall(b"x"); peer.close()
"""
ASK = """
import socket, sys
try:
    print(socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[2])).recv(1).decode())
except OSError:
    print("nothing")
"""
BURN = """
import time
end = time.monotonic() + 1.5; begin = time.monotonic()
while time.monotonic() < end: pass
print(time.process_time() / (time.monotonic() - begin))
"""
POUR = """
import socket, sys
peer = socket.create_connection((sys.argv[1], 5001)); sent = 0
for _ in range(int(sys.argv[2])): peer.sendall(bytes(1 << 20))
"""
DRINK = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 5001)); print("ready", flush=True)
peer, _ = server.accept(); begin = time.monotonic(); size = 0
while data := peer.recv(1 << 16): size += len(data)
print(size / (time.monotonic() - begin))
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def opened(*hosts: Host) -> Iterator[EmulatedHosts]:
    emulated = EmulatedHosts(hosts)
    emulated.open()
    try:
        yield emulated
    finally:
        emulated.close()


def start(hosts: EmulatedHosts, name: str, code: str, *arguments: str) -> subprocess.Popen[str]:
    entry = hosts.enter(name, [sys.executable, "-S", "-c", code, *arguments])
    return subprocess.Popen(entry.command, pass_fds=entry.descriptors, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def finish(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=DEADLINE_S)[0].strip()


def stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def links() -> str:
    return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout


def test_hosts_reach_each_other_and_this_machine_until_the_link_is_cut() -> None:
    with opened(Host(name="a"), Host(name="b")) as hosts:
        assert hosts.limitations == ()
        server = start(hosts, "b", SERVE, hosts.address("b"))
        assert said(server) == "ready"
        assert finish(start(hosts, "a", ASK, hosts.address("b"), "20")) == "x"
        asked_from_here = subprocess.run(
            [sys.executable, "-c", ASK, hosts.address("b"), "20"], capture_output=True, text=True, check=True
        )
        assert asked_from_here.stdout.strip() == "x"
        hosts.set_link("b", is_up=False)
        assert finish(start(hosts, "a", ASK, hosts.address("b"), "1")) == "nothing"
        hosts.set_link("b", is_up=True)
        assert finish(start(hosts, "a", ASK, hosts.address("b"), "20")) == "x"
        stop(server)


def test_quota_and_rates_hold() -> None:
    """Ratios of CPU time and of a paced link; both are enforced by the kernel and do not depend on the load."""
    with opened(Host(name="a", cpu_quota=0.2, up=4e6), Host(name="b", down=2e6), Host(name="c")) as hosts:
        assert float(finish(start(hosts, "a", BURN))) <= 0.3
        for receiver, size, limit in (("c", 4, 4e6), ("b", 2, 2e6)):
            drinker = start(hosts, receiver, DRINK, hosts.address(receiver))
            assert said(drinker) == "ready"
            finish(start(hosts, "a", POUR, hosts.address(receiver), str(size)))
            assert float(finish(drinker)) <= 1.2 * limit


def test_two_clusters_do_not_meet() -> None:
    with opened(Host(name="a")) as one, opened(Host(name="a")) as two:
        assert one.host_address != two.host_address
        assert one.address("a") != two.address("a")


def test_nothing_of_the_network_outlives_its_processes() -> None:
    code = (
        "import subprocess, sys, os, signal\n"
        "from plait.engines.emulation.hosts import EmulatedHosts, Host\n"
        "hosts = EmulatedHosts([Host(name='a', cpu_quota=0.5)]); hosts.open()\n"
        "entry = hosts.enter('a', ['sleep', '600'])\n"
        "child = subprocess.Popen(entry.command, pass_fds=entry.descriptors, stdout=-3, stderr=-3)\n"
        "print(hosts._key, child.pid, hosts.cpu_group, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    key, pid, group = killed.stdout.split()
    assert f"plait{key}" in links()
    assert Path(group).is_dir()
    with opened(Host(name="z")):  # a later start leaves alone what still has a living process
        assert Path(group).is_dir()
    os.kill(int(pid), signal.SIGKILL)
    until(lambda: f"plait{key}" not in links())
    with opened(Host(name="z")):
        assert not Path(group).exists()


@pytest.fixture
def testbed_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "testbed" / "__init__.py"
    spec = importlib.util.spec_from_file_location("testbed", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_testbed_ends_everything_that_ran_on_it(testbed_module: ModuleType) -> None:
    with testbed_module.Testbed([Host(name="a"), Host(name="b", cpu_quota=0.5)]) as testbed:
        family = testbed.popen("b", ["sh", "-c", "setsid sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
        stray = int(family.stdout.readline())
        assert is_alive(stray)
        testbed.freeze(family.pid)
        testbed.thaw(family.pid)
    assert family.returncode == -signal.SIGKILL
    until(lambda: not is_alive(stray))


def test_a_killed_benchmark_leaves_nothing(tmp_path: Path) -> None:
    benchmarks = Path(__file__).parents[2] / "benchmarks"
    code = (
        f"import sys, os, signal; sys.path.insert(0, {str(benchmarks)!r})\n"
        "from testbed import Host, Testbed\n"
        "with Testbed([Host(name='a', cpu_quota=0.5)]) as testbed:\n"
        "    words = ['sh', '-c', 'env -i setsid sleep 600 & echo $!; wait']\n"
        "    child = testbed.popen('a', words, text=True, stdout=-1, stderr=-3)\n"
        "    print(testbed._hosts._key, child.stdout.readline().strip(), testbed._hosts.cpu_group, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    key, stray, group = killed.stdout.split()
    until(lambda: not is_alive(int(stray)) and not Path(group).exists() and f"plait{key}" not in links())
