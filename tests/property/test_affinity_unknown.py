"""Whatever is known of a machine: no number for an unknown pair without a policy, and no flow beats its own pair."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.hardware.affinity import Flow, UnknownBandwidth, build
from plait.hardware.topology import Component, Fragment, Link, LinkKind, Locality

KINDS: tuple[LinkKind | None, ...] = ("nvlink", "xgmi", "mx", "pix", "pxb", "phb", "node", "sys", "unknown", None)
MODELS = (None, "A100", "NVIDIA GeForce RTX 4090", "MI300X", "a model of tomorrow")


@dataclass
class Machine:
    fragment: Fragment
    size: int


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    size = draw(st.integers(2, 6))
    devices = [
        Component(
            key=f"GPU{i}",
            name=f"GPU{i}",
            kind="gpu",
            index=i,
            model=draw(st.sampled_from(MODELS)),
            locality=Locality(numa_nodes=draw(st.sampled_from((None, (0,), (1,))))),
        )
        for i in range(size)
    ]
    links = []
    for i, j in itertools.combinations(range(size), 2):
        kind = draw(st.sampled_from(KINDS))
        if kind is not None:
            p2p = draw(st.sampled_from(("ok", "refused", "unknown")))
            count = draw(st.integers(1, 18))
            links.append(Link(a=f"GPU{i}", b=f"GPU{j}", kind=kind, count=count, p2p=p2p))  # type: ignore[arg-type]
    cpu = draw(st.sampled_from((None, "AMD EPYC 9575F", "AMD EPYC 7742")))
    if cpu:
        devices.append(Component(key="cpu", name="CPU", kind="cpu", model=cpu))
    return Machine(Fragment(origin="t", format="t", components=tuple(devices), links=tuple(links)), size)


@given(machine=machines())
def test_an_unknown_pair_gives_no_number_without_a_policy(machine: Machine) -> None:
    matrix = build({"n": machine.fragment})
    for i, j in itertools.permutations(range(machine.size), 2):
        a, b = matrix.devices[i], matrix.devices[j]
        cell = matrix.cell(a, b)
        assert (cell.value is None) == (not matrix.known[i, j]) == bool(np.isnan(matrix.bytes_per_s[i, j]))
        assert cell.detail, "a figure or its absence has a reason"
        if cell.value is not None:
            assert cell.value > 0
            assert cell.relative_error is not None
            assert matrix.bandwidth(a, b, unknown="raise") == cell.value
            continue
        flows = [Flow(a, b)]
        for ask in (
            lambda a=a, b=b: matrix.bandwidth(a, b, unknown="raise"),
            lambda flows=flows: matrix.achievable(flows, unknown="raise"),
            lambda flows=flows: matrix.concurrent_time_s(flows, unknown="raise"),
            lambda: matrix.filled(unknown="raise"),
        ):
            with pytest.raises(UnknownBandwidth):
                ask()


@given(machine=machines(), data=st.data())
def test_flows_together_are_no_faster_than_alone_and_no_slower_than_one_after_another(
    machine: Machine, data: st.DataObject
) -> None:
    matrix = build({"n": machine.fragment})
    names = list(matrix.devices)
    pairs = data.draw(st.lists(st.sampled_from(list(itertools.permutations(names, 2))), min_size=1, max_size=8))
    try:
        flows = [Flow(a, b, 1e9) for a, b in pairs]
        together = matrix.concurrent_time_s(flows, unknown="pessimistic")
    except UnknownBandwidth:
        return  # nothing at all is known of this machine
    alone = [matrix.concurrent_time_s([flow], unknown="pessimistic") for flow in flows]
    assert together >= max(alone) * (1 - 1e-9)
    found = matrix.achievable(flows, unknown="pessimistic")
    if not found.is_scattered:  # a collapse may really be slower than taking turns
        worst = min(group.crowded_ratio for group in matrix.groups.values()) if matrix.groups else 1.0
        assert together <= sum(alone) / worst * (1 + 1e-9)
