"""Claims, ports, token buckets, networks and control groups without making any."""

import ipaddress
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from plait.engines.emulation.claims import alone, claim, join_claim, try_exclusive
from plait.engines.emulation.cpu_groups import CpuHierarchy, find_hierarchy, remove_stale
from plait.engines.emulation.hosts import EmulatedHosts, Host
from plait.engines.emulation.network import EmulationImpossible, free_subnet, token_bucket
from plait.engines.emulation.ports import PORTS_PER_HOST, claim_ports, rejoin_ports
from plait.errors import PlaitError


def test_a_claim_is_held_once_until_it_is_closed(tmp_path: Path) -> None:
    held = claim("x", tmp_path)
    assert held is not None
    assert claim("x", tmp_path) is None
    assert claim("y", tmp_path) is not None
    held.close()
    again = claim("x", tmp_path)
    assert again is not None
    again.close()


def test_a_claim_lives_as_long_as_a_process_that_inherited_it(tmp_path: Path) -> None:
    held = claim("x", tmp_path)
    assert held is not None
    heir = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[held.descriptor])
    held.close()
    assert claim("x", tmp_path) is None
    joined = join_claim("x", tmp_path)
    assert joined is not None
    heir.communicate()
    assert try_exclusive(joined.path) is None
    joined.close()
    assert not joined.path.exists()


def test_a_claim_that_its_killed_holder_left_is_free(tmp_path: Path) -> None:
    (tmp_path / "x.lock").touch()
    held = claim("x", tmp_path)
    assert held is not None
    held.close()


def test_waiting_for_others_ends_with_a_sentence(tmp_path: Path) -> None:
    held = claim("x", tmp_path)
    assert held is not None
    with pytest.raises(PlaitError, match="'x'"), alone("x", tmp_path, within_s=0.05):
        pass
    held.close()
    with alone("x", tmp_path):
        assert claim("x", tmp_path) is None


def test_port_ranges_of_clusters_never_overlap(tmp_path: Path) -> None:
    one, two = claim_ports(3, tmp_path), claim_ports(2, tmp_path)
    starts = sorted(first for first, _ in (*one, *two))
    assert all(b - a >= PORTS_PER_HOST for a, b in pairwise(starts))
    joined = rejoin_ports([first for first, _ in one], tmp_path)
    assert [first for first, _ in joined] == [first for first, _ in one]
    for _, held in (*one, *two, *joined):
        held.close()
    with pytest.raises(PlaitError, match="1000 nodes"):
        claim_ports(1000, tmp_path)


def test_a_rate_becomes_a_bucket_with_floors() -> None:
    assert token_bucket(1e6) == ("tbf", "rate", "8000000bit", "burst", "32768b", "limit", "262144b")
    assert token_bucket(1.25e8)[3:] == ("burst", "1250000b", "limit", "12500000b")


def test_a_network_is_chosen_that_nobody_uses() -> None:
    taken = "2: eth0    inet 198.18.5.1/24 brd x\n3: a    inet 198.18.6.7/23 scope global\n"
    assert free_subnet(taken, 5) == ipaddress.ip_network("198.18.8.0/24")
    assert free_subnet("", 258) == ipaddress.ip_network("198.18.2.0/24")
    with pytest.raises(EmulationImpossible, match=r"198\.18\.0\.0/16"):
        free_subnet("9: x    inet 198.18.0.1/15 scope global", 0)


def test_the_cpu_controller_is_found_in_both_versions(tmp_path: Path) -> None:
    old = tmp_path / "cpu"
    (old / "own").mkdir(parents=True)
    mounts = f"cgroup {old} cgroup rw,cpu,cpuacct 0 0\n"
    assert find_hierarchy(mounts, "3:cpu,cpuacct:/own\n") == CpuHierarchy(1, old / "own")
    assert find_hierarchy(mounts, "3:cpu,cpuacct:/hidden\n") == CpuHierarchy(1, old)
    new = tmp_path / "unified"
    new.mkdir()
    mounts = f"cgroup2 {new} cgroup2 rw 0 0\n"
    assert find_hierarchy(mounts, "0::/\n") is None
    (new / "cgroup.controllers").write_text("memory cpu pids\n")
    assert find_hierarchy(mounts, "0::/\n") == CpuHierarchy(2, new)


def test_only_groups_whose_claim_nobody_holds_are_stale(tmp_path: Path) -> None:
    groups, claims = tmp_path / "groups", tmp_path / "claims"
    claims.mkdir()
    for name in ("dead", "held", "unknown"):
        (groups / f"plait-{name}" / "host").mkdir(parents=True)
    (groups / "other").mkdir()
    (groups / "plait-unknown" / "host" / "busy").mkdir()
    held = claim("held", claims)
    assert held is not None
    (claims / "dead.lock").touch()
    assert remove_stale(CpuHierarchy(1, groups), claims) == ("plait-dead",)
    assert sorted(path.name for path in groups.iterdir()) == ["other", "plait-held", "plait-unknown"]
    held.close()


def test_without_enforcement_everything_lacking_is_said() -> None:
    hosts = EmulatedHosts(
        [Host(name="a", cpu_quota=0.5, up=1e6), Host(name="b", slots=2, cpu_quota=4.0)], enforce=False
    )
    assert hosts.open() == "127.0.0.1"
    try:
        lacks = " ".join(hosts.limitations)
        assert "link rates of a " in lacks
        assert "CPU quotas of a, b " in lacks
        assert dict(hosts.enter("a", ["true"]).environment) == {"PLAIT_DUTY_RATIO": "0.5"}
        assert dict(hosts.enter("b", ["true"]).environment) == {"PLAIT_DUTY_RATIO": "1"}
        assert hosts.ports("a")[0] != hosts.ports("b")[0]
        with pytest.raises(EmulationImpossible, match="link of a cannot be cut"):
            hosts.set_link("a", is_up=False)
    finally:
        hosts.close()
    with pytest.raises(EmulationImpossible, match="not open"):
        hosts.enter("a", [sys.executable])
