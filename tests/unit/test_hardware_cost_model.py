"""The default cost model: a link's name needs a model; unknown stays unknown or a range; reasons in words."""

import pytest

from plait.hardware.cost_model import (
    Estimate,
    architecture,
    architecture_by_id,
    estimate_host,
    estimate_line,
    estimate_nic,
    estimate_pair,
)
from plait.hardware.link_rates import ports_of, ports_of_architecture
from plait.hardware.topology import Component, Link, LinkKind, PciPort
from plait.hardware.values import Source, Value


def device(model: str | None, key: str = "a", **fields: object) -> Component:
    return Component(key=key, name=key, kind="gpu", model=model, **fields)  # type: ignore[arg-type]


def pair(kind: LinkKind, model: str | None, *, count: int = 1, cpu: str | None = None, **fields: object) -> Estimate:
    link = Link(a="a", b="b", kind=kind, count=count, **fields)  # type: ignore[arg-type]
    return estimate_pair(link, device(model), device(model, "b"), cpu)


@pytest.mark.parametrize(
    ("count", "model", "gb_per_s"),
    [
        (4, "NVIDIA A100-SXM4-40GB", 100 * 0.88),
        (4, "NVIDIA GeForce RTX 3090", 56.2 * 0.88),
        (12, "A100", 300 * 0.88),
        (18, "NVIDIA H100 80GB HBM3", 450 * 0.88),
        (18, "NVIDIA B200", 900 * 0.88),
        (6, "Tesla V100-SXM2-16GB", 150 * 0.88),
        (8, "H800", 200 * 0.88),
    ],
)
def test_the_same_name_of_a_link_gives_what_its_model_has(count: int, model: str, gb_per_s: float) -> None:
    found = pair("nvlink", model, count=count)
    assert found.bytes_per_s == pytest.approx(gb_per_s * 1e9, rel=0.01)
    assert f"{count} NVLink links" in found.reason


def test_nvlink_of_an_unknown_model_is_a_range_and_no_figure() -> None:
    found = pair("nvlink", None, count=4)
    assert found.bytes_per_s is None
    assert found.low_bytes_per_s == pytest.approx(4 * 14.0625e9 * 0.88)
    assert found.high_bytes_per_s == pytest.approx(4 * 50e9 * 0.88)


def test_two_models_at_one_bridge_run_at_the_slower() -> None:
    link = Link(a="a", b="b", kind="nvlink", count=4)
    found = estimate_pair(link, device("A100"), device("RTX3090", "b"))
    assert found.bytes_per_s == pytest.approx(56.2e9 * 0.88, rel=0.01)


def test_an_unmentioned_pair_and_a_link_without_figures_are_unknown() -> None:
    assert estimate_pair(None, device("A100"), device("A100", "b")).bytes_per_s is None
    found = pair("mx", "C500")
    assert found.bytes_per_s is None
    assert "MX" in found.reason


def test_the_slower_port_decides_over_pci_express() -> None:
    narrow = device("RTX PRO 6000 Blackwell", "b", pci=PciPort(generation=5, lanes=8))
    found = estimate_pair(Link(a="a", b="b", kind="pix"), device("RTX PRO 6000 Blackwell"), narrow)
    assert found.bytes_per_s == pytest.approx(8 * 3.938e9 * 0.85)


def test_an_idle_port_counts_with_its_best_generation() -> None:
    idle = PciPort(generation=1, lanes=16, max_generation=4, max_lanes=16, is_idle_reading=True)
    busy = PciPort(generation=1, lanes=16, max_generation=4, max_lanes=16)
    assert estimate_host(device(None, pci=idle)).bytes_per_s == pytest.approx(16 * 1.969e9 * 0.82)
    assert estimate_host(device(None, pci=busy)).bytes_per_s == pytest.approx(16 * 0.25e9 * 0.82)


@pytest.mark.parametrize(
    ("cpu", "gb_per_s"), [("broadwell", 6), ("skylake", 10), ("sapphire rapids", 22), ("genoa", 39), ("turin", 40)]
)
def test_sockets_limit_what_crosses_them(cpu: str, gb_per_s: float) -> None:
    assert pair("sys", "RTX PRO 6000 Blackwell", cpu=cpu).bytes_per_s == pytest.approx(gb_per_s * 1e9)


