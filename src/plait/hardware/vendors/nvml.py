"""What NVIDIA's management library says, through ``nvidia-ml-py``; only ever called in a child process."""

import ctypes
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.hardware.pci import normal_address
from plait.hardware.topology import P2P, Component, Fragment, Link, LinkKind, Locality, PciPort
from plait.hardware.values import Source, Value

_MOST_LINKS = 18
_TO_GPU, _TO_CPU, _TO_SWITCH = 0, 1, 2
_P2P_READ = 0
"""Passed as a number: in some versions of nvidia-ml-py the constant is a tuple."""

_PATHS: dict[int, LinkKind] = {0: "pix", 10: "pix", 20: "pxb", 30: "phb", 40: "node", 50: "sys"}
"""``nvmlGpuTopologyLevel_t``; 0 is two GPUs of one board."""

_P2P_WORDS = {
    0: "OK",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by registry key",
    5: "not supported",
    6: "unknown",
}
_SLOWED = {
    0x08: "hardware slowdown",
    0x20: "software thermal limit",
    0x40: "hardware thermal limit",
    0x80: "power brake",
}
"""Clock event reasons that are no normal state; the power cap (0x04) is one."""

_IDLE_FROM_STATE = 5
_NO_NODE = 0xFFFFFFFF


@dataclass(slots=True)
class _Library:
    """nvidia-ml-py with errors as missing values; what the driver lacks is collected by function."""

    module: Any
    lacking: dict[str, None] = field(default_factory=dict)

    def ask(self, function: str, *arguments: Any) -> Any:
        """Returns the answer, ``None`` where the function is missing or has none."""
        try:
            return getattr(self.module, function)(*arguments)
        except AttributeError:
            self.lacking[function] = None
        except self.module.NVMLError as error:
            if type(error).__name__ == "NVMLError_FunctionNotFound":
                self.lacking[function] = None
        return None

    def text(self, function: str, *arguments: Any) -> str | None:
        """Returns the answer as text; older versions of the module return bytes."""
        answer = self.ask(function, *arguments)
        if isinstance(answer, bytes):
            return answer.decode("utf-8", "replace")
        return None if answer is None else str(answer)


@dataclass(slots=True)
class _Gpu:
    """One GPU with what its links lead to: counts by index of another GPU, and those that end at a switch."""

    component: Component
    handle: Any
    peers: dict[int, int] = field(default_factory=dict)
    to_switch: int = 0


def read_nvml() -> Fragment:
    """Returns GPUs, MIG instances, NVLink, paths and P2P as NVML tells them; ``error`` where it cannot be asked."""
    origin = "NVML"
    try:
        module = importlib.import_module("pynvml")
    except ImportError:
        return Fragment(origin=origin, format="nvml", error="nvidia-ml-py is not installed (plait[gpu] brings it)")
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        return Fragment(origin=origin, format="nvml", error=str(error).lower())
    try:
        return _read(_Library(module), origin)
    finally:
        module.nvmlShutdown()


def _read(library: _Library, origin: str) -> Fragment:
    driver = library.text("nvmlSystemGetDriverVersion")
    count = library.ask("nvmlDeviceGetCount")
    if count is None:
        return Fragment(origin=origin, format="nvml", error="the driver does not say how many GPUs there are")
    gpus: list[_Gpu] = []
    components: list[Component] = []
    warnings: list[str] = []
    for index in range(count):
        handle, why = _handle(library, index)
        if handle is None:
            lost = Component(
                key=f"GPU{index}", name=f"GPU{index}", kind="gpu", vendor="nvidia", index=index, health=why
            )
            components.append(lost)
            warnings.append(f"GPU{index}: {why}")
            continue
        gpu = _Gpu(_component(library, handle, index, driver), handle)
        gpus.append(gpu)
        components += [gpu.component, *_instances(library, gpu)]
        if gpu.component.health != "ok":
            warnings.append(f"GPU{index}: {gpu.component.health}")
    _follow_links(library, gpus)
    hides = [f"{name}: not in this driver's NVML" for name in sorted(library.lacking)]
    if "nvmlDeviceGetNvLinkState" in library.lacking:
        hides.append("nvlink")
    return Fragment(
        origin=origin,
        format="nvml",
        components=tuple(components),
        links=tuple(_links(library, gpus)),
        warnings=tuple(warnings),
        hides=tuple(hides),
        source=Source.LIBRARY,
    )


