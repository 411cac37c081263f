"""What AMD's management library says; only ever called in a child process.

Importing ``amdsmi`` prints, and raises ``KeyError`` where its library is missing, so anything may go wrong here.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plait.hardware.pci import normal_address
from plait.hardware.topology import P2P, Component, Fragment, Link, LinkKind, PciPort
from plait.hardware.values import Source, Value

_KINDS: dict[str, LinkKind] = {"XGMI": "xgmi", "PCIE": "pcie"}
_MB_PER_S = 1e6
"""amdsmi gives bandwidths in MB/s, as KFD does."""


def read_amdsmi() -> Fragment:
    """Returns GPUs and their links as amdsmi tells them; ``error`` where it cannot be asked."""
    origin = "amdsmi"
    try:
        module = importlib.import_module("amdsmi")
        module.amdsmi_init()
    except Exception as error:  # noqa: BLE001 - see the module's text
        return Fragment(origin=origin, format="amdsmi", error=f"{type(error).__name__}: {error}")
    try:
        handles = list(module.amdsmi_get_processor_handles())
        components = [_component(module, handle, index) for index, handle in enumerate(handles)]
        return Fragment(
            origin=origin,
            format="amdsmi",
            components=tuple(components),
            links=tuple(_links(module, handles, components)),
            source=Source.LIBRARY,
        )
    except Exception as error:  # noqa: BLE001
        return Fragment(origin=origin, format="amdsmi", error=f"{type(error).__name__}: {error}")
    finally:
        _ask(module, "amdsmi_shut_down")


def _ask(module: Any, function: str, *arguments: Any) -> Any:
    """Returns the answer, ``None`` where this version of the library has no such function or no answer."""
    try:
        return getattr(module, function)(*arguments)
    except Exception:  # noqa: BLE001 - a function that fails costs its own fact alone
        return None


def _table(module: Any, function: str, *arguments: Any) -> Mapping[str, Any]:
    answer = _ask(module, function, *arguments)
    return answer if isinstance(answer, Mapping) else {}


def _component(module: Any, handle: Any, index: int) -> Component:
    address = normal_address(str(_ask(module, "amdsmi_get_gpu_device_bdf", handle) or ""))
    asic = _table(module, "amdsmi_get_gpu_asic_info", handle)
    kinds = getattr(module, "AmdSmiMemoryType", None)
    vram = getattr(kinds, "VRAM", None)
    memory = _ask(module, "amdsmi_get_gpu_memory_total", handle, vram)
    power = _table(module, "amdsmi_get_power_info", handle)
    pcie = _table(module, "amdsmi_get_pcie_info", handle)
    uuid = _ask(module, "amdsmi_get_gpu_device_uuid", handle)
    watts = next(
        (power[key] for key in ("current_socket_power", "average_socket_power") if _is_figure(power.get(key))), None
    )
    extra = {
        "device": asic.get("device_id"),
        "compute_units": asic.get("num_compute_units"),
        "gfx_target_version": asic.get("target_graphics_version"),
        "memory_used_bytes": _ask(module, "amdsmi_get_gpu_memory_usage", handle, vram),
        "power_w": watts,
        "partition": _ask(module, "amdsmi_get_gpu_compute_partition", handle),
    }
    return Component(
        key=address or str(uuid or f"GPU{index}"),
        name=f"GPU{index}",
        kind="gpu",
        vendor="amd",
        model=str(asic["market_name"]) if asic.get("market_name") else None,
        pci_address=address,
        uuid=None if uuid is None else str(uuid),
        index=index,
        memory_bytes=Value(memory if _is_figure(memory) else None, Source.LIBRARY, "amdsmi"),
        pci=_port(pcie),
        health=_health(module, handle),
        extra={key: str(value) for key, value in extra.items() if value not in {None, "", "N/A"}},
    )


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _port(pcie: Mapping[str, Any]) -> PciPort:
    static, now = pcie.get("pcie_static") or {}, pcie.get("pcie_metric") or {}

    def lanes(value: Any) -> int | None:
        return int(value) if _is_figure(value) and value <= 32 else None

    def generation(megatransfers: Any) -> int | None:
        """Speeds come in MT/s: 16000 is generation 4."""
        table = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}
        return table.get(int(megatransfers)) if _is_figure(megatransfers) else None

    return PciPort(
        generation=generation(now.get("pcie_speed")),
        lanes=lanes(now.get("pcie_width")),
        max_generation=generation(static.get("max_pcie_speed")),
        max_lanes=lanes(static.get("max_pcie_width")),
    )


def _health(module: Any, handle: Any) -> str | None:
    counts = _table(module, "amdsmi_get_gpu_total_ecc_count", handle)
    if not counts:
        return None
    errors = counts.get("uncorrectable_count") or 0
    return f"{errors} uncorrectable memory errors" if errors else "ok"


def _links(module: Any, handles: Sequence[Any], components: Sequence[Component]) -> Iterator[Link]:
    for first, a in enumerate(handles):
        for second in range(first + 1, len(handles)):
            b = handles[second]
            told = _table(module, "amdsmi_topo_get_link_type", a, b)
            kind = next((kind for word, kind in _KINDS.items() if word in str(told.get("type", "")).upper()), None)
            if kind is None:
                continue
            band = _table(module, "amdsmi_get_minmax_bandwidth_between_processors", a, b)
            most: Any = band.get("max_bandwidth")
            least: Any = band.get("min_bandwidth")
            is_even = _is_figure(most) and _is_figure(least) and most % least == 0
            rate = Value(float(most) * _MB_PER_S if _is_figure(most) else None, Source.LIBRARY, "amdsmi")
            can = _ask(module, "amdsmi_is_P2P_accessible", a, b)
            p2p: P2P = "unknown" if can is None else "ok" if can else "refused"
            weight = _ask(module, "amdsmi_topo_get_link_weight", a, b)
            # Hops are always 1 over xGMI whatever the path, so the weight is what tells paths apart.
            yield Link(
                a=components[first].key,
                b=components[second].key,
                kind=kind,
                count=int(most // least) if is_even and kind == "xgmi" else 1,
                bytes_per_s=rate,
                reverse_bytes_per_s=rate,
                p2p=p2p,
                raw=f"{told.get('type')} weight {weight}",
            )
