"""What a PCI function is by the name that ``lspci`` prints, where neither class nor ids are shown."""

import re

from plait.hardware.topology import ComponentKind

_NOT_A_DEVICE = re.compile(
    r"\b(?:Audio|USB|UCSI|Type-C|HDMI|Bridge|(?:Up|Down)stream Port|PCI Express (?:Root|Switch)|Root (?:Port|Complex)"
    r"|Host|Management Interface|SoC|Crypto|DMA (?:interface|engine)|IOMMU|DRAM|SMBus|LPC|SATA|NVMe|Non-Volatile|Sensor"
    r"|PSP|CCP|Encryption|Dummy|Thermal|QPI|UPI|RAID|SAS|AHCI|GPIO|Serial|System Peripheral|Performance|Telemetry"
    r"|Memory Controller|SATADOM|SSD|ISA|Watchdog)\b",
    re.IGNORECASE,
)
_SWITCH = re.compile(r"NVSwitch", re.IGNORECASE)
_BRIDGE = re.compile(
    r"\b(?:PCI(?:e|-to-PCI| Express)?.{0,40}\b(?:Switch|Bridge|Root Port)|PEX ?\d{4}|PEX890\d\d"
    r"|(?:Up|Down)stream Port|Root Port|PLX Technology)\b",
    re.IGNORECASE,
)
_NIC = re.compile(
    r"ConnectX|\bMT2\d{3,4}\b|BlueField.*(?:network|ConnectX)|Ethernet|InfiniBand|Omni-Path"
    r"|Network (?:Adapter|Connection|device)|Elastic (?:Fabric|Network)|\b(?:ENA|EFA)\b|NetXtreme|vmxnet"
    r"|\b(?:I210|I350|X540|X550|X710|XL710|XXV710|E810|82599)\b"
    r"|FastLinQ|\bVIC\b|\bT[56]\d\d-|Slingshot|Cassini|Hi1822|gVNIC|\bMANA\b|RTL81\d\d",
    re.IGNORECASE,
)
_GPU_OF_BOARD = re.compile(r"\b(?:ASPEED|Matrox|Cirrus|QXL|Bochs|VirtualBox|VMware|Hyper-V|MGA G200)\b", re.IGNORECASE)
_ACCELERATORS: tuple[tuple[re.Pattern[str], str, ComponentKind], ...] = (
    (re.compile(r"\bNVIDIA\b", re.IGNORECASE), "nvidia", "gpu"),
    (
        re.compile(r"Instinct|Radeon|FirePro|Aldebaran|Arcturus|\bMI\d{2,3}[AXP]?\b|\[AMD/ATI\]|\b(?:Navi|Vega) \d"),
        "amd",
        "gpu",
    ),
    (re.compile(r"Data Center GPU|Ponte Vecchio|\bArc\b|\bBattlemage\b|\bDG2\b|UHD Graphics|Iris"), "intel", "gpu"),
    (re.compile(r"Gaudi|Habana", re.IGNORECASE), "habana", "npu"),
    (re.compile(r"(?:Huawei|HUAWEI).*(?:Ascend|Davinci|Device d[58]0[0-9a-f])|\bAscend\b"), "huawei", "npu"),
    (re.compile(r"Cambricon|\bMLU\d"), "cambricon", "npu"),
    (re.compile(r"MetaX"), "metax", "gpu"),
    (re.compile(r"Moore ?Threads|\bMTT S\d"), "moorethreads", "gpu"),
    (re.compile(r"Iluvatar"), "iluvatar", "gpu"),
    (re.compile(r"Hygon.*(?:DCU|Z100|K100|BW\d)|Haiguang.*DCU"), "hygon", "gpu"),
    (re.compile(r"Biren|Enflame|Kunlun", re.IGNORECASE), "other", "npu"),
)


def kind_of_pci_name(name: str, *, is_first_function: bool) -> tuple[ComponentKind, str | None]:
    """Returns kind and vendor word; ``other`` and ``None`` where the name does not say.

    Accelerators are first functions: sound and USB controllers on the same board share their chip's name.
    """
    if _SWITCH.search(name):
        return "switch", "nvidia"
    is_part_of_dpu = "BlueField" in name and not re.search(r"network|ConnectX|Ethernet|Virtual", name, re.IGNORECASE)
    if _NIC.search(name) and not is_part_of_dpu and not re.search(r"Management Interface|\bSoC\b|DMA|Crypto", name):
        return "nic", "mellanox" if re.search(r"Mellanox|ConnectX|BlueField", name) else None
    if _BRIDGE.search(name):
        return "bridge", None
    if _NOT_A_DEVICE.search(name) or _GPU_OF_BOARD.search(name):
        return "other", None
    for pattern, vendor, kind in _ACCELERATORS:
        if is_first_function and pattern.search(name):
            return kind, None if vendor == "other" else vendor
    return "other", None
