"""Addresses, classes, link speeds, and lists and masks of CPUs as every source prints them."""

import pytest

from plait.hardware.cpusets import as_list, as_mask, cpus_of, cpus_of_list, cpus_of_mask
from plait.hardware.pci import class_code, generation_of, kind_of, lanes_of, normal_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00000000:07:00.0", "0000:07:00.0"),
        ("07:00.1", "0000:07:00.1"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("ffff:ff:01.0", "ffff:ff:01.0"),
        ("0000:b:00.0", None),
        ("000:0b:00.0", None),
        ("0000000:0b:00.0", None),
        ("0000:0b:00.8", None),
        ("0000:0b:00", None),
        ("GPU-07:00.0", None),
        ("0000:\u0661\u0662:00.0", None),
    ],
)
def test_addresses_are_whole_or_none(text: str, address: str | None) -> None:
    assert normal_address(text) == address


@pytest.mark.parametrize(
    ("text", "generation"),
    [
        ("16.0 GT/s PCIe", 4),
        ("16 GT/s", 4),
        ("16.0 GT/s", 4),
        ("8 GT/s", 3),
        ("2.5 GT/s PCIe", 1),
        ("32.0 GT/s PCIe", 5),
        ("64.0 GT/s PCIe", 6),
        ("Unknown", None),
        ("", None),
        ("1.6 GT/s", None),
    ],
)
def test_generations_by_the_number_alone(text: str, generation: int | None) -> None:
    assert generation_of(text) == generation


@pytest.mark.parametrize(
    ("text", "lanes"), [("16", 16), ("x8", 8), ("0", None), ("255", None), ("63", None), ("", None)]
)
def test_widths_that_no_slot_has_are_unknown(text: str, lanes: int | None) -> None:
    assert lanes_of(text) == lanes


@pytest.mark.parametrize(
    ("code", "vendor", "kind"),
    [
        ("0x030200", 0x10DE, "gpu"),
        ("0x038000", 0x1002, "gpu"),
        ("0x030000", 0x1A03, "other"),
        ("0x030000", None, "gpu"),
        ("0x120000", 0x1002, "gpu"),
        ("0x120000", 0x19E5, "npu"),
        ("0x020700", 0x15B3, "nic"),
        ("0x028000", 0x15B3, "nic"),
        ("0x060400", 0x1000, "bridge"),
        ("0x068000", 0x10DE, "switch"),
        ("0x010802", 0x144D, "other"),
        ("", None, "other"),
    ],
)
def test_kinds_by_class_and_vendor(code: str, vendor: int | None, kind: str) -> None:
    assert kind_of(class_code(code), vendor) == kind


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("0-3,8", {0, 1, 2, 3, 8}),
        ("0-7:2/4", {0, 1, 4, 5}),
        ("5", {5}),
        ("0000ffff,00000001", {0, *range(32, 48)}),
        ("0000,00000011,11111111", {*range(0, 40, 4)}),
        ("0xf0000000,,0x00000101", {0, 8, *range(92, 96)}),
        ("ff", set(range(8))),
        ("00000000", set()),
        ("00", set()),
    ],
)
def test_lists_and_masks_are_told_apart(text: str, members: set[int]) -> None:
    assert cpus_of(text) == frozenset(members)


@pytest.mark.parametrize("text", ["", "3-1", "a-b", "0-99999999999", "1,,2", "-1", "0-3,", "\u0661"])
def test_what_is_no_list_is_unknown(text: str) -> None:
    assert cpus_of_list(text) is None


@pytest.mark.parametrize("text", ["", "0xf...f", "xyz", "0" * 40 + "," + "zz", "," * 5000])
def test_what_is_no_mask_is_unknown(text: str) -> None:
    assert cpus_of_mask(text) is None


def test_lists_and_masks_are_written_as_the_kernel_does() -> None:
    assert as_list(frozenset({0, 1, 2, 3, 8})) == "0-3,8"
    assert as_mask(frozenset({0, 33})) == "00000002,00000001"
    assert as_mask(frozenset()) == "00000000"
