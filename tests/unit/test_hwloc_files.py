"""hwloc's XML of versions 1, 2 and 3: what inherits from where, what a number means in which version."""

import pytest

from plait.hardware.importers.hwloc_xml import HwlocXml
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.topology import Component, Fragment


def read(text: str) -> Fragment:
    data = text.encode()
    assert HwlocXml().recognises(data) > 0.9
    return HwlocXml().read(data, "file")


def get(fragment: Fragment, key: str) -> Component:
    component = fragment.component(key)
    assert component is not None, [c.key for c in fragment.components]
    return component


SECOND = """\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f" nodeset="0x00000103" gp_index="1">
    <object type="Package" os_index="0" cpuset="0x00000003" nodeset="0x00000101" gp_index="2">
      <info name="CPUModel" value="EPYC"/>
      <object type="MemCache" cpuset="0x00000003" nodeset="0x00000001" gp_index="90">
        <object type="NUMANode" os_index="0" cpuset="0x00000003" nodeset="0x00000001" gp_index="3" local_memory="1024"/>
      </object>
      <object type="NUMANode" os_index="8" cpuset="0x00000003" nodeset="0x00000100" gp_index="4"/>
      <object type="Group" cpuset="0x00000003" nodeset="0x00000001" gp_index="91">
        <object type="Core" os_index="0" cpuset="0x00000001"><object type="PU" os_index="0"/></object>
        <object type="Core" os_index="1" cpuset="0x00000002"><object type="PU" os_index="1"/></object>
        <object type="Bridge" gp_index="5" bridge_type="0-1" depth="0" bridge_pci="0000:[00-02]">
          <object type="Bridge" gp_index="6" bridge_type="1-1" bridge_pci="0000:[01-02]" pci_busid="0000:00:01.0"
                  pci_type="0604 [1022:1453] [1458:1000] 00" pci_link_speed="15.753846">
            <object type="PCIDev" gp_index="7" pci_busid="0000:01:00.0" pci_type="0302 [10de:20b0] [10de:134f] a1"
                    pci_link_speed="15.753846">
              <object type="OSDev" gp_index="8" name="cuda1" subtype="CUDA" osdev_type="5">
                <info name="CUDAGlobalMemorySize" value="1024"/>
              </object>
              <object type="OSDev" gp_index="9" name="nvml0" subtype="NVML" osdev_type="1">
                <info name="GPUModel" value="A100"/><info name="NVIDIAUUID" value="GPU-1"/>
              </object>
            </object>
          </object>
        </object>
      </object>
    </object>
    <object type="Package" os_index="1" cpuset="0x0000000c" nodeset="0x00000002" gp_index="10">
      <object type="NUMANode" os_index="1" cpuset="0x0000000c" nodeset="0x00000002" gp_index="11"/>
      <object type="Misc" name="DIMM" gp_index="99"/>
      <object type="Bridge" gp_index="12" bridge_type="0-1" bridge_pci="0000:[40-41]">
        <object type="Bridge" gp_index="13" bridge_type="1-1" bridge_pci="0000:[41-41]" pci_busid="0000:40:01.0"
                pci_type="0604 [1022:1453] [0000:0000] 00" pci_link_speed="0.000000">
          <object type="PCIDev" gp_index="14" pci_busid="0000:41:00.0" pci_type="0207 [15b3:1017] [15b3:0000] 00">
            <object type="OSDev" gp_index="15" name="ib0" osdev_type="2"/>
            <object type="OSDev" gp_index="16" name="mlx5_0" osdev_type="3">
              <info name="Port1State" value="1"/>
            </object>
          </object>
        </object>
      </object>
    </object>
  </object>
  <distances2 type="NUMANode" nbobjs="3" kind="5" name="NUMALatency" indexing="os">
    <indexes length="6">0 8 1 </indexes>
    <u64values length="12">10 40 21 40 </u64values>
    <u64values length="12">10 40 21 40 10 </u64values>
  </distances2>
</topology>
"""


def test_numbers_inherit_from_the_nearest_object_that_has_them() -> None:
    found = read(SECOND)
    gpu, nic = get(found, "0000:01:00.0"), get(found, "0000:41:00.0")
    assert (gpu.kind, gpu.locality.numa_nodes, gpu.locality.cpus) == ("gpu", (0,), frozenset({0, 1}))
    assert (nic.kind, nic.locality.numa_nodes) == ("nic", (1,))
    assert (gpu.parent, nic.parent) == ("0000:00:01.0", "0000:40:01.0")


