"""What people paste, one small example a tool: what is read, in which units, and what stays unknown."""

import json

import pytest

from plait.hardware.importers import IMPORTERS, read_dump
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.paste import read_paste
from plait.hardware.topology import Fragment
from plait.hardware.values import Source


def read(text: str) -> Fragment:
    return read_dump(text.encode(), "paste")


def wires(fragment: Fragment) -> set[tuple[str, str, str, int]]:
    return {(link.a, link.b, link.kind, link.count) for link in fragment.links}


TOPO = """\
$ nvidia-smi topo -m
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tPXB\t0-31,64-95\t0\t\tN/A
GPU1\tNV12\t X \tSYS\t32-63,96-127\t1\t\tN/A
NIC0\tPXB\tSYS\t X \t\t\t

NIC Legend:

  NIC0: mlx5_bond_0
"""


def test_a_matrix_gives_devices_links_and_affinities() -> None:
    found = read(TOPO)
    assert wires(found) == {("GPU0", "GPU1", "nvlink", 12), ("GPU0", "NIC0", "pxb", 1), ("GPU1", "NIC0", "sys", 1)}
    gpu = found.component("GPU1")
    assert gpu is not None
    assert gpu.locality.cpus == frozenset({*range(32, 64), *range(96, 128)})
    assert (gpu.locality.numa_nodes, gpu.locality.gpu_numa_node, gpu.vendor, gpu.index) == ((1,), None, "nvidia", 1)
    nic = found.component("NIC0")
    assert nic is not None
    assert (nic.kind, nic.vendor, nic.extra["rdma_device"]) == ("nic", None, "mlx5_bond_0")


def test_a_second_table_of_peer_access_joins_the_links_and_replaces_none() -> None:
    p2p = "$ nvidia-smi topo -p2p r\n \tGPU0\tGPU1\n GPU0\tX\tGNS\n GPU1\tGNS\tX\n\nLegend:\n\n  OK   = Status Ok\n"
    found = read(TOPO + "\n" + p2p)
    link = next(link for link in found.links if link.b == "GPU1")
    assert (link.kind, link.count, link.p2p) == ("nvlink", 12, "refused")
    alone = read(p2p)
    assert [(link.kind, link.p2p) for link in alone.links] == [("unknown", "refused")]


def test_halves_that_disagree_are_a_conflict_and_both_are_kept() -> None:
    found = read(TOPO.replace("GPU1\tNV12", "GPU1\tNV10"))
    assert {(link.a, link.b, link.raw) for link in found.links if "NIC0" not in {link.a, link.b}} == {
        ("GPU0", "GPU1", "NV12"),
        ("GPU1", "GPU0", "NV10"),
    }
    assert [conflict.subject for conflict in found.conflicts] == ["link of GPU0 and GPU1"]


def test_a_cell_that_cannot_be_read_is_no_link_and_is_told() -> None:
    found = read(TOPO.replace("NV12", "N?12", 1).replace("GPU1\tNV12", "GPU1\tN?12"))
    assert ("GPU0", "GPU1") not in {(link.a, link.b) for link in found.links}
    assert len(found.unread) == 2
    assert "N?12" in found.unread[0]


def test_a_row_that_lost_a_cell_keeps_what_the_diagonal_places() -> None:
    found = read(TOPO.replace("GPU1\tNV12\t X \tSYS", "GPU1\tNV12\t X "))
    assert ("GPU1", "NIC0", "sys", 1) in wires(found)  # the other half says it
    lost = read(
        "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0 X SYS PIX\nGPU1 PHB X PHB PHB\nGPU2 PHB PHB X PIX\nGPU3 PHB PHB PIX X\n"
    )
    assert ("GPU0", "GPU1", "phb", 1) in wires(lost)
    assert "sys" not in {link.kind for link in lost.links}


@pytest.mark.parametrize("printed", ["0-1", "N/A", "-1", ""])
def test_numa_affinities_that_say_nothing_are_unknown_with_a_reason(printed: str) -> None:
    text = (
        f"\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t0-95\t{printed}\nGPU1\tPHB\t X \t0-95\t{printed}\n"
    )
    localities = [component.locality for component in read(text).components]
    assert all(locality.numa_nodes is None and locality.why_unknown for locality in localities)
    assert all(locality.cpus == frozenset(range(96)) for locality in localities)


