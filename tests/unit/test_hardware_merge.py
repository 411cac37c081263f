"""Several sources of one machine: the same things are one thing, the better source wins, and differences are told."""

import dataclasses

import pytest

from plait.hardware.merge import NothingToMerge, merge
from plait.hardware.topology import Component, Fragment, Link, Locality
from plait.hardware.values import Source, Value


def gpu(key: str, **fields: object) -> Component:
    return Component(**{"key": key, "name": key, "kind": "gpu", **fields})  # type: ignore[arg-type]


def fragment(origin: str, *components: Component, source: Source = Source.CLI, **fields: object) -> Fragment:
    return Fragment(origin=origin, format=origin, components=components, source=source, **fields)  # type: ignore[arg-type]


A, B = "0000:07:00.0", "0000:0f:00.0"


def test_pci_addresses_join_what_names_do_not() -> None:
    kernel = fragment("sysfs", gpu(A, pci_address=A), source=Source.SYSFS)
    tool = fragment("smi", gpu("GPU-1", name="GPU0", pci_address=A, uuid="GPU-1", model="A100"))
    merged = merge([kernel, tool])
    (found,) = merged.components
    assert (found.key, found.name, found.model, found.uuid) == (A, "GPU0", "A100", "GPU-1")
    assert merged.conflicts == ()
    assert merged.origin == "sysfs, smi"


def test_numbers_go_by_address_where_both_sides_know_equally_many() -> None:
    kernel = fragment("sysfs", gpu(B, pci_address=B), gpu(A, pci_address=A), source=Source.SYSFS)
    links = (Link(a="GPU0", b="GPU1", kind="nvlink", count=12),)
    tool = fragment("topo", gpu("GPU0", index=0), gpu("GPU1", index=1), links=links)
    merged = merge([kernel, tool])
    assert {c.key: c.name for c in merged.components} == {A: "GPU0", B: "GPU1"}
    assert [(link.a, link.b, link.count) for link in merged.links] == [(A, B, 12)]


def test_numbers_stay_apart_where_the_counts_differ() -> None:
    kernel = fragment("sysfs", gpu(A, pci_address=A), source=Source.SYSFS)
    tool = fragment("topo", gpu("GPU0", index=0), gpu("GPU1", index=1))
    assert len(merge([kernel, tool]).components) == 3


def test_the_higher_source_wins_and_the_other_is_kept() -> None:
    tool = fragment("smi", gpu("g", uuid="u", memory_bytes=Value(80, Source.CLI), locality=Locality(numa_nodes=(1,))))
    library = fragment(
        "nvml",
        gpu("h", uuid="U", memory_bytes=Value(40, Source.LIBRARY), locality=Locality(numa_nodes=(0,))),
        source=Source.LIBRARY,
    )
    merged = merge([tool, library])
    (found,) = merged.components
    assert found.memory_bytes.value == 40
    assert found.locality.numa_nodes == (0,)
    said = {conflict.subject: conflict.said for conflict in merged.conflicts}
    assert said["memory_bytes of h"] == ("40 (library)", "80 (cli)")
    assert said["numa_nodes of h"] == ("0 (library)", "1 (cli)")


def test_a_cut_model_name_is_no_contradiction() -> None:
    merged = merge([fragment("a", gpu("g", model="NVIDIA H100 80GB HBM3")), fragment("b", gpu("g", model="H100 80GB"))])
    assert merged.conflicts == ()
    assert merged.components[0].model == "NVIDIA H100 80GB HBM3"


def test_links_of_one_pair_join_and_differences_are_told() -> None:
    ends = (gpu("GPU0"), gpu("GPU1"))
    one = fragment("a", *ends, links=(Link(a="GPU0", b="GPU1", kind="nvlink", count=12),))
    other = fragment(
        "b",
        *ends,
        links=(
            Link(a="GPU1", b="GPU0", kind="nvlink", count=8, bytes_per_s=Value(1.0, Source.CLI), p2p="ok"),
            Link(a="GPU0", b="GPU1", kind="pix"),
        ),
    )
    merged = merge([one, other])
    nvlink, pix = merged.links
    assert (nvlink.count, nvlink.p2p, nvlink.bytes_per_s.value, nvlink.reverse_bytes_per_s.value) == (
        12,
        "ok",
        None,
        1.0,
    )
    assert pix.kind == "pix"
    assert [c.said for c in merged.conflicts] == [("12 links", "8 links")]


def test_two_paths_of_one_pair_cannot_both_be_right() -> None:
    ends = (gpu("GPU0"), gpu("GPU1"))
    kernel = fragment("k", *ends, links=(Link(a="GPU0", b="GPU1", kind="node"),), source=Source.LIBRARY)
    tool = fragment("t", *ends, links=(Link(a="GPU0", b="GPU1", kind="sys"),))
    merged = merge([tool, kernel])
    assert [link.kind for link in merged.links] == ["node"]
    assert merged.conflicts[0].said == ("node (library)", "sys (cli)")


def test_things_of_one_source_are_never_joined_with_each_other() -> None:
    nics = [Component(key=str(i), name="port", kind="nic", pci_address=f"0000:0{i}:00.0") for i in range(3)]
    one = fragment("a", *nics)
    assert len(merge([one, one]).components) == 3


def test_merging_with_itself_or_alone_changes_nothing() -> None:
    one = fragment("a", gpu(A, pci_address=A), gpu("GPU1"), numa_distances={(0, 1): 20}, hides=("nvlink",))
    assert merge([one]) is one
    twice = merge([one, one])
    assert dataclasses.replace(twice, origin="a", format="a") == one


def test_what_one_source_hides_another_may_show() -> None:
    ends = (gpu("GPU0"), gpu("GPU1"))
    blind = fragment("mp", *ends, hides=("nvlink", "numa"))
    seeing = fragment("m", *ends, links=(Link(a="GPU0", b="GPU1", kind="nvlink"),))
    assert merge([blind, seeing]).hides == ("numa",)


def test_distances_that_differ_are_told() -> None:
    merged = merge([fragment("a", numa_distances={(0, 1): 20}), fragment("b", numa_distances={(0, 1): 32})])
    assert merged.numa_distances == {(0, 1): 20}
    assert merged.conflicts[0].subject == "NUMA distance 0 - 1"


def test_nothing_cannot_be_merged() -> None:
    with pytest.raises(NothingToMerge):
        merge([])
