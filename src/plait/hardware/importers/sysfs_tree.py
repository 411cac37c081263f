"""A captured ``/sys`` as a tar archive, plain or compressed, as ``hwloc-gather-topology`` or ``tar`` makes it."""

from dataclasses import replace

from plait.hardware.contexts import CapturedContext, DamagedArchive, archive_tree, looks_like_archive
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.sysfs import FORMAT, probe_sysfs
from plait.hardware.topology import Fragment


class SysfsTree:
    """Reads an archive of ``/sys`` with the probe that reads the live one."""

    name = FORMAT

    def recognises(self, data: bytes) -> float:
        """Returns how sure it is, by the first bytes: any archive may be one."""
        return 0.9 if looks_like_archive(data) else 0.0

    def read(self, data: bytes, origin: str) -> Fragment:
        """Returns what the captured machine looks like.

        Raises:
            UnreadableDump: the archive is damaged, or there is no ``/sys`` in it.
        """
        try:
            tree, is_whole = archive_tree(data, origin)
        except DamagedArchive as error:
            raise UnreadableDump(str(error)) from None
        fragment = probe_sysfs(CapturedContext(tree), origin)
        if not any(c.kind in {"numa", "cpu"} or c.pci_address for c in fragment.components):
            raise UnreadableDump(f"{origin}: an archive without NUMA nodes, CPUs or PCI devices under sys/devices")
        if is_whole:
            return fragment
        return replace(fragment, unread=(*fragment.unread, f"{origin}: the archive is cut off; read up to there"))