def test_ranges_that_differ_between_devices_are_nodes() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-15\t0-1\nGPU1\tSYS\t X \t16-31\t2-3\n"
    assert [c.locality.numa_nodes for c in read(text).components] == [(0, 1), (2, 3)]


def test_topo_without_nvlink_hides_it_and_a_cut_legend_does_not_say_so() -> None:
    legend = "\nLegend:\n\n  X    = Self\n  PHB  = bridge\n  PXB  = bridges\n  PIX  = one bridge\n"
    matrix = "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n"
    assert read(matrix + legend).hides == ("nvlink",)
    assert read(matrix + legend + "  NV#  = a bonded set\n").hides == ()
    assert read("nvidia-smi topo -mp\n" + matrix).hides == ("nvlink",)


def test_eight_accelerators_all_across_sockets_are_warned_of() -> None:
    names = [f"GPU{i}" for i in range(8)]
    rows = "".join(f"{a}\t" + "\t".join(" X " if a == b else "SYS" for b in names) + "\n" for a in names)
    found = read("\t" + "\t".join(names) + "\n" + rows)
    assert len(found.links) == 28
    assert "all 8 accelerators are SYS" in found.warnings[0]


def test_a_table_pasted_with_the_matrix_names_its_devices() -> None:
    found = read(TABLE.replace("|   0  ", "|   1  ").replace("1A:00", "2B:00") + TABLE + TOPO)
    assert [(c.name, c.model, c.pci_address) for c in found.components if c.kind == "gpu"] == [
        ("GPU0", "NVIDIA H100 80GB HBM3", "0000:1a:00.0"),
        ("GPU1", "NVIDIA H100 80GB HBM3", "0000:2b:00.0"),
    ]
    assert read(TABLE + TOPO).components[0].model is None  # a table of one GPU is not that of two


XPU = """\
         GPU 0/0|GPU 0/1|GPU 1/0|CPU Affinity
GPU 0/0 |S      |MDF    |XL16   |0-23
GPU 0/1 |MDF    |S      |XL*    |0-23
GPU 1/0 |XL16   |XL*    |S      |24-47
"""
NPU = """\
           Phy-ID12   Phy-ID13
Phy-ID12   X          HCCS_SW
Phy-ID13   HCCS_SW    X
"""
MLU = """\
$ cnmon topo -m
     MLU0 MLU1 MLU2 CPU Affinity
MLU0 X MLK CPU 0-31
MLU1 MLK X CPU 0-31
MLU2 CPU CPU X 0-31
"""
MTT = """\
$ mthreads-gmi topo -m
\tGPU0\tGPU1\tCPU Affinity
GPU0\t X \tMT2\t0-31
GPU1\tMT2\t X \t0-31
"""
METAX = """\
mx-smi  version: 2.2.9
\tGPU0\tGPU1\tNode Affinity\tCPU Affinity
GPU0\tX\tMX\t0\t0-31
GPU1\tMX\tX\t1\t32-63
"""
OTHER_MATRICES = {
    "intel": (XPU, {("0/0", "0/1", "mdf", 1), ("0/0", "1/0", "xelink", 16), ("0/1", "1/0", "xelink", 1)}),
    "huawei": (NPU, {("Phy-ID12", "Phy-ID13", "hccs", 1)}),
    "cambricon": (MLU, {("MLU0", "MLU1", "mlulink", 1)}),
    "moorethreads": (MTT, {("GPU0", "GPU1", "mtlink", 2)}),
    "metax": (METAX, {("GPU0", "GPU1", "mx", 1)}),
}


@pytest.mark.parametrize("vendor", OTHER_MATRICES)
def test_other_vendors_matrices_are_read_by_their_own_words(vendor: str) -> None:
    text, expected = OTHER_MATRICES[vendor]
    found = read(text)
    assert {(a.removeprefix("GPU "), b.removeprefix("GPU "), kind, n) for a, b, kind, n in wires(found)} == expected
    assert {component.vendor for component in found.components} == {vendor}


def test_the_node_may_stand_in_front_of_the_cpus() -> None:
    assert [(c.locality.numa_nodes, len(c.locality.cpus or ())) for c in read(METAX).components] == [
        ((0,), 32),
        ((1,), 32),
    ]


