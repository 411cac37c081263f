"""Readers of what users can paste or capture; one file a kind, one line here."""

from plait.hardware.importers.amd_smi import AmdSmi
from plait.hardware.importers.hwloc_xml import HwlocXml
from plait.hardware.importers.ibnetdiscover import IbNetDiscover
from plait.hardware.importers.ibstat import IbStat
from plait.hardware.importers.importer import Importer, UnreadableDump
from plait.hardware.importers.lspci import Lspci
from plait.hardware.importers.measured_matrices import MeasuredMatrices
from plait.hardware.importers.measured_sweeps import MeasuredSweeps
from plait.hardware.importers.nccl_xml import NcclXml
from plait.hardware.importers.npu_smi import NpuSmiInfo
from plait.hardware.importers.nvidia_smi_table import NvidiaSmiTable
from plait.hardware.importers.nvidia_smi_xml import NvidiaSmiXml
from plait.hardware.importers.rocm_smi import RocmSmi
from plait.hardware.importers.slurm_gres import SlurmGresConf
from plait.hardware.importers.slurm_topology import SlurmTopologyConf
from plait.hardware.importers.slurm_yaml import SlurmTopologyYaml
from plait.hardware.importers.sysfs_tree import SysfsTree
from plait.hardware.importers.topo_matrix import TopologyMatrix
from plait.hardware.topology import Fragment

IMPORTERS: tuple[Importer, ...] = (
    NcclXml(),
    TopologyMatrix(),
    AmdSmi(),
    IbNetDiscover(),
    IbStat(),
    Lspci(),
    MeasuredMatrices(),
    MeasuredSweeps(),
    NpuSmiInfo(),
    NvidiaSmiTable(),
    NvidiaSmiXml(),
    RocmSmi(),
    HwlocXml(),
    SysfsTree(),
    SlurmTopologyConf(),
    SlurmTopologyYaml(),
    SlurmGresConf(),
)
"""Every importer; adding one is one file and one line."""

_SURE_ENOUGH = 0.1
_LOOKED_AT = 4096


def read_dump(data: bytes, origin: str) -> Fragment:
    """Returns what this dump says, read by the importer that is surest that it is of its kind.

    Raises:
        UnreadableDump: no importer recognises it.
    """
    ranked = sorted(((i.recognises(data), i.name, i) for i in IMPORTERS), key=lambda entry: (-entry[0], entry[1]))
    if not ranked or ranked[0][0] < _SURE_ENOUGH:
        raise UnreadableDump(f"{origin}: {_what_it_is(data)}")
    return ranked[0][2].read(data, origin)


def _what_it_is(data: bytes) -> str:
    """Returns what a person should know about data that no importer recognises."""
    if not data.strip():
        return "the file is empty"
    if b"\0" in data[:_LOOKED_AT] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "the file is binary; outputs of tools are text, and captures are tar archives"
    return (
        "nothing in it is known: neither an output of nvidia-smi, amd-smi, rocm-smi, npu-smi, mx-smi, lspci, ibstat, "
        "ibnetdiscover or a bandwidth test, nor XML of NCCL or hwloc, nor a file of Slurm's"
    )
