"""The benchmark of checkpoints under faults in a short form: in memory, on files, and on real S3 servers."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from plait.train.checkpoint.stores import FileStore


@pytest.fixture
def torture(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    before = set(sys.modules)
    yield importlib.import_module("torture")
    own = {path.stem for path in (Path(__file__).parents[3] / "benchmarks").glob("*.py")}
    for name in (set(sys.modules) - before) & own:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("honours", [True, False])
def test_no_fault_leads_to_a_wrong_state(torture: ModuleType, honours: bool) -> None:
    verdicts = torture.Verdicts()
    torture.simulated(
        len(torture.FAULTS), 11, lambda _number: torture.MemoryStore(honours_create=honours), verdicts, "memory"
    )
    assert verdicts.wrong == []
    assert set(verdicts.by_fault) == set(torture.FAULTS)
    assert verdicts.flips == verdicts.flips_found > 0


def test_files_go_through_the_same(torture: ModuleType, tmp_path: Path) -> None:
    verdicts = torture.Verdicts()
    torture.simulated(len(torture.FAULTS), 12, lambda n: FileStore(tmp_path / str(n)), verdicts, "files")
    assert verdicts.wrong == []
    assert verdicts.restores >= 5 * len(torture.FAULTS)


def test_tiers_go_through_the_same(torture: ModuleType, tmp_path: Path) -> None:
    verdicts = torture.Verdicts()
    torture.tiered(len(torture.TIER_FAULTS), 5, lambda n: tmp_path / f"run{n}", verdicts)
    assert verdicts.wrong == []
    assert verdicts.flips == verdicts.flips_found > 0
    assert set(verdicts.by_fault) == {f"tiers: {fault}" for fault in torture.TIER_FAULTS}


def test_the_judge_sees_a_state_of_another_past(
    torture: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its rule about the past that was gone on from, a node would come back with what its old disk has."""
    from plait.train.checkpoint.commit import Lineage

    monkeypatch.setattr(Lineage, "counts", lambda *_: True)
    verdicts = torture.Verdicts()
    with torture.holders() as nodes:
        for seed in range(6):
            torture.TieredRun(tmp_path / f"run{seed}", seed, "none", verdicts, nodes).go(lives=6)
    assert any("not of the surviving history" in line for line in verdicts.wrong)


def test_the_judge_sees_a_wrong_state(torture: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its rule about seals, the repository would load what zombies have written."""
    from plait.train.checkpoint import commit

    def everything(commits: object, *_: object) -> list[object]:
        return sorted(commits, key=lambda c: (c.step, c.writer), reverse=True)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(commit, "trusted", everything)
    verdicts = torture.Verdicts()
    for seed in range(4):
        torture.Run(torture.MemoryStore(), seed, "zombie", verdicts, "memory").go(lives=4)
    assert verdicts.wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", ["seaweedfs", "rclone"])
def test_real_servers_go_through_the_same(torture: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = importlib.import_module("object_server")
    verdicts = torture.Verdicts()
    try:
        with getattr(servers, name)() as endpoint, torture.fault_proxy(endpoint, 0) as proxy:
            for variable, value in servers.environment(endpoint).items():
                monkeypatch.setenv(variable, value)
            make = lambda n: torture.open_store(f"s3://ckpt/run{n}")  # noqa: E731
            torture.simulated(len(torture.FAULTS), 0, make, verdicts, name, proxy, lives=2)
    except servers.ServerMissing as missing:
        pytest.skip(str(missing))
    assert verdicts.wrong == []
    assert verdicts.flips == verdicts.flips_found > 0
    assert set(proxy.struck) == {"server_errors", "lost_answers"}
