"""NCCL, RCCL and FlagCX topology files in the shapes that people write and tools dump."""

import pytest

from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.importers.nccl_links import UNKNOWN_PEER
from plait.hardware.importers.nccl_write import write_nccl_xml
from plait.hardware.importers.nccl_xml import NcclXml
from plait.hardware.topology import Component, Fragment


def read(text: str | bytes) -> Fragment:
    data = text.encode() if isinstance(text, str) else text
    assert NcclXml().recognises(data) > 0.5
    return NcclXml().read(data, "file")


def get(fragment: Fragment, key: str) -> Component:
    component = fragment.component(key)
    assert component is not None, [c.key for c in fragment.components]
    return component


PAIR = """\
<!-- two GPUs -->
<system version="2">
  <cpu numaid="1" affinity="0000ff00" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="17">
    <pci busid="0000:C1:00.0" class="0x060400" vendor="0x1000" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci link_width="16" link_speed="16 GT/s" class="0x120000" vendor="0x1002" busid="0000:c3:00.0">
        <gpu dev="0" sm="304" gcn="gfx942" arch="38911" rank="0" gdr="1">
          <xgmi target="0000:C6:00.0" count="2" tclass="0x120000"/>
        </gpu>
      </pci>
      <pci busid="0000:c6:00.0" class="0x120000" link_speed="" link_width="0">
        <gpu dev="1" gcn="gfx942"><xgmi target="0000:c3:00.0" count="2"/></gpu>
      </pci>
      <pci busid="0000:c7:00.0" class="0x020000" vendor="0x15b3" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" gdr="1"/></nic>
      </pci>
    </pci>
    <nic><net name="eth0" dev="1" speed="-1" guid="0x2"/></nic>
  </cpu>
</system>
"""


def test_devices_hang_where_the_file_puts_them() -> None:
    found = read(PAIR)
    gpu, bridge, node = get(found, "0000:c3:00.0"), get(found, "0000:c1:00.0"), get(found, "numa1")
    assert (gpu.parent, bridge.parent, node.parent) == (bridge.key, node.key, None)
    assert (gpu.kind, bridge.kind, node.kind) == ("gpu", "bridge", "numa")
    assert gpu.locality.numa_nodes == (1,)
    assert gpu.locality.cpus == frozenset(range(8, 16))
    assert (gpu.index, gpu.vendor, gpu.pci.generation, gpu.pci.lanes) == (0, "amd", 4, 16)


def test_a_network_without_a_name_is_not_given_one() -> None:
    found = read(PAIR.replace('name="eth0" ', ""))
    assert {c.name for c in found.components if c.kind == "nic"} == {"mlx5_0"}
    assert any("a network named ''" in line for line in found.unread)


def test_units_are_bytes_a_second_and_unknown_speeds_stay_unknown() -> None:
    found = read(PAIR)
    assert get(found, "0000:c7:00.0").rate_bytes_per_s.value == 50e9
    assert get(found, "0000:c7:00.0").name == "mlx5_0"
    assert get(found, "eth0").rate_bytes_per_s.value is None
    silent = get(found, "0000:c6:00.0").pci
    assert (silent.generation, silent.lanes) == (None, None)
    assert any("0000:c6:00.0" in warning for warning in found.warnings)


def test_links_count_and_meet_across_upper_and_lower_case() -> None:
    found = read(PAIR)
    assert {(link.a, link.b, link.kind, link.count) for link in found.links} == {
        ("0000:c3:00.0", "0000:c6:00.0", "xgmi", 2),
        ("0000:c6:00.0", "0000:c3:00.0", "xgmi", 2),
    }
    assert found.conflicts == ()


def test_a_link_that_only_one_end_tells_is_a_conflict() -> None:
    found = read(PAIR.replace('<xgmi target="0000:c3:00.0" count="2"/>', '<xgmi target="0000:c3:00.0" count="1"/>'))
    assert [conflict.subject for conflict in found.conflicts] == ["link of 0000:c3:00.0 and 0000:c6:00.0"]


def test_speed_without_the_word_pcie_is_its_own_generation() -> None:
    found = read(PAIR.replace('"16 GT/s"', '"32.0 GT/s"'))
    assert get(found, "0000:c3:00.0").pci.generation == 5