def _handle(library: _Library, index: int) -> tuple[Any, str]:
    try:
        return library.module.nvmlDeviceGetHandleByIndex(index), ""
    except library.module.NVMLError as error:
        return None, f"lost: {str(error).lower()}"


def _component(library: _Library, handle: Any, index: int, driver: str | None) -> Component:
    pci = library.ask("nvmlDeviceGetPciInfo", handle)
    address = None if pci is None else normal_address(_plain(pci.busId))
    uuid = library.text("nvmlDeviceGetUUID", handle)
    memory = library.ask("nvmlDeviceGetMemoryInfo", handle)
    node = library.ask("nvmlDeviceGetNumaNodeId", handle)
    name = f"GPU{index}"
    return Component(
        key=address or uuid or name,
        name=name,
        kind="gpu",
        vendor="nvidia",
        model=library.text("nvmlDeviceGetName", handle),
        pci_address=address,
        uuid=uuid,
        index=index,
        memory_bytes=Value(None if memory is None else int(memory.total), Source.LIBRARY, "NVML"),
        pci=_port(library, handle),
        # The number is that of the GPU's own memory as a NUMA node (Grace); its CPUs' node comes from sysfs.
        locality=Locality(gpu_numa_node=node if node is not None and 0 <= node < _NO_NODE else None),
        health=_health(library, handle),
        extra=_extra(library, handle, pci, memory, driver),
    )


def _plain(text: Any) -> str:
    return text.decode("ascii", "replace") if isinstance(text, bytes) else str(text)


def _port(library: _Library, handle: Any) -> PciPort:
    state = library.ask("nvmlDeviceGetPerformanceState", handle)
    return PciPort(
        generation=library.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle) or None,
        lanes=library.ask("nvmlDeviceGetCurrPcieLinkWidth", handle) or None,
        max_generation=library.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle) or None,
        max_lanes=library.ask("nvmlDeviceGetMaxPcieLinkWidth", handle) or None,
        is_idle_reading=state is not None and state >= _IDLE_FROM_STATE,
    )


def _extra(library: _Library, handle: Any, pci: Any, memory: Any, driver: str | None) -> dict[str, str]:
    found: dict[str, object] = {"driver_version": driver}
    if pci is not None:
        found["vendor"] = f"0x{pci.pciDeviceId & 0xFFFF:04x}"
        found["device"] = f"0x{pci.pciDeviceId >> 16:04x}"
    if memory is not None:
        found["memory_used_bytes"] = int(memory.used)
    capability = library.ask("nvmlDeviceGetCudaComputeCapability", handle)
    if capability is not None:
        found["compute_capability"] = f"{capability[0]}.{capability[1]}"
    usage = library.ask("nvmlDeviceGetPowerUsage", handle)
    limit = library.ask("nvmlDeviceGetEnforcedPowerLimit", handle)
    found["power_w"] = None if usage is None else f"{usage / 1000:g}"
    found["power_limit_w"] = None if limit is None else f"{limit / 1000:g}"
    mig = library.ask("nvmlDeviceGetMigMode", handle)
    found["mig"] = None if mig is None else "on" if mig[0] else "off"
    found["ecc_uncorrected"] = library.ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0)
    found |= _fabric(library, handle)
    return {key: str(value) for key, value in found.items() if value is not None}


def _fabric(library: _Library, handle: Any) -> dict[str, object]:
    """Returns the NVLink domain (NVL72) that the GPU has joined."""
    shape = getattr(library.module, "c_nvmlGpuFabricInfoV_t", None)
    if shape is None:
        return {}
    info = shape()
    if library.ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is None or info.state != 3:
        return {}
    return {"fabric_cluster": bytes(info.clusterUuid).hex(), "fabric_clique": info.cliqueId}


