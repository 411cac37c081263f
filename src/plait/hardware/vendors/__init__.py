"""What is on this machine, vendor by vendor; one file a vendor, one line here."""

from plait.hardware.vendors.amd import Amd
from plait.hardware.vendors.ascend import Ascend
from plait.hardware.vendors.cpu import Cpu
from plait.hardware.vendors.fake import Fake
from plait.hardware.vendors.jetson import Jetson
from plait.hardware.vendors.nvidia import Nvidia
from plait.hardware.vendors.vendor import Vendor

VENDORS: tuple[Vendor, ...] = (Nvidia(), Amd(), Ascend(), Jetson(), Fake(), Cpu())
"""Every vendor; adding one is one file and one line."""

__all__ = ["VENDORS", "Vendor"]
