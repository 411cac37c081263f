"""Figures of the catalogue that can be checked against each other: forms, directions, sparsity, packages, sources."""

import re
from importlib.resources import files

import pytest

from plait.hardware.catalog import UnknownAccelerator, capability, family_of, known_types, known_variants
from plait.hardware.catalog.rows import load
from plait.hardware.device import DeviceCapability
from plait.hardware.link_rates import ports_of

GIB = 2**30
ROWS = (*known_types(), *known_variants())
TFLOPS = ("fp32_tflops", "tf32_tflops", "fp16_tflops", "bf16_tflops", "fp8_tflops")
FIGURES = {*TFLOPS, "memory_bytes", "memory_bytes_per_s", "pcie", "peer_links", "tdp_w"}


def test_the_catalogue_is_large_enough_and_names_every_vendor() -> None:
    rows = [capability(name) for name in known_types() if name != "CPU"]
    assert len(rows) >= 60
    assert {row.vendor for row in rows} >= {
        "NVIDIA", "AMD", "Huawei", "Intel", "Google", "AWS", "Cambricon", "Hygon", "Kunlunxin", "MetaX",
        "Moore Threads",
    }  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_every_row_keeps_the_rules(name: str) -> None:
    row = capability(name)
    assert re.fullmatch(r"grade [ABC]: .+", row.source)
    assert set(row.sources) <= FIGURES
    for figure, source in row.sources.items():
        assert getattr(row, figure) is not None
        assert source.grade in {"A", "B", "C"}
        assert row.source_of(figure) == f"grade {source.grade}: {source.source}"
    assert row.source_of("year") == row.source
    for value in (row.tdp_w, row.pcie.max_generation, row.pcie.max_lanes, *row.sustained_ratios.values()):
        assert value is None or value > 0
    assert all(ratio < 1 for ratio in row.sustained_ratios.values())
    assert row.pcie.generation is None, "the catalogue knows parts, not slots"


@pytest.mark.parametrize("name", ROWS)
def test_narrower_types_are_never_slower(name: str) -> None:
    row = capability(name)
    if row.architecture == "gfx908":  # MI100: bf16 runs at half the rate of fp16
        assert row.bf16_tflops == pytest.approx((row.fp16_tflops or 0) / 2)
        return
    for wide, narrow in (("fp32", "tf32"), ("tf32", "fp16"), ("fp16", "bf16"), ("fp32", "bf16"), ("bf16", "fp8")):
        slow, fast = getattr(row, f"{wide}_tflops"), getattr(row, f"{narrow}_tflops")
        if slow is not None and fast is not None:
            assert fast >= slow, f"{wide} {slow} above {narrow} {fast}"


@pytest.mark.parametrize("name", ROWS)
def test_rates_are_dense(name: str) -> None:
    row = capability(name)
    if row.vendor == "NVIDIA" and row.fp8_tflops and row.bf16_tflops:
        assert row.fp8_tflops / row.bf16_tflops == pytest.approx(2, rel=0.02), "one of the two is a sparse figure"
    if row.vendor == "NVIDIA" and row.tf32_tflops and row.bf16_tflops:
        assert row.bf16_tflops / row.tf32_tflops == pytest.approx(2, rel=0.05), "one of the two is a sparse figure"


@pytest.mark.parametrize("name", ROWS)
def test_links_are_of_one_direction(name: str) -> None:
    links = capability(name).peer_links
    if links is None:
        return
    if links.pair_bytes_per_s is not None and links.bytes_per_s is not None:
        assert links.pair_bytes_per_s <= links.bytes_per_s
    if links.links is not None and links.bytes_per_s is not None:
        per_link = links.bytes_per_s / links.links
        assert 10e9 <= per_link <= 80e9, "a link of today carries 14 to 77 GB/s in one direction"