def test_software_names_are_on_their_device() -> None:
    found = read(SECOND)
    gpu, nic = get(found, "0000:01:00.0"), get(found, "0000:41:00.0")
    assert (gpu.model, gpu.uuid, gpu.index, gpu.memory_bytes.value) == ("A100", "GPU-1", 1, 1024 * 1024)
    assert (gpu.extra["osdev.cuda1"], gpu.extra["osdev.nvml0"]) == ("5", "1")
    assert (nic.name, nic.health) == ("mlx5_0", "down")
    assert found.warnings == ("mlx5_0: port 1 is not active",)


def test_link_speeds_are_bytes_a_second_and_zero_is_unknown() -> None:
    found = read(SECOND)
    rates = {link.a: link.bytes_per_s.value for link in found.links if link.kind == "pcie"}
    assert rates["0000:01:00.0"] == pytest.approx(15.753846e9)
    assert "0000:40:01.0" not in rates


def test_distances_follow_their_own_order_of_nodes() -> None:
    found = read(SECOND)
    assert found.numa_distances[0, 8] == 40
    assert found.numa_distances[1, 0] == 21
    assert found.numa_distances[8, 8] == 10
    assert len(found.numa_distances) == 9


def test_totals_count_what_is_inside_groups_and_behind_memory_caches() -> None:
    machine = get(read(SECOND), "machine")
    assert (machine.extra["cores"], machine.extra["threads"]) == ("2", "2")
    assert [c.key for c in read(SECOND).components if c.kind == "numa"] == ["numa0", "numa8", "numa1"]
    assert get(read(SECOND), "package0").model == "EPYC"


def test_version_3_writes_bits_where_version_2_wrote_a_number() -> None:
    text = SECOND.replace('version="2.0"', 'version="3.0"')
    text = text.replace('name="ib0" osdev_type="2"', 'name="ib0" osdev_type="16"')
    text = text.replace('name="mlx5_0" osdev_type="3"', 'name="mlx5_0" osdev_type="48"')
    nic = get(read(text), "0000:41:00.0")
    assert (nic.name, nic.health) == ("mlx5_0", "down")
    # The number 3 of version 2 would be storage and memory in version 3, which says nothing of a port.
    assert get(read(SECOND.replace('version="2.0"', 'version="3.0"')), "0000:41:00.0").health is None


def hetero(values: str) -> str:
    matrix = f"""<distances2hetero nbobjs="3" kind="25" name="NVLinkBandwidth">
    <indexes length="26">OSDev:9 PCIDev:14 OSDev:8 </indexes><u64values length="30">{values} </u64values>
    </distances2hetero></topology>"""
    return SECOND.replace("</topology>", matrix)


def test_nvlink_matrices_over_software_and_pci_devices() -> None:
    found = read(hetero("1000000 50000 0 25000 1000000 0 0 0 1000000"))
    (link,) = (link for link in found.links if link.kind == "nvlink")
    assert {link.a, link.b} == {"0000:01:00.0", "0000:41:00.0"}
    assert (link.bytes_per_s.value, link.reverse_bytes_per_s.value) == (50e9, 25e9)
    assert [conflict.said for conflict in found.conflicts] == [("50000", "25000")]


def test_a_matrix_that_is_not_square_is_said() -> None:
    found = read(hetero("1 2 3"))
    assert not [link for link in found.links if link.kind == "nvlink"]
    assert any("NVLinkBandwidth" in line for line in found.unread)


def test_the_constant_of_xgmi_matrices_is_no_figure() -> None:
    text = SECOND.replace(
        "</topology>",
        '<distances2 type="PCIDev" nbobjs="2" kind="9" name="XGMIBandwidth" indexing="gp"><indexes length="5">7 14'
        '</indexes><u64values length="9">1000000 100000 100000 1000000</u64values></distances2></topology>',
    )
    (link,) = (link for link in read(text).links if link.kind == "xgmi")
    assert link.bytes_per_s.value is None
    assert "no figure" in link.bytes_per_s.detail


