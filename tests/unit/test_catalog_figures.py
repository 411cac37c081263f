import re
import tomllib
from importlib.resources import files
from typing import get_args

import pytest

from plait.errors import PlaitError
from plait.hardware.catalog import UnknownAccelerator, capability, known_types, predicted_speed
from plait.spec.job import Precision

GIB = 2**30


def test_the_catalogue_holds_the_well_known_types() -> None:
    types = set(known_types())
    assert len(types) >= 25
    assert types >= {"A100", "V100", "T4", "H100", "H200", "L4", "L40S", "A10", "RTX3090", "RTX4090", "P100", "K80"}
    assert types >= {"MI100", "MI210", "MI250", "MI300X", "Ascend910A", "Ascend910B", "Ascend310", "JetsonOrin", "CPU"}


@pytest.mark.parametrize("name", known_types())
def test_every_row_is_sane(name: str) -> None:
    row = capability(name)
    assert row.accelerator_type == name
    assert re.match(r"grade [ABC]: .+", row.source)
    assert row.precisions <= set(get_args(Precision))
    assert "fp32" in row.precisions
    figures = (row.fp32_tflops, row.tf32_tflops, row.fp16_tflops, row.bf16_tflops, row.fp8_tflops)
    for figure in (*figures, row.memory_bytes, row.memory_bytes_per_s, row.sustained_ratio):
        assert figure is None or figure > 0
    for precision in ("fp32", "tf32", "fp16", "bf16", "fp8"):
        assert getattr(row, f"{precision}_tflops") is None or precision in row.precisions
    assert row.memory_options_bytes == tuple(sorted(row.memory_options_bytes))
    assert row.memory_bytes == (row.memory_options_bytes[0] if row.memory_options_bytes else None)


def test_figures_of_data_sheets() -> None:
    a100, v100, t4, h100 = (capability(name) for name in ("A100", "V100", "T4", "H100"))
    assert (a100.fp32_tflops, a100.tf32_tflops, a100.bf16_tflops) == (19.5, 156, 312)
    assert a100.memory_options_bytes == (40 * GIB, 80 * GIB)
    assert a100.memory_bytes_per_s == 1555e9
    assert (v100.fp32_tflops, v100.fp16_tflops, v100.tf32_tflops, v100.bf16_tflops) == (15.7, 125, None, None)
    assert (t4.fp32_tflops, t4.fp16_tflops, t4.memory_bytes) == (8.1, 65, 16 * GIB)
    assert (h100.fp8_tflops, h100.memory_bytes_per_s) == (1979, 3350e9)
    assert (capability("MI100").fp16_tflops, capability("MI100").bf16_tflops) == (184.6, 92.3)


def test_precisions_that_a_type_lacks() -> None:
    assert capability("V100").precisions.isdisjoint({"tf32", "bf16", "fp8"})
    assert capability("T4").precisions.isdisjoint({"tf32", "bf16", "fp8"})
    assert capability("P100").precisions.isdisjoint({"tf32", "bf16", "int8"})
    assert capability("K80").precisions == {"fp64", "fp32"}
    assert "fp8" not in capability("A100").precisions
    assert {"bf16", "fp8"} <= capability("H100").precisions
    assert "bf16" not in capability("Ascend910A").precisions


def test_a_package_of_two_devices_is_shared_out() -> None:
    mi250 = capability("MI250")
    assert mi250.devices_per_package == 2
    assert (mi250.memory_bytes, mi250.fp16_tflops) == (64 * GIB, 181.05)
    assert "one of 2 devices of a package" in mi250.source


def test_unknown_is_absent_never_zero() -> None:
    text = files("plait.hardware.catalog").joinpath("accelerators.toml").read_text(encoding="utf-8")
    for row in tomllib.loads(text).values():
        assert 0 not in row.values()
        assert {"vendor", "precisions", "grade", "source"} <= set(row)
    cpu = capability("CPU")
    assert (cpu.memory_bytes, cpu.fp32_tflops, cpu.memory_options_bytes) == (None, None, ())


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("a100", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("910B", "Ascend910B"),
        ("Ascend 910B", "Ascend910B"),
        ("RTX 4090", "RTX4090"),
        ("H10O", "H100"),
        ("rtx-3090", "RTX3090"),
    ],
)
def test_unknown_types_name_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(UnknownAccelerator) as caught:
        capability(wrong)
    assert str(caught.value) == f"unknown accelerator type {wrong!r}; did you mean {near!r}?"
    assert isinstance(caught.value, PlaitError)


def test_unknown_types_without_a_near_one() -> None:
    with pytest.raises(UnknownAccelerator, match=r"^unknown accelerator type 'quux'$"):
        predicted_speed("quux", "fp32")


def test_predicted_speed_is_the_peak_times_what_lasts() -> None:
    speed, reason = predicted_speed("H100", "bf16")
    assert speed == pytest.approx(989.5 * 0.80)
    assert reason == "H100: 989.5 dense TFLOPS in bf16, of which 80% last (measured on this type in bf16)"
    speed, reason = predicted_speed("A100", "fp32")
    assert speed == pytest.approx(19.5 * 0.73)
    assert "assumed" in reason


def test_measured_ratios_reverse_the_order_of_peaks() -> None:
    peaks = [capability(name).bf16_tflops for name in ("MI300X", "H100")]
    assert peaks == [1307, 989.5]
    assert predicted_speed("MI300X", "bf16")[0] < predicted_speed("H100", "bf16")[0]


@pytest.mark.parametrize(
    ("kind", "precision", "figure", "words"),
    [
        ("V100", "bf16", 15.7 * 0.73, "V100 has no bf16: 15.7 dense TFLOPS in fp32"),
        ("RTXA6000", "bf16", 154.85 * 0.73, "no figure for bf16: 154.85 dense TFLOPS in fp16"),
        ("Ascend910B", "fp32", 280 / 4 * 0.73, "no figure for fp32: a quarter of 280"),
        ("CPU", "fp32", 1.0, "no published figure for CPU: 1 TFLOPS assumed"),
        ("A100", "fp64", 19.5 * 0.73, "A100 has no figure for fp64: 19.5 dense TFLOPS in fp32"),
    ],
)
def test_predicted_speed_says_what_stands_in(kind: str, precision: str, figure: float, words: str) -> None:
    speed, reason = predicted_speed(kind, precision)
    assert speed == pytest.approx(figure)
    assert words in reason


@pytest.mark.parametrize("name", known_types())
def test_every_type_has_a_speed_in_every_precision(name: str) -> None:
    for precision in get_args(Precision):
        speed, reason = predicted_speed(name, precision)
        assert speed > 0
        assert reason
