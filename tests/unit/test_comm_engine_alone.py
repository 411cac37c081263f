"""The engine's thread, without anybody to talk to."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from plait.train.comm.engine import CommEngine


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[CommEngine]:
    """An engine whose sums are over as soon as they have begun."""
    dist.init_process_group("gloo", store=FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        with CommEngine() as engine:
            yield engine
    finally:
        dist.destroy_process_group()


def test_what_is_over_as_soon_as_it_has_begun_does_not_wait_for_a_message(
    alone: CommEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_while_done: list[float] = []
    take = alone.mesh.take

    def watched(timeout_s: float, bell: int | None = None) -> None:
        if any(task.work is not None and task.work.is_over for task in alone._running):
            waits_while_done.append(timeout_s)
        take(timeout_s, bell)

    monkeypatch.setattr(alone.mesh, "take", watched)
    for number in range(5):
        assert float(alone.all_reduce(torch.tensor([float(number)])).wait()) == number
    assert waits_while_done == [0.0] * 5
