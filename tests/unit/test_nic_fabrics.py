"""What a NIC's names, class and layer say of its fabric and its state, and what they do not."""

import pytest

from plait.hardware.affinity.fabric import node_link
from plait.hardware.nics import fabric_of, is_up, link_state
from plait.hardware.topology import Component
from plait.hardware.values import Source, Value


def nic(name: str, *, health: str | None = None, gb_per_s: float | None = None, **extra: str) -> Component:
    rate = Value(None if gb_per_s is None else gb_per_s * 1e9, Source.CLI)
    told = {key.replace("__", ".").removesuffix("_"): value for key, value in extra.items()}
    return Component(key=name, name=name, kind="nic", health=health, rate_bytes_per_s=rate, extra=told)


@pytest.mark.parametrize(
    ("found", "fabric"),
    [
        (nic("mlx5_0"), "rdma"),
        (nic("NIC0", rdma_device="mlx5_3"), "rdma"),
        (nic("NIC0"), None),
        (nic("0000:0c:00.0"), None),
        (nic("mlx5_0", link_layer="InfiniBand"), "infiniband"),
        (nic("mlx5_0", port__1__link_layer="Ethernet"), "roce"),
        (nic("rdmap0s6", link_layer="Unspecified"), "rdma"),
        (nic("0000:0c:00.0", class_="0x020700"), "infiniband"),
        (nic("mlx5_0", class_="0x020000"), "roce"),
        (nic("bnxt_re0"), "roce"),
        (nic("ib0"), "infiniband"),
        (nic("eth0"), "tcp"),
        (nic("enp3s0f0"), "tcp"),
        (nic("0000:1a:00.0", net="wan"), "tcp"),
        (nic("eth0", infiniband="mlx5_0", net="eth0"), "rdma"),
        (nic("0000:10:1b.0", device="0xefa1"), "rdma"),
    ],
)
def test_a_fabric_is_told_by_layer_class_and_names(found: Component, fabric: str | None) -> None:
    assert fabric_of(found) == fabric


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (nic("mlx5_0"), None),
        (nic("mlx5_0", health="active"), True),
        (nic("mlx5_0", state="Active", physical_state="LinkUp"), True),
        (nic("mlx5_0", phys_state="5: LinkUp"), True),
        (nic("mlx5_0", state="Down", physical_state="LinkUp"), False),
        (nic("mlx5_0", state="2: INIT"), False),
        (nic("eth0", operstate="down"), False),
    ],
)
def test_a_state_is_told_or_unknown(found: Component, state: bool | None) -> None:
    assert link_state(found) is state
    assert is_up(found) is (state is not False)


@pytest.mark.parametrize(
    ("here", "there", "fabric"),
    [
        (nic("mlx5_0", gb_per_s=25), nic("mlx5_1", gb_per_s=25), "rdma"),
        (nic("mlx5_0", gb_per_s=25), nic("mlx5_0", gb_per_s=25, link_layer="InfiniBand"), "rdma"),
        (nic("ib0", gb_per_s=25), nic("mlx5_0", gb_per_s=25), "rdma"),
        (nic("ib0", gb_per_s=25), nic("bnxt_re0", gb_per_s=25), ""),
        (nic("eth0", gb_per_s=1.25), nic("bnxt_re0", gb_per_s=25), "tcp"),
        (nic("eth0"), nic("eth0", gb_per_s=25), ""),
    ],
)
def test_nodes_meet_over_what_both_have(here: Component, there: Component, fabric: str) -> None:
    assert node_link([here], [there]).fabric == fabric
