"""AMD GPUs: amdsmi where it works, and always the files of the kernel's own drivers, which need no library.

Links, memory and partitions come from KFD (:mod:`plait.hardware.sysfs_kfd`), the ground of every picture of a machine;
this file adds what only the vendor's library or the amdgpu driver tells: names, compute units, power, memory errors.
"""

import dataclasses

from plait.hardware.context import Context
from plait.hardware.contexts import LiveContext
from plait.hardware.pci import normal_address
from plait.hardware.sysfs_files import number_of, properties_of, text_of
from plait.hardware.sysfs_kfd import NODES
from plait.hardware.topology import Component, Fragment
from plait.hardware.values import Source, Value
from plait.hardware.vendors.vendor import has_command, pci_functions, read_outputs

_VENDOR_ID = 0x1002
_PLACES = ("/opt/rocm/bin", "/usr/bin")
_NO_CAP = 2**32 - 1


class Amd:
    """Reads amdgpu's files, then asks amdsmi, or rocm-smi where that does not work."""

    name = "amd"
    ways: tuple[str, ...] = ("amdsmi", "rocm-smi", "KFD and amdgpu files")
    finds: tuple[str, ...] = (
        "model", "UUID", "memory and its use", "compute units", "xGMI and PCIe links", "partitions", "health", "power",
    )  # fmt: skip
    visibility: tuple[str, ...] = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")

    def trace(self, ctx: Context) -> str | None:
        """Returns the KFD node, the accelerator or the tool that shows an AMD GPU."""
        for node in ctx.list(NODES):
            if properties_of(ctx, f"{NODES}/{node}/properties").get("simd_count"):
                return f"{NODES}/{node}"
        functions = pci_functions(ctx, _VENDOR_ID, (0x12,)) or pci_functions(ctx, _VENDOR_ID, (0x03,))
        return f"PCI function {functions[0]}" if functions else has_command(ctx, "rocm-smi", _PLACES)

    def probe(self, ctx: Context, *, use_library: bool = True) -> Fragment:
        """Returns the GPUs with what the library or the tool adds to the kernel's files."""
        from plait.hardware.merge import merge

        files = _from_files(ctx)
        why = ""
        if use_library and isinstance(ctx, LiveContext):
            from plait.hardware.vendors.amdsmi_library import read_amdsmi

            said = read_amdsmi()
            if said.error is None:
                return merge([said, files]) if files.components else said
            why = f"amdsmi: {said.error}"
        tool = has_command(ctx, "rocm-smi", _PLACES)
        if tool is not None:
            told = read_outputs(ctx, [(tool, "--showtopo"), (tool, "--showtoponuma")], self.name)
            if told.error is None:
                files = merge([told, files]) if files.components else told
            else:
                why = "; ".join(filter(None, (why, told.error)))
        if not files.components:
            return dataclasses.replace(files, error=why or "neither KFD nor a tool shows a GPU")
        return dataclasses.replace(files, warnings=(*files.warnings, *([f"amd: {why}"] if why else ())))


def _from_files(ctx: Context) -> Fragment:
    """Returns the GPUs as amdgpu and KFD describe them in files."""
    units = _compute_units(ctx)
    found = []
    for address in pci_functions(ctx, _VENDOR_ID, (0x03, 0x12)):
        at = f"/sys/bus/pci/devices/{address}"
        extra = {word: text for word, text in _readings(ctx, at, units.get(address)).items() if text is not None}
        found.append(
            Component(
                key=address,
                name=address,
                kind="gpu",
                vendor="amd",
                model=text_of(ctx, f"{at}/product_name") or None,
                pci_address=address,
                memory_bytes=Value(number_of(ctx, f"{at}/mem_info_vram_total"), Source.SYSFS, "amdgpu"),
                health=_health(ctx, at),
                extra=extra,
            )
        )
    return Fragment(origin="/sys", format="amd", components=tuple(found), source=Source.SYSFS)


def _readings(ctx: Context, at: str, compute_units: int | None) -> dict[str, str | None]:
    watts = {}
    for directory in ctx.list(f"{at}/hwmon"):
        for word, names in (("power_w", ("power1_average", "power1_input")), ("power_limit_w", ("power1_cap",))):
            value = next((v for n in names if (v := number_of(ctx, f"{at}/hwmon/{directory}/{n}")) is not None), None)
            if value is not None and value < _NO_CAP:
                watts[word] = f"{value / 1e6:g}"
    used = number_of(ctx, f"{at}/mem_info_vram_used")
    return {
        "compute_units": None if compute_units is None else str(compute_units),
        "partition": text_of(ctx, f"{at}/current_compute_partition"),
        "memory_used_bytes": None if used is None else str(used),
        "power_w": watts.get("power_w"),
        "power_limit_w": watts.get("power_limit_w"),
    }


def _compute_units(ctx: Context) -> dict[str, int]:
    """Returns the compute units by PCI address: SIMD units over those of one compute unit."""
    found: dict[str, int] = {}
    for node in ctx.list(NODES):
        told = properties_of(ctx, f"{NODES}/{node}/properties")
        each = told.get("simd_per_cu", 0)
        place = told.get("location_id", 0)
        if told.get("simd_count") and each:
            text = f"{told.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
            found.setdefault(normal_address(text) or text, told["simd_count"] // each)
    return found


def _health(ctx: Context, at: str) -> str | None:
    """Returns ``ok``, or how many memory errors were not corrected; ``None`` where the driver counts none."""
    counts = text_of(ctx, f"{at}/ras/umc_err_count")
    if counts is None:
        return None
    words = counts.replace(":", " ").split()
    try:
        errors = int(words[words.index("ue") + 1])
    except (ValueError, IndexError):
        return None
    return f"{errors} uncorrectable memory errors" if errors else "ok"
