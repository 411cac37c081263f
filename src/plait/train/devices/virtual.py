"""A device that programs are written for, and that runs on whatever device is bound to it.

It owns what a program leaves on a device: parameters and buffers of its graphs, the states of optimizers, and a stream
of random numbers. Binding another device moves all of that; precision and operators follow from the new one.
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from plait.errors import PlaitError
from plait.hardware.catalog import UnknownAccelerator, capability
from plait.spec.job import DevicePrecision, Precision, PrecisionPlan
from plait.train.operators.registry import known_operators, vendor_of
from plait.train.operators.swap import Swap, chosen, rewritten
from plait.train.precision import ComputePrecision, compute_plan

_TYPES = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}


class NotBound(PlaitError):
    """A virtual device was used before a physical one was bound to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What binding a device did.

    Attributes:
        device: The physical device.
        precision: What it computes in, and why.
        moved_tensors: How many tensors came over, optimizer states included.
        moved_bytes: Their size.
        random_continues: Whether random draws go on where they stopped.
        reasons: One sentence each: the precision, the random numbers, each operator.
    """

    device: torch.device
    precision: ComputePrecision
    moved_tensors: int
    moved_bytes: int
    random_continues: bool
    reasons: tuple[str, ...]


class VirtualDevice:
    """Runs graphs of :mod:`torch.fx` on the device that is bound to it.

    ::

        device = plait.VirtualDevice(precision="bf16", custom_ops=["LayerNorm", "FlashAttention"])
        device.bind_physical("cpu")
        graph = torch.fx.symbolic_trace(model)
        device.adopt(graph, optimizer)
        loss = device.execute(graph, batch).mean()

    Parameters stay in their own type (float32 masters) whatever the device computes in; results come back in float32
    where the type is narrower.

    Args:
        precision: What graphs compute in.
        custom_ops: Operators to be replaced by the bound device's own, where it has any.
        seed: Of the device's own stream of random numbers; the process's is not touched.

    Raises:
        UnknownOperator: an operator has no such name.
    """

    def __init__(self, *, precision: Precision = "fp32", custom_ops: Sequence[str] = (), seed: int = 0) -> None:
        self._precision: Precision = precision
        self._operators = known_operators(custom_ops)
        self._seed = seed
        self._device: torch.device | None = None
        self._compute: ComputePrecision | None = None
        self._graphs: dict[int, fx.GraphModule] = {}
        self._optimizers: list[torch.optim.Optimizer] = []
        self._rewritten: dict[int, tuple[str, fx.GraphModule, tuple[Swap, ...]]] = {}
        self._random: Tensor | None = None
        self._num_bindings = 0

    @property
    def device(self) -> torch.device:
        """The bound device."""
        if self._device is None:
            raise NotBound("no device is bound yet: call bind_physical(device) first")
        return self._device

    def bind_physical(self, device: torch.device | str, *, accelerator_type: str | None = None) -> Binding:
        """Binds a physical device; what was on another one before moves over.

        Random draws continue exactly on a device of the same kind. Kinds have generators of their own, whose states
        mean nothing to each other: there a new stream begins, from the seed and the number of the binding. ``meta`` may
        be bound to see shapes alone; nothing comes back from there.

        Args:
            device: As PyTorch names it (``cuda:1``).
            accelerator_type: A row of the catalogue (``A100``), to check the precision against; unchecked unless given.

        Raises:
            PrecisionUnsupported: the accelerator type does not compute in this precision.
        """
        new = torch.empty(0, device=device).device  # with its index, where the device has one
        compute = self._compute_on(new, accelerator_type)
        before = self._device
        try:
            moved = self._move(new)
        except Exception:
            if before is not None:
                self._move(before)
            raise
        self._device, self._compute = new, compute
        self._rewritten.clear()
        continues = before is None or before.type == new.type
        if before is None or not continues:
            self._random = _fresh_state(new, self._seed + self._num_bindings)
        self._num_bindings += 1
        draws = f"random numbers begin anew on a {new.type}, from the seed and the number of the binding"
        if before is None:
            draws = f"random numbers begin at seed {self._seed}"
        elif continues:
            draws = "random numbers go on where they stopped"
        own, lacking = chosen(self._operators, vendor_of(new))
        return Binding(
            device=new,
            precision=compute,
            moved_tensors=len(moved),
            moved_bytes=sum(moved),
            random_continues=continues,
            reasons=(compute.reason, draws, *(f"{name} runs as {each.name}" for name, each in own.items()), *lacking),
        )

    def adopt(self, graph: fx.GraphModule, *optimizers: torch.optim.Optimizer) -> None:
        """Takes over a graph and the optimizers of its parameters: they are on the bound device from now on.

        Raises:
            NotBound: no device is bound yet.
        """
        _checked(graph)
        self._graphs[id(graph)] = graph
        self._optimizers += [new for new in optimizers if not any(new is known for known in self._optimizers)]
        self._move(self.device)

    def execute(self, graph: fx.GraphModule, *inputs: Any) -> Any:
        """Runs a graph on the bound device and returns what it returns, there; gradients flow as usual.

        Args:
            graph: From :func:`torch.fx.symbolic_trace` or :func:`torch.export.export`; it is adopted.
            inputs: Its inputs, on any device; tensors in lists, tuples and dictionaries are moved.

        Raises:
            NotBound: no device is bound yet.
            PlaitError: this is no graph.
        """
        if id(graph) not in self._graphs:
            self.adopt(graph)
        module, _ = self._on_device(graph)
        moved = tree_map(lambda x: x.to(self.device) if isinstance(x, Tensor) else x, inputs)
        with self._own_random_numbers():
            return self._run(module, moved)

    def swaps(self, graph: fx.GraphModule) -> tuple[Swap, ...]:
        """Returns what became of each node of a graph whose operator was to be replaced."""
        return self._on_device(graph)[1]

    def _move(self, device: torch.device) -> list[int]:
        """Moves everything; returns the size of each tensor that was elsewhere."""
        elsewhere = [_size(t) for graph in self._graphs.values() for t in _state(graph) if t.device != device]
        parameters = [parameter for graph in self._graphs.values() for parameter in graph.parameters()]
        for graph in self._graphs.values():
            graph.to(device)
        # Between some kinds of device PyTorch makes new parameters; optimizers must follow them.
        now = [parameter for graph in self._graphs.values() for parameter in graph.parameters()]
        renewed: dict[Tensor, Tensor] = {old: new for old, new in zip(parameters, now, strict=True) if old is not new}
        for optimizer in self._optimizers:
            _follow(optimizer, renewed)
        return elsewhere + [size for optimizer in self._optimizers for size in _move_state(optimizer, device)]

    def _compute_on(self, device: torch.device, accelerator_type: str | None) -> ComputePrecision:
        name = accelerator_type or device.type
        plan = PrecisionPlan(device_specific=(DevicePrecision(accelerator_type=name, precision=self._precision),))
        try:
            known = capability(accelerator_type) if accelerator_type else None
        except UnknownAccelerator:
            known = None
        return compute_plan(plan, name, known)

    def _on_device(self, graph: fx.GraphModule) -> tuple[fx.GraphModule, tuple[Swap, ...]]:
        _checked(graph)
        known = self._rewritten.get(id(graph))
        if known is None or known[0] != graph.code:  # the graph may have been changed since
            known = (graph.code, *rewritten(graph, self._operators, self.device))
            self._rewritten[id(graph)] = known
        _, module, swaps = known
        module.training = graph.training
        return module, swaps

    def _run(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        compute = self._compute
        assert compute is not None
        kind = _TYPES.get(compute.precision)
        if kind is None:
            with _tf32(compute.uses_tf32):
                return module(*inputs)
        if compute.autocast is not None and torch.amp.is_autocast_available(self.device.type):
            with torch.autocast(self.device.type, dtype=kind):
                result = module(*inputs)
        else:  # masters stay as they are; gradients come back through the casts
            state = {
                name: _cast(tensor, kind)
                for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers())
            }
            result = torch.func.functional_call(module, state, tuple(tree_map(lambda x: _cast(x, kind), inputs)))
        return tree_map(_widened, result)

    @contextlib.contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Draws within come from this device's own stream, and the process's stream stays where it is."""
        device = self.device
        outside = _random_state(device)
        _set_random_state(device, self._random)
        try:
            yield
        finally:
            self._random = _random_state(device)
            _set_random_state(device, outside)