def test_an_idle_uplink_above_a_faster_device_is_told() -> None:
    found = read(PAIR.replace('"16.0 GT/s PCIe"', '"2.5 GT/s PCIe"'))
    assert get(found, "0000:c1:00.0").pci.is_idle_reading
    assert any("idle" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + PAIR,
        PAIR.replace("\n", "\r\n"),
        '<?xml version="1.0" encoding="ISO-8859-1"?>\n<!DOCTYPE system SYSTEM "nccl.dtd">\n' + PAIR,
        PAIR.replace("<", "<t:")
        .replace("<t:/", "</t:")
        .replace("<t:!", "<!")
        .replace('<t:system version="2"', '<t:system xmlns:t="http://example.org/t" version="2"'),
        "$ cat topo.xml\n" + PAIR + "\n$ \n",
        "".join(f"[1,0]<stdout>:{line}\n" for line in PAIR.splitlines()),
        "".join(f"> {line}\n" for line in PAIR.splitlines()),
    ],
    ids=["mark", "crlf", "declaration", "prefix", "prompt", "mpirun", "quoted"],
)
def test_the_same_in_other_clothes(text: str) -> None:
    plain, other = read(PAIR), read(text)
    assert other.components == plain.components
    assert other.links == plain.links


def test_utf_16_as_a_windows_editor_saves_it() -> None:
    assert read(PAIR.encode("utf-16")).components == read(PAIR).components


def test_a_target_that_is_the_device_itself_is_an_unknown_peer() -> None:
    found = read(
        '<system version="1"><cpu numaid="0"><pci busid="0001:00:00.0" class="0x030200" link_speed="" link_width="0">'
        '<gpu dev="0" sm="80"><nvlink target="0001:00:00.0" count="12" tclass="0x030200"/></gpu></pci></cpu></system>'
    )
    (link,) = found.links
    assert (link.a, link.b, link.count) == ("0001:00:00.0", UNKNOWN_PEER, 12)


def test_a_target_with_the_class_of_an_nvswitch_is_a_switch() -> None:
    found = read(
        '<system version="1"><cpu numaid="0"><pci busid="0000:0f:00.0" class="0x030200">'
        '<gpu dev="0" sm="90"><nvlink target="0000:1c:00.0" count="5" tclass="0x068000"/>'
        '<nvlink target="0000:1d:00.0" count="4"/></gpu></pci></cpu></system>'
    )
    assert get(found, "0000:1c:00.0").kind == "switch"
    assert found.component("0000:1d:00.0") is None
    assert sum(link.count for link in found.links) == 9


def test_two_ports_of_one_nic_are_its_parts_and_share_it() -> None:
    net = '<net name="mlx5_{0}" dev="{0}" speed="180000" port="{0}" guid="0x1"/>'
    found = read(
        '<system version="1"><cpu numaid="0"><pci busid="0000:0c:00.0" class="0x020000"><nic>'
        f"{net.format(0)}{net.format(1)}</nic></pci></cpu></system>"
    )
    assert get(found, "mlx5_0").parent == get(found, "mlx5_1").parent == "0000:0c:00.0"
    (group,) = found.groups
    assert group.bytes_per_s.value == 45e9


def test_hosts_of_one_file_stay_apart() -> None:
    host = (
        '<cpu host_hash="0x{0}" numaid="0"><pci busid="0008:06:00.0" class="0x030200"><gpu dev="0">'
        '<nvlink target="0009:06:00.0" count="18"/></gpu></pci>'
        '<pci busid="0009:06:00.0" class="0x030200"><gpu dev="1"><nvlink target="0008:06:00.0" count="18"/></gpu>'
        "</pci></cpu>"
    )
    found = read(f'<system version="2">{host.format(1)}{host.format(2)}</system>')
    assert [c.key for c in found.components if c.kind == "gpu"] == [
        f"0x{n}/{d}:06:00.0" for n in (1, 2) for d in ("0008", "0009")
    ]
    assert ("0x1/0008:06:00.0", "0x1/0009:06:00.0") in {(link.a, link.b) for link in found.links}
    assert all(link.a[:3] == link.b[:3] for link in found.links)
    assert read(write_nccl_xml(found).decode()) == found


def test_eight_digit_domains_and_domains_of_vmd() -> None:
    found = read(
        '<system version="1"><cpu numaid="0"><pci busid="00000000:3B:00.0" class="0x030200"/>'
        '<pci busid="10000:01:00.0" class="0x020700"/></cpu></system>'
    )
    assert [c.pci_address for c in found.components if c.pci_address] == ["0000:3b:00.0", "10000:01:00.0"]


def test_an_address_with_a_lost_digit_makes_no_device() -> None:
    found = read(PAIR.replace("0000:c6:00.0", "0000:6:00.0"))
    assert [c.key for c in found.components if c.kind == "gpu"] == ["0000:c3:00.0"]
    assert any("0000:6:00.0" in line for line in found.unread)


def test_gpus_by_class_alone_in_files_for_virtual_machines() -> None:
    found = read(
        '<system version="1"><cpu numaid="0" affinity="ffffff"><pci busid="ffff:ff:01.0" class="0x060400">'
        '<pci busid="0003:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>'
        '<pci busid="0103:00:00.0" class="0x020700"/></pci></cpu></system>'
    )
    kinds = {c.pci_address: c.kind for c in found.components if c.pci_address}
    assert kinds == {"ffff:ff:01.0": "bridge", "0003:00:00.0": "gpu", "0103:00:00.0": "nic"}
    assert get(found, "0103:00:00.0").rate_bytes_per_s.value is None


