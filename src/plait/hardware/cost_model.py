"""What a link gives, from its kind, its count, the models at its ends and the sockets between: the default cost model.

Every estimate carries its reason and an error bar, and what cannot be told is a range or unknown. The efficiencies are
sustained copies of published measurements over the published rate; a measured figure replaces an estimate (see
:mod:`plait.hardware.affinity`).
"""

import re
from dataclasses import dataclass

from plait.hardware.link_rates import (
    GB,
    LINK_RANGES_BYTES_PER_S,
    Ports,
    pcie_bytes_per_s,
    ports_of,
    ports_of_architecture,
)
from plait.hardware.topology import Component, Link
from plait.hardware.values import Source, Value

NVLINK_RATIO = 0.88
"""Copies over NVLink: 0.92 on A100 (nvbandwidth), 0.83 to 0.88 on H100 (nccl#1264, stas00)."""

XGMI_RATIO = 0.75
"""All-reduce over one xGMI link of an MI300X pair: 47.7 of 64 GB/s (stas00); RCCL counts 48, and 36 of 50 on MI200."""

HCCS_RATIO = 0.8
"""No measured source; assumed between NVLink and xGMI."""

PCIE_PEER_RATIO = 0.85
"""Device to device over PCI Express: 53 to 54 of 63 GB/s (rtx6kpro)."""

PCIE_HOST_RATIO = 0.82
"""Pinned host memory to device: 12.4 of 15.75, 25 of 31.5, 55 of 63 GB/s (SuperBench, stas00)."""

STAGED_RATIO = 0.75
"""Through host memory, over the host-device rate: 37 of 52 (nccl#1264), 22 of 26 GB/s (nccl#814)."""

RDMA_RATIO = 0.92
TCP_RATIO = 0.6
TCP_SOCKET_BYTES_PER_S = 6 * GB
"""The most that TCP was seen to carry for a pair of processes."""

FAR_NIC_RATIO = 0.5
"""What a NIC on the other socket still gives a device."""

_SOCKET_GB_PER_S: dict[str, float] = {
    "broadwell": 6,
    "haswell": 6,
    "skylake": 10,
    "icelake": 16,
    "sapphire rapids": 22,
    "naples": 16,
    "rome": 16,
    "milan": 16,
    "genoa": 39,
    "turin": 40,
    "power9": 32,
    "zhaoxin": 6,
    "arm": 6,
}
"""Peer traffic across sockets: NCCL's constants; 39 and 40 as measured on Genoa and Turin (rtx6kpro)."""

_SOCKET_BY_PCIE_GB_PER_S: dict[int, tuple[float, float]] = {3: (6, 10), 4: (10, 16), 5: (22, 40), 6: (40, 51)}
"""Likewise where only the PCI Express generation of the machine is known: slowest and fastest of its time."""

SCATTERING_ARCHITECTURES = frozenset({"genoa", "turin"})
"""Processors on which writes from behind one root port to behind two others collapse (rtx6kpro, collapse report)."""

SCATTER_RATIO = 1 / 8
"""What is left then of the uplink's rate (the same report)."""

CROWDED_RATIO = 0.65
"""What a PCI Express port keeps when it sends to several peers and receives from several (0.58 to 0.64 and 0.71)."""

_PCIE_ERRORS = {"pix": 0.15, "pxb": 0.2, "phb": 0.3, "node": 0.35, "pcie": 0.3, "sys": 0.4}
_LATENCIES_S = {"nvlink": 2e-6, "xgmi": 2e-6, "hccs": 3e-6, "pix": 0.5e-6, "pxb": 0.5e-6, "phb": 0.7e-6}
_LATENCIES_S |= {"node": 0.7e-6, "pcie": 0.7e-6, "sys": 1.3e-6}
STAGED_LATENCY_S = 14e-6

_ERAS: tuple[tuple[str, str], ...] = (
    (r"EPYC.*\b9[\w]{2}5|TURIN", "turin"),
    (r"EPYC.*\b(9|8)[\w]{2}4|GENOA|BERGAMO|THREADRIPPER PRO 7|MI300A", "genoa"),
    (r"EPYC.*\b7[\w]{2}3|MILAN|THREADRIPPER PRO 5", "milan"),
    (r"EPYC.*\b7[\w]{2}2|ROME|THREADRIPPER PRO 3", "rome"),
    (r"EPYC.*\b7[\w]{2}1|NAPLES", "naples"),
    (r"XEON.*\b[3-9]5\d\d|XEON.*\b6[79]\d\d|EMERALD|GRANITE", "sapphire rapids"),
    (r"XEON.*\b[3-9]4\d\d|SAPPHIRE", "sapphire rapids"),
    (r"XEON.*\b[3-9]3\d\d|ICE ?LAKE", "icelake"),
    (r"XEON.*(GOLD|PLATINUM|SILVER|BRONZE).*\b[3-9][12]\d\d|SKYLAKE|CASCADE", "skylake"),
    (r"E5-\d{4}\w* ?V4|BROADWELL", "broadwell"),
    (r"E5-\d{4}\w* ?V3|HASWELL", "haswell"),
    (r"POWER ?9|POWERNV", "power9"),
    (r"ZHAOXIN|SHANGHAI", "zhaoxin"),
    (r"KUNPENG|NEOVERSE|AMPERE ALTRA|THUNDERX|\bARM\b", "arm"),
)

