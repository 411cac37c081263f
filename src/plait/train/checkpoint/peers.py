"""Which nodes may hold copies of a run's snapshots, and the key by which they know the run; light to import."""

import hashlib
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass

from plait.errors import PlaitError

PEERS_VARIABLE = "PLAIT_PEERS"
"""Tells a worker which nodes may hold copies of its snapshots: ``node@host:port,...``, in order of preference."""

KEY_VARIABLE = "PLAIT_PEERS_KEY"
NODE_VARIABLE = "PLAIT_NODE"
RUN_VARIABLE = "TORCHELASTIC_RUN_ID"

MOST_PEERS = 8
"""A copy is taken by one of the first that have room, so that it is found where it was left."""


def run_key(token: bytes, run: str) -> str:
    """Returns by what a run and the holders of its copies know each other; it follows from the cluster's token."""
    return hmac.new(token, f"copies/{run}".encode(), "sha256").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """The nodes that may hold copies of a run's snapshots."""

    run: str
    key: str
    node: str
    """The node of this process; its own memory is no safe place for its copies, but may hold those of another."""
    addresses: tuple[tuple[str, str], ...]
    """(node, host:port), in order of preference."""

    @property
    def others(self) -> tuple[tuple[str, str], ...]:
        """Those on other nodes."""
        return tuple(pair for pair in self.addresses if pair[0] != self.node)


def peers_from_environment(environment: Mapping[str, str] | None = None) -> Peers | None:
    """Returns the peers that a worker was told of, None where there are none.

    Raises:
        PlaitError: The variable is malformed.
    """
    env = os.environ if environment is None else environment
    pairs = []
    for part in filter(None, env.get(PEERS_VARIABLE, "").split(",")):
        node, at, address = part.partition("@")
        if not at or not address.rpartition(":")[2].isdecimal():
            raise PlaitError(f"{PEERS_VARIABLE} has {part!r}; expected node@host:port")
        pairs.append((node, address))
    if not pairs:
        return None
    return Peers(
        run=env.get(RUN_VARIABLE, ""),
        key=env.get(KEY_VARIABLE, ""),
        node=env.get(NODE_VARIABLE, ""),
        addresses=tuple(pairs),
    )


def preferred(run: str, addresses: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the nodes that take a run's copies, best first: the same from any node and after any restart.

    Args:
        run: The run's name; another run prefers other nodes, so that all of them share the load.
        addresses: Where each node takes copies.
    """
    order = sorted(addresses, key=lambda node: hashlib.sha256(f"{run}/{node}".encode()).digest())
    return [(node, addresses[node]) for node in order[:MOST_PEERS]]


def peer_environment(run: str, node: str, addresses: Mapping[str, str], token: bytes) -> dict[str, str]:
    """Returns what a worker on ``node`` is told of where copies of its snapshots go, as variables."""
    return {
        PEERS_VARIABLE: ",".join(f"{name}@{address}" for name, address in preferred(run, addresses)),
        KEY_VARIABLE: run_key(token, run),
        NODE_VARIABLE: node,
        RUN_VARIABLE: run,
    }
