"""Arenas of tensors, recorders, and what is looked up in a device's module."""

import gc
import mmap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from plait.hardware.memory.pool import PoolExhausted
from plait.train.devices.memory_pool import (
    AllocatorScope,
    DeviceArena,
    HostArena,
    MemoryUnsupported,
    memory_abilities,
    pinned_register,
)
from plait.train.devices.memory_recorder import MemoryRecorder, mark_step, record_cpu_allocator


def test_tensors_of_an_arena_share_no_byte_and_give_their_memory_back() -> None:
    arena = HostArena()
    first, second = arena.empty(300, 7), arena.empty(12, dtype=torch.int64)
    first.fill_(1.5)
    second.fill_(-3)
    assert (first == 1.5).all()
    assert first.shape == (300, 7)
    assert arena.statistics().live_bytes == 300 * 7 * 4 + 12 * 8
    view = first[5:]
    del first
    # A view keeps the memory.
    assert arena.statistics().live_bytes == 300 * 7 * 4 + 12 * 8
    del view, second
    gc.collect()
    assert arena.statistics().live_bytes == 0
    assert arena.empty(0, 3).shape == (0, 3)


def resident_bytes(address: int, num_bytes: int = 1 << 28) -> int:
    """Resident bytes among those from ``address`` on, page by page: a mapping may have grown into its neighbour."""
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        pagemap.seek(address // mmap.PAGESIZE * 8)
        entries = torch.frombuffer(bytearray(pagemap.read(num_bytes // mmap.PAGESIZE * 8)), dtype=torch.int64)
    return int((entries < 0).sum()) * mmap.PAGESIZE  # the highest bit tells that a page is there


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="needs /proc/self/pagemap")
def test_resident_memory_is_at_most_what_the_pool_calls_reserved() -> None:
    arena = HostArena()
    large = [arena.empty(1 << 20).fill_(1.0) for _ in range(6)]
    address = large[0].data_ptr()
    assert resident_bytes(address) >= 6 << 22
    del large[::2]
    # No hole holds it; the idle pages of three are moved, and the system has them back.
    wide = arena.empty(3 << 20).fill_(2.0)
    found = arena.statistics()
    assert found.reserved_bytes <= (6 << 22) + mmap.PAGESIZE * 64
    assert resident_bytes(address) <= found.reserved_bytes + mmap.PAGESIZE * 64
    assert all((tensor == 1.0).all() for tensor in large)
    assert (wide == 2.0).all()
    large.clear()
    assert arena.trim() > 0


def test_an_arena_plans_the_buffers_of_repeating_steps() -> None:
    arena = HostArena()
    for _ in range(6):
        buffers = [arena.empty(size * 1000) for size in (5, 3, 9)]
        for number, buffer in enumerate(buffers):
            buffer.fill_(number)
        assert [float(buffer[-1]) for buffer in buffers] == [0.0, 1.0, 2.0]
        del buffer, buffers
        reason = arena.end_step()
    assert "its plan served all but 0.0%" in reason
    assert arena.statistics().num_planned >= 6


def test_an_arena_serves_threads() -> None:
    arena = HostArena()
    wrong = []

    def work(number: int) -> None:
        for turn in range(40):
            tensor = arena.empty(50 + turn * number).fill_(number)
            if not bool((tensor == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert arena.statistics().live_bytes == 0


def test_gradients_flow_through_tensors_of_an_arena() -> None:
    arena = HostArena()
    weights = arena.empty(8, 4).fill_(0.5).requires_grad_()
    (torch.ones(2, 8) @ weights).sum().backward()
    assert weights.grad is not None
    assert (weights.grad == 2.0).all()


def test_a_pinned_arena_is_registered_once_and_keeps_within_its_size() -> None:
    registered = []
    size = 64 * mmap.PAGESIZE
    arena = HostArena(capacity_bytes=size, register=lambda address, length: registered.append((address, length)))
    tensor = arena.empty(size // 8)
    ((address, length),) = registered
    assert length == size
    assert address <= tensor.data_ptr() < address + length
    with pytest.raises(PoolExhausted):
        arena.empty(size // 4)
    with pytest.raises(MemoryUnsupported, match="needs capacity_bytes"):
        HostArena(register=lambda address, length: None)


def test_a_device_arena_cuts_one_block() -> None:
    arena = DeviceArena(8192, "cpu")
    first, second = arena.take(4, 128), arena.take(1024, dtype=torch.uint8)
    first.fill_(1.0)
    second.fill_(7)
    assert (first == 1.0).all()
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    with pytest.raises(PoolExhausted):
        arena.take(2048)
    arena.give_back(first)
    arena.give_back(second)
    assert arena.take(2048).shape == (2048,)
    assert arena.statistics().reserved_bytes == 8192


class FakeDevice:
    """A device module that has everything, and writes down what is asked of it."""

    def __init__(self, available: bool = True, status: int = 0) -> None:
        self.calls: list[str] = []
        self._available = available
        self.memory = SimpleNamespace(_set_allocator_settings=self.calls.append, _snapshot=dict)
        self.runtime = SimpleNamespace(cudaHostRegister=lambda address, size, flags: status)

    def is_available(self) -> bool:
        return self._available

    def cudart(self) -> Any:
        return self.runtime

    def MemPool(self) -> str:  # noqa: N802
        return "pool"

    @contextmanager
    def use_mem_pool(self, pool: str) -> Iterator[None]:
        self.calls.append(f"enter {pool}")
        yield
        self.calls.append(f"leave {pool}")

    def memory_stats(self) -> dict[str, int]:
        return {"reserved_bytes.all.peak": 100, "requested_bytes.all.peak": 80}


@pytest.mark.parametrize("device_type", ["cuda", "npu", "xpu"])
def test_the_allocator_of_an_accelerator_is_set_up_by_what_its_module_has(device_type: str) -> None:
    module = FakeDevice()
    scope = AllocatorScope(device_type, module)
    with scope.use():
        module.calls.append("work")
    assert module.calls == ["expandable_segments:True", "enter pool", "work", "leave pool"]
    assert "expandable segments are on" in scope.reasons
    found = scope.statistics()
    assert found is not None
    assert found.utilisation == pytest.approx(0.8)


def test_what_a_module_lacks_is_left_and_said() -> None:
    module = SimpleNamespace(is_available=lambda: True, memory=SimpleNamespace())
    scope = AllocatorScope("npu", module)
    with scope.use():
        pass
    assert scope.abilities.private_pool is False
    assert "torch.npu has no MemPool" in scope.reasons
    assert scope.statistics() is None
    absent = memory_abilities("cuda", FakeDevice(available=False))
    assert absent.expandable_segments is False
    assert "no cuda device is available" in absent.missing


def test_cpu_memory_has_no_allocator_to_set_up() -> None:
    scope = AllocatorScope("cpu")
    with scope.use():
        assert torch.ones(3).sum() == 3
    assert scope.abilities.planned
    assert scope.statistics() is None


def test_unknown_devices_are_named() -> None:
    with pytest.raises(MemoryUnsupported, match="'cudda'; did you mean 'cuda'"):
        memory_abilities("cudda")


def test_pinning_asks_the_runtime_and_reports_its_status() -> None:
    pinned_register("cuda", FakeDevice())(4096, 10)
    with pytest.raises(MemoryUnsupported, match="status 2"):
        pinned_register("cuda", FakeDevice(status=2))(4096, 10)
    with pytest.raises(MemoryUnsupported, match="cannot be pinned"):
        pinned_register("cuda", FakeDevice(available=False))


def train(end_step: Callable[[], None]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.BatchNorm1d(128), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        loss = model(torch.randn(32, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end_step()


def test_fake_tensors_give_the_same_trace_as_real_ones() -> None:
    with MemoryRecorder() as real:
        train(real.end_step)
    with FakeTensorMode(), MemoryRecorder() as fake:
        train(fake.end_step)
    trace = real.trace()
    trace.validate()
    assert trace.num_steps == 3
    assert list(trace) == list(fake.trace())


def test_the_recorder_sees_the_peak_that_the_allocator_had() -> None:
    with MemoryRecorder() as recorder:
        train(recorder.end_step)
    with record_cpu_allocator("true") as traces:
        train(mark_step)
    traces[0].validate()
    assert traces[0].num_steps == 3
    seen, true = recorder.trace().peak_live_bytes(), traces[0].peak_live_bytes()
    # Scratch memory inside kernels is not seen.
    assert 0.97 * true <= seen <= true


def test_the_recorder_follows_storages_not_tensors() -> None:
    with MemoryRecorder() as recorder:
        base = torch.zeros(1000)
        view = base[10:].view(-1, 9)
        base.add_(1)
        del base
        kept = [view * 2]
        del view
        known = torch.ones(4)
        recorder.adopt(known)
    trace = recorder.trace()
    assert kept[0].sum() == 2 * 990
    assert [(event.kind.name, event.size_bytes) for event in trace] == [
        ("ALLOCATE", 4000),
        ("ALLOCATE", 3960),
        ("FREE", 4000),
        ("ALLOCATE", 16),
    ]
