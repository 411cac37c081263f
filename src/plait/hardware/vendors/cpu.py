"""The machine itself: its processors as one device, and all that Linux shows of NUMA nodes, PCI functions and NICs."""

import dataclasses
import re

from plait.hardware.context import Context
from plait.hardware.cpusets import cpus_of_list
from plait.hardware.sysfs_files import text_of
from plait.hardware.topology import Component, Fragment, Locality
from plait.hardware.values import Source, Value

_NAMES = ("model name", "Hardware", "cpu model", "Model", "cpu")
"""Keys of ``/proc/cpuinfo`` that hold the model, on x86, old ARM, MIPS and POWER."""


class Cpu:
    """Reads ``/proc``, ``/sys`` and control groups; needs nothing."""

    name = "cpu"
    ways: tuple[str, ...] = ("/proc and /sys",)
    finds: tuple[str, ...] = (
        "model", "cores and memory of this process", "NUMA nodes", "PCI functions", "NICs with rates", "KFD links",
    )  # fmt: skip
    visibility: tuple[str, ...] = ()

    def trace(self, ctx: Context) -> str | None:  # noqa: ARG002
        """Returns that there is always a processor."""
        return "every machine has one"

    def probe(self, ctx: Context, *, use_library: bool = True) -> Fragment:  # noqa: ARG002
        """Returns the processors as one component ``cpu`` with what this process may use of them, and the ground.

        The ground (:mod:`plait.hardware.sysfs`) is every NUMA node, PCI function and NIC, by the keys that merge.
        """
        from plait.hardware.sysfs import probe_sysfs

        ground = probe_sysfs(ctx)
        components = (processors(ctx), *ground.components)
        return dataclasses.replace(ground, components=components, source=Source.SYSFS)


def processors(ctx: Context) -> Component:
    """Returns all processors as one device, as far as the affinity and the control group let this process use them."""
    info = text_of(ctx, "/proc/cpuinfo") or ""
    model, cpus = _model(info), _allowed_cpus(ctx)
    memory, how = _memory_bytes(ctx)
    extra = {"cores": str(len(cpus))} if cpus else {}
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    if flags:
        wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")
        extra["instructions"] = " ".join(word for word in wanted if word in flags[1].split())
    quota = _quota_cores(ctx)
    if quota is not None:
        extra["quota_cores"] = f"{quota:g}"
    return Component(
        key="cpu",
        name="CPU",
        kind="cpu",
        index=0,
        model=model,
        accelerator_type="CPU",
        memory_bytes=Value(memory, Source.SYSFS, how),
        locality=Locality(cpus=cpus, why_unknown="" if cpus else "not shown in /proc"),
        health="ok",
        extra={**extra, "match": f"all processors as one device ({model or 'model not shown'})"},
    )


def _model(info: str) -> str | None:
    for key in _NAMES:
        found = re.search(rf"^{key}\s*:\s*(\S.*)$", info, re.MULTILINE)
        if found and not found[1].strip().isdigit():
            return " ".join(found[1].split())
    return None


def _allowed_cpus(ctx: Context) -> frozenset[int] | None:
    status = text_of(ctx, "/proc/self/status") or ""
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
    if allowed:
        return cpus_of_list(allowed[1])
    return cpus_of_list(text_of(ctx, "/sys/devices/system/cpu/online") or "")


def _memory_bytes(ctx: Context) -> tuple[int | None, str]:
    """Returns the memory of the machine, or the limit of the control group where that is lower."""
    total = re.search(r"^MemTotal:\s*(\d+) kB", text_of(ctx, "/proc/meminfo") or "", re.MULTILINE)
    machine = int(total[1]) * 1024 if total else None
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = text_of(ctx, path)
        if text is not None and text.isdigit() and (machine is None or int(text) < machine):
            return int(text), f"limit of the control group, {path}"
    return machine, "/proc/meminfo" if machine is not None else "not shown in /proc"


def _quota_cores(ctx: Context) -> float | None:
    words = (text_of(ctx, "/sys/fs/cgroup/cpu.max") or "").split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        return int(words[0]) / int(words[1])
    return None