TABLE = """\
| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4     |
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1A:00.0 Off |                   On |
| N/A   42C    P0             98W /  700W |      59MiB /  81559MiB |     N/A      Default |
"""


def test_the_table_of_nvidia_smi_gives_bytes_and_parts() -> None:
    mig = "| MIG devices:   |\n|  0    2   0   0  |   26MiB / 40448MiB    | 60      0 |  3   0    3    0    3 |\n"
    gpu, part = read(TABLE + mig).components
    assert (gpu.key, gpu.memory_bytes.value, gpu.memory_bytes.source) == ("0000:1a:00.0", 81559 * 2**20, Source.CLI)
    assert (gpu.extra["driver_version"], gpu.extra["power_limit"]) == ("550.54.15", "700 W")
    assert (part.parent, part.memory_bytes.value) == (gpu.key, 40448 * 2**20)


def test_the_list_of_nvidia_smi_gives_uuids() -> None:
    text = "GPU 0: NVIDIA A100 (UUID: GPU-11111111-2222)\n  MIG 1g.5gb      Device  0: (UUID: MIG-33333333-4444)\n"
    gpu, part = read(text).components
    assert (gpu.uuid, part.parent, part.extra["profile"]) == ("GPU-11111111-2222", gpu.key, "1g.5gb")


XML = """<?xml version="1.0"?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>535.1</driver_version><attached_gpus>1</attached_gpus>
<gpu id="00000000:07:00.0"><product_name>NVIDIA A100-SXM4-40GB</product_name><performance_state>P8</performance_state>
<mig_devices><mig_device><index>3</index><fb_memory_usage><total>4864 MiB</total></fb_memory_usage></mig_device>
</mig_devices>
<pci><pci_gpu_link_info><pcie_gen><max_link_gen>4</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen>
<link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths></pci_gpu_link_info>
</pci>
<fb_memory_usage><total>40960 MiB</total></fb_memory_usage></gpu></nvidia_smi_log>
"""


def test_the_log_of_nvidia_smi_gives_ports_and_says_that_an_idle_one_reads_low() -> None:
    gpu, part = read(XML).components
    port = gpu.pci
    assert (port.generation, port.lanes, port.max_generation, port.max_lanes) == (1, 8, 4, 16)
    assert port.is_idle_reading
    assert (gpu.memory_bytes.value, part.memory_bytes.value, part.name) == (40960 * 2**20, 4864 * 2**20, "GPU0 MIG 3")


def test_a_cut_log_keeps_what_was_closed_and_half_a_word_is_none() -> None:
    (gpu,) = read(XML[: XML.index("A100-SXM4") + 4]).components
    assert (gpu.key, gpu.model, gpu.memory_bytes.value) == ("0000:07:00.0", None, None)


def test_entities_are_refused_and_a_doctype_is_not() -> None:
    bomb = XML.replace('"nvsmi_device_v12.dtd">', '"x" [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>')
    with pytest.raises(UnreadableDump, match="entity"):
        read(bomb)


def test_two_dies_of_a_card_are_two_npus_by_their_physical_numbers() -> None:
    text = (
        "| npu-smi 25.3.rc1    Version: 25.3.rc1   |\n"
        "| 0     Ascend910           | OK            | 166.4       43                0    / 0             |\n"
        "| 0     4                   | 0000:9D:00.0  | 0           0    / 0          3158 / 65536         |\n"
        "| 0     Ascend910           | Warning       | -           43                0    / 0             |\n"
        "| 1     5                   | 0000:9F:00.0  | 0           0    / 0          2882 / 65536         |\n"
        "| 0       0                 | 1234567       | python                   | 100                     |\n"
    )
    found = read(text).components
    assert [(c.name, c.key, c.health, c.memory_bytes.value) for c in found] == [
        ("NPU4", "0000:9d:00.0", "OK", 2**36),
        ("NPU5", "0000:9f:00.0", "Warning", 2**36),
    ]


