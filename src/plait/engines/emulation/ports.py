"""Ranges of ports for hosts that have to share the loopback address."""

from collections.abc import Sequence
from pathlib import Path

from plait.engines.emulation.claims import Claim, claim, join_claim
from plait.errors import PlaitError

LOOPBACK = "127.0.0.1"
PORTS_PER_HOST = 200
_FIRST = 12000
_END = 32000  # the kernel hands out higher ones by itself


def claim_ports(num_hosts: int, directory: Path | None = None) -> list[tuple[int, Claim]]:
    """Returns a first port and its claim for each host; no other cluster of this user gets these ranges.

    Raises:
        PlaitError: So many ranges are not free.
    """
    taken: list[tuple[int, Claim]] = []
    for first in range(_FIRST, _END, PORTS_PER_HOST):
        if len(taken) == num_hosts:
            break
        held = claim(f"ports-{first}", directory)
        if held is not None:
            taken.append((first, held))
    if len(taken) < num_hosts:
        for _, held in taken:
            held.close()
        raise PlaitError(f"{num_hosts} nodes need {PORTS_PER_HOST} ports each, but only {len(taken)} ranges are free")
    return taken


def rejoin_ports(firsts: Sequence[int], directory: Path | None = None) -> list[tuple[int, Claim]]:
    """Joins the claims of ranges that this cluster's processes hold."""
    held = [(first, join_claim(f"ports-{first}", directory)) for first in firsts]
    return [(first, one) for first, one in held if one is not None]