def test_chip_to_chip_links_end_at_the_cpu() -> None:
    found = read(
        '<system version="1"><cpu numaid="0"><pci busid="0008:01:00.0" class="0x030200">'
        '<gpu dev="0"><c2c bw="44712" count="10"/></gpu></pci></cpu></system>'
    )
    (link,) = found.links
    assert (link.a, link.b, link.kind, link.bytes_per_s.value) == ("0008:01:00.0", "numa0", "c2c", 447.12e9)
    assert read(write_nccl_xml(found).decode()) == found


def test_flagcx_files_know_only_the_nic_of_each_gpu() -> None:
    found = read('<system version="1"><apu dev="0" net="mlx5_0"/><apu dev="1" net="mlx5_1"></apu></system>')
    assert [(c.key, c.extra["gpu.net"]) for c in found.components if c.kind == "gpu"] == [
        ("apu0", "mlx5_0"),
        ("apu1", "mlx5_1"),
    ]
    assert read(write_nccl_xml(found).decode()) == found


def test_graph_files_are_what_was_chosen() -> None:
    found = read(
        '<graphs version="1"><graph id="0" pattern="4" nchannels="2" speedintra="20"><channel><net dev="0"/>'
        '<gpu dev="1"/><gpu dev="0"/></channel><channel><gpu dev="0"/></channel></graph></graphs>'
    )
    assert found.tables["graph 0"]["channel", "0"] == "net:0 gpu:1 gpu:0"
    assert found.tables["graph 0"]["graph", "speedintra"] == "20"
    assert found.links == ()
    assert read(write_nccl_xml(found).decode()) == found


def test_unknown_elements_are_said_not_guessed() -> None:
    found = read(PAIR.replace("<nic><net name", "<dpu/><nic><net name"))
    assert [line for line in found.unread if "<dpu>" in line]


def test_a_cut_file_yields_a_part_of_the_whole() -> None:
    whole = read(PAIR)
    keys = {c.key for c in whole.components}
    for end in range(200, len(PAIR), 61):
        part = read(PAIR[:end])
        assert {c.key for c in part.components} <= keys
        assert part.unread


def test_entities_are_refused() -> None:
    bomb = '<!DOCTYPE system [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>\n' + PAIR.replace("x86_64", "&b;")
    with pytest.raises(UnreadableDump, match="entity"):
        NcclXml().read(bomb.encode(), "file")


def test_deep_nesting_is_refused_without_a_crash() -> None:
    text = '<system version="1">' + '<pci busid="0000:01:00.0" class="0x060400">' * 5000
    assert any("nested" in line for line in read(text).unread)


def test_what_sysfs_or_hwloc_found_can_be_written_for_nccl() -> None:
    found = Fragment(
        origin="/sys",
        format="sysfs",
        components=(
            Component(key="numa0", name="node0", kind="numa", index=0),
            Component(
                key="0000:01:00.0",
                name="0000:01:00.0",
                kind="gpu",
                pci_address="0000:01:00.0",
                index=0,
                locality=get(read(PAIR), "0000:c3:00.0").locality.__class__(numa_nodes=(0,)),
                extra={"class": "0x030200"},
            ),
        ),
    )
    again = read(write_nccl_xml(found).decode())
    assert get(again, "0000:01:00.0").parent == "numa0"
    assert get(again, "0000:01:00.0").pci.generation is None


def test_far_ends_that_nvml_hides_are_the_switches_as_one() -> None:
    gpu = (
        '<pci busid="0000:{0}:00.0" class="0x030200"><gpu dev="{1}" sm="90">'
        '<nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/></gpu></pci>'
    )
    found = read(f'<system version="1"><cpu numaid="0">{gpu.format("0f", 0)}{gpu.format("2d", 1)}</cpu></system>')
    assert {(link.a, link.count) for link in found.links} == {("0000:0f:00.0", 18), ("0000:2d:00.0", 18)}
    assert len({link.b for link in found.links}) == 1
    assert get(found, found.links[0].b).kind == "switch"
    assert found.conflicts == ()
    assert read(write_nccl_xml(found).decode()) == found


def test_a_target_written_twice_counts_twice_as_nccl_adds_it() -> None:
    found = read(PAIR.replace('<xgmi target="0000:c3:00.0" count="2"/>', '<xgmi target="0000:c3:00.0" count="1"/>' * 2))
    assert sum(link.count for link in found.links if link.a == "0000:c6:00.0") == 2


def test_a_link_without_a_count_is_said_not_guessed() -> None:
    found = read(PAIR.replace('count="2"/>', 'cunt="2"/>'))
    assert [link.a for link in found.links] == ["0000:c3:00.0"]
    assert any("count None" in line for line in found.unread)
