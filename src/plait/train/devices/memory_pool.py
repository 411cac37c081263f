"""Memory of every kind of device behind one interface: plans where Plait owns the memory, PyTorch's pools elsewhere.

Three kinds of memory can be had:

- :class:`HostArena`: CPU tensors in one range of addresses that Plait owns, served by a
  :class:`~plait.hardware.memory.pool.MemoryPool` from plans;
  staging buffers, snapshots and batches live there. Pinned, it is registered with the accelerator's runtime.
- :class:`DeviceArena`: one block of an accelerator's memory, cut by the same pool for buffers that are taken and given
  back by name, such as buckets of an exchange.
- :class:`AllocatorScope`: everything else that PyTorch allocates on an accelerator. Its allocator stays; a private
  ``MemPool`` and expandable segments are switched on where the vendor's build has them.

What a build offers is looked up by :func:`memory_abilities`, never assumed. None of the accelerator paths has been run
on hardware; they are tested against fake device modules.
"""

import math
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from plait.errors import PlaitError
from plait.hardware.memory.pool import MemoryPool, PoolSettings, PoolStatistics
from plait.words import did_you_mean

HOST_PAGE_BYTES = mmap.PAGESIZE * 16
HOST_AREA_BYTES = 1 << 36
LEAST_AREA_BYTES = 1 << 28


class MemoryUnsupported(PlaitError):
    """A kind of memory was asked for that this build of PyTorch, or this host, does not offer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAbilities:
    """What the memory of one device type can do in this build.

    Attributes:
        device_type: As in ``torch.device(...).type``; AMD's devices are ``cuda``.
        private_pool: A pool of segments of its own (``MemPool``).
        expandable_segments: Segments that grow in place.
        snapshot: Recorded traces can be dumped.
        pinned_host: Host memory can be registered for direct copies.
        planned: Plait serves every tensor of this memory from its plan.
        missing: What is not there and why, one sentence each.
    """

    device_type: str
    private_pool: bool
    expandable_segments: bool
    snapshot: bool
    pinned_host: bool
    planned: bool
    missing: tuple[str, ...]


DEVICE_TYPES = ("cpu", "cuda", "npu", "xpu")


def memory_abilities(device_type: str, module: Any = None) -> MemoryAbilities:
    """Looks up what a device type's module offers.

    Args:
        device_type: ``cpu``, ``cuda`` (NVIDIA and AMD), ``npu`` or ``xpu``.
        module: The device module; by default ``torch.<device_type>``, if there is one.

    Raises:
        MemoryUnsupported: The device type is not known.
    """
    if device_type not in DEVICE_TYPES:
        raise MemoryUnsupported(f"no memory of device type {device_type!r}{did_you_mean(device_type, DEVICE_TYPES)}")
    if device_type == "cpu":
        return MemoryAbilities(
            device_type="cpu",
            private_pool=True,
            expandable_segments=True,
            snapshot=False,
            pinned_host=False,
            planned=True,
            missing=("PyTorch keeps no trace of CPU memory: record with MemoryRecorder",),
        )
    module = _module_of(device_type, module)
    wanted = {
        "private_pool": ("MemPool", "use_mem_pool"),
        "expandable_segments": ("memory._set_allocator_settings",),
        "snapshot": ("memory._snapshot",),
        "pinned_host": ("cudart",),
    }
    missing = [
        (ability, f"torch.{device_type} has no {name}")
        for ability, names in wanted.items()
        for name in names
        if _reach(module, name) is None
    ]
    if module is None or not module.is_available():
        missing += [(ability, f"no {device_type} device is available") for ability in wanted]
    lacking = {ability for ability, _ in missing}
    return MemoryAbilities(
        device_type=device_type,
        **{ability: ability not in lacking for ability in wanted},
        planned=False,
        missing=(
            *dict.fromkeys(why for _, why in missing),
            "plans serve arenas only; other tensors are PyTorch's allocator's",
        ),
    )


class AnonymousMemory:
    """Pages of the host under a fixed range of addresses: the backing of a CPU arena.

    The operating system puts a page under an address at its first use. A page that is unmapped is given back to the
    system at once, so bytes that are resident never exceed those that the pool calls reserved.
    """

    def __init__(self, num_bytes: int, page_bytes: int) -> None:
        """Sets addresses aside; ``OSError`` where the system allows no range as long."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self.memory = mmap.mmap(-1, num_bytes, flags=flags)
        self._page_bytes = page_bytes

    def map(self, address: int, num_pages: int) -> None:
        """Nothing to do: the first use maps."""

    def unmap(self, address: int, num_pages: int) -> None:
        """Gives the pages back to the system."""
        self.memory.madvise(mmap.MADV_DONTNEED, address, num_pages * self._page_bytes)

    def release(self, num_pages: int) -> None:
        """Nothing to do: they are gone already."""


