"""Swapping operators for registered implementations: in a graph of torch.fx, or in all that runs within a context.

Modules and functional forms are found alike. ``nn.MultiheadAttention`` and the Transformer layers of PyTorch are left
alone in a graph: they are single nodes whose insides choose their own fused kernels by the weights' layout.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from plait.train.operators.registry import Function, Implementation, implementation, known_operators, vendor_of

Adapter = Callable[[Function], Callable[..., Any]]


def _layer_norm(own: Function) -> Callable[..., Tensor]:
    def layer_norm(  # noqa: PLR0917 - PyTorch's signature
        input: Tensor,  # noqa: A002 - the name is PyTorch's
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
        cudnn_enable: bool = True,
    ) -> Tensor:
        del cudnn_enable
        result: Tensor = own(input, normalized_shape, weight, bias, eps)
        return result

    return layer_norm


def _torch_softmax(own: Function) -> Callable[..., Tensor]:
    def softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:  # noqa: A002
        result: Tensor = own(input, dim, dtype)
        return result

    return softmax


def _functional_softmax(own: Function) -> Callable[..., Tensor]:
    def softmax(
        input: Tensor,  # noqa: A002
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        if dim is None:  # PyTorch guesses the dimension and warns; that is its business
            return functional.softmax(input, dim, _stacklevel, dtype)
        result: Tensor = own(input, dim, dtype)
        return result

    return softmax


def _attention(own: Function) -> Callable[..., Tensor]:
    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = own(*args, **kwargs)
        return result

    return scaled_dot_product_attention


FORMS: Mapping[Any, tuple[str, Adapter]] = {
    functional.layer_norm: ("layer_norm", _layer_norm),
    torch.layer_norm: ("layer_norm", _layer_norm),
    functional.softmax: ("softmax", _functional_softmax),
    torch.softmax: ("softmax", _torch_softmax),
    Tensor.softmax: ("softmax", _torch_softmax),
    functional.scaled_dot_product_attention: ("flash_attention", _attention),
}
"""Every functional form of an operator, and what makes an implementation take that form's arguments."""

LEFT_ALONE: Mapping[type[nn.Module], str] = {
    nn.MultiheadAttention: "it projects, splits heads and attends in one call of its own",
    nn.TransformerEncoderLayer: "it is one node of the graph and picks its own fused kernel",
    nn.TransformerDecoderLayer: "it is one node of the graph",
}


@dataclass(frozen=True, slots=True)
class Swap:
    """One node of a graph: what it is now, or why it was left; ``implementation`` is ``None`` where it was left."""

    node: str
    operator: str
    implementation: str | None
    reason: str


def chosen(operators: Sequence[str], vendor: str) -> tuple[dict[str, Implementation], tuple[str, ...]]:
    """Returns what is swapped in for each operator, and a sentence for each that has nothing for this vendor."""
    found, lacking = {}, []
    for name in known_operators(operators):
        own = implementation(name, vendor)
        if own is None:
            lacking.append(f"{name} stays PyTorch's own: nothing is registered for {vendor}")
        else:
            found[name] = own
    return found, tuple(lacking)


def rewritten(
    graph: fx.GraphModule, operators: Sequence[str], device: torch.device
) -> tuple[fx.GraphModule, tuple[Swap, ...]]:
    """Returns a graph over the same parameters in which operators are swapped, and what became of each of their nodes.

    The graph that was given stays as it is.

    Raises:
        UnknownOperator: an operator has no such name.
    """
    own, _ = chosen(operators, vendor_of(device))
    new = fx.Graph()
    result = new.graph_copy(graph.graph, {})
    if result is not None:
        new.output(result)
    swaps = [swap for node in list(new.nodes) if (swap := _swapped(graph, new, node, own)) is not None]
    new.lint()
    module = fx.GraphModule(graph, new, graph.__class__.__name__)
    module.train(graph.training)
    return module, tuple(swaps)


def _swapped(root: fx.GraphModule, graph: fx.Graph, node: fx.Node, own: Mapping[str, Implementation]) -> Swap | None:
    if node.op == "call_module":
        return _swapped_module(root, graph, node, own)
    target = Tensor.softmax if node.op == "call_method" and node.target == "softmax" else node.target
    if node.op not in {"call_function", "call_method"} or target not in FORMS:
        return None
    name, adapter = FORMS[target]
    if name not in own:
        return None
    node.op, node.target = "call_function", adapter(own[name].function)
    return Swap(node.name, name, own[name].name, f"{name} by {own[name].name}")


def _swapped_module(
    root: fx.GraphModule, graph: fx.Graph, node: fx.Node, own: Mapping[str, Implementation]
) -> Swap | None:
    module = root.get_submodule(str(node.target))
    for kind, why in LEFT_ALONE.items():
        if isinstance(module, kind) and own:
            return Swap(node.name, ", ".join(own), None, f"{type(module).__name__} is left alone: {why}")
    if type(module) is nn.LayerNorm and "layer_norm" in own:
        with graph.inserting_before(node):
            state = [
                None if getattr(module, name) is None else graph.get_attr(f"{node.target}.{name}")
                for name in ("weight", "bias")
            ]
        node.args = (node.args[0], tuple(module.normalized_shape), *state, module.eps)
        name = "layer_norm"
    elif type(module) is nn.Softmax and "softmax" in own and module.dim is not None:
        node.args, name = (node.args[0], module.dim), "softmax"
    else:
        return None
    node.op, node.target, node.kwargs = "call_function", own[name].function, {}
    return Swap(node.name, name, own[name].name, f"{type(module).__name__}: {name} by {own[name].name}")


class SwappedOperators(TorchFunctionMode):
    """Within ``with SwappedOperators(operators, device)``, functional forms and modules run the device's own operators.

    What runs inside another function of PyTorch (``nn.MultiheadAttention`` is one call) is left alone.
    """

    def __init__(self, own: Mapping[str, Implementation]) -> None:
        super().__init__()
        self._forms = {form: adapter(own[name].function) for form, (name, adapter) in FORMS.items() if name in own}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs what stands for ``func``."""
        del types
        return self._forms.get(func, func)(*args, **(kwargs or {}))


def swap_in_forward(
    module: nn.Module, operators: Sequence[str], device: torch.device
) -> tuple[Callable[[], None], tuple[str, ...]]:
    """Makes a module's forward pass run a device's own operators, whatever form they are written in.

    Returns:
        A function that gives the module its old forward pass back, and one sentence an operator: what runs now, or why
        nothing was swapped.

    Raises:
        UnknownOperator: an operator has no such name.
    """
    own, lacking = chosen(operators, vendor_of(device))
    reasons = (*(f"{name} runs as {each.name}" for name, each in own.items()), *lacking)
    if not own:
        return lambda: None, reasons
    plain = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with SwappedOperators(own):
            return plain(*args, **kwargs)

    def undo() -> None:
        module.forward = plain

    module.forward = forward
    return undo, reasons