def test_link_types_under_a_wrong_title_are_links_and_wrong_nodes_a_conflict() -> None:
    text = (
        "========== Weight between two GPUs ==========\n"
        "       GPU0         GPU1         GPU2\n"
        "GPU0   0            XGMI         XXXX\n"
        "GPU1   XGMI         0            XGMI\n"
        "GPU2   XXXX         XGMI         0\n"
        "GPU[0]\t\t: (Topology) Numa Node: 0\nGPU[0]\t\t: (Topology) Numa Affinity: 0\n"
        "GPU[1]\t\t: (Topology) Numa Node: 0\nGPU[1]\t\t: (Topology) Numa Affinity: 3\n"
        "GPU[2]\t\t: (Topology) Numa Node: -1\n"
    )
    found = read(text)
    assert wires(found) == {("GPU0", "GPU1", "xgmi", 1), ("GPU1", "GPU2", "xgmi", 1)}
    assert list(found.tables) == ["Weight"]
    assert [c.locality.numa_nodes for c in found.components] == [(0,), None, None]
    assert [conflict.subject for conflict in found.conflicts] == ["NUMA node of GPU1"]


AMD_TABLES = """\
ACCESS TABLE:
             0000:05:00.0 0000:26:00.0
0000:05:00.0 ENABLED      DISABLED
0000:26:00.0 ENABLED      ENABLED

LINK TYPE TABLE:
             0000:05:00.0 0000:26:00.0
0000:05:00.0 SELF         XGMI
0000:26:00.0 XGMI         SELF

NUMA BW TABLE:
             0000:05:00.0 0000:26:00.0
0000:05:00.0 N/A          50000-50000
0000:26:00.0 50000-50000  N/A
"""


def test_amd_smi_says_the_same_as_text_and_as_json() -> None:
    addresses = ["0000:05:00.0", "0000:26:00.0"]
    sources = [
        {
            "gpu": i,
            "bdf": here,
            "links": [
                {
                    "bdf": there,
                    "link_status": "DISABLED" if (i, j) == (0, 1) else "ENABLED",
                    "link_type": "SELF" if i == j else "XGMI",
                    "bandwidth": "N/A" if i == j else "50000-50000",
                }
                for j, there in enumerate(addresses)
            ],
        }
        for i, here in enumerate(addresses)
    ]
    text, as_json = read(AMD_TABLES), read(json.dumps(sources, indent=4))
    assert text.links == as_json.links
    assert text.tables == as_json.tables
    (link,) = text.links
    assert (link.kind, link.p2p, link.bytes_per_s.value) == ("xgmi", "refused", None)


def test_a_port_that_is_down_prints_a_rate_and_carries_nothing() -> None:
    text = (
        "CA 'mlx5_0'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Active\n\t\tRate: 400\n\t\tLink layer: InfiniBand\n"
        "\tPort 2:\n\t\tState: Down\n\t\tRate: 10\n\t\tLink layer: InfiniBand\n"
    )
    whole, first, second = read(text).components
    assert (whole.rate_bytes_per_s.value, first.rate_bytes_per_s.value, second.rate_bytes_per_s.value) == (
        None,
        5e10,
        None,
    )
    assert (second.parent, second.extra["rate_gbps"], second.extra["state"]) == ("mlx5_0", "10", "Down")


def test_cables_of_a_fabric_are_counted_once_and_summed_in_one_direction() -> None:
    a, b, host, sharp = (f"{letter}-{number:016x}" for letter, number in (("S", 1), ("S", 2), ("H", 3), ("H", 4)))
    text = (
        f'Switch\t41 "{a}"\t\t# "spine" enhanced port 0 lid 1 lmc 0\n'
        f'[1]\t"{b}"[21]\t\t# "leaf" lid 2 4xHDR\n[2]\t"{b}"[22]\t\t# "leaf" lid 2 4xHDR\n'
        f'[41]\t"{sharp}"[1](4)\t\t# "Mellanox Technologies Aggregation Node" lid 4 4xHDR\n\n'
        f'Switch\t41 "{b}"\t\t# "leaf" base port 0 lid 2 lmc 0\n'
        f'[21]\t"{a}"[1]\t\t# "spine" lid 1 4xHDR\n[22]\t"{a}"[2]\t\t# "spine" lid 1 4xHDR\n'
        f'[3]\t"{host}"[1](3)\t\t# "node01 mlx5_0" lid 3 2xHDR\n'
    )
    found = read(text)
    rates = {frozenset((link.a, link.b)): (link.count, link.bytes_per_s.value) for link in found.links}
    assert rates == {
        frozenset((a, b)): (2, 5e10),
        frozenset((a, sharp)): (1, 2.5e10),
        frozenset((b, host)): (1, 1.25e10),
    }
    kinds = {c.key: c.kind for c in found.components}
    assert (kinds[a], kinds[host], kinds[sharp]) == ("switch", "nic", "other")


