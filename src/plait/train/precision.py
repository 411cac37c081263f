"""Which type each device computes in, decided from the plan and what the device has; free of torch.

Parameters, gradients and the optimizer stay in float32 on every device; only the forward and backward pass of a device
run in its own type. So gradients of unlike devices meet in one type without any further care.
"""

from dataclasses import dataclass
from typing import Literal

from plait.errors import PlaitError
from plait.hardware.device import DeviceCapability
from plait.spec.job import Precision, PrecisionPlan

TRAINABLE: tuple[Precision, ...] = ("fp64", "fp32", "tf32", "bf16", "fp16")
"""Types that a forward and backward pass can run in as a whole."""

REDUCIBLE: tuple[Precision, ...] = ("fp64", "fp32", "bf16", "fp16")


class PrecisionUnsupported(PlaitError):
    """A device is to compute, or gradients are to meet, in a type that is not possible there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePrecision:
    """How one device computes.

    Attributes:
        precision: The type as the plan names it.
        autocast: The type of torch.autocast, ``None`` without.
        uses_tf32: Whether float32 products of matrices may run in TF32.
        needs_scaling: Whether small gradients would vanish without the global scale.
        reason: Where the choice comes from, in one sentence.
    """

    precision: Precision
    autocast: Literal["bf16", "fp16"] | None
    uses_tf32: bool
    needs_scaling: bool
    reason: str


def compute_plan(
    plan: PrecisionPlan, accelerator_type: str, capability: DeviceCapability | None = None
) -> ComputePrecision:
    """Decides how devices of one accelerator type compute.

    Args:
        plan: ``precision`` of the job.
        accelerator_type: As the cluster names it.
        capability: What the device can do; where it is unknown, or names no types, the plan is believed.

    Raises:
        PrecisionUnsupported: The device lacks the type, or no training runs in it.
    """
    precision = plan.of(accelerator_type).precision
    if precision not in TRAINABLE:
        raise PrecisionUnsupported(
            f"{accelerator_type} is to compute in {precision}, but a training step runs in {_listed(TRAINABLE)} only"
        )
    has = capability.precisions if capability is not None else frozenset[str]()
    if has and precision not in has:
        raise PrecisionUnsupported(f"{accelerator_type} does not compute in {precision}; it has {_listed(sorted(has))}")
    is_own = any(entry.accelerator_type == accelerator_type for entry in plan.device_specific)
    source = f"precision.device_specific names {accelerator_type}" if is_own else "precision.global holds"
    known = "" if has else ", and what the device has is not known"
    return ComputePrecision(
        precision=precision,
        autocast=precision if precision in {"bf16", "fp16"} else None,
        uses_tf32=precision == "tf32",
        needs_scaling=precision == "fp16",
        reason=f"{accelerator_type} computes in {precision}, since {source}{known}",
    )


def check_reduce(plan: PrecisionPlan) -> None:
    """Refuses a type that gradients cannot be added in.

    Raises:
        PrecisionUnsupported: ``precision.reduce`` is not one of :data:`REDUCIBLE`.
    """
    if plan.reduce not in REDUCIBLE:
        raise PrecisionUnsupported(f"gradients cannot meet in {plan.reduce}; precision.reduce is {_listed(REDUCIBLE)}")


def _listed(names: "tuple[str, ...] | list[str]") -> str:
    *rest, last = names
    return f"{', '.join(rest)} or {last}" if rest else last