def _checked(graph: fx.GraphModule) -> None:
    if not isinstance(graph, fx.GraphModule):
        raise PlaitError(
            f"a virtual device runs graphs of torch.fx, and this is a {type(graph).__name__}: trace it first, with"
            " torch.fx.symbolic_trace(model)"
        )


def _state(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _follow(optimizer: torch.optim.Optimizer, renewed: Mapping[Tensor, Tensor]) -> None:
    """Puts parameters that took the place of others into an optimizer."""
    for group in optimizer.param_groups:
        group["params"] = [renewed.get(parameter, parameter) for parameter in group["params"]]
    for old in [parameter for parameter in optimizer.state if parameter in renewed]:
        optimizer.state[renewed[old]] = optimizer.state.pop(old)


def _move_state(optimizer: torch.optim.Optimizer, device: torch.device) -> list[int]:
    """Moves an optimizer's states to where its parameters are, by its own rules (step counts may stay on the host)."""
    values = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    elsewhere = [_size(tensor) for tensor in values if tensor.device != device and tensor.dim() > 0]
    if elsewhere:
        optimizer.load_state_dict(optimizer.state_dict())
    return elsewhere


def _cast(value: Any, kind: torch.dtype) -> Any:
    return value.to(kind) if isinstance(value, Tensor) and value.is_floating_point() else value


def _widened(value: Any) -> Any:
    is_narrow = isinstance(value, Tensor) and value.dtype in {torch.bfloat16, torch.float16}
    return value.float() if is_narrow else value


@contextlib.contextmanager
def _tf32(wanted: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if wanted else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _random_state(device: torch.device) -> Tensor | None:
    """Returns the state of a device's random numbers, ``None`` where it has none (``meta``)."""
    if device.type == "cpu":
        return torch.get_rng_state()
    state: Tensor | None = None if device.type == "meta" else torch.get_device_module(device).get_rng_state(device)
    return state


def _set_random_state(device: torch.device, state: Tensor | None) -> None:
    if device.type == "cpu" and state is not None:
        torch.set_rng_state(state)
    elif state is not None:
        torch.get_device_module(device).set_rng_state(state, device)


def _fresh_state(device: torch.device, seed: int) -> Tensor | None:
    return None if device.type == "meta" else torch.Generator(device).manual_seed(seed).get_state()
