"""The affinity matrix: every figure with source and reason, groups that pairs share, precedence of sources."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from plait.hardware.affinity import AffinityMatrix, Flow, PairFigure, UnknownBandwidth, UnknownDevice, build
from plait.hardware.affinity.build import HOST
from plait.hardware.affinity.measured import measured_pairs
from plait.hardware.topology import Component, Fragment, Link, LinkKind, Locality, Measurement, PciPort
from plait.hardware.values import Source, Value

CARD = "NVIDIA RTX PRO 6000 Blackwell"


def machine(
    size: int,
    kind: Callable[[int, int], LinkKind | None],
    *,
    model: str | None = CARD,
    cpu: str | None = "AMD EPYC 9575F",
    count: int = 1,
    nics: tuple[Component, ...] = (),
    nic_kind: LinkKind = "pix",
    **fields: object,
) -> Fragment:
    devices = [
        Component(
            key=f"GPU{i}", name=f"GPU{i}", kind="gpu", index=i, model=model, locality=Locality(numa_nodes=(i // 4,))
        )
        for i in range(size)
    ]
    links = [
        Link(a=f"GPU{i}", b=f"GPU{j}", kind=found, count=count)
        for i, j in itertools.combinations(range(size), 2)
        if (found := kind(i, j)) is not None
    ]
    links += [Link(a=device.key, b=nic.key, kind=nic_kind) for device in devices for nic in nics]
    processors = [Component(key="cpu", name="CPU", kind="cpu", model=cpu)] if cpu else []
    return Fragment(
        origin="t",
        format="t",
        components=(*devices, *processors, *nics),
        links=tuple(links),
        numa_distances={(0, 0): 10, (0, 1): 32, (1, 0): 32, (1, 1): 10},
        **fields,  # type: ignore[arg-type]
    )


def switches(i: int, j: int) -> LinkKind:
    return "pix" if i // 2 == j // 2 else "node" if i // 4 == j // 4 else "sys"


def nic(name: str, rate: float | None = 25e9, **extra: str) -> Component:
    value = Value(rate, Source.SYSFS)
    return Component(
        key=name, name=name, kind="nic", rate_bytes_per_s=value, extra={"link_layer": "InfiniBand", **extra}
    )


def test_every_cell_says_how_much_who_says_so_and_why() -> None:
    cell = build({"n": machine(8, switches)}).cell("GPU0", "GPU7")
    assert cell.value == pytest.approx(40e9)
    assert (cell.unit, cell.source, cell.kind) == ("bytes/s", Source.DEFAULT, "sys")
    assert cell.relative_error == pytest.approx(0.3)
    assert "Turin" in cell.detail


def test_axes_have_names_and_arrays_cannot_be_written() -> None:
    matrix = build({"n": machine(8, switches, nics=(nic("mlx5_0"),))})
    for name, axes in AffinityMatrix.AXES.items():
        array = getattr(matrix, name)
        assert array.shape == tuple(len(matrix.axis(axis)) for axis in axes), name
    with pytest.raises(ValueError, match="read-only"):
        matrix.bytes_per_s[0, 1] = 1.0


def test_numa_distances_of_devices() -> None:
    matrix = build({"n": machine(8, switches)})
    assert matrix.numa_nodes == ("n/0", "n/1")
    assert matrix.numa_distance[0].tolist() == [10, 32]
    assert matrix.numa_distance[7].tolist() == [32, 10]


def test_measured_beats_user_beats_estimate_and_large_differences_are_told() -> None:
    stated = PairFigure(a="GPU0", b="GPU1", bytes_per_s=Value(30e9, Source.USER, "cluster.yaml"))
    own = PairFigure(a="n/GPU0", b="n/GPU1", bytes_per_s=Value(20e9, Source.MEASURED, "copy", 0.03))
    matrix = build({"n": machine(2, switches)}, overrides=[stated], measurements=[own])
    cell = matrix.cell("GPU0", "GPU1")
    assert (cell.value, cell.source, cell.relative_error) == (20e9, Source.MEASURED, 0.03)
    assert matrix.expected_bytes_per_s[0, 1] == pytest.approx(53.56e9, rel=0.01)
    assert matrix.cell("GPU1", "GPU0").source == Source.DEFAULT
    assert len(matrix.conflicts) == 1
    only = build({"n": machine(2, switches)}, overrides=[stated])
    assert only.cell("GPU0", "GPU1").source == Source.USER


def test_a_figure_of_a_device_that_is_not_there_is_refused() -> None:
    figure = PairFigure(a="GPU0", b="GPU9", bytes_per_s=Value(1.0, Source.USER))
    with pytest.raises(UnknownDevice, match="'GPU9'"):
        build({"n": machine(2, switches)}, overrides=[figure])


def test_figures_of_host_memory() -> None:
    figure = PairFigure(a="GPU1", b=HOST, bytes_per_s=Value(12e9, Source.MEASURED))
    matrix = build({"n": machine(2, switches)}, measurements=[figure])
    assert matrix.host_bytes_per_s[1] == 12e9
    assert matrix.host_bytes_per_s[0] == pytest.approx(63e9 * 0.82, rel=0.01)


def test_names_serve_as_keys_unless_several_nodes_have_them() -> None:
    two = build({"a": machine(2, switches), "b": machine(2, switches)})
    assert two.index("b/GPU1") == 3
    with pytest.raises(UnknownDevice, match="several devices"):
        two.index("GPU1")
    with pytest.raises(UnknownDevice, match="did you mean 'GPU1'"):
        build({"a": machine(2, switches)}).index("gpu-1")


def test_an_unknown_pair_needs_a_policy() -> None:
    matrix = build({"n": machine(4, lambda i, j: None if (i, j) == (0, 3) else "pix")})
    assert not matrix.known[0, 3]
    with pytest.raises(UnknownBandwidth, match="n/GPU0 to n/GPU3"):
        matrix.bandwidth("GPU0", "GPU3", unknown="raise")
    with pytest.raises(UnknownBandwidth):
        matrix.filled(unknown="raise")
    assert matrix.bandwidth("GPU0", "GPU3", unknown="pessimistic") == pytest.approx(53.56e9, rel=0.01)
    bare = build({"n": machine(2, lambda _i, _j: "pix", model=None)})
    assert bare.bandwidth("GPU0", "GPU1", unknown="pessimistic") < bare.bandwidth("GPU0", "GPU1", unknown="optimistic")


def test_choosing_devices_keeps_their_cells_and_groups() -> None:
    matrix = build({"n": machine(8, switches)})
    part = matrix.choose(["GPU7", "GPU0"])
    assert part.names == ("GPU7", "GPU0")
    assert part.cell("GPU0", "GPU7") == matrix.cell("GPU0", "GPU7")
    assert part.known.shape == (2, 2)
    assert part.achievable(part.all_pairs(), unknown="raise").bytes_per_s > 0


def test_one_flow_alone_gets_what_its_pair_has() -> None:
    matrix = build({"n": machine(8, switches)})
    for a, b in itertools.permutations(("GPU0", "GPU1", "GPU4"), 2):
        found = matrix.achievable([Flow(a, b, 7e9)], unknown="raise")
        assert found.bytes_per_s == pytest.approx(matrix.bandwidth(a, b, unknown="raise"))
        assert matrix.concurrent_time_s([Flow(a, b, 7e9)], unknown="raise") == pytest.approx(found.time_s)
    assert matrix.achievable([], unknown="raise").bytes_per_s == 0


def test_flows_out_of_one_port_share_it() -> None:
    matrix = build({"n": machine(4, lambda _i, _j: "pix")})
    one = matrix.achievable([Flow("GPU0", "GPU1")], unknown="raise").bytes_per_s
    two = matrix.achievable([Flow("GPU0", "GPU1"), Flow("GPU0", "GPU2")], unknown="raise").bytes_per_s
    apart = matrix.achievable([Flow("GPU0", "GPU1"), Flow("GPU2", "GPU3")], unknown="raise").bytes_per_s
    assert two == pytest.approx(one)
    assert apart == pytest.approx(2 * one)


def test_devices_behind_one_uplink_leave_it_no_faster_than_one() -> None:
    matrix = build({"n": machine(4, switches, cpu="AMD EPYC 7742")})
    one = matrix.achievable([Flow("GPU0", "GPU2")], unknown="raise")
    two = matrix.achievable([Flow("GPU0", "GPU2"), Flow("GPU1", "GPU3")], unknown="raise")
    assert two.bytes_per_s == pytest.approx(one.bytes_per_s)
    assert two.limited_by.startswith("n/uplink:")


def test_scattered_writes_collapse_where_the_processor_is_known_for_it_and_reads_do_not() -> None:
    writes = [Flow("GPU0", "GPU2"), Flow("GPU1", "GPU4")]
    reads = [Flow(f.source, f.target, is_read=True) for f in writes]
    genoa, rome = (build({"n": machine(8, switches, cpu=cpu)}) for cpu in ("AMD EPYC 9374F", "AMD EPYC 7742"))
    collapsed = genoa.achievable(writes, unknown="raise")
    assert collapsed.is_scattered
    assert collapsed.bytes_per_s < 10e9
    assert genoa.achievable(reads, unknown="raise").bytes_per_s > 40e9
    assert not rome.achievable(writes, unknown="raise").is_scattered
    same_root = genoa.achievable([Flow("GPU0", "GPU2"), Flow("GPU1", "GPU3")], unknown="raise")
    assert not same_root.is_scattered


def test_sockets_share_their_link_each_way() -> None:
    matrix = build({"n": machine(8, lambda i, j: "node" if i // 4 == j // 4 else "sys")})
    there = [Flow(f"GPU{i}", f"GPU{i + 4}") for i in range(4)]
    back = [Flow(flow.target, flow.source) for flow in there]
    one_way = matrix.achievable(there, unknown="raise").bytes_per_s
    assert one_way == pytest.approx(40e9)
    assert matrix.achievable(there + back, unknown="raise").bytes_per_s == pytest.approx(2 * one_way)


def test_links_to_a_switch_are_shared_by_all_peers_and_a_mesh_is_not() -> None:
    switched = build({"n": machine(8, lambda _i, _j: "nvlink", model="NVIDIA H100 80GB HBM3", count=18)})
    fan = [Flow("GPU0", f"GPU{j}") for j in range(1, 8)]
    assert switched.achievable(fan, unknown="raise").bytes_per_s == pytest.approx(396e9)
    mesh = build({"n": machine(8, lambda _i, _j: "xgmi", model="AMD Instinct MI300X")})
    assert mesh.achievable(fan, unknown="raise").bytes_per_s == pytest.approx(7 * 48e9)


def test_a_pci_tree_gives_paths_and_uplinks_without_any_matrix() -> None:
    fast, slow = PciPort(generation=4, lanes=16), PciPort(generation=3, lanes=16)
    parts = [Component(key="up", name="up", kind="bridge", pci=slow)]
    parts += [Component(key="p2", name="p2", kind="bridge", pci=fast)]
    for i in range(4):
        parts.append(
            Component(
                key=f"g{i}",
                name=f"g{i}",
                kind="gpu",
                pci_address=f"0000:0{i}:00.0",
                parent="up" if i < 2 else "p2",
                pci=fast,
                locality=Locality(numa_nodes=(0,)),
            )
        )
    matrix = build({"n": Fragment(origin="t", format="t", components=tuple(parts))})
    assert matrix.cell("g0", "g1").kind == "pix"
    assert matrix.cell("g0", "g1").value == pytest.approx(16 * 1.969e9 * 0.85)
    across = matrix.cell("g0", "g2")
    assert across.kind == "node"
    assert across.value == pytest.approx(16 * 0.985e9 * 0.85)
    assert "uplink" in across.detail


def test_nodes_meet_by_rdma_where_both_have_it() -> None:
    left = machine(2, switches, nics=(nic("mlx5_0"), nic("mlx5_1")))
    right = machine(2, switches, nics=(nic("mlx5_0"),))
    matrix = build({"a": left, "b": right})
    cell = matrix.node_cell("a", "b")
    assert cell.kind == "infiniband"
    assert cell.value == pytest.approx(25e9 * 0.92)
    pair = matrix.cell("a/GPU0", "b/GPU1")
    assert pair.kind == "net"
    assert pair.value == pytest.approx(25e9 * 0.92)
    flows = [Flow("a/GPU0", "b/GPU0"), Flow("a/GPU1", "b/GPU1")]
    assert matrix.achievable(flows, unknown="raise").limited_by == "b/nic:mlx5_0"


def test_nodes_meet_by_tcp_or_not_at_all() -> None:
    ethernet = Component(key="eth0", name="eth0", kind="nic", rate_bytes_per_s=Value(3.125e9, Source.SYSFS))
    matrix = build({"a": machine(1, switches, nics=(ethernet,)), "b": machine(1, switches, nics=(ethernet,))})
    assert matrix.node_cell("a", "b").kind == "tcp"
    assert matrix.node_cell("a", "b").value == pytest.approx(1.875e9)
    down = Component(key="m", name="m", kind="nic", rate_bytes_per_s=Value(25e9, Source.CLI), extra={"state": "Down"})
    nothing = build({"a": machine(1, switches, nics=(down,)), "b": machine(1, switches, nics=(down,))})
    assert nothing.node_cell("a", "b").value is None
    assert np.isnan(nothing.bytes_per_s[0, 1])


def test_a_measured_link_of_nodes_holds_for_their_devices() -> None:
    figure = PairFigure(a="a", b="b", bytes_per_s=Value(1e9, Source.MEASURED, "TCP"), latency_s=Value(2e-5))
    matrix = build({"a": machine(2, switches), "b": machine(2, switches)}, measurements=[figure])
    assert matrix.node_cell("a", "b").source == Source.MEASURED
    assert matrix.cell("a/GPU0", "b/GPU1").value == 1e9
    assert matrix.latency("a/GPU0", "b/GPU1").value == 2e-5
    assert matrix.node_cell("b", "a").value is None


def test_tables_of_measuring_tools_know_their_direction_and_unit() -> None:
    def table(title: str, unit: str = "GB/s") -> Fragment:
        rows = (("0", (None, 10.0)), ("1", (20.0, None)))
        return Fragment(
            origin="f", format="m", measurements=(Measurement(title=title, unit=unit, columns=("0", "1"), rows=rows),)
        )

    def rates(fragment: Fragment) -> dict[tuple[str, str], float | None]:
        return {(f.a, f.b): f.bytes_per_s.value for f in measured_pairs(fragment, ["x", "y"])}

    assert rates(table("P2P Writes Matrix")) == {("x", "y"): 10e9, ("y", "x"): 20e9}
    assert rates(table("P2P Reads Matrix")) == {("x", "y"): 20e9, ("y", "x"): 10e9}
    assert rates(table("memcpy GPU(row) <- GPU(column)")) == {("x", "y"): 20e9, ("y", "x"): 10e9}
    assert rates(table("Bidirectional P2P=Enabled Bandwidth")) == {("x", "y"): 5e9, ("y", "x"): 10e9}
    assert rates(table("P2P Writes", "MB/s")) == {("x", "y"): 10e6, ("y", "x"): 20e6}
    (latency, _) = measured_pairs(table("P2P=Enabled Latency Matrix (us)", "us"), ["x", "y"])
    assert latency.bytes_per_s.value is None
    assert latency.latency_s.value == pytest.approx(10e-6)


def test_the_better_of_two_paths_counts() -> None:
    off = Measurement(title="Unidirectional P2P=Disabled", unit="GB/s", columns=("0", "1"), rows=(("0", (None, 22.0)),))
    on = Measurement(title="Unidirectional P2P=Enabled", unit="GB/s", columns=("0", "1"), rows=(("0", (None, 10.0)),))
    matrix = build({"n": machine(2, switches, measurements=(on, off))})
    assert matrix.cell("GPU0", "GPU1").value == 22e9


def test_only_processors_are_devices_where_nothing_else_computes() -> None:
    cpu = Component(key="cpu", name="CPU", kind="cpu", model="x")
    assert build({"n": Fragment(origin="t", format="t", components=(cpu,))}).devices == ("n/cpu",)


def test_a_package_of_two_dies_counts_by_its_linked_parts() -> None:
    package = Component(key="card", name="card", kind="gpu")
    dies = [Component(key=f"d{i}", name=f"die {i}", kind="gpu", parent="card") for i in range(2)]
    fragment = Fragment(origin="t", format="t", components=(package, *dies), links=(Link(a="d0", b="d1", kind="sio"),))
    assert build({"n": fragment}).names == ("die 0", "die 1")
