"""Which type a device is, by the names that drivers print, the memory they report, and PCI ids."""

import pytest

from plait.hardware.catalog import capability, family_of, known_types, known_variants, match_model


@pytest.mark.parametrize(
    ("name", "memory_mib", "found"),
    [
        ("NVIDIA A100-SXM4-80GB", 81920, "A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-40GB", 40536, "A100-SXM4-40GB"),
        ("A100-SXM-80GB", 81251, "A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", 81920, "A100-PCIE-80GB"),
        ("NVIDIA A100-PCIE-40GB", None, "A100-PCIE-40GB"),
        ("NVIDIA A100-PG509-200", 40536, "A100"),
        ("NVIDIA A100", None, "A100"),
        ("Tesla V100-SXM2-16GB", 16160, "V100-SXM2-16GB"),
        ("Tesla V100-SXM2-32GB", 32510, "V100-SXM2-32GB"),
        ("Tesla V100-PCIE-16GB", 16130, "V100-PCIE-16GB"),
        ("Tesla V100-SXM3-32GB", 32510, "V100"),
        ("Tesla V100-DGXS-32GB", 32510, "V100"),
        ("Tesla V100S-PCIE-32GB", 32510, "V100S"),
        ("NVIDIA H100 80GB HBM3", 81559, "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", 81559, "H100-PCIE-80GB"),
        ("NVIDIA H100 NVL", 95830, "H100-NVL-94GB"),
        ("NVIDIA H100", 81559, "H100"),
        ("NVIDIA H200", 143771, "H200"),
        ("NVIDIA H20", 97871, "H20"),
        ("NVIDIA GH200 480GB", 97871, "GH200"),
        ("NVIDIA B200", 183359, "B200"),
        ("NVIDIA B300 SXM6 AC", 275040, "B300"),
        ("NVIDIA GB200", 189471, "GB200"),
        ("NVIDIA A10G", 22731, "A10G"),
        ("NVIDIA A10", 23028, "A10"),
        ("NVIDIA L4", 23034, "L4"),
        ("NVIDIA L40S", 46068, "L40S"),
        ("NVIDIA RTX A6000", 46068, "RTXA6000"),
        ("NVIDIA GeForce RTX 3090", 24268, "RTX3090"),
        ("NVIDIA GeForce RTX 3090 Ti", 24564, "RTX3090Ti"),
        ("GeForce RTX 2080 Ti", 11019, "RTX2080Ti"),
        ("RTX2080Ti", 11019, "RTX2080Ti"),
        ("Tesla K80", 11441, "K80"),
        ("Tesla T4", 15109, "T4"),
        ("AMD Instinct MI250X", 65520, "MI250X"),
        ("AMD Instinct MI300X VF", 196288, "MI300X"),
        ("Arcturus GL-XL [Instinct MI100]", 32752, "MI100"),
        ("910B3", 65536, "Ascend910B3"),
        ("Ascend910B4", 32768, "Ascend910B4"),
        ("910B", 65536, "Ascend910B"),
        ("Ascend910_9391", 65536, "Ascend910C"),
        ("310P3", None, "Ascend310P"),
        ("MLU370-X8", 49152, "MLU370"),
        ("MXC500", 65536, "C500"),
        ("HL-225", 98304, "Gaudi2"),
        ("NVIDIA Jetson AGX Orin Developer Kit", 62800, "JetsonOrin"),
        ("Jetson-AGX", 31900, "JetsonXavier"),
    ],
)
def test_names_as_drivers_print_them(name: str, memory_mib: float | None, found: str) -> None:
    match = match_model(name, memory_mib=memory_mib)
    assert match.accelerator_type == found, match.reason
    assert name in match.reason


