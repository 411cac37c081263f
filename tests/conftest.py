"""What holds for all tests."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from plait.train.collectives.mesh import Mesh, MeshWork

# Before torch is imported anywhere: small tensors on several threads wait for each other, the more the busier the
# machine. Workers get the same from their agent.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("plait", deadline=None)  # no test depends on how fast the machine is
settings.load_profile("plait")


@pytest.fixture(scope="session")
def meshes() -> "Callable[[int], AbstractContextManager[list[Mesh]]]":
    """Direct connections between that many members of one process: ``with meshes(3) as group``."""
    from plait.train.collectives.mesh_builder import MeshBuilder

    @contextmanager
    def made_of(size: int) -> "Iterator[list[Mesh]]":
        builders = [MeshBuilder("127.0.0.1", rank, size, "token") for rank in range(size)]
        made: dict[int, Mesh] = {}

        def connect(rank: int) -> None:
            made[rank] = builders[rank].connect(lambda other: builders[other].address, 10.0)

        threads = [threading.Thread(target=partial(connect, rank), daemon=True) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        try:
            yield [made[rank] for rank in range(size)]
        finally:
            for mesh in made.values():
                mesh.close()

    return made_of


@pytest.fixture(scope="session")
def finish() -> "Callable[[Sequence[MeshWork]], None]":
    """Drives all members in turn, as their own processes would, until their works are over."""

    def drive(works: "Sequence[MeshWork]") -> None:
        for _ in range(100_000):
            done = [work.is_completed() for work in works]  # each of them, for each moves its own member on
            if all(done):
                return
        pytest.fail("the sums do not come to an end")

    return drive