_ERAS_BY_ID: dict[tuple[str, int, int], str] = {
    ("intel", 6, 63): "haswell",
    ("intel", 6, 79): "broadwell",
    ("intel", 6, 85): "skylake",
    ("intel", 6, 106): "icelake",
    ("intel", 6, 143): "sapphire rapids",
    ("intel", 6, 207): "sapphire rapids",
    ("amd", 23, 1): "naples",
    ("amd", 23, 49): "rome",
    ("amd", 25, 1): "milan",
    ("amd", 25, 17): "genoa",
    ("amd", 25, 24): "genoa",
    ("amd", 25, 160): "genoa",
    ("amd", 26, 2): "turin",
    ("amd", 26, 17): "turin",
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated rate of one direction.

    Attributes:
        bytes_per_s: ``None`` where it cannot be told; then ``low`` and ``high`` bound it if anything does.
        relative_error: Half-width of the error bar over the value.
        reason: How it came about, in words.
        low_bytes_per_s: Lower bound of an unknown.
        high_bytes_per_s: Upper bound of an unknown.
        source: Who says so.
        latency_s: ``None`` where it cannot be told.
        kind: What carries the traffic: a link kind, or ``staged`` through host memory.
    """

    bytes_per_s: float | None
    reason: str
    relative_error: float | None = None
    low_bytes_per_s: float | None = None
    high_bytes_per_s: float | None = None
    source: Source = Source.DEFAULT
    latency_s: float | None = None
    kind: str = ""


def architecture(text: str | None) -> str | None:
    """Returns the generation of a server processor by its model name (``AMD EPYC 9575F``: ``turin``)."""
    name = (text or "").upper()
    return next((era for pattern, era in _ERAS if re.search(pattern, name)), None)


def architecture_by_id(vendor: str, family: int, model: int) -> str | None:
    """Returns the same by CPUID: family and model with their extensions, as Linux or NCCL count them.

    NCCL adds the shifted extension to the family without carrying (AMD Rome: 143 for 23).
    """
    maker = "intel" if "intel" in vendor.casefold() else "amd" if "amd" in vendor.casefold() else vendor.casefold()
    plain = (family & 0x0F) + (family >> 4) if family > 0x0F and family >= 0x80 else family
    return _ERAS_BY_ID.get((maker, plain, model))


def estimate_pair(link: Link | None, a: Component, b: Component, cpu: str | None = None) -> Estimate:
    """Returns what a copy from ``a`` to ``b`` over this link sustains.

    Args:
        link: How the two are connected; ``None`` is not known.
        a: The sending device.
        b: The receiving device.
        cpu: Generation of the processors (:func:`architecture`), ``None`` if unknown.
    """
    if link is None:
        return Estimate(None, "nothing says how the two are connected")
    stated = link.bytes_per_s
    if stated.value is not None and stated.source > Source.DEFAULT:
        return _stated(link, stated)
    if link.kind in {"nvlink", "xgmi", "hccs"}:
        return _direct(link, a, b)
    if link.kind in {"pix", "pxb", "phb", "node", "pcie", "sys", "nvb"}:
        return _over_pcie(link, a, b, cpu)
    return Estimate(None, f"no published or measured rate of {link.kind.upper()} links", kind=link.kind)


def estimate_host(device: Component) -> Estimate:
    """Returns what a copy between pinned host memory and a device sustains, either direction."""
    rate, how = _pcie_port(device)
    if rate is None:
        return Estimate(None, how)
    return Estimate(
        rate * PCIE_HOST_RATIO, f"{how}, of which {PCIE_HOST_RATIO:.0%} last", 0.15, kind="pcie", latency_s=2e-6
    )


def estimate_nic(device: Component, nic: Component, link: Link | None) -> Estimate:
    """Returns what a device gets through a NIC, one direction: the slower of the line and its PCI Express path."""
    rate = nic.rate_bytes_per_s.value
    if rate is None:
        return Estimate(None, f"the rate of {nic.name} is not known")
    value, why = rate * RDMA_RATIO, f"{rate / GB:.3g} GB/s line rate of {nic.name}, of which {RDMA_RATIO:.0%} last"
    port, how = _pcie_port(device)
    if port is not None and port * PCIE_PEER_RATIO < value:
        value, why = port * PCIE_PEER_RATIO, f"{how}, of which {PCIE_PEER_RATIO:.0%} last"
    error = 0.2
    if link is None:
        error, why = 0.5, f"{why}; the path between the two is not known"
    elif link.kind == "sys":
        value, error, why = value * FAR_NIC_RATIO, 0.4, f"{why}; half of it as the NIC is on another socket"
    return Estimate(value, why, error, kind=link.kind if link else "net")


def estimate_line(rate_bytes_per_s: float | None, *, is_rdma: bool) -> Estimate:
    """Returns what one NIC's line carries for a pair of processes."""
    if rate_bytes_per_s is None:
        return Estimate(None, "the line rate is not known")
    line = f"{rate_bytes_per_s / GB:.3g} GB/s line rate"
    if is_rdma:
        return Estimate(
            rate_bytes_per_s * RDMA_RATIO, f"{line}, of which {RDMA_RATIO:.0%} last by RDMA", 0.2, latency_s=3e-6
        )
    value = min(rate_bytes_per_s * TCP_RATIO, TCP_SOCKET_BYTES_PER_S)
    return Estimate(value, f"{line} by TCP: {TCP_RATIO:.0%} of it, at most 6 GB/s a pair", 0.4, latency_s=30e-6)


def socket_rate(cpu: str | None, pcie_generation: int | None) -> Estimate:
    """Returns what peer traffic gets from one socket to another, one direction."""
    if cpu in _SOCKET_GB_PER_S:
        rate = _SOCKET_GB_PER_S[cpu] * GB
        return Estimate(rate, f"{rate / GB:g} GB/s between sockets of {cpu.title()} processors", 0.3)
    if pcie_generation in _SOCKET_BY_PCIE_GB_PER_S:
        low, high = _SOCKET_BY_PCIE_GB_PER_S[pcie_generation]
        middle = (low * high) ** 0.5
        return Estimate(
            middle * GB,
            f"{low:g} to {high:g} GB/s between sockets of PCIe {pcie_generation} machines, as the processor is unknown",
            max(high / middle - 1, 1 - low / middle) + 0.2,
            low_bytes_per_s=low * GB,
            high_bytes_per_s=high * GB,
        )
    return Estimate(None, "processors unknown", low_bytes_per_s=6 * GB, high_bytes_per_s=40 * GB)


def peer_port_bytes_per_s(device: Component, kind: str, count: int) -> float | None:
    """Returns what a device sends over all its direct links of a kind together, ``None`` where the rate is unknown."""
    ports = ports_of_device(device)
    if ports is None or ports.peer_link_bytes_per_s is None or ports.peer_kind != kind:
        return None
    return count * ports.peer_link_bytes_per_s * _RATIOS[kind]


def pcie_generation_of(device: Component) -> int | None:
    """Returns the PCI Express generation that a device works at: as read under load, else the highest it can."""
    if device.pci.generation is not None and not device.pci.is_idle_reading:
        return device.pci.generation
    ports = ports_of_device(device)
    return device.pci.max_generation or (ports.pcie_generation if ports else None) or device.pci.generation


_RATIOS = {"nvlink": NVLINK_RATIO, "xgmi": XGMI_RATIO, "hccs": HCCS_RATIO}
_NAMES = {"nvlink": "NVLink", "xgmi": "xGMI", "hccs": "HCCS"}


def ports_of_device(device: Component) -> Ports | None:
    """Returns how a device is connected, by its model, its type in the catalogue, or its architecture's number."""
    found = ports_of(device.model) or ports_of(device.accelerator_type)
    if found is not None:
        return found
    extra = {key.rpartition(".")[2].casefold(): value for key, value in device.extra.items()}
    return ports_of_architecture(extra.get("gcn") or extra.get("gfx"), extra.get("sm") or extra.get("compute_cap"))


def _stated(link: Link, stated: Value[float]) -> Estimate:
    assert stated.value is not None
    said = f"{stated.value / GB:.4g} GB/s, {stated.source.name.lower()}" + (
        f" ({stated.detail})" if stated.detail else ""
    )
    if stated.source >= Source.USER:
        return Estimate(
            stated.value,
            said,
            stated.relative_error,
            source=stated.source,
            kind=link.kind,
            latency_s=link.latency_s.value,
        )
    ratio = _RATIOS.get(link.kind, PCIE_PEER_RATIO)
    return Estimate(
        stated.value * ratio, f"nominal {said}, of which {ratio:.0%} last", 0.25, source=stated.source, kind=link.kind
    )


def _direct(link: Link, a: Component, b: Component) -> Estimate:
    name = _NAMES[link.kind]
    rates = [
        (ports.peer_link_bytes_per_s, ports)
        for ports in (ports_of_device(a), ports_of_device(b))
        if ports is not None and ports.peer_kind == link.kind and ports.peer_link_bytes_per_s is not None
    ]
    ratio = _RATIOS[link.kind]
    if not rates:
        low, high = LINK_RANGES_BYTES_PER_S[link.kind]
        model = a.model or b.model or "an unknown model"
        return Estimate(
            None,
            f"{_links(link, name)} on {model}: {low / GB:.3g} to {high / GB:.3g} GB/s each by generation",
            low_bytes_per_s=low * link.count * ratio,
            high_bytes_per_s=high * link.count * ratio,
            kind=link.kind,
        )
    rate, ports = min(rates, key=lambda entry: entry[0])
    reason = f"{_links(link, name)} of {rate / GB:.4g} GB/s ({ports.family}), of which {ratio:.0%} last"
    error = {"nvlink": 0.12, "xgmi": 0.2, "hccs": 0.4}[link.kind]
    return Estimate(link.count * rate * ratio, reason, error, latency_s=_LATENCIES_S[link.kind], kind=link.kind)


def _links(link: Link, name: str) -> str:
    return f"{link.count} {name} link" + ("" if link.count == 1 else "s")


def _over_pcie(link: Link, a: Component, b: Component, cpu: str | None) -> Estimate:
    (rate_a, how_a), (rate_b, how_b) = _pcie_port(a), _pcie_port(b)
    known = [(rate, how) for rate, how in ((rate_a, how_a), (rate_b, how_b)) if rate is not None]
    kind = "phb" if link.kind == "nvb" else link.kind
    if not known:
        return _unknown_port(kind, how_a)
    rate, how = min(known)
    if len(known) == 1:
        how = f"{how}; the other end's port is not known"
    refusal = _refusal(link, a, b)
    ratio = PCIE_PEER_RATIO if refusal is None else PCIE_HOST_RATIO * STAGED_RATIO
    value, error = rate * ratio, _PCIE_ERRORS[kind]
    reason = f"{how}, of which {ratio:.0%} last"
    if refusal is not None:
        reason, error = f"{refusal}, so staged through host memory: {reason}", 0.3
    if kind == "sys":
        generation = min((g for g in (pcie_generation_of(a), pcie_generation_of(b)) if g), default=None)
        between = socket_rate(cpu, generation)
        if between.bytes_per_s is None:
            return Estimate(
                None, f"across sockets, {between.reason}", low_bytes_per_s=6 * GB, high_bytes_per_s=value, kind=kind
            )
        if between.bytes_per_s < value and refusal is None:
            value, reason, error = between.bytes_per_s, between.reason, between.relative_error or error
    latency = _LATENCIES_S[kind] if refusal is None else STAGED_LATENCY_S
    return Estimate(value, reason, error, latency_s=latency, kind=kind if refusal is None else "staged")


def _unknown_port(kind: str, why: str) -> Estimate:
    """Returns the range from an x16 port of generation 3 to one of generation 5, less the error bar of the kind."""
    slow, fast = (rate * PCIE_PEER_RATIO for rate in (pcie_bytes_per_s(3, 16), pcie_bytes_per_s(5, 16)) if rate)
    low, high = (1 - _PCIE_ERRORS[kind]) * slow, fast
    if kind == "sys":
        low, high = _SOCKET_BY_PCIE_GB_PER_S[3][0] * GB, _SOCKET_BY_PCIE_GB_PER_S[6][0] * GB
    reason = f"{kind.upper()} path, {why}: {low / GB:.3g} to {high / GB:.3g} GB/s by generation"
    return Estimate(None, reason, low_bytes_per_s=low, high_bytes_per_s=high, kind=kind)


def _refusal(link: Link, a: Component, b: Component) -> str | None:
    if link.p2p == "refused":
        return "the driver refuses peer access"
    if link.p2p == "ok":
        return None
    for device in (a, b):
        ports = ports_of_device(device)
        if ports is not None and ports.refuses_p2p:
            return f"the stock driver refuses peer access on {device.model or ports.family}"
    if a.vendor and b.vendor and a.vendor.casefold() != b.vendor.casefold():
        return f"no driver gives {a.vendor} and {b.vendor} peer access"
    return None


def _pcie_port(device: Component) -> tuple[float | None, str]:
    generation = pcie_generation_of(device)
    ports = ports_of_device(device)
    lanes = device.pci.lanes or device.pci.max_lanes or (ports.pcie_lanes if ports else None)
    rate = pcie_bytes_per_s(generation, lanes)
    if rate is None:
        return None, f"the PCI Express port of {device.model or device.name} is not known"
    return rate, f"PCIe {generation} x{lanes} ({rate / GB:.4g} GB/s)"
