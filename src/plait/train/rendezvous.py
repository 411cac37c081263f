"""How the members of a first group find one another."""

import os
import socket
import time
from dataclasses import replace
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

from plait.train.settings import Place


def complete_place(place: Place) -> Place:
    """Fills in where to listen and whom to expect when torchrun's variables are all there is."""
    if place.rendezvous is None:
        return place if place.secret else replace(place, secret=os.environ.get("PLAIT_ATTEMPT", "plait"))
    host, port = place.rendezvous.rsplit(":", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        own = probe.getsockname()[0]
    seeds = {f"w{rank}": "" for rank in range(place.world_size)}
    return replace(place, listen=f"{own}:0", seeds=seeds, secret=place.secret or _common_word(place))


def _common_word(place: Place) -> str:
    """Returns the word that members of a group without a secret know each other by."""
    return f"plait-{place.rendezvous}-{place.world_size}"


def trade_addresses(place: Place, address: str) -> dict[str, str]:
    """Finds the others once, through torchrun's store; afterwards nothing depends on it."""
    assert place.rendezvous is not None
    host, port = place.rendezvous.rsplit(":", 1)
    hosts_it = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = TCPStore(host, int(port), is_master=hosts_it, wait_for_workers=False, timeout=timedelta(seconds=300))
    prefix = f"plait/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    store.set(f"{prefix}/{place.me}", address)
    others = {f"w{rank}" for rank in range(place.world_size)}
    found = {member: store.get(f"{prefix}/{member}").decode() for member in sorted(others)}
    store.add(f"{prefix}/read", 1)
    if hosts_it:  # keep the store until everybody has read it
        while store.add(f"{prefix}/read", 0) < place.world_size:
            time.sleep(0.01)
    return found
