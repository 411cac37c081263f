"""Implementations of the operators that ``custom_ops`` names, by vendor; one line to register one.

Each operator has a plain reference, which tests hold every implementation equal to and which is never swapped in. An
implementation has the signature of the reference and computes the same values and gradients, whatever it does inside.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from plait.errors import PlaitError
from plait.spec.custom_ops import CUSTOM_OPS, SPELLINGS
from plait.train.operators import attention, layer_norm, softmax
from plait.words import did_you_mean

Function = Callable[..., Any]


class UnknownOperator(PlaitError):
    """No operator of this name can be replaced."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to compute an operator on one vendor's devices.

    Attributes:
        operator: A name of ``plait.spec.custom_ops.CUSTOM_OPS``.
        vendor: Lower case, as :func:`vendor_of` gives it.
        name: For reasons.
        function: With the reference's signature.
    """

    operator: str
    vendor: str
    name: str
    function: Function


REFERENCES: dict[str, Function] = {
    "layer_norm": layer_norm.reference,
    "softmax": softmax.reference,
    "flash_attention": attention.reference,
}
"""What each operator means, in plain PyTorch."""

_registered: dict[tuple[str, str], Implementation] = {}


def register(operator: str, vendor: str, name: str, function: Function) -> None:
    """Makes ``function`` what ``custom_ops`` swaps in for ``operator`` on this vendor's devices.

    Raises:
        UnknownOperator: there is no such operator.
    """
    operator = known_operator(operator)
    _registered[operator, vendor.casefold()] = Implementation(operator, vendor.casefold(), name, function)


def implementations() -> tuple[Implementation, ...]:
    """Returns everything that is registered, sorted by operator and vendor."""
    return tuple(_registered[key] for key in sorted(_registered))


def implementation(operator: str, vendor: str) -> Implementation | None:
    """Returns what is swapped in for an operator on a vendor's devices, ``None`` where there is nothing."""
    return _registered.get((known_operator(operator), vendor.casefold()))


def vendors_by_operator() -> dict[str, frozenset[str]]:
    """Returns the vendors with an implementation of each operator, as negotiation takes them."""
    return {name: frozenset(vendor for operator, vendor in _registered if operator == name) for name in CUSTOM_OPS}


def known_operator(name: str) -> str:
    """Returns the registered name of an operator (``LayerNorm``: ``layer_norm``).

    Raises:
        UnknownOperator: there is none; the message has the nearest name.
    """
    found = SPELLINGS.get(name, name)
    if found not in CUSTOM_OPS:
        near = did_you_mean(name, CUSTOM_OPS) or f"; registered are {', '.join(CUSTOM_OPS)}"
        raise UnknownOperator(f"unknown custom operator {name!r}{near}")
    return found


def known_operators(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the registered names, each once, in the order given."""
    return tuple(dict.fromkeys(known_operator(name) for name in names))


def vendor_of(device: torch.device) -> str:
    """Returns the vendor of a device in lower case; ``cpu`` for CPUs, PyTorch's own word where no vendor is known."""
    if device.type == "cuda":
        return "amd" if torch.version.hip else "nvidia"
    return {"npu": "huawei", "xpu": "intel", "mlu": "cambricon", "musa": "moore threads"}.get(device.type, device.type)


register("layer_norm", "cpu", "moments in one pass, gradient in closed form", layer_norm.fused)
register("softmax", "cpu", "online softmax", softmax.online)
register("flash_attention", "cpu", "attention by blocks of keys", attention.blocked)