def test_unknown_processors_widen_the_error_bar_and_say_so() -> None:
    known, unknown = pair("sys", "A100", cpu="rome"), pair("sys", "A100")
    assert unknown.relative_error is not None
    assert known.relative_error is not None
    assert unknown.relative_error > known.relative_error
    assert "processor is unknown" in unknown.reason


def test_refused_peers_are_staged_through_the_host() -> None:
    direct, refused = pair("node", "A100"), pair("node", "A100", p2p="refused")
    assert direct.bytes_per_s is not None
    assert refused.bytes_per_s is not None
    assert refused.bytes_per_s < direct.bytes_per_s
    assert refused.kind == "staged"
    assert "driver refuses peer access" in refused.reason


def test_the_stock_driver_of_geforce_40_refuses_and_a_patched_one_may_not() -> None:
    assert pair("phb", "NVIDIA GeForce RTX 4090").kind == "staged"
    assert pair("phb", "NVIDIA GeForce RTX 4090", p2p="ok").kind == "phb"
    assert pair("phb", "NVIDIA RTX 6000 Ada Generation").kind == "phb"


def test_two_vendors_have_no_peer_access() -> None:
    link = Link(a="a", b="b", kind="pix")
    found = estimate_pair(link, device("A100", vendor="nvidia"), device("MI100", "b", vendor="amd"))
    assert found.kind == "staged"


def test_a_stated_rate_beats_the_model_and_a_nominal_one_is_reduced() -> None:
    mine = pair("nvlink", "A100", count=12, bytes_per_s=Value(100e9, Source.USER, "cluster.yaml"))
    assert (mine.bytes_per_s, mine.source) == (100e9, Source.USER)
    nominal = pair("nvlink", None, count=12, bytes_per_s=Value(300e9, Source.LIBRARY, "NVML"))
    assert nominal.bytes_per_s == pytest.approx(264e9)
    constant = pair("xgmi", "MI300X", bytes_per_s=Value(100e9, Source.DEFAULT, "hwloc's constant"))
    assert constant.bytes_per_s == pytest.approx(64e9 * 0.75)


def test_nics() -> None:
    hdr = Component(key="n", name="mlx5_0", kind="nic", rate_bytes_per_s=Value(25e9, Source.SYSFS))
    near = estimate_nic(device("A100"), hdr, Link(a="a", b="n", kind="pix"))
    far = estimate_nic(device("A100"), hdr, Link(a="a", b="n", kind="sys"))
    assert near.bytes_per_s == pytest.approx(23e9)
    assert far.bytes_per_s == pytest.approx(11.5e9)
    assert estimate_nic(device("A100"), Component(key="n", name="n", kind="nic"), None).bytes_per_s is None
    assert estimate_line(3.125e9, is_rdma=False).bytes_per_s == pytest.approx(1.875e9)
    assert estimate_line(50e9, is_rdma=False).bytes_per_s == pytest.approx(6e9)
    assert estimate_line(None, is_rdma=True).bytes_per_s is None


@pytest.mark.parametrize(
    ("name", "era"),
    [
        ("AMD EPYC 9575F 64-Core Processor", "turin"),
        ("AMD EPYC 9374F", "genoa"),
        ("AMD EPYC 7742 64-Core Processor", "rome"),
        ("AMD EPYC 7763", "milan"),
        ("Intel(R) Xeon(R) Platinum 8480C", "sapphire rapids"),
        ("Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz", "skylake"),
        ("Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz", "broadwell"),
        ("POWER9, altivec supported", "power9"),
        ("Intel(R) Xeon(R) Processor", None),
        (None, None),
    ],
)
def test_generations_of_processors(name: str | None, era: str | None) -> None:
    assert architecture(name) == era


def test_processors_by_cpuid_as_linux_and_nccl_count() -> None:
    assert architecture_by_id("AuthenticAMD", 143, 49) == "rome"
    assert architecture_by_id("AuthenticAMD", 23, 49) == "rome"
    assert architecture_by_id("GenuineIntel", 6, 143) == "sapphire rapids"
    assert architecture_by_id("GenuineIntel", 6, 9999) is None


def test_ports_by_architecture_number() -> None:
    mi250x, h100 = ports_of_architecture("gfx90a", None), ports_of_architecture(None, "9.0")
    assert mi250x is not None
    assert mi250x.peer_link_bytes_per_s == 50e9
    assert h100 is not None
    assert h100.peer_link_bytes_per_s == 25e9
    assert ports_of_architecture(None, "unknown") is None
    assert ports_of("a model of tomorrow") is None