TREE = r"""
-+-[0000:80]---00.0-[81-86]----00.0-[82-86]--+-00.0-[83]--+-00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
 |                                           |            \-00.1  NVIDIA Corporation Audio Controller
 |                                           +-01.0-[84]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
 |                                           \-02.0-[85-86]----00.0-[86]----00.0  NVIDIA Corporation GH100
 \-[0000:00]-+-00.0  Intel Corporation Device 0998
             +-01.0-[01]----00.0  ASPEED Technology, Inc. ASPEED Graphics Family
             \-02.0-[02]----00.0  Intel Corporation Ethernet Controller X710
"""


def test_a_drawn_tree_gives_parents_and_distances_below_one_root() -> None:
    found = read(TREE)
    kinds = {c.key: c.kind for c in found.components if c.kind not in {"other", "bridge"}}
    assert kinds == {"0000:83:00.0": "gpu", "0000:84:00.0": "nic", "0000:86:00.0": "gpu", "0000:02:00.0": "nic"}
    assert wires(found) == {
        ("0000:83:00.0", "0000:84:00.0", "pix", 1),
        ("0000:83:00.0", "0000:86:00.0", "pxb", 1),
        ("0000:84:00.0", "0000:86:00.0", "pxb", 1),
    }
    gpu = found.component("0000:86:00.0")
    assert gpu is not None
    assert (gpu.parent, gpu.extra["root_bus"], gpu.vendor) == ("0000:85:00.0", "0000:80", "nvidia")


def test_a_line_cut_out_of_a_tree_moves_nothing_below_another_bridge() -> None:
    lines = TREE.splitlines(keepends=True)
    keys = {c.key for c in read(TREE).components}
    keys |= {key.partition(":")[2] for key in keys}  # without its root line a branch shows no domain
    for at in range(1, len(lines)):
        found = read("".join(lines[:at] + lines[at + 1 :]))
        assert {c.key for c in found.components} <= keys, lines[at]


def test_a_list_of_functions_gives_classes_ports_and_nodes() -> None:
    text = (
        "17:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 80GB] [10de:20b2] (rev a1)\n"
        "\tNUMA node: 1\n"
        "\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM not supported\n"
        "\t\tLnkSta:\tSpeed 8GT/s (downgraded), Width x8 (downgraded)\n"
        "04:00.0 VGA compatible controller [0300]: ASPEED Technology, Inc. ASPEED Graphics [1a03:2000] (rev 41)\n"
    )
    gpu, board = read(text).components
    assert (gpu.kind, gpu.vendor, gpu.locality.numa_nodes) == ("gpu", "nvidia", (1,))
    assert (gpu.pci.generation, gpu.pci.lanes, gpu.pci.max_generation, gpu.pci.max_lanes) == (3, 8, 4, 16)
    assert board.kind == "other"


P2P_TEST = r"""
Device: 0, NVIDIA GeForce RTX 4090, pciBusID: 1, pciDeviceID: 0, pciDomainID:0
P2P Connectivity Matrix
     D\D     0     1
     0	     1     1
     1	     1     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\D     0      1
     0 909.92  22.47
     1  22.67 918.56
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\D     0      1
     0 913.03  27.07
     1  11.46 916.42
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\D     0      1
     0 918.01  54.11
     1  54.13 922.92
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   1.37   1.14
     1   1.13   1.39

   CPU     0      1
     0   2.13   1.77
     1   1.71   2.05
"""