def _health(library: _Library, handle: Any) -> str:
    errors = library.ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0)
    if errors:
        return f"{errors} uncorrectable memory errors since the driver was loaded"
    rows = library.ask("nvmlDeviceGetRemappedRows", handle)
    if rows is not None and rows[3]:
        return "a failed memory row could not be replaced"
    if (rows is not None and rows[2]) or library.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle):
        return "memory waits for a reset to be repaired"
    reasons = library.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:
        reasons = library.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    slowed = [word for bit, word in _SLOWED.items() if reasons is not None and reasons & bit]
    return f"slowed: {', '.join(slowed)}" if slowed else "ok"


def _instances(library: _Library, gpu: _Gpu) -> Iterator[Component]:
    """Yields the MIG devices of a GPU."""
    if gpu.component.extra.get("mig") != "on":
        return
    for place in range(library.ask("nvmlDeviceGetMaxMigDeviceCount", gpu.handle) or 0):
        handle = library.ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu.handle, place)
        if handle is None:
            continue
        uuid = library.text("nvmlDeviceGetUUID", handle)
        memory = library.ask("nvmlDeviceGetMemoryInfo", handle)
        shape = library.ask("nvmlDeviceGetAttributes", handle)
        extra = {
            "gpu_instance_id": library.ask("nvmlDeviceGetGpuInstanceId", handle),
            "compute_instance_id": library.ask("nvmlDeviceGetComputeInstanceId", handle),
            "multiprocessor_count": None if shape is None else shape.multiprocessorCount,
            "compute_slices": None if shape is None else shape.computeInstanceSliceCount,
        }
        yield Component(
            key=uuid or f"{gpu.component.key}/mig{place}",
            name=f"{gpu.component.name} MIG {place}",
            kind="gpu",
            vendor="nvidia",
            model=library.text("nvmlDeviceGetName", handle),
            uuid=uuid,
            parent=gpu.component.key,
            index=place,
            memory_bytes=Value(None if memory is None else int(memory.total), Source.LIBRARY, "NVML"),
            health=gpu.component.health,
            extra={key: str(value) for key, value in extra.items() if value is not None},
        )


def _follow_links(library: _Library, gpus: Sequence[_Gpu]) -> None:
    """Counts the active NVLinks of each GPU by where they end."""
    places = {gpu.component.pci_address: index for index, gpu in enumerate(gpus)}
    for gpu in gpus:
        for number in range(_MOST_LINKS):
            if not library.ask("nvmlDeviceGetNvLinkState", gpu.handle, number):
                continue
            remote = library.ask("nvmlDeviceGetNvLinkRemotePciInfo", gpu.handle, number)
            end = places.get(None if remote is None else normal_address(_plain(remote.busId)))
            if end is not None:
                gpu.peers[end] = gpu.peers.get(end, 0) + 1
            elif library.ask("nvmlDeviceGetNvLinkRemoteDeviceType", gpu.handle, number) == _TO_SWITCH:
                gpu.to_switch += 1


def _links(library: _Library, gpus: Sequence[_Gpu]) -> Iterator[Link]:
    for first, one in enumerate(gpus):
        for second in range(first + 1, len(gpus)):
            other = gpus[second]
            p2p, raw = _peer_access(library, one, other)
            direct = max(one.peers.get(second, 0), other.peers.get(first, 0))
            # NVLink through NVSwitch ends at the switch: a pair has what the one with fewer links has.
            through = 0 if direct else min(one.to_switch, other.to_switch)
            a, b = one.component.key, other.component.key
            if direct or through:
                how = f"NV{direct}" if direct else f"NV{through} through NVSwitch"
                yield Link(a=a, b=b, kind="nvlink", count=direct or through, p2p=p2p, raw=f"{how}; P2P {raw}")
            level = library.ask("nvmlDeviceGetTopologyCommonAncestor", one.handle, other.handle)
            if level in _PATHS:
                yield Link(a=a, b=b, kind=_PATHS[level], p2p=p2p, raw=f"level {level}; P2P {raw}")


def _peer_access(library: _Library, one: _Gpu, other: _Gpu) -> tuple[P2P, str]:
    status = library.ask("nvmlDeviceGetP2PStatus", one.handle, other.handle, _P2P_READ)
    if status is None:
        return "unknown", "not told"
    return "ok" if status == 0 else "unknown" if status == 6 else "refused", _P2P_WORDS.get(status, str(status))
