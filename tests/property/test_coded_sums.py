"""Encoded sums: all members end with the same bits, and what encoding loses is owed, never gone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait.train.collectives.coded import CodedSum, Feedback
from plait.train.collectives.mesh import Mesh, MeshBuilder
from plait.train.compression import codec
from plait.train.compression.message import message_layout

NAMES = ["fp32", "bf16", "int8", "sign1", "top_k"]


@contextmanager
def meshes(size: int) -> Iterator[list[Mesh]]:
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


def exchange(group: list[Mesh], rows: list[Tensor], name: str, owed: list[Feedback] | None) -> None:
    """Sums the rows over the members, each in place; the first 300 values are a bias, the rest a matrix."""
    count = len(rows[0])
    layout = message_layout([(min(300, count),), (count - min(300, count), 1)])
    works = [
        mesh.start(
            lambda key, ranks, mesh=mesh, row=row, rank=rank: CodedSum(  # type: ignore[misc]
                mesh, key, ranks, row, codec(name), layout, None if owed is None else owed[rank]
            )
        )
        for rank, (mesh, row) in enumerate(zip(group, rows, strict=True))
    ]
    for _ in range(100_000):
        done = [work.is_completed() for work in works]
        if all(done):
            return
    pytest.fail("the sums do not come to an end")


def debt(owed: list[Feedback]) -> Tensor:
    """What all members together still owe."""
    total = torch.zeros(len(owed[0].worker), dtype=torch.float64)
    for feedback in owed:
        total += feedback.worker.double()
        first, end = feedback.part
        total[first:end] += feedback.server.double()
    return total


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    size=st.integers(2, 4),
    count=st.sampled_from([1, 1000, 1024, 5000, 9001]),
    seed=st.integers(0, 2**31),
)
def test_results_are_alike_and_what_is_lost_is_owed(name: str, size: int, count: int, seed: int) -> None:
    """Three steps; the result and the debt of each are the exact sum and the debt before it."""
    generator = torch.Generator().manual_seed(seed)
    owed = [Feedback(count) for _ in range(size)]
    with meshes(size) as group:
        for _ in range(3):
            rows = [torch.randn(count, generator=generator) for _ in range(size)]
            exact = torch.stack([row.double() for row in rows]).sum(0) + debt(owed)
            exchange(group, rows, name, owed)
            for feedback in owed:
                feedback.commit()
            assert all(torch.equal(row, rows[0]) for row in rows)
            torch.testing.assert_close(rows[0].double() + debt(owed), exact, rtol=0, atol=2e-5)


def test_an_exchange_that_does_not_count_leaves_the_debt_as_it_was() -> None:
    generator = torch.Generator().manual_seed(1)
    owed = [Feedback(3000) for _ in range(2)]
    with meshes(2) as group:
        exchange(group, [torch.randn(3000, generator=generator) for _ in range(2)], "sign1", owed)
        for feedback in owed:
            feedback.commit()
        before = debt(owed)
        rows = [torch.randn(3000, generator=generator) for _ in range(2)]
        first = [row.clone() for row in rows]
        exchange(group, first, "sign1", owed)
        assert torch.equal(debt(owed), before)
        exchange(group, rows, "sign1", owed)
        assert torch.equal(rows[0], first[0])


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 4)])
def test_another_group_owes_what_the_old_one_did(before: int, after: int) -> None:
    """Parts are dealt anew; whoever goes on keeps its debt, and a joiner has none."""
    generator = torch.Generator().manual_seed(2)
    owed = [Feedback(6000) for _ in range(before)]
    with meshes(before) as group:
        exchange(group, [torch.randn(6000, generator=generator) for _ in range(before)], "sign1", owed)
    for feedback in owed:
        feedback.commit()
    stay = owed[:after] + [Feedback(6000) for _ in range(after - before)]
    rows = [torch.randn(6000, generator=generator) for _ in range(after)]
    exact = torch.stack([row.double() for row in rows]).sum(0) + debt(stay)
    with meshes(after) as group:
        exchange(group, rows, "sign1", stay)
    for feedback in stay:
        feedback.commit()
    torch.testing.assert_close(rows[0].double() + debt(stay), exact, rtol=0, atol=2e-5)
