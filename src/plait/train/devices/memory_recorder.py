"""Records what a training step allocates and frees, as a trace for the memory pool's plans.

:class:`MemoryRecorder` sees every storage that an operator returns, on any device and under ``FakeTensorMode`` too, and
its death by a finalizer; not the scratch memory inside a kernel. :func:`record_cpu_allocator` sees everything that
PyTorch's CPU allocator does, scratch memory included, at the price of the profiler.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from plait.hardware.memory.trace import MemoryTrace, TraceBuilder

STEP_MARK = "plait_end_of_step"


class MemoryRecorder(TorchDispatchMode):
    """Within ``with MemoryRecorder() as recorder``, storages of ``device_type`` are followed from birth to death.

    ``adopt`` takes in what existed before, such as parameters; ``end_step`` marks the end of a training step.
    """

    def __init__(self, device_type: str = "cpu", origin: str = "") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device_type = device_type
        self._builder = TraceBuilder(origin)
        # By the identity of the C++ storage, which is not reused while the Python object of the storage lives.
        self._blocks: dict[int, tuple[int, int]] = {}
        self._finalizers: dict[int, weakref.finalize[..., Any]] = {}

    def adopt(self, *tensors: torch.Tensor) -> None:
        """Follows the storages of tensors that exist already."""
        for tensor in tensors:
            self._see(tensor)

    def end_step(self) -> None:
        """Marks the end of a training step."""
        self._builder.end_step()

    def trace(self) -> MemoryTrace:
        """Returns what was recorded so far."""
        return self._builder.build()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        for finalizer in self._finalizers.values():
            finalizer.detach()
        self._finalizers.clear()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operator and notes the storages that it returned for the first time."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf)
        return result

    def _see(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != self._device_type or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()  # noqa: SLF001  # PyTorch's own trackers use it
        known = self._blocks.get(key)
        if known is not None:
            if known[1] == size:
                return
            # Resized in place: another piece of memory under the same storage.
            self._builder.free(known[0])
        self._blocks[key] = (self._builder.allocate(size), size)
        if known is None:
            self._finalizers[key] = weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self._finalizers.pop(key, None)
        block, _ = self._blocks.pop(key)
        self._builder.free(block)


@contextmanager
def record_cpu_allocator(origin: str = "") -> Iterator[list[MemoryTrace]]:
    """Records every allocation of PyTorch's CPU allocator; the list holds the trace once the block is left.

    Call :func:`mark_step` at the end of each step. Frees of memory that is older than the recording are left out.
    """
    traces: list[MemoryTrace] = []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield traces
    events: list[tuple[int, int, int]] = []
    pending = list(profiler.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        fields = event.extra_fields
        if hasattr(fields, "alloc_size"):
            if fields.device.type == "cpu":
                events.append((event.start_time_ns, fields.ptr, fields.alloc_size))
        elif event.name == STEP_MARK:
            events.append((event.start_time_ns, 0, 0))
        pending.extend(event.children)
    traces.append(_trace_of(events, origin))


def mark_step() -> None:
    """Marks the end of a step for :func:`record_cpu_allocator`."""
    with record_function(STEP_MARK):
        pass


def _trace_of(events: list[tuple[int, int, int]], origin: str) -> MemoryTrace:
    builder = TraceBuilder(origin)
    live: dict[int, int] = {}
    older = 0
    for _, address, size in sorted(events, key=lambda event: event[0]):
        if address == 0:
            builder.end_step()
        elif size > 0:
            live[address] = builder.allocate(size)
        elif address in live:
            builder.free(live.pop(address))
        else:
            older += 1
    return builder.build((f"{older} frees of older memory left out",) if older else ())
