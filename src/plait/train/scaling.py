"""One scale for the gradients of all float16 devices, one verdict on infinities, and autocast around a plain model."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from plait.train.precision import ComputePrecision

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalScale:
    """The scale of the group; replicated state. A scale of each rank's own would let the replicas part.

    Attributes:
        scale: What gradients are multiplied by on the way through a float16 device.
        growth_ratio: Growth after ``growth_interval`` steps in a row without an infinity.
        backoff_ratio: Shrinkage after a step with one on any member.
        growth_interval: Steps.
        num_good: Steps without an infinity since the last change.
    """

    scale: float = 2.0**16
    growth_ratio: float = 2.0
    backoff_ratio: float = 0.5
    growth_interval: int = 2000
    num_good: int = 0

    def after(self, found_inf_count: float) -> "GlobalScale":
        """Returns the scale after a step, from the *reduced* number of members that met an infinity or a NaN.

        A step with any must not be applied, on no member.
        """
        if found_inf_count > 0.0:
            return replace(self, scale=max(self.scale * self.backoff_ratio, 2.0**-24), num_good=0)
        if self.num_good + 1 >= self.growth_interval:
            return replace(self, scale=min(self.scale * self.growth_ratio, 2.0**32), num_good=0)
        return replace(self, num_good=self.num_good + 1)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as plain values."""
        return asdict(self)

    @classmethod
    def from_state_dict(cls, values: dict[str, Any]) -> "GlobalScale":
        """Returns the scale that :meth:`state_dict` was taken of."""
        return cls(**values)


class _ScaleBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.scale, None


def scale_backward(x: Tensor, scale: float) -> Tensor:
    """Returns ``x``; the gradient that comes back through it is multiplied by ``scale``."""
    result = _ScaleBackward.apply(x, scale)  # type: ignore[no-untyped-call]
    assert isinstance(result, Tensor)
    return result


def autocast_forward(
    module: nn.Module, precision: ComputePrecision, device_type: str, scale: Callable[[], float]
) -> Callable[[], None]:
    """Makes a module's forward pass run in the device's own type; a plain training loop stays as it is.

    Outputs come back in float32, since a gradient that is small in float16 would vanish before it can be scaled. With
    ``precision.needs_scaling`` the parameters' gradients arrive multiplied by ``scale()`` (its value at the time of
    the forward pass) and must be divided by it, in float32 and before they are reduced. Inputs that want a gradient
    get the true one. A term of the loss that reaches parameters other than through this forward pass (a norm of the
    weights, say) is not scaled: there the loss itself must be, by the explicit form of the session.

    Returns:
        A function that gives the module its old forward pass back.
    """
    if precision.autocast is None:
        return lambda: None
    plain = module.forward
    kind = _TYPES[precision.autocast]

    def forward(*args: Any, **kwargs: Any) -> Any:
        factor = scale() if precision.needs_scaling and torch.is_grad_enabled() else 1.0
        if factor != 1.0:
            args, kwargs = tree_map(lambda value: _entering(value, factor), (args, kwargs))
        with torch.autocast(device_type, dtype=kind):
            result = plain(*args, **kwargs)
        return tree_map(lambda value: _leaving(value, factor), result)

    module.forward = forward

    def undo() -> None:
        module.forward = plain

    return undo


def _entering(value: object, factor: float) -> object:
    return scale_backward(value, 1.0 / factor) if isinstance(value, Tensor) and value.requires_grad else value


def _leaving(value: object, factor: float) -> object:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    wide = value.float() if value.dtype in _TYPES.values() else value
    return scale_backward(wide, factor) if factor != 1.0 and wide.requires_grad else wide


def set_tf32(precision: ComputePrecision) -> None:
    """Allows or forbids TF32 in float32 products of matrices and convolutions on this process's devices."""
    torch.set_float32_matmul_precision("high" if precision.uses_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = precision.uses_tf32
