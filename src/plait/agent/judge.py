"""From evidence to a verdict: was it the device, the network, or a matter of a moment?

It is asked when a worker has ended and when a link gives no answer. What it is given is gathered by
`plait.agent.evidence`. Words alone are not believed where counters could confirm them: a program may print anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from plait.agent.link_counters import LinkChange
from plait.agent.xid import DeviceWord
from plait.hardware.health import DeviceHealth
from plait.spec.job import FailureCause

VerdictKind = Literal["device_fault", "network", "transient", "other"]

CRC_ERRORS = 10
"""So many damaged frames within seconds are the cable's or the port's, not chance."""
SENT_AGAIN_RATIO, SENT_AGAIN = 0.05, 20
"""A link on which so many segments, and such a part of all, were sent again loses what it carries."""
DAMAGED_MESSAGES = 3
"""Messages of workers of this node that came damaged; so many are no chance."""

_DEVICE_TEXTS = (
    "uncorrectable ecc error",
    "hardware error",
    "device-side hardware",
    "unspecified launch failure",
    "gpu is lost",
    "unable to determine the device handle",
    "hip error: the operation cannot be performed in the present state",
    "acl error: device",
)
_LINK_TEXTS = (
    "connection reset by peer",
    "connection closed by peer",
    "broken pipe",
    "connection timed out",
    "no route to host",
    "ncclremoteerror",
    "ncclsystemerror",
    "socket timeout",
)
DAMAGED_TEXT = "checksum of the message is"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known when a worker has ended, or when a link gives no answer.

    Attributes:
        cause: What the end itself says; None for a link that stalls.
        detail: The same in words.
        health: Of the worker's devices by id: what the driver said when it was asked before, and says now. Empty where
            there is no driver to ask.
        kernel: What the kernel said of the worker's devices since it started, by device id.
        link: What happened to the node's network within the last seconds.
        last_words: The end of the worker's log.
        damaged_messages: Messages with a wrong checksum that workers of this node have seen of late.
        stuck: For a link that stalls: which members gave no answer, in words.
    """

    cause: FailureCause | None
    detail: str = ""
    health: tuple[tuple[str, DeviceHealth | None, DeviceHealth], ...] = ()
    kernel: tuple[tuple[str, DeviceWord], ...] = ()
    link: LinkChange | None = None
    last_words: str = ""
    damaged_messages: int = 0
    stuck: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What it was, and why. ``cause`` is what failure rules go by; ``devices`` those that failed, where it is known.

    ``transient`` is a fault of a moment, of the device or the network as ``cause`` says; ``other``: the evidence says
    nothing beyond what the end itself says.
    """

    kind: VerdictKind
    reason: str
    cause: FailureCause | None
    devices: tuple[str, ...] = field(default=())

    @property
    def is_transient(self) -> bool:
        """Whether it may well not come again."""
        return self.kind == "transient"


def judge(evidence: Evidence) -> Verdict:
    """Returns what happened. The strongest evidence counts: driver and kernel, then counters, then words."""
    for verdict in _candidates(evidence):
        if verdict is not None:
            return verdict
    return Verdict(kind="other", reason="", cause=evidence.cause)


def _candidates(evidence: Evidence) -> Iterator[Verdict | None]:
    if evidence.cause in {"oom", "cancelled"}:
        return
    yield _broken_device(evidence)
    yield _damaged(evidence)
    if evidence.cause is None or evidence.cause in {"network", "user"}:
        yield _bad_link(evidence)
    yield _device_of_a_moment(evidence)
    if evidence.cause is None:
        yield Verdict(
            kind="transient", reason=f"{evidence.stuck}; counters of this node's link are as usual", cause=None
        )
    if evidence.cause == "network" and evidence.link is not None:
        reason = f"the link {evidence.link.interface} of this node shows nothing unusual"
        yield Verdict(kind="transient", reason=reason, cause="network")


def _broken_device(evidence: Evidence) -> Verdict | None:
    """The driver or the kernel says that a device is broken, and did not say so before the worker started."""
    told = {device: f"{device}: {word.words}" for device, word in evidence.kernel if word.meaning == "lasting"}
    for device, before, now in evidence.health:
        is_new = before is not None and before.health != now.health
        if now.kind == "gone" or (now.kind == "bad" and (is_new or evidence.cause == "device_fault")):
            told.setdefault(device, f"{device}: {now.health}")
    if not told:
        return None
    return Verdict(kind="device_fault", reason="; ".join(told.values()), cause="device_fault", devices=tuple(told))


def _damaged(evidence: Evidence) -> Verdict | None:
    if DAMAGED_TEXT not in evidence.last_words.lower():
        return None
    if evidence.damaged_messages >= DAMAGED_MESSAGES:
        reason = f"{evidence.damaged_messages} messages came to this node with a wrong checksum, again and again"
        return Verdict(kind="device_fault", reason=reason, cause="device_fault")
    return Verdict(kind="transient", reason="a message came with a wrong checksum", cause="network")


def _bad_link(evidence: Evidence) -> Verdict | None:
    link = evidence.link
    if link is None or not (evidence.cause != "user" or _has(evidence, _LINK_TEXTS)):
        return None
    within = f"within {link.over_s:.0f} s"
    stuck = f"{evidence.stuck}; " if evidence.stuck else ""
    if link.has_carrier is False:
        return Verdict(kind="network", reason=f"{stuck}{link.interface} has no link", cause="network")
    if link.crc_errors >= CRC_ERRORS:
        reason = f"{stuck}{link.crc_errors} damaged frames on {link.interface} {within}"
        return Verdict(kind="network", reason=reason, cause="network")
    if link.carrier_changes:
        reason = f"{stuck}the link of {link.interface} came and went {link.carrier_changes} times {within}"
        return Verdict(kind="transient", reason=reason, cause="network")
    if link.sent_again >= max(SENT_AGAIN, SENT_AGAIN_RATIO * link.sent):
        reason = f"{stuck}{link.sent_again} of {link.sent} TCP segments were sent again {within}"
        return Verdict(kind="transient", reason=reason, cause="network")
    return None


def _device_of_a_moment(evidence: Evidence) -> Verdict | None:
    repaired = {device: f"{device}: {word.words}" for device, word in evidence.kernel if word.meaning == "transient"}
    if repaired:
        reason = "; ".join(repaired.values())
        return Verdict(kind="transient", reason=reason, cause="device_fault", devices=tuple(repaired))
    is_told = evidence.cause == "device_fault" or (
        evidence.cause in {"user", "lost"} and bool(evidence.health) and _has(evidence, _DEVICE_TEXTS)
    )
    kinds = [now.kind for _, _, now in evidence.health]
    if is_told and kinds and all(kind in {"ok", "slowed"} for kind in kinds):
        found = ", ".join(f"{device} {now.health}" for device, _, now in evidence.health)
        return Verdict(kind="transient", reason=f"its driver finds nothing wrong ({found})", cause="device_fault")
    return None


def _has(evidence: Evidence, texts: tuple[str, ...]) -> bool:
    said = evidence.last_words.lower()
    return any(text in said for text in texts)
