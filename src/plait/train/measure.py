"""The measuring program: copies between devices, from host memory, and matrix products, one JSON line a task.

``python -m plait.train.measure`` first says which devices it sees; then each line on stdin asks for one measurement
(:class:`plait.hardware.probes.plan.Task`), and one line on stdout answers. A task that fails answers with ``error``;
the program goes on. It runs apart from the rest because drivers hang and crash.

Copies are checked: a virtual machine may grant peer access that hands over wrong data (nccl#2335). Each pair is copied
directly and through pinned host memory, and the faster way that gave the right data counts.
"""

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

_KINDS = ("cuda", "npu", "xpu")
_STAGE_BYTES = 8 << 20
_MATMUL_SIZE = {"cpu": 768}
_LARGE_MATMUL = 8192
_LATENCY_BYTES = 4
_LATENCY_ROUNDS = 50
_LEAST_S = 1e-9

Copy = Callable[[], None]


def devices() -> list[dict[str, Any]]:
    """Returns every device that can be measured; the processors are always there, also one a NUMA node (``cpu:1``)."""
    found: list[dict[str, Any]] = []
    for kind in _KINDS:
        backend = _backend(kind)
        if backend is None:
            continue
        for index in range(backend.device_count()):
            properties = backend.get_device_properties(index)
            found.append(
                {
                    "name": f"{kind}:{index}",
                    "kind": kind,
                    "model": getattr(properties, "name", ""),
                    "pci_address": _pci_address(properties),
                    "uuid": str(getattr(properties, "uuid", "") or ""),
                }
            )
    processors = ("cpu", *(f"cpu:{node}" for node in _numa_cpus()))
    found += [{"name": name, "kind": "cpu", "model": "", "pci_address": None, "uuid": ""} for name in processors]
    return found


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer to one task: ``value`` (bytes/s or FLOP/s), ``relative_error``, ``latency_s``, ``detail``."""
    match task["do"]:
        case "copy":
            return _copy(task)
        case "host":
            return _host(task)
        case "memory":
            return _memory(task)
        case "matmul":
            return _matmul(task)
        case "together":
            return _together(task)
        case other:
            raise ValueError(f"unknown measurement {other!r}")


def main() -> int:
    """Says what is here, then does one task a line until stdin ends."""
    # torch and drivers print to stdout as they like; the answers go to a descriptor of their own.
    out = sys.stdout
    _say(out, {"devices": devices(), "torch": torch.__version__})
    for line in sys.stdin:
        try:
            answer = measure(json.loads(line))
        except Exception as error:  # noqa: BLE001 - whatever a driver does, the next task may still work
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        _say(out, answer)
    return 0


def _say(out: Any, document: Mapping[str, Any]) -> None:
    out.write(json.dumps(document) + "\n")
    out.flush()


def _backend(kind: str) -> Any:
    if kind == "npu":
        try:
            import torch_npu  # type: ignore[import-not-found]  # noqa: F401 - its import adds torch.npu
        except Exception:  # noqa: BLE001 - a vendor's package may fail in any way; then there is no such device
            return None
    backend = getattr(torch, kind, None)
    try:
        return backend if backend is not None and backend.is_available() else None
    except Exception:  # noqa: BLE001 - likewise
        return None


def _pci_address(properties: Any) -> str | None:
    bus, device = getattr(properties, "pci_bus_id", None), getattr(properties, "pci_device_id", None)
    if not isinstance(bus, int) or not isinstance(device, int):
        return None
    return f"{getattr(properties, 'pci_domain_id', 0):04x}:{bus:02x}:{device:02x}.0"


def _numa_cpus() -> dict[int, set[int]]:
    """Returns the CPUs of each NUMA node that this process may use; nodes without any are left out."""
    allowed = os.sched_getaffinity(0)
    found: dict[int, set[int]] = {}
    for directory in Path("/sys/devices/system/node").glob("node[0-9]*"):
        try:
            text = (directory / "cpulist").read_text(encoding="ascii").strip()
        except OSError:
            continue
        spans = (part.split("-") for part in text.split(",") if part)
        cpus = {cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)} & allowed
        if cpus:
            found[int(directory.name.removeprefix("node"))] = cpus
    return dict(sorted(found.items()))


@contextlib.contextmanager
def _on(name: str) -> Iterator[str]:
    """Yields torch's name of a device; for a NUMA node the block runs on its CPUs, so that memory lands there."""
    kind, _, number = name.partition(":")
    if kind != "cpu" or not number:
        yield name
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _numa_cpus()[int(number)])
    try:
        yield "cpu"
    finally:
        os.sched_setaffinity(0, before)


