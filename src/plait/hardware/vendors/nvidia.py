"""NVIDIA GPUs: NVML where its library and ``nvidia-ml-py`` are there, else the outputs of ``nvidia-smi``."""

from plait.hardware.context import Context
from plait.hardware.contexts import LiveContext
from plait.hardware.sysfs_files import text_of
from plait.hardware.topology import Fragment
from plait.hardware.vendors.vendor import has_command, pci_functions, read_outputs

_VENDOR_ID = 0x10DE
_DRIVER = "/proc/driver/nvidia/version"
_LIBRARY = "libnvidia-ml.so.1"
_PLACES = ("/usr/bin", "/usr/lib/wsl/lib", "/usr/local/nvidia/bin")


class Nvidia:
    """Asks NVML, function by function: an old driver that lacks one costs that fact alone."""

    name = "nvidia"
    ways: tuple[str, ...] = ("NVML", "nvidia-smi")
    finds: tuple[str, ...] = (
        "model", "UUID", "memory and its use", "PCIe port", "NVLink and P2P of pairs", "MIG instances", "health",
        "power", "driver",
    )  # fmt: skip
    visibility: tuple[str, ...] = ("CUDA_VISIBLE_DEVICES",)

    def trace(self, ctx: Context) -> str | None:
        """Returns the PCI function, the driver, the tool or the library that shows an NVIDIA GPU."""
        if is_tegra(ctx):
            return None
        functions = pci_functions(ctx, _VENDOR_ID, (0x03,))
        if functions:
            return f"PCI function {functions[0]}"
        if ctx.read(_DRIVER) is not None:
            return _DRIVER
        tool = has_command(ctx, "nvidia-smi", _PLACES)
        if tool is not None:
            return tool
        directories = [*ctx.env.get("LD_LIBRARY_PATH", "").split(":"), "/usr/lib/wsl/lib"]
        return next((f"{place}/{_LIBRARY}" for place in directories if place and _LIBRARY in ctx.list(place)), None)

    def probe(self, ctx: Context, *, use_library: bool = True) -> Fragment:
        """Returns GPUs, MIG instances, NVLink and the paths of pairs."""
        why = ""
        if use_library and isinstance(ctx, LiveContext):
            from plait.hardware.vendors.nvml import read_nvml

            found = read_nvml()
            if found.error is None:
                return found
            why = f"NVML: {found.error}"
        tool = has_command(ctx, "nvidia-smi", _PLACES)
        if tool is None:
            return Fragment(origin="nvidia probe", format=self.name, error=why or "no nvidia-smi on the path")
        said = read_outputs(ctx, [(tool, "-q", "-x"), (tool, "topo", "-m")], self.name)
        if why and said.error is None:
            return _with_warning(said, f"nvidia: {why}; the figures are those of nvidia-smi")
        return said if not why else _with_error(said, why)


def is_tegra(ctx: Context) -> bool:
    """Whether this is a Jetson: its GPU is part of the chip, and the vendor ``jetson`` reads it."""
    compatible = ctx.read("/proc/device-tree/compatible") or b""
    return b"nvidia,tegra" in compatible or "tegra" in (text_of(ctx, "/sys/devices/soc0/family") or "").lower()


def _with_warning(fragment: Fragment, warning: str) -> Fragment:
    import dataclasses

    return dataclasses.replace(fragment, warnings=(*fragment.warnings, warning))


def _with_error(fragment: Fragment, why: str) -> Fragment:
    import dataclasses

    return dataclasses.replace(fragment, error=f"{why}; {fragment.error}")