def test_the_better_way_of_one_direction_is_the_link_and_both_ways_at_once_are_none() -> None:
    found = read(P2P_TEST)
    (link,) = found.links
    assert (link.bytes_per_s.value, link.reverse_bytes_per_s.value) == (27.07e9, 22.67e9)
    assert link.bytes_per_s.source == Source.MEASURED
    assert link.latency_s.value == pytest.approx(1.14e-6)
    first = found.component("GPU0")
    assert first is not None
    assert (first.model, first.memory_bytes_per_s.value) == ("NVIDIA GeForce RTX 4090", 913.03e9)
    assert [m.unit for m in found.measurements] == ["", "GB/s", "GB/s", "GB/s", "us", "us"]


def test_an_arrow_to_the_left_is_a_copy_from_the_column_to_the_row() -> None:
    text = (
        "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)\n           0         1\n"
        " 0       N/A    270.00\n 1    260.00       N/A\n\n"
        "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n 0     55.00     54.00\n"
    )
    found = read(text)
    speeds = {(link.a, link.b): (link.bytes_per_s.value, link.reverse_bytes_per_s.value) for link in found.links}
    assert speeds[("GPU1", "GPU0")] == (270e9, 260e9)
    assert speeds[("CPU", "GPU0")] == (55e9, None)


def test_measured_pairs_join_the_matrix_that_was_pasted_with_them() -> None:
    found = read(P2P_TEST + "\n\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNODE\t0-31\nGPU1\tNODE\t X \t0-31\n")
    (link,) = found.links
    assert (link.kind, link.bytes_per_s.value) == ("node", 27.07e9)


NCCL = """\
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid 1 on  node-a device  0 [0009:01:00] NVIDIA GH200 120GB
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
    67108864      16777216     float     sum      -1   1090.5   61.54  107.69      0   1083.5   61.94  108.39      0
   134217728      33554432  bfloat16     sum      -1   1916.4   70.04  122.57      0   1907.8   70.35  123.11      0
# Avg bus bandwidth    : 115.13
"""


def test_a_collective_is_a_measurement_and_no_link() -> None:
    found = read(NCCL)
    (measurement,) = found.measurements
    assert (measurement.title, measurement.unit, len(measurement.rows)) == ("all_reduce_perf", "GB/s", 2)
    assert measurement.figures == {
        "max_size_bytes": 134217728.0,
        "algbw_at_max": 70.04,
        "busbw_at_max": 122.57,
        "best_busbw": 122.57,
        "avg_busbw": 115.13,
    }
    assert found.links == ()
    assert [(c.key, c.model) for c in found.components] == [("node-a/GPU0", "NVIDIA GH200 120GB")]


def test_perftest_keeps_the_unit_that_it_printed() -> None:
    text = (
        "                    RDMA_Write BW Test\n Dual-port       : OFF\t\tDevice         : mlx5_0\n"
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
        " 65536      5000             197.05             196.93\t\t   0.375614\n"
    )
    found = read(text)
    (measurement,) = found.measurements
    assert (measurement.unit, measurement.figures["average"]) == ("Gb/sec", 196.93)
    assert [c.key for c in found.components] == ["mlx5_0"]


def test_logs_and_mails_lose_their_prefixes_and_addresses_keep_theirs() -> None:
    stamped = "2024-05-17T10:00:00.1Z GPU0\n2024-05-17T10:00:00.2Z GPU1\n2024-05-17T10:00:00.3Z GPU2\n"
    assert read_paste(stamped.encode()).lines == ("GPU0", "GPU1", "GPU2")
    assert read_paste(b"> > a\n> > b\n").lines == ("a", "b")
    assert read_paste(b"node1: a\nnode1: b\nnode1: c\n").lines == ("a", "b", "c")
    assert read_paste(b"17:00.0 a\n17:00.1 b\n17:00.2 c\n").lines == ("17:00.0 a", "17:00.1 b", "17:00.2 c")
    assert read_paste("[4mGPU0[0m\u00a0X".encode()).lines == ("GPU0 X",)
    assert read_paste("GPU0\n".encode("utf-16")).lines == ("GPU0",)


@pytest.mark.parametrize("data", [b"", b"\n", b"GPU0 is fast", b"\x00" * 5000, b"PK\x03\x04" + bytes(range(32)) * 100])
def test_what_is_no_dump_is_refused_by_every_reader(data: bytes) -> None:
    with pytest.raises(UnreadableDump):
        read_dump(data, "paste")
    for importer in IMPORTERS:
        assert importer.recognises(data) < 0.1
