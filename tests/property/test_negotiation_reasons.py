"""Negotiation: deterministic, monotone, one reason a device, and the shares, precisions and libraries that follow."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.hardware.catalog import known_types
from plait.hardware.device import Device, DeviceCapability, Requirement
from plait.hardware.features import UnknownFeature
from plait.hardware.negotiation import JobRequirement, negotiate

GIB = 2**30


def device(name: str, kind: str, node: str = "n0", **fields: object) -> Device:
    return replace(Device(id=name, node=node, index=0, accelerator_type=kind), **fields)  # type: ignore[arg-type]


NVIDIA = (device("a", "A100"), device("v", "V100"), device("p", "P100"))


def test_a100_v100_and_p100_meet_in_fp16_with_fp32_accumulation() -> None:
    agreed = negotiate(JobRequirement(precisions=("bf16", "fp16", "fp32")), NVIDIA)
    assert agreed.precision == "fp16"
    assert {v.accumulates_in for v in agreed.verdicts} == {"fp32"}
    assert agreed.chosen == (0, 1, 2)
    shares = [v.share_ratio or 0.0 for v in agreed.verdicts]
    assert sum(shares) == pytest.approx(1.0)
    assert shares[0] > shares[1] > shares[2]
    assert [(i.library, i.members) for i in agreed.islands] == [("nccl", (0, 1, 2))]
    assert agreed.bridge is None
    assert agreed.memory_floor_bytes == 16 * GIB
    assert agreed.shortfall is None
    assert agreed.lines[0].startswith("a: chosen: computes in fp16 with fp32 accumulation, ")


def test_without_a_common_precision_each_device_has_its_own() -> None:
    agreed = negotiate(
        JobRequirement(precisions=("bf16", "fp16")),
        (*NVIDIA, device("t", "TPUv4")),
        capabilities={
            "TPUv4": DeviceCapability(accelerator_type="TPUv4", vendor="Google", precisions=frozenset({"bf16"}))
        },
    )
    assert agreed.precision is None
    assert [v.precision for v in agreed.verdicts] == ["bf16", "fp16", "fp16", "bf16"]


def test_islands_of_two_vendors_meet_over_a_bridge() -> None:
    devices = (device("a", "A100"), device("m", "MI100"), device("h", "Ascend910B", "n1"), device("b", "A100"))
    agreed = negotiate(JobRequirement(precisions=("fp16",)), devices)
    assert [(i.library, i.members) for i in agreed.islands] == [("nccl", (0, 3)), ("rccl", (1,)), ("hccl", (2,))]
    assert agreed.bridge == "gloo"


def test_every_lack_of_a_device_is_told() -> None:
    wanted = JobRequirement(
        memory_bytes=24 * GIB, precisions=("bf16",), features=frozenset({"tensor_cores"}), vendors=frozenset({"NVIDIA"})
    )
    agreed = negotiate(wanted, (device("p", "P100"), device("m", "MI100", state="lost"), device("a", "A100")))
    assert agreed.rejected == (0, 1)
    assert agreed.verdicts[0].lacks == (
        "it has 16 GiB of memory of the 24 GiB wanted",
        "it does not compute in bf16; it has fp16, fp32, fp64",
        "it has no tensor_cores",
    )
    assert agreed.verdicts[1].lacks == ("it is lost", "its vendor is AMD, and the job runs on NVIDIA")
    assert agreed.lines[0] == "p: rejected: " + "; ".join(agreed.verdicts[0].lacks)


def test_what_is_unknown_is_believed_and_said() -> None:
    wanted = JobRequirement(
        memory_bytes=GIB,
        precisions=("fp16",),
        features=frozenset({"nvlink"}),
        vendors=frozenset({"X"}),
        peer_bytes_per_s=1e9,
    )
    agreed = negotiate(wanted, (device("x", "X1"), device("y", "X1")))
    assert agreed.chosen == (0, 1)
    reason = agreed.verdicts[0].reason
    for part in ("memory is not known", "computes in is not known", "has nvlink is not known", "vendor is not known"):
        assert part in reason
    assert "counted as the slowest" in reason
    assert agreed.memory_floor_bytes is None
    assert agreed.slowest_link_bytes_per_s is None


def test_a_spare_device_is_told_why() -> None:
    links = np.full((3, 3), 9e9)
    links[1, 2] = links[2, 1] = 24e9
    agreed = negotiate(JobRequirement(count=2), NVIDIA, bytes_per_s=links)
    assert agreed.chosen == (1, 2)
    assert agreed.verdicts[0].outcome == "spare"
    assert agreed.verdicts[0].reason.startswith("it fits, but 2 devices are enough: its slowest link v-p has 24 GB/s")


def test_slow_peers_are_rejected_in_turn_and_a_slow_ring_is_a_shortfall() -> None:
    links = np.full((4, 4), 1e9)
    links[0, 1] = links[1, 0] = 20e9
    links[2, 3] = links[3, 2] = 20e9
    devices = (*NVIDIA, device("q", "P100"))
    agreed = negotiate(JobRequirement(peer_bytes_per_s=10e9), devices, bytes_per_s=links)
    assert agreed.rejected == ()
    assert agreed.shortfall == "the best ring over the 4 chosen devices has a link of 1 GB/s, and 10 GB/s are wanted"
    alone = negotiate(
        JobRequirement(peer_bytes_per_s=10e9, memory_bytes=20 * GIB), devices[:2], bytes_per_s=links[:2, :2]
    )
    assert alone.chosen == ()
    assert alone.verdicts[0].lacks == ("no other device fits that it could be linked to",)
    assert alone.shortfall == "0 of 2 devices fit, and 1 are wanted"


def test_what_devices_ask_for_is_noted_or_refused() -> None:
    needs = (Requirement("format_conversion", "matrices are stored in NZ"), Requirement("custom_op", "no such kernel"))
    kinds = {"N": DeviceCapability(accelerator_type="N", vendor="Huawei", precisions=frozenset({"fp16"}), needs=needs)}
    brings = negotiate(JobRequirement(), (device("n", "N"),), capabilities=kinds)
    assert "it needs format conversion: matrices are stored in NZ" in brings.verdicts[0].reason
    refuses = JobRequirement(refuses=frozenset({"format_conversion"}))
    agreed = negotiate(refuses, (device("n", "N"),), capabilities=kinds)
    assert agreed.verdicts[0].lacks == (
        "it needs format conversion, which the job does not do: matrices are stored in NZ",
    )


def test_work_that_is_no_matrix_product_counts_by_the_rate_in_fp32() -> None:
    wanted = JobRequirement(precisions=("fp16",))
    fast = negotiate(wanted, NVIDIA[1:])
    plain = negotiate(replace(wanted, refuses=frozenset({"tensor_cores"})), NVIDIA[1:])
    assert (fast.verdicts[0].share_ratio or 0) > 0.8 > (plain.verdicts[0].share_ratio or 1)
    assert "in fp32 counts" in plain.verdicts[0].reason


def test_operators_without_an_implementation_reject_the_vendor() -> None:
    wanted = JobRequirement(operators=frozenset({"flash_attention", "softmax"}))
    has = {"softmax": frozenset({"any"}), "flash_attention": frozenset({"nvidia"})}
    agreed = negotiate(wanted, (device("a", "A100"), device("m", "MI100")), implementations=has)
    assert agreed.rejected == (1,)
    assert agreed.verdicts[1].lacks == ("there is no flash_attention for AMD",)


def test_an_unknown_feature_is_refused_with_the_right_word() -> None:
    with pytest.raises(UnknownFeature, match="'tensor_core'; did you mean 'tensor_cores'"):
        negotiate(JobRequirement(features=frozenset({"tensor_core"})), NVIDIA)


requirements = st.builds(
    JobRequirement,
    count=st.none(),
    memory_bytes=st.none() | st.integers(1, 100).map(lambda gib: gib * GIB),
    precisions=st.lists(st.sampled_from(["fp64", "bf16", "fp16", "fp32", "fp8", "tf32"]), unique=True).map(tuple),
    operators=st.frozensets(st.sampled_from(["softmax", "flash_attention"])),
    peer_bytes_per_s=st.none() | st.sampled_from([2e9, 20e9]),
    features=st.frozensets(st.sampled_from(["tensor_cores", "nvlink", "shared_host_memory", "peer_links"])),
    vendors=st.frozensets(st.sampled_from(["NVIDIA", "amd", "Huawei"])),
    refuses=st.frozensets(st.sampled_from(["tensor_cores", "format_conversion", "custom_op"])),
)
EMPTY = JobRequirement()


@given(
    wanted=requirements,
    kinds=st.lists(st.sampled_from([*known_types(), "no such type"]), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
    field=st.sampled_from(
        ["memory_bytes", "precisions", "operators", "peer_bytes_per_s", "features", "vendors", "refuses"]
    ),
)
def test_leaving_out_a_requirement_never_rejects_more(
    wanted: JobRequirement, kinds: list[str], seed: int, field: str
) -> None:
    rng = np.random.default_rng(seed)
    devices = [device(f"d{i}", kind, f"n{i % 2}") for i, kind in enumerate(kinds)]
    links = rng.choice(np.array([1e9, 10e9, 50e9, np.nan]), (len(kinds), len(kinds)))
    has = {"softmax": frozenset({"any"}), "flash_attention": frozenset({"nvidia", "huawei"})}
    agreed = negotiate(wanted, devices, bytes_per_s=links, implementations=has)
    less = negotiate(replace(wanted, **{field: getattr(EMPTY, field)}), devices, bytes_per_s=links, implementations=has)
    assert set(less.rejected) <= set(agreed.rejected)
    assert agreed == negotiate(wanted, devices, bytes_per_s=links, implementations=has)
    for verdict in agreed.verdicts:
        assert bool(verdict.lacks) == (verdict.outcome == "rejected")
        assert (verdict.share_ratio is not None) == (verdict.outcome == "chosen")
        assert verdict.reason
    assert sorted(m for island in agreed.islands for m in island.members) == list(agreed.chosen)
    if agreed.chosen:
        assert sum(v.share_ratio or 0.0 for v in agreed.verdicts) == pytest.approx(1.0)
