"""Two nodes of the torture of tiers: what holds copies on each, and savers that may die at any request."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from faulty_stores import Death, Killed
from plait.train.checkpoint.charge import Charge
from plait.train.checkpoint.holder import Holder
from plait.train.checkpoint.peers import run_key
from plait.train.checkpoint.repository import Claim, Repository
from plait.train.checkpoint.stores import StoreFailed
from torture_states import state_at

NODES = ("a", "b")


def key_of(run: str) -> str:
    """Returns the key by which a run and the holders know each other."""
    return run_key(b"torture", run)


@contextlib.contextmanager
def holders() -> Iterator[dict[str, tuple[str, Holder]]]:
    """Yields a holder of copies for each node, and where it listens."""
    found, threads = {}, []
    with contextlib.ExitStack() as stack:
        for node in NODES:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            holder = Holder(listener, key_of)
            threads.append(threading.Thread(target=holder.serve))
            found[node] = (f"127.0.0.1:{listener.getsockname()[1]}", holder)
        for thread in threads:
            thread.start()
        try:
            yield found
        finally:
            for _, holder in found.values():
                holder.ending.set()
            for thread in threads:
                thread.join()


class MortalCharge(Charge):
    """What a saver knows of a trainer, where the saver may die at any request."""

    def upload(self, step: int, metric: float | None) -> None:
        try:
            super().upload(step, metric)
        except Killed:
            raise StoreFailed("the saver died") from None


@dataclass(slots=True, kw_only=True)
class Saver:
    """The saver of one life, with the memory of its trainer."""

    node: str
    charge: MortalCharge
    arena: Any
    lineage: tuple[int, ...]
    step: int
    death: Death

    def end(self) -> None:
        """The process dies: nothing that it has begun goes on, and its memory is gone."""
        self.death.is_over = True
        self.charge.uploads.wait()


def skip_checks(repository: Repository, count: int) -> None:
    """Makes so many checks of a claim pass, whoever has claimed."""
    left = count

    def check(claim: Claim, *, insists: bool = True) -> bool:
        nonlocal left
        left -= 1
        return Repository.check(repository, claim, insists=insists) if left < 0 else True

    repository.check = check  # type: ignore[method-assign]


def snapshot(saver: Saver, step: int, lineage: tuple[int, ...] | None = None) -> int:
    """Copies the state of a step into the memory of a saver's trainer; returns the slot."""
    claim = saver.charge.claim
    generation = claim.writer.generation if claim is not None else 0
    done = saver.arena.snapshot(state_at(lineage or saver.lineage, step), step=step, generation=generation)
    assert done is not None
    saver.step = step
    return int(done[0])
