"""The machines that probes can look at: this host, a captured directory tree, an archive of one."""

from plait.hardware.contexts.archive import DamagedArchive, archive_tree, looks_like_archive
from plait.hardware.contexts.captured import CapturedContext, DirectoryTree, Tree
from plait.hardware.contexts.live import LiveContext

__all__ = [
    "CapturedContext",
    "DamagedArchive",
    "DirectoryTree",
    "LiveContext",
    "Tree",
    "archive_tree",
    "looks_like_archive",
]
