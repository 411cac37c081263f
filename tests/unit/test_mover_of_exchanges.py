"""Exchanges go on while their owners compute, and whoever waits for them drives them alone."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch

from plait.train.collectives.mesh import Mesh, MeshBroken, MeshSum
from plait.train.collectives.mover import Mover

LARGE = 1_000_000
DEADLINE_S = 30.0


@contextmanager
def pairs() -> Iterator[tuple[tuple[Mesh, Mover], tuple[Mesh, Mover]]]:
    listener = socket.create_server(("127.0.0.1", 0))
    left = socket.create_connection(listener.getsockname())
    right = listener.accept()[0]
    listener.close()
    meshes = (Mesh(0, {1: left}), Mesh(1, {0: right}))
    movers = (Mover(meshes[0]), Mover(meshes[1]))
    try:
        yield (meshes[0], movers[0]), (meshes[1], movers[1])
    finally:
        for mover in movers:
            mover.close()
        for mesh in meshes:
            mesh.close()


def over(work: MeshSum) -> bool:
    """Looks without moving anything."""
    return work.is_over or work.error is not None


def until_over(works: list[MeshSum]) -> None:
    """Waits as one who computes: touches no socket."""
    ended = threading.Event()
    for _ in range(int(DEADLINE_S * 1000)):
        if all(over(work) for work in works):
            return
        ended.wait(0.001)
    pytest.fail("nothing moves")


def test_a_large_sum_comes_to_its_end_while_nobody_waits_for_it() -> None:
    with pairs() as members:
        works = []
        for rank, (mesh, mover) in enumerate(members):
            works.append(mesh.all_reduce(torch.full((LARGE,), float(rank + 1))))
            mover.go()
        until_over(works)
        assert all(bool((work.tensor == 3.0).all()) for work in works)


def test_who_waits_takes_over_and_hands_back() -> None:
    with pairs() as members:
        for turn in range(20):
            works = []
            for mesh, mover in members:
                works.append(mesh.all_reduce(torch.ones(LARGE // 10)))
                mover.go()
                mover.go()
            for (_, mover), work in zip(members, works, strict=True):
                if turn % 2:
                    mover.rest()
                    mover.rest()
                    for _ in range(10_000):
                        if work.is_completed():
                            break
                        work.mesh.take(0.01)
            until_over(works)
            for _, mover in members:
                mover.rest()
            assert all(bool((work.tensor == 2.0).all()) for work in works)


def test_a_break_is_noticed_and_ends_the_moving() -> None:
    with pairs() as ((mesh, mover), (theirs, _)):
        work = mesh.all_reduce(torch.ones(LARGE))
        mover.go()
        theirs.close()
        until_over([work])
        mover.rest()
        with pytest.raises(MeshBroken, match="member 1"):
            work.wait(timedelta(seconds=1))
        mover.go()
        mover.close()
        mover.close()
        mover.go()
