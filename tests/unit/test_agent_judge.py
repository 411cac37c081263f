"""What evidence means: drivers' words, Xids as they were recorded, counters, checksums, and what programs print."""

from dataclasses import replace
from pathlib import Path

import pytest

from plait.agent.judge import DAMAGED_MESSAGES, Evidence, Verdict, judge
from plait.agent.kernel_log import KernelLog
from plait.agent.link_counters import LinkChange, LinkCounters, LinkHistory, read_counters
from plait.agent.xid import DeviceWord, device_words
from plait.hardware.health import DeviceHealth, decoded, encoded, health_of, kind_of, vendor_of
from plait.hardware.topology import Component, Fragment
from plait.spec.job import FailureCause

QUIET = LinkChange(interface="eth0", over_s=20.0, has_carrier=True, sent=5000, sent_again=3)
WELL = DeviceHealth(index=0, health="ok", pci_address="0000:9b:00.0")
OFF_THE_BUS = """[ 1843.30] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands."""
SEEN = (("n0/0", WELL, WELL),)


def _with_health(now: str, before: str | None = "ok") -> tuple[tuple[str, DeviceHealth | None, DeviceHealth], ...]:
    earlier = None if before is None else replace(WELL, health=before)
    return (("n0/0", earlier, replace(WELL, health=now)),)


def _word(meaning: str, words: str = "Xid 79 (off the bus)") -> tuple[tuple[str, DeviceWord], ...]:
    return (("n0/0", DeviceWord(pci_address="0000:9b:00.0", meaning=meaning, words=words)),)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("evidence", "kind", "cause", "words"),
    [
        # Nothing to go by: the end itself decides.
        (Evidence(cause="user"), "other", "user", ""),
        (Evidence(cause="lost", link=QUIET, health=SEEN), "other", "lost", ""),
        (Evidence(cause="device_fault"), "other", "device_fault", ""),
        (Evidence(cause="network"), "other", "network", ""),
        # The driver and the kernel.
        (
            Evidence(cause="user", health=_with_health("2 uncorrectable memory errors since the driver was loaded")),
            "device_fault", "device_fault", "n0/0: 2 uncorrectable memory errors",
        ),
        (
            Evidence(cause="user", health=_with_health("2 uncorrectable errors", "2 uncorrectable errors")),
            "other", "user", "",
        ),
        (Evidence(cause="lost", health=_with_health("lost: it is gone")), "device_fault", "device_fault", "it is gone"),
        (Evidence(cause="device_fault", health=_with_health("a failed memory row could not be replaced", None)),
         "device_fault", "device_fault", "could not be replaced"),
        (Evidence(cause="lost", kernel=_word("lasting")), "device_fault", "device_fault", "n0/0: Xid 79"),
        (Evidence(cause="lost", kernel=_word("transient", "Xid 94 (Contained ECC error)")),
         "transient", "device_fault", "Contained ECC"),
        (Evidence(cause="user", kernel=_word("workload", "Xid 31 (MMU Fault)"), health=SEEN), "other", "user", ""),
        (Evidence(cause="device_fault", health=SEEN), "transient", "device_fault", "nothing wrong (n0/0 ok)"),
        (Evidence(cause="user", health=SEEN, last_words="CUDA error: unspecified launch failure"),
         "transient", "device_fault", "nothing wrong"),
        (Evidence(cause="user", last_words="CUDA error: unspecified launch failure"), "other", "user", ""),
        # The network.
        (Evidence(cause="network", link=QUIET), "transient", "network", "eth0 of this node shows nothing unusual"),
        (Evidence(cause="network", link=replace(QUIET, has_carrier=False)), "network", "network", "eth0 has no link"),
        (Evidence(cause="network", link=replace(QUIET, crc_errors=40)), "network", "network", "40 damaged frames"),
        (Evidence(cause="network", link=replace(QUIET, carrier_changes=4)), "transient", "network", "came and went 4"),
        (Evidence(cause="network", link=replace(QUIET, sent=100, sent_again=30)),
         "transient", "network", "30 of 100 TCP segments were sent again within 20 s"),
        (Evidence(cause="user", link=replace(QUIET, carrier_changes=4)), "other", "user", ""),
        (Evidence(cause="user", link=replace(QUIET, carrier_changes=4), last_words="Connection reset by peer"),
         "transient", "network", "came and went"),
        (Evidence(cause="user", link=QUIET, last_words="Connection reset by peer"), "other", "user", ""),
        # Messages that came damaged.
        (Evidence(cause="user", last_words="checksum of the message is 0x1", damaged_messages=1),
         "transient", "network", "a message came with a wrong checksum"),
        (Evidence(cause="user", last_words="checksum of the message is 0x1", damaged_messages=DAMAGED_MESSAGES),
         "device_fault", "device_fault", "3 messages"),
        # What is never the device's.
        (Evidence(cause="oom", kernel=_word("lasting")), "other", "oom", ""),
        (Evidence(cause="cancelled", link=replace(QUIET, has_carrier=False)), "other", "cancelled", ""),
        # A link that gives no answer.
        (Evidence(cause=None, stuck="w1 gave no answer", link=QUIET), "transient", None, "counters of this node"),
        (Evidence(cause=None, stuck="w1 gave no answer", link=replace(QUIET, has_carrier=False)),
         "network", "network", "w1 gave no answer; eth0 has no link"),
        (Evidence(cause=None, stuck="w1 gave no answer"), "transient", None, "w1 gave no answer"),
    ],
)  # fmt: skip
def test_verdicts(evidence: Evidence, kind: str, cause: FailureCause | None, words: str) -> None:
    found = judge(evidence)
    assert (found.kind, found.cause) == (kind, cause)
    assert words in found.reason
    assert bool(found.reason) == bool(words)