@pytest.mark.parametrize(
    ("name", "memory_mib", "words"),
    [
        ("NVIDIA A100-SXM-64GB", 65536, "40 GiB or 80 GiB, but 65536 MiB"),
        ("NVIDIA A100-SXM4-40GB", 81920, "says 40GB, but 81920 MiB"),
        ("NVIDIA A100X", 81920, "not in the catalogue"),
        ("NVIDIA H20-3e", 143771, "not in the catalogue"),
        ("NVIDIA GB300", 284208, "not in the catalogue"),
        ("NVIDIA GeForce RTX 4090 D", 24564, "not in the catalogue"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, "is not RTX4090"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", 24463, "is not RTX5090"),
        ("Tesla P100-PCIE-12GB", 12198, "not in the catalogue"),
        ("GRID V100-8Q", 8192, "virtual GPU"),
        ("NVIDIA A100-40C", 40960, "virtual GPU"),
        ("AMD Instinct MI250X/MI250", 65520, "may be MI250 or MI250X"),
        ("Vega 20 [Radeon Instinct MI50/MI60]", 32752, "may be MI50 or MI60"),
        ("AMD Instinct MI300X", 24576, "192 GiB, but 24576 MiB"),
        ("910ProB", 32768, "not in the catalogue"),
        ("MLU370-S4", 24576, "not in the catalogue"),
        ("C500", 65536, "no type of the catalogue"),
        ("NVIDIA Orin NX Developer Kit", 15800, "not in the catalogue"),
        ("NVIDIA Graphics Device", None, "no type of the catalogue"),
        ("CPU", None, "no type of the catalogue"),
        ("", None, "neither a name nor a PCI id"),
    ],
)
def test_what_does_not_fit_together_is_no_type(name: str, memory_mib: float | None, words: str) -> None:
    match = match_model(name, memory_mib=memory_mib)
    assert match.accelerator_type is None
    assert words in match.reason


@pytest.mark.parametrize(
    ("name", "memory_mib", "found"),
    [
        ("NVIDIA GeForce RTX 2080 ...", 11264, "RTX2080Ti"),
        ("NVIDIA GeForce RTX 208...", 11019, "RTX2080Ti"),
        ("NVIDIA GeForce RTX 2080 ...", 8192, None),
        ("NVIDIA GeForce RTX 2080 ...", None, None),
        ("NVIDIA GeForce ...", 11264, None),
        ("NVIDIA GeForce RTX 4090 ...", 24564, None),
        ("Tesla V100-SXM2...", 32510, "V100-SXM2-32GB"),
        ("Tesla V100-SXM2…", None, "V100"),
        ("NVIDIA A100-SXM...", 40536, "A100-SXM4-40GB"),
        ("NVIDIA A10...", 23028, None),
        ("NVIDIA H100 80G...", 81559, "H100"),
    ],
)
def test_names_that_were_cut_off(name: str, memory_mib: float | None, found: str | None) -> None:
    match = match_model(name, memory_mib=memory_mib)
    assert match.accelerator_type == found, match.reason


def test_pci_ids_and_what_else_is_known() -> None:
    assert match_model(None, pci_id="10de:20b2", memory_mib=81920).accelerator_type == "A100-SXM4-80GB"
    assert match_model(None, pci_id="10de:20b2", memory_mib=40536).accelerator_type is None
    assert match_model(None, pci_id="10de:ffff").accelerator_type is None
    assert match_model("NVIDIA H100", pci_id="0x10DE:0x2331").accelerator_type == "H100-PCIE-80GB"
    assert match_model("NVIDIA Graphics Device", pci_id="10de:2330").accelerator_type == "H100-SXM5-80GB"
    conflict = match_model("NVIDIA A30", pci_id="10de:2330")
    assert conflict.accelerator_type is None
    assert "says A30" in conflict.reason
    assert "says H100-SXM5-80GB" in conflict.reason
    assert match_model("AMD Instinct MI250X/MI250", compute_units=104).accelerator_type == "MI250"
    assert match_model("AMD Instinct MI250X/MI250", compute_units=110).accelerator_type == "MI250X"
    assert match_model("C500", vendor="metax").accelerator_type == "C500"


def test_a_slice_is_of_its_device() -> None:
    match = match_model("NVIDIA A100-SXM4-40GB MIG 1g.5gb", memory_mib=4864)
    assert match.accelerator_type == "A100-SXM4-40GB"


def test_every_name_of_the_catalogue_finds_its_own_row() -> None:
    for name in (*known_types(), *known_variants()):
        row = capability(name)
        if name == "CPU":
            continue
        match = match_model(name, vendor=row.vendor)
        assert match.accelerator_type is not None, match.reason
        assert family_of(match.accelerator_type) == row.family, (name, match)
