"""What to measure, what of kept figures still holds, and how answers become figures: all pure but the cache's files."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plait.hardware.affinity import build
from plait.hardware.probes.plan import Plan, plan
from plait.hardware.probes.results import (
    Figure,
    Results,
    cache_directory,
    driver_versions,
    keep,
    kept,
    machine_hash,
    verdict,
)
from plait.hardware.probes.session import match_workers, pair_figures
from plait.hardware.topology import Component, Fragment, Link, LinkKind, Locality
from plait.hardware.values import Source

COPY = Figure(what="copy", a="n/GPU0", b="n/GPU1", value=50e9, latency_s=1e-6, relative_error=0.02, detail="directly")
KEPT = Results(machine="m", drivers="d", measured_at_s=1000.0, figures=(COPY,))


def box(size: int = 4, **fields: object) -> Fragment:
    devices = tuple(
        Component(key=f"GPU{i}", name=f"GPU{i}", kind="gpu", index=i, model="A100-PCIE-40GB", **fields)  # type: ignore[arg-type]
        for i in range(size)
    )

    def kind(i: int, j: int) -> LinkKind:
        return "pix" if i // 2 == j // 2 else "sys"

    pairs = itertools.combinations(range(size), 2)
    links = tuple(Link(a=f"GPU{i}", b=f"GPU{j}", kind=kind(i, j)) for i, j in pairs)
    return Fragment(origin="t", format="t", components=devices, links=links)


def planned(budget_s: float = 1e9, budget_bytes: int = 10**15) -> Plan:
    workers = {f"n/GPU{i}": f"cuda:{i}" for i in range(4)}
    matrix = build({"n": box()})
    return plan(
        matrix, workers, budget_s=budget_s, budget_bytes=budget_bytes, size_bytes=2**28, precisions=("bf16", "fp32")
    )


def test_everything_is_measured_where_there_is_time() -> None:
    tasks = planned().tasks
    copies = [task.devices for task in tasks if task.do == "copy"]
    assert sorted(copies) == sorted(itertools.permutations([f"cuda:{i}" for i in range(4)], 2))
    assert sum(task.do == "host" for task in tasks) == 4
    assert sum(task.do == "matmul" for task in tasks) == 8
    assert [len(task.flows) for task in tasks if task.do == "together"] == [4, 12]


def test_a_short_budget_still_sees_one_pair_of_every_kind() -> None:
    whole = planned()
    first = [task.do for task in whole.tasks].index("copy")
    assert {task.why for task in whole.tasks[first : first + 2]} == {"pix", "sys"}
    short = planned(budget_s=2.0)
    assert 0 < len(short.tasks) < len(whole.tasks)
    assert "left out to stay within 2 s" in short.reason


def test_bytes_are_limited_too() -> None:
    assert all(task.do == "matmul" for task in planned(budget_bytes=1000).tasks)


@pytest.mark.parametrize(
    ("before", "changes", "words"),
    [
        (None, {}, "nothing was measured"),
        (KEPT, {"machine": "other"}, "have changed"),
        (KEPT, {"drivers": "d2"}, "drivers have changed from d to d2"),
        (KEPT, {"now_s": 1000.0 + 31 * 86400}, "31 days ago"),
        (KEPT, {"checks": (dataclasses.replace(COPY, value=40e9),)}, "has drifted by -20%"),
        (KEPT, {"checks": (dataclasses.replace(COPY, value=60e9),)}, "has drifted by +20%"),
    ],
)
def test_figures_that_no_longer_hold(before: Results | None, changes: dict[str, object], words: str) -> None:
    now: dict[str, object] = {"machine": "m", "drivers": "d", "now_s": 1000.0, **changes}
    found = verdict(before, **now)  # type: ignore[arg-type]
    assert found.is_stale
    assert words in found.reason


@pytest.mark.parametrize(
    "checks",
    [
        (),
        (dataclasses.replace(COPY, value=45e9),),
        (dataclasses.replace(COPY, value=30e9, relative_error=0.4),),
        (dataclasses.replace(COPY, b="n/GPU7", value=1.0),),
    ],
)
def test_figures_that_hold(checks: tuple[Figure, ...]) -> None:
    found = verdict(KEPT, machine="m", drivers="d", now_s=4600.0, checks=checks)
    assert not found.is_stale
    assert "1.0 hours ago" in found.reason


def test_kept_figures_come_back_and_damaged_files_do_not(tmp_path: Path) -> None:
    path = keep(KEPT, tmp_path / "deep" / "er")
    assert kept("m", path.parent) == KEPT
    assert kept("another", path.parent) is None
    for damage in ("", "{", "[]", '{"format": 99}', '{"format": 1}', '{"format": 1, "figures": [{"x": 1}]}'):
        path.write_text(damage, encoding="utf-8")
        assert kept("m", path.parent) is None
    assert [p.name for p in path.parent.iterdir()] == ["m.json"]


def test_the_cache_is_where_the_user_wants_it() -> None:
    assert cache_directory({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/plait/topology")
    assert cache_directory({"HOME": "/h"}) == Path("/h/.cache/plait/topology")


def test_a_machine_is_known_by_its_wiring() -> None:
    assert machine_hash(box()) == machine_hash(box())
    assert machine_hash(box()) != machine_hash(box(3))
    assert machine_hash(box()) != machine_hash(dataclasses.replace(box(), links=()))
    busy = box(locality=Locality(numa_nodes=(0,)), health="hot")
    assert machine_hash(box()) == machine_hash(busy)


def test_drivers_are_part_of_what_was_measured() -> None:
    with_driver = box(1, extra={"driver_version": "550.90.07"})
    assert "driver_version=550.90.07" in driver_versions(with_driver)
    assert driver_versions(box(1)) != driver_versions(with_driver)


def test_workers_are_found_by_address_uuid_or_not_at_all() -> None:
    def seen(index: int, address: str | None, uuid: str = "") -> dict[str, Any]:
        return {"name": f"cuda:{index}", "kind": "cuda", "pci_address": address, "uuid": uuid}

    cpu: dict[str, Any] = {"name": "cpu", "kind": "cpu", "pci_address": None, "uuid": ""}
    addressed = Fragment(
        origin="t",
        format="t",
        components=tuple(
            Component(key=a, name=a, kind="gpu", pci_address=a, uuid=f"GPU-{a}")
            for a in ("0000:07:00.0", "0000:0f:00.0")
        ),
    )
    crossed = [seen(0, "0000:0f:00.0"), seen(1, "0000:07:00.0"), cpu]
    assert match_workers("n", addressed, crossed) == {"n/0000:07:00.0": "cuda:1", "n/0000:0f:00.0": "cuda:0"}
    by_uuid = [seen(0, None, "0000:0F:00.0"), cpu]
    assert match_workers("n", addressed, by_uuid) == {"n/0000:0f:00.0": "cuda:0"}
    assert match_workers("n", box(2), [seen(0, None), seen(1, None), cpu]) == {"n/GPU0": "cuda:0", "n/GPU1": "cuda:1"}
    assert match_workers("n", box(3), [seen(0, None), seen(1, None), cpu]) == {}


def test_processors_are_measured_as_a_whole_or_by_numa_node() -> None:
    seen = [{"name": name, "kind": "cpu", "pci_address": None, "uuid": ""} for name in ("cpu", "cpu:0", "cpu:1")]
    one = Fragment(origin="t", format="t", components=(Component(key="c", name="c", kind="cpu"),))
    assert match_workers("n", one, seen) == {"n/c": "cpu"}
    packages = tuple(
        Component(key=f"p{i}", name=f"p{i}", kind="cpu", locality=Locality(numa_nodes=(i,))) for i in range(3)
    )
    two = Fragment(origin="t", format="t", components=packages)
    assert match_workers("n", two, seen) == {"n/p0": "cpu:0", "n/p1": "cpu:1"}


def test_figures_reach_the_matrix_with_their_error_bars() -> None:
    figures = (
        COPY,
        Figure(what="memory", a="n/GPU0", value=1400e9),
        Figure(what="host", a="n/GPU1", value=25e9),
        Figure(what="matmul_bf16", a="n/GPU0", value=200e12),
        Figure(what="together: all pairs at once", a="n", value=90e9),
    )
    results = dataclasses.replace(KEPT, figures=figures)
    matrix = build({"n": box(2)}, measurements=pair_figures(results))
    cell = matrix.cell("GPU0", "GPU1")
    assert (cell.value, cell.source, cell.relative_error, cell.detail) == (50e9, Source.MEASURED, 0.02, "directly")
    assert matrix.latency("GPU0", "GPU1").value == 1e-6
    assert matrix.cell("GPU0", "GPU0").value == 1400e9
    assert matrix.host_bytes_per_s[1] == 25e9
    assert np.isclose(matrix.host_bytes_per_s[0], 31.5e9 * 0.82, rtol=0.01)