class HostArena:
    """CPU tensors out of one range of addresses; the memory of a tensor is free when its last view is gone.

    Safe to use from several threads.
    """

    def __init__(
        self,
        settings: PoolSettings | None = None,
        *,
        capacity_bytes: int | None = None,
        register: Callable[[int, int], None] | None = None,
    ) -> None:
        """Makes an empty arena.

        Args:
            settings: Of its pool; page and area sizes are the host's.
            capacity_bytes: Most bytes to use; needed for a pinned arena, which is backed from the start.
            register: Pins memory, given its address and size; see :func:`pinned_register`.
        """
        settings = replace(settings or PoolSettings(), page_bytes=HOST_PAGE_BYTES, area_bytes=HOST_AREA_BYTES)
        if register is not None:
            if capacity_bytes is None:
                raise MemoryUnsupported("a pinned arena is registered as a whole, so it needs capacity_bytes")
            # Pinned pages must stay where they are, so there is one area, and it is no larger than the memory.
            area_bytes = capacity_bytes // HOST_PAGE_BYTES * HOST_PAGE_BYTES
            settings = replace(settings, stitches=False, small_bytes=0, area_bytes=area_bytes)
        num_areas = 1 if register is not None else 2
        self._backing, settings = _set_aside(settings, num_areas)
        self._view = memoryview(self._backing.memory)
        self._pool = MemoryPool(replace(settings, capacity_bytes=capacity_bytes), self._backing)
        self._dead: deque[int] = deque()
        self._lock = threading.Lock()
        if register is not None:
            whole = torch.frombuffer(self._view, dtype=torch.uint8)
            register(whole.data_ptr(), settings.area_bytes)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Returns an uninitialised tensor of this shape.

        Raises:
            PoolExhausted: The arena's capacity is used up.
        """
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        num_bytes = count * dtype.itemsize
        with self._lock:
            self._bury()
            address = self._pool.allocate(num_bytes)
        tensor = torch.frombuffer(self._view[address : address + num_bytes], dtype=dtype)
        # A finalizer may run anywhere, also inside the pool; it only leaves word.
        weakref.finalize(tensor.untyped_storage(), self._dead.append, address).atexit = False
        return tensor.view(shape)

    def end_step(self) -> str:
        """Marks the end of a training step; returns what was planned, and why."""
        with self._lock:
            self._bury()
            return self._pool.end_step()

    def trim(self) -> int:
        """Gives idle pages back to the system; returns the bytes."""
        with self._lock:
            self._bury()
            return self._pool.trim()

    def statistics(self) -> PoolStatistics:
        """Returns the pool's counts."""
        with self._lock:
            self._bury()
            return self._pool.statistics()

    def _bury(self) -> None:
        while self._dead:
            self._pool.free(self._dead.popleft())


def _set_aside(settings: PoolSettings, num_areas: int) -> tuple[AnonymousMemory, PoolSettings]:
    """Takes the longest range of addresses, up to the one wanted, that the system's overcommit rules allow."""
    area_bytes = settings.area_bytes
    while True:
        try:
            memory = AnonymousMemory(num_areas * area_bytes, settings.page_bytes)
        except OSError as problem:
            if area_bytes < 2 * LEAST_AREA_BYTES:
                raise MemoryUnsupported(f"no range of {num_areas * area_bytes} bytes can be mapped") from problem
            area_bytes //= 2
        else:
            return memory, replace(settings, area_bytes=area_bytes)


