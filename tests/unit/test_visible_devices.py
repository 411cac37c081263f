"""Which devices a process sees, by the variables of each vendor."""

import pytest

from plait.hardware.topology import Component
from plait.hardware.visible import visible, visible_amd, visible_ascend, visible_intel, visible_nvidia


def gpu(
    number: int, *, kind: str = "A100", vendor: str = "nvidia", parent: str | None = None, **extra: str
) -> Component:
    return Component(
        key=f"k{number}",
        name=f"GPU{number}",
        kind="gpu",
        vendor=vendor,
        index=number,
        uuid=f"GPU-{number:08d}-1111-2222-3333-444444444444",
        pci_address=f"0000:{number:02x}:00.0",
        accelerator_type=kind,
        parent=parent,
        extra=extra,
    )


FOUR = [gpu(number) for number in range(4)]


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("0,1,2,3", ("k0", "k1", "k2", "k3")),
        ("3,1", ("k3", "k1")),
        ("GPU-00000002", ("k2",)),
        ("GPU-00000002-1111-2222-3333-444444444444,0", ("k2", "k0")),
        ("GPU-0000000", ()),
        ("0,9,1", ("k0",)),
        ("0,-1,1", ("k0",)),
        ("1,1,2", ("k1",)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
    ],
)
def test_cuda_takes_numbers_and_uuids_up_to_the_first_wrong_one(text: str, keys: tuple[str, ...]) -> None:
    seen = visible_nvidia(FOUR, {"CUDA_VISIBLE_DEVICES": text})
    assert seen.keys == keys
    assert seen.seen == set(keys)
    assert text in seen.reason


def test_all_where_the_variable_is_not_set() -> None:
    assert visible_nvidia(FOUR, {}).keys == ("k0", "k1", "k2", "k3")


def test_the_order_of_unequal_devices_is_told_only_by_pci() -> None:
    mixed = [gpu(0, kind="T4"), gpu(1, kind="A100")]
    by_speed = visible_nvidia(mixed, {"CUDA_VISIBLE_DEVICES": "0"})
    assert by_speed.keys is None
    assert by_speed.seen == {"k0", "k1"}, "either may be it"
    assert "FASTEST_FIRST" in by_speed.reason
    by_bus = visible_nvidia(mixed, {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert by_bus.keys == ("k0",)
    assert visible_nvidia(mixed, {"CUDA_VISIBLE_DEVICES": "GPU-00000001"}).keys == ("k1",), "a UUID needs no order"


def test_mig() -> None:
    whole = gpu(0, mig="on")
    slices = [
        Component(
            key=f"MIG-{n}",
            name=f"GPU0 MIG {n}",
            kind="gpu",
            vendor="nvidia",
            uuid=f"MIG-{n}aaaaaaa-0000-0000-0000-000000000000",
            parent="k0",
            index=n,
            extra={"gpu_instance_id": str(n + 3), "compute_instance_id": "0"},
        )
        for n in range(2)
    ]
    devices = [whole, *slices]
    assert visible_nvidia(devices, {}).keys == ("MIG-0",), "the first instance alone"
    assert visible_nvidia(devices, {"CUDA_VISIBLE_DEVICES": "0"}).keys == ("MIG-0",)
    assert visible_nvidia(devices, {"CUDA_VISIBLE_DEVICES": "MIG-1aaaaaaa"}).keys == ("MIG-1",)
    old = "MIG-GPU-00000000-1111-2222-3333-444444444444/4/0"
    assert visible_nvidia(devices, {"CUDA_VISIBLE_DEVICES": old}).keys == ("MIG-1",)


def test_hip_counts_in_what_rocr_leaves() -> None:
    devices = [gpu(number, vendor="amd") for number in range(4)]
    env = {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}
    assert visible_amd(devices, env).keys == ("k3",)
    assert visible_amd(devices, {"CUDA_VISIBLE_DEVICES": "1,0"}).keys == ("k1", "k0")
    both = {"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0"}
    assert visible_amd(devices, both).keys == ("k2",)
    uuid = devices[1].uuid or ""
    assert visible_amd(devices, {"ROCR_VISIBLE_DEVICES": uuid}).keys == ("k1",)


def test_ascend_takes_logical_ids() -> None:
    devices = [gpu(number, vendor="huawei") for number in (4, 5, 6)]
    assert visible_ascend(devices, {"ASCEND_RT_VISIBLE_DEVICES": "5,4"}).keys == ("k5", "k4")
    assert visible_ascend(devices, {"ASCEND_RT_VISIBLE_DEVICES": "0"}).keys == ()
    assert visible_ascend(devices, {}).keys == ("k4", "k5", "k6")


def test_level_zero_counts_tiles() -> None:
    devices = [gpu(0, vendor="intel"), gpu(1, vendor="intel")]
    tiles = [gpu(10 + n, vendor="intel", parent=f"k{n // 2}") for n in range(4)]
    everything = [*devices, *tiles]
    assert visible_intel(everything, {"ZE_AFFINITY_MASK": "3,0"}).keys == ("k13", "k10")
    tree = {"ZE_AFFINITY_MASK": "0,1.1", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}
    assert visible_intel(everything, tree).keys == ("k0", "k13")
    assert visible_intel(everything, {**tree, "ZE_AFFINITY_MASK": "1.5"}).keys == ()


def test_each_vendor_goes_by_its_own_variable() -> None:
    devices = [gpu(0), gpu(1), gpu(2, vendor="huawei"), gpu(3, vendor="metax")]
    seen = visible(devices, {"CUDA_VISIBLE_DEVICES": "1", "ASCEND_RT_VISIBLE_DEVICES": ""})
    assert {vendor: view.keys for vendor, view in seen.items()} == {"nvidia": ("k1",), "huawei": (), "metax": ("k3",)}