def _filled(pattern: torch.Tensor, name: str) -> torch.Tensor:
    with _on(name) as device:
        return torch.zeros_like(pattern, device=device).copy_(pattern)  # zeros are touched where they shall lie


def _wait(*names: str) -> None:
    for name in names:
        kind, _, index = name.partition(":")
        if kind != "cpu":
            getattr(torch, kind).synchronize(int(index or 0))


def _timed(work: Copy, names: Sequence[str], repetitions: int) -> tuple[float, float]:
    """Returns the median seconds of a run, and half the spread over it without the slowest quarter of the runs."""
    work()
    _wait(*names)
    times = []
    for _ in range(max(1, repetitions)):
        begun = time.perf_counter()
        work()
        _wait(*names)
        times.append(max(_LEAST_S, time.perf_counter() - begun))
    middle = statistics.median(times)
    kept = sorted(times)[: max(1, len(times) - len(times) // 4)]
    return middle, max(0.02, (kept[-1] - kept[0]) / 2 / middle)


def _pattern(size_bytes: int, seed: int) -> torch.Tensor:
    count = max(1, size_bytes // 4)
    return (torch.arange(count, dtype=torch.int64) * 2654435761 + seed).to(torch.int32)


def _copy(task: Mapping[str, Any]) -> dict[str, Any]:
    source, target = task["devices"]
    size = int(task["size_bytes"])
    expected = _pattern(size, 7)
    a, b = _filled(expected, source), _filled(torch.zeros_like(expected), target)
    ways: dict[str, Copy] = {"directly": lambda: _into(b, a)}
    if a.device.type != "cpu" and b.device.type != "cpu":
        ways["through host memory"] = _staged(a, b)
    found: dict[str, tuple[float, float]] = {}
    wrong: list[str] = []
    for way, work in ways.items():
        b.zero_()
        work()
        _wait(source, target)
        if not torch.equal(b.cpu(), expected):
            wrong.append(way)
            continue
        with _on(target):  # a processor copies from where it is
            found[way] = _timed(work, (source, target), int(task["repetitions"]))
    if not found:
        raise ValueError(f"copies from {source} to {target} arrive wrong {' and '.join(wrong)}")
    best = min(found, key=lambda way: found[way][0])
    seconds, spread = found[best]
    told = ", ".join(f"{way} {expected.nbytes / s / 1e9:.3g} GB/s" for way, (s, _) in found.items())
    told += "".join(f", {way} WRONG DATA" for way in wrong)
    return {
        "value": expected.nbytes / seconds,
        "relative_error": spread,
        "latency_s": _latency(source, target),
        "detail": told,
        "is_corrupt": bool(wrong),
        "way": best,
    }


def _into(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _staged(a: torch.Tensor, b: torch.Tensor) -> Copy:
    """Returns a copy by way of two pinned buffers, so that one chunk leaves while the next arrives."""
    count = max(1, _STAGE_BYTES // a.element_size())
    buffers = [torch.empty(count, dtype=a.dtype, pin_memory=True) for _ in range(2)]
    first, second = (getattr(torch, x.device.type) for x in (a, b))
    out, back = first.Stream(device=a.device), second.Stream(device=b.device)

    def run() -> None:
        free: list[Any] = [None, None]
        for number, (low, high) in enumerate(_chunks(a.numel(), count)):
            buffer = buffers[number % 2][: high - low]
            with first.stream(out):
                if free[number % 2] is not None:
                    free[number % 2].synchronize()
                buffer.copy_(a[low:high], non_blocking=True)
                arrived = out.record_event()
            arrived.synchronize()
            with second.stream(back):
                b[low:high].copy_(buffer, non_blocking=True)
                free[number % 2] = back.record_event()
        back.synchronize()

    return run


def _chunks(total: int, size: int) -> Iterator[tuple[int, int]]:
    for low in range(0, total, size):
        yield low, min(total, low + size)


def _latency(source: str, target: str) -> float:
    a, b = (_filled(torch.zeros(_LATENCY_BYTES, dtype=torch.uint8), name) for name in (source, target))
    with _on(target):
        return _timed(lambda: _into(b, a), (source, target), _LATENCY_ROUNDS)[0]


def _host(task: Mapping[str, Any]) -> dict[str, Any]:
    (name,) = task["devices"]
    expected = _pattern(int(task["size_bytes"]), 11)
    pinned = expected.pin_memory()
    there = torch.empty_like(expected, device=name)
    back = torch.zeros_like(pinned).pin_memory()
    down, spread = _timed(lambda: _into(there, pinned), (name,), int(task["repetitions"]))
    up, other = _timed(lambda: _into(back, there), (name,), int(task["repetitions"]))
    if not torch.equal(back, expected):
        raise ValueError(f"copies between host memory and {name} arrive wrong")
    rates = (expected.nbytes / down, expected.nbytes / up)
    return {
        "value": min(rates),
        "relative_error": max(spread, other),
        "detail": f"to the device {rates[0] / 1e9:.3g} GB/s, back {rates[1] / 1e9:.3g} GB/s",
    }


def _memory(task: Mapping[str, Any]) -> dict[str, Any]:
    (name,) = task["devices"]
    a = _filled(_pattern(int(task["size_bytes"]), 13), name)
    with _on(name):
        b = torch.zeros_like(a)
        seconds, spread = _timed(lambda: _into(b, a), (name,), int(task["repetitions"]))
    # A copy reads and writes, so memory moves twice the bytes.
    return {"value": 2 * a.nbytes / seconds, "relative_error": spread, "detail": "copy within, read and written bytes"}


def _matmul(task: Mapping[str, Any]) -> dict[str, Any]:
    (name,) = task["devices"]
    precision = str(task["precision"])
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
    size = _MATMUL_SIZE.get(name.partition(":")[0], _LARGE_MATMUL)
    with _on(name) as device:
        a = torch.randn(size, size, dtype=torch.float32).to(device=device, dtype=types[precision])
    b = a.t().contiguous()
    out = torch.empty_like(a)

    def multiply() -> None:
        torch.mm(a, b, out=out)

    with _on(name):
        seconds, spread = _timed(multiply, (name,), max(8, int(task["repetitions"])))
    return {
        "value": 2 * size**3 / seconds,
        "relative_error": spread,
        "detail": f"{size} x {size} product in {precision}",
    }


def _together(task: Mapping[str, Any]) -> dict[str, Any]:
    flows = [(source, target) for source, target in task["flows"]]
    expected = _pattern(int(task["size_bytes"]), 17)
    names = sorted({name for flow in flows for name in flow})
    sources = {name: _filled(expected, name) for name in names}
    copies = []
    for source, target in flows:
        kind = source.partition(":")[0]
        stream = None if kind == "cpu" else getattr(torch, kind).Stream(device=source)
        copies.append((sources[source], _filled(torch.zeros_like(expected), target), stream))

    def run() -> None:
        for a, b, stream in copies:
            if stream is None:
                _into(b, a)
                continue
            with getattr(torch, a.device.type).stream(stream):
                _into(b, a)

    seconds, spread = _timed(run, names, int(task["repetitions"]))
    for _, b, _ in copies:
        if not torch.equal(b.cpu(), expected):
            raise ValueError("copies that run at once arrive wrong")
    total = expected.nbytes * len(flows)
    return {"value": total / seconds, "relative_error": spread, "detail": f"{len(flows)} copies at once"}


if __name__ == "__main__":
    sys.exit(main())
