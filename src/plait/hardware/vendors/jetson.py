"""NVIDIA Jetson: a GPU inside the chip that shares the host's memory, without a PCI address and mostly without NVML."""

import re

from plait.hardware.context import Context
from plait.hardware.sysfs_files import number_of, text_of
from plait.hardware.topology import Component, Fragment
from plait.hardware.values import Source, Value
from plait.hardware.vendors.nvidia import is_tegra
from plait.hardware.vendors.vendor import has_command

_SENSORS = "/sys/bus/i2c/drivers/ina3221"
_WHOLE_BOARD = {"VDD_IN", "VIN_SYS_5V0", "VDD_GPU_SOC"}
_HOT_MILLIDEGREES = 95_000


class Jetson:
    """Reads the device tree, the sensors of the board and ``nvpmodel``."""

    name = "jetson"
    ways: tuple[str, ...] = ("device tree and sensors", "nvpmodel")
    finds: tuple[str, ...] = ("model", "memory shared with the host", "power", "power mode", "temperature")
    visibility: tuple[str, ...] = ("CUDA_VISIBLE_DEVICES",)

    def trace(self, ctx: Context) -> str | None:
        """Returns the device tree's word where this is a Tegra chip."""
        return "/proc/device-tree/compatible" if is_tegra(ctx) else None

    def probe(self, ctx: Context, *, use_library: bool = True) -> Fragment:  # noqa: ARG002
        """Returns the one GPU of the board."""
        if not is_tegra(ctx):
            return Fragment(origin="/proc/device-tree", format=self.name, error="the device tree names no Tegra chip")
        model = text_of(ctx, "/proc/device-tree/model")
        total = re.search(r"^MemTotal:\s*(\d+) kB", text_of(ctx, "/proc/meminfo") or "", re.MULTILINE)
        hottest = _hottest_millidegrees(ctx)
        extra = {
            "shares_host_memory": "yes",
            "power_mode": _power_mode(ctx),
            "power_w": _power_w(ctx),
            "temperature_c": None if hottest is None else f"{hottest / 1000:g}",
            "release": (text_of(ctx, "/etc/nv_tegra_release") or "").split(",")[0].lstrip("# ") or None,
        }
        gpu = Component(
            key="tegra-gpu",
            name="GPU0",
            kind="gpu",
            vendor="nvidia",
            model=model,
            index=0,
            memory_bytes=Value(
                int(total[1]) * 1024 if total else None, Source.SYSFS, "/proc/meminfo, shared with the host"
            ),
            health=None if hottest is None else "slowed: hot" if hottest >= _HOT_MILLIDEGREES else "ok",
            extra={key: value for key, value in extra.items() if value is not None},
        )
        return Fragment(origin="/proc/device-tree", format=self.name, components=(gpu,), source=Source.SYSFS)


def _power_mode(ctx: Context) -> str | None:
    tool = has_command(ctx, "nvpmodel", ("/usr/sbin",))
    if tool is None:
        return None
    said = re.search(r"NV Power Mode:\s*(\S+)", ctx.run((tool, "-q")).stdout)
    return said[1] if said else None


def _power_w(ctx: Context) -> str | None:
    """Returns what the board draws by its own sensor, millivolts times milliamperes."""
    for device in ctx.list(_SENSORS):
        for monitor in ctx.list(f"{_SENSORS}/{device}/hwmon"):
            at = f"{_SENSORS}/{device}/hwmon/{monitor}"
            for channel in (1, 2, 3):
                if text_of(ctx, f"{at}/in{channel}_label") in _WHOLE_BOARD:
                    millivolts = number_of(ctx, f"{at}/in{channel}_input")
                    milliamperes = number_of(ctx, f"{at}/curr{channel}_input")
                    if millivolts is not None and milliamperes is not None:
                        return f"{millivolts * milliamperes / 1e6:.3g}"
    return None


def _hottest_millidegrees(ctx: Context) -> int | None:
    zones = (f"/sys/class/thermal/{name}" for name in ctx.list("/sys/class/thermal") if name.startswith("thermal_zone"))
    found = [number_of(ctx, f"{zone}/temp") for zone in zones if "gpu" in (text_of(ctx, f"{zone}/type") or "").lower()]
    return max((value for value in found if value is not None), default=None)