class DeviceArena:
    """One block of a device's memory, cut into buffers that are taken and given back."""

    def __init__(self, num_bytes: int, device: torch.device | str) -> None:
        self._block = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        # All of it is one area: nothing is gained by keeping small buffers apart in memory that is taken already.
        settings = PoolSettings(
            page_bytes=512, small_bytes=0, stitches=False, capacity_bytes=num_bytes, area_bytes=num_bytes
        )
        self._pool = MemoryPool(settings)

    def take(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Returns a buffer inside the block, to be given back by :meth:`give_back`.

        Raises:
            PoolExhausted: There is no room for it in one piece.
        """
        num_bytes = math.prod(shape) * dtype.itemsize
        offset = self._pool.allocate(num_bytes) if num_bytes else 0
        return self._block[offset : offset + num_bytes].view(dtype).view(shape)

    def give_back(self, buffer: torch.Tensor) -> None:
        """Returns a buffer from :meth:`take`; nothing may use it any more, work queued on the device included."""
        if buffer.numel():
            self._pool.free(buffer.data_ptr() - self._block.data_ptr())

    def end_step(self) -> str:
        """Marks the end of a training step; returns what was planned, and why."""
        return self._pool.end_step()

    def statistics(self) -> PoolStatistics:
        """Returns the pool's counts."""
        return self._pool.statistics()


class AllocatorScope:
    """PyTorch's own allocator of one device type, set up as well as its build allows.

    Attributes:
        abilities: What was found.
        reasons: What was switched on or left, one sentence each.
    """

    def __init__(self, device_type: str, module: Any = None) -> None:
        self.abilities = memory_abilities(device_type, module)
        self._module: Any = _module_of(device_type, module)
        self._pool: Any = None
        reasons = []
        if device_type != "cpu" and self.abilities.expandable_segments:
            self._module.memory._set_allocator_settings("expandable_segments:True")  # noqa: SLF001
            reasons.append("expandable segments are on")
        if device_type != "cpu" and self.abilities.private_pool:
            self._pool = self._module.MemPool()
            reasons.append("tensors of the scope come from a pool of their own")
        self.reasons = (*reasons, *self.abilities.missing)

    @contextmanager
    def use(self) -> Iterator[None]:
        """Within the block, new tensors of this thread come from the private pool, where there is one."""
        with ExitStack() as stack:
            if self._pool is not None:
                stack.enter_context(self._module.use_mem_pool(self._pool))
            yield

    def statistics(self) -> PoolStatistics | None:
        """Returns the allocator's counts, ``None`` where the build keeps none (CPU)."""
        if self.abilities.device_type == "cpu" or not hasattr(self._module, "memory_stats"):
            return None
        stats = self._module.memory_stats()
        return PoolStatistics(
            reserved_bytes=stats.get("reserved_bytes.all.current", 0),
            peak_reserved_bytes=stats.get("reserved_bytes.all.peak", 0),
            live_bytes=stats.get("requested_bytes.all.current", 0),
            peak_live_bytes=stats.get("requested_bytes.all.peak", 0),
        )


def pinned_register(device_type: str = "cuda", module: Any = None) -> Callable[[int, int], None]:
    """Returns the function that pins host memory for a device type, to be given to :class:`HostArena`.

    Raises:
        MemoryUnsupported: The build cannot register host memory, or no device is there.
    """
    abilities = memory_abilities(device_type, module)
    if not abilities.pinned_host:
        raise MemoryUnsupported(f"host memory cannot be pinned: {'; '.join(abilities.missing)}")
    module = _module_of(device_type, module)
    runtime = module.cudart()

    def register(address: int, num_bytes: int) -> None:
        status = int(runtime.cudaHostRegister(address, num_bytes, 0))
        if status != 0:
            raise MemoryUnsupported(f"cudaHostRegister of {num_bytes} bytes failed with status {status}")

    return register


def _module_of(device_type: str, module: Any) -> Any:
    return module if module is not None else getattr(torch, device_type, None)


def _reach(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module