@pytest.mark.parametrize("name", ROWS)
def test_links_agree_with_the_rates_by_model(name: str) -> None:
    row = capability(name)
    known = ports_of(f"{row.vendor} {name}")
    links = row.peer_links
    if known is None or known.peer_link_bytes_per_s is None or links is None:
        return
    if links.kind == "net":  # several ports a pair
        assert links.pair_bytes_per_s == known.peer_link_bytes_per_s
    elif links.bytes_per_s is not None and links.links is not None:
        assert links.bytes_per_s / links.links == pytest.approx(known.peer_link_bytes_per_s, rel=0.01)


@pytest.mark.parametrize("name", known_variants())
def test_a_variant_is_of_a_type_and_takes_no_figure_from_it(name: str) -> None:
    row = capability(name)
    base = capability(row.family)
    assert family_of(name) == row.family != name
    assert (row.vendor, row.precisions, row.devices_per_package) == (
        base.vendor,
        base.precisions,
        base.devices_per_package,
    )
    assert set(row.memory_options_bytes) <= set(base.memory_options_bytes)
    own = load("variants.toml")[name]
    for figure in TFLOPS:
        assert (getattr(row, figure) is None) == (figure not in own)


def test_forms_differ_where_data_sheets_do() -> None:
    def of(name: str) -> DeviceCapability:
        return capability(name)

    assert (of("V100-PCIE-16GB").fp16_tflops, of("V100-SXM2-16GB").fp16_tflops) == (112, 125)
    assert of("V100-PCIE-32GB").peer_links is None
    assert (of("A100-SXM4-40GB").memory_bytes_per_s, of("A100-SXM4-80GB").memory_bytes_per_s) == (1555e9, 2039e9)
    assert of("A100-PCIE-80GB").memory_bytes_per_s == 1935e9
    assert (of("H100-PCIE-80GB").bf16_tflops, of("H100-NVL-94GB").bf16_tflops) == (756, 835.5)
    assert of("H100-NVL-94GB").memory_options_bytes == (94 * GIB,)
    links = of("H100-SXM5-80GB").peer_links
    assert links is not None
    assert (links.links, links.bytes_per_s) == (18, 450e9), "900 GB/s is the sum of both directions"
    assert [of(f"Ascend910B{n}").fp16_tflops for n in (1, 2, 3, 4)] == [414, 376, 313, 280]


def test_cut_exports_are_cut_where_they_are() -> None:
    def total(name: str) -> float:
        links = capability(name).peer_links
        assert links is not None
        assert links.bytes_per_s is not None
        return links.bytes_per_s

    assert total("A800") < total("A100")
    assert total("H800") < total("H100")
    assert total("H20") == total("H100")
    h20, h100 = capability("H20").bf16_tflops, capability("H100").bf16_tflops
    assert h20 is not None
    assert h100 is not None
    assert h20 < h100 / 6


def test_a_package_of_two_dies_shares_out_all_it_has() -> None:
    gcd = capability("MI250X")
    assert (gcd.fp16_tflops, gcd.memory_bytes, gcd.tdp_w) == (191.5, 64 * GIB, 280)
    assert gcd.peer_links is not None
    assert (gcd.peer_links.bytes_per_s, gcd.peer_links.pair_bytes_per_s) == (175e9, 50e9)
    assert capability("Ascend910C").memory_bytes == 64 * GIB


def test_needs_say_why() -> None:
    assert [need.kind for need in capability("V100").needs] == ["tensor_cores"]
    assert {need.kind for need in capability("Ascend910B").needs} == {"format_conversion", "custom_op"}
    assert capability("P100").needs == ()
    assert all(need.why for name in known_types() for need in capability(name).needs)


def test_a_wrong_variant_names_the_type() -> None:
    with pytest.raises(UnknownAccelerator, match="did you mean 'A100'"):
        capability("A100-SXM4-64GB")


def test_names_are_of_rows_that_exist() -> None:
    assert files("plait.hardware.catalog").joinpath("names.toml").is_file()
    assert set(load("names.toml")) - {"look-alikes"} <= set(ROWS)