FIRST = """\
<topology>
  <object type="Machine" os_index="0" cpuset="0x00000003" nodeset="0xf0000000,,0x00000003">
    <distances nbobjs="2" relative_depth="1" latency_base="10.000000">
      <latency value="1.000000"/><latency value="2.100000"/><latency value="2.100000"/><latency value="1.000000"/>
    </distances>
    <object type="NUMANode" os_index="0" cpuset="0x00000001" nodeset="0x00000001" local_memory="4096">
      <object type="Socket" os_index="0" cpuset="0x00000001" nodeset="0x00000001">
        <object type="Core" os_index="0"><object type="PU" os_index="0"/></object>
      </object>
    </object>
    <object type="NUMANode" os_index="1" cpuset="0x00000002" nodeset="0x00000002">
      <object type="Bridge" bridge_type="0-1" bridge_pci="0003:[00-01]">
        <object type="PCIDev" pci_busid="0003:00:00.0" pci_type="0300 [1a03:2000] [1a03:2000] 41">
          <object type="OSDev" name="card0" osdev_type="1"/>
        </object>
      </object>
    </object>
  </object>
</topology>
"""


def test_version_1_has_nodes_as_parents_and_latencies_over_a_base() -> None:
    found = read(FIRST)
    assert found.numa_distances == {(0, 0): 10, (0, 1): 21, (1, 0): 21, (1, 1): 10}
    assert get(found, "numa0").memory_bytes.value == 4096
    assert get(found, "package0").kind == "cpu"
    assert get(found, "machine").extra["version"] == "1.x"


def test_graphics_of_a_management_chip_are_no_accelerator() -> None:
    screen = get(read(FIRST), "0003:00:00.0")
    assert (screen.kind, screen.vendor, screen.locality.numa_nodes) == ("other", "aspeed", (1,))


def test_what_hangs_at_the_whole_machine_has_no_known_node() -> None:
    text = FIRST.replace(
        'nodeset="0x00000002">\n      <object type="Bridge"', 'nodeset="0x00000003">\n      <object type="Bridge"'
    )
    place = get(read(text), "0003:00:00.0").locality
    assert place.numa_nodes is None
    assert "0-1" in place.why_unknown


def test_a_bridge_whose_line_was_pasted_twice_is_one_bridge() -> None:
    begin = SECOND.index('          <object type="Bridge" gp_index="6"')
    line = SECOND[begin : SECOND.index(">", begin) + 1]
    close = SECOND.index('</object>\n      </object>\n    </object>\n    <object type="Package" os_index="1"')
    repeated = SECOND[:begin] + line + SECOND[begin:close] + "</object>" + SECOND[close:]
    assert [(c.key, c.parent) for c in read(repeated).components] == [
        (c.key, c.parent) for c in read(SECOND).components
    ]
    assert read(repeated).links == read(SECOND).links


def test_a_device_on_a_bus_that_is_not_below_its_bridge_has_no_place() -> None:
    found = read(SECOND.replace('pci_busid="0000:01:00.0"', 'pci_busid="0000:77:00.0"'))
    stray = get(found, "0000:77:00.0")
    assert (stray.parent, stray.locality.numa_nodes) == (None, None)
    assert any("0000:77:00.0" in line for line in found.unread)


def test_a_cut_file_yields_a_part_of_the_whole() -> None:
    keys = {c.key for c in read(SECOND).components}
    for end in range(400, len(SECOND), 97):
        part = read(SECOND[:end])
        assert {c.key for c in part.components} <= keys


def test_an_empty_topology_is_refused() -> None:
    with pytest.raises(UnreadableDump):
        HwlocXml().read(b'<topology version="2.0"></topology>', "file")


def test_software_names_without_any_pci_level_are_devices_of_their_own() -> None:
    text = (
        '<topology version="2.0"><object type="Machine" cpuset="0x3" nodeset="0x1"><object type="NUMANode" os_index="0"'
        ' cpuset="0x3" nodeset="0x1"/><object type="OSDev" name="cuda0" osdev_type="5"/>'
        '<object type="OSDev" name="eth0" osdev_type="2"/><object type="OSDev" name="sda" osdev_type="0"/></object>'
        "</topology>"
    )
    found = read(text)
    assert {c.key: c.kind for c in found.components if c.kind in {"gpu", "nic"}} == {"cuda0": "gpu", "eth0": "nic"}
    assert get(found, "machine").extra["osdev.sda"] == "0"


def test_a_software_name_whose_pci_device_was_lost_makes_no_device() -> None:
    lines = [line for line in SECOND.splitlines() if 'pci_busid="0000:41:00.0"' not in line]
    text = "\n".join(lines)
    found = read(text)
    assert found.component("mlx5_0") is None