def test_the_device_that_failed_is_named() -> None:
    health = (("n0/0", WELL, WELL), ("n0/1", WELL, replace(WELL, health="lost: no answer")))
    found = judge(Evidence(cause="lost", health=health))
    assert found == Verdict(
        kind="device_fault", reason="n0/1: lost: no answer", cause="device_fault", devices=("n0/1",)
    )


@pytest.mark.parametrize(
    ("text", "meaning", "address"),
    [
        (
            "NVRM: Xid (PCI:0000:9b:00): 119, pid=4242, name=nvidia-smi, Timeout after 6s of waiting for RPC response",
            "lasting", "0000:9b:00.0",
        ),
        ("NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001)", "nothing", "0000:01:00.0"),
        ("NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00", "lasting", "0000:00:00.0"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=python3, Ch 00000008, MMU Fault", "workload", "0000:3b:00.0"),
        (
            "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=4001, name=python3, Ch 00000001 caused by previous Xid 149",
            "lasting", "0000:dc:00.0",
        ),
        ("NVRM: Xid (PCI:0000:dc:00): 45, pid=4001, name=python3, Ch 00000001", "nothing", "0000:dc:00.0"),
        ("NVRM: Xid (PCI:0000:9b:00): 64, Row remapping failure", "lasting", "0000:9b:00.0"),
        ("NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error", "transient", "0000:9b:00.0"),
        (
            OFF_THE_BUS,
            "lasting", "0000:b3:00.0",
        ),
        (
            "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
            "lasting", "0000:00:03.0",
        ),
    ],
)  # fmt: skip
def test_what_the_kernel_says_of_a_device(text: str, meaning: str, address: str) -> None:
    (word,) = device_words(text.splitlines())
    assert (word.meaning, word.pci_address) == (meaning, address)
    assert word.words


def test_corrected_errors_of_a_port_are_no_fault() -> None:
    lines = [
        "pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0",
        "pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
        "pcieport 0000:00:03.0:    [12] Timeout",
    ]
    assert device_words(lines) == ()


def test_the_kernel_log_keeps_what_may_concern_an_accelerator_from_a_time_on(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "none")
    log.take("6,1,1000,-;NVRM: Xid (PCI:0000:9b:00): 64, Row remapping failure\n SUBSYSTEM=pci\n", 1.0)
    log.take("6,2,2000,-;eth0: link becomes ready", 2.0)
    log.take("6,3,3000,-;NVRM: Xid (PCI:0000:9b:00): 94, Contained ECC error", 3.0)
    log.look(4.0)
    assert len(log.since(0.0)) == 2
    assert log.since(2.5) == ("NVRM: Xid (PCI:0000:9b:00): 94, Contained ECC error",)


def test_counters_of_an_interface(tmp_path: Path) -> None:
    statistics = tmp_path / "eth0" / "statistics"
    statistics.mkdir(parents=True)
    (tmp_path / "eth0" / "carrier").write_text("0\n")
    (tmp_path / "eth0" / "carrier_changes").write_text("7\n")
    (statistics / "rx_crc_errors").write_text("12\n")
    snmp = tmp_path / "snmp"
    snmp.write_text("Ip: A\nIp: 1\nTcp: RtoMin MaxConn OutSegs RetransSegs\nTcp: 200 -1 900 33\n")
    assert read_counters("eth0", tmp_path, snmp) == LinkCounters(
        has_carrier=False, carrier_changes=7, crc_errors=12, sent=900, sent_again=33
    )
    assert read_counters("eth1", tmp_path, tmp_path / "none") == LinkCounters()


def test_a_change_is_that_of_the_last_seconds() -> None:
    history = LinkHistory("eth0")
    assert history.change() is None
    for second in range(60):
        history.note(LinkCounters(has_carrier=True, sent=100 * second, sent_again=second), float(second))
    change = history.change()
    assert change is not None
    assert (change.over_s, change.sent, change.sent_again) == (20.0, 2000, 20)
    assert LinkHistory(None).change() is None


@pytest.mark.parametrize(
    ("health", "kind"),
    [
        ("ok", "ok"),
        ("OK", "ok"),
        (None, "unknown"),
        ("slowed: hardware thermal limit", "slowed"),
        ("lost: gpu is lost", "gone"),
        ("3 uncorrectable memory errors since the driver was loaded", "bad"),
        ("Alarm", "bad"),
    ],
)
def test_what_a_drivers_word_means(health: str | None, kind: str) -> None:
    assert kind_of(health) == kind


def test_health_travels_as_one_line() -> None:
    found = Fragment(
        origin="NVML",
        format="nvml",
        components=(
            Component(key="a", name="GPU0", kind="gpu", index=0, pci_address="0000:9b:00.0", health="ok"),
            Component(key="b", name="GPU0 MIG 0", kind="gpu", index=0, parent="a", health="ok"),
            Component(key="c", name="eth0", kind="nic"),
        ),
    )
    devices = health_of(found)
    assert devices == (WELL,)
    assert decoded(encoded(devices)) == devices
    with pytest.raises(ValueError, match="no list of devices"):
        decoded('[{"number": 1}]')


def test_whom_to_ask_about_a_nodes_devices() -> None:
    assert vendor_of("CUDA_VISIBLE_DEVICES", ()) == "nvidia"
    assert vendor_of(None, ("PATH", "PLAIT_FAKE_DEVICES")) == "fake"
    assert vendor_of(None, ("PATH",)) is None
