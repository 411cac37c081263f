"""Blocks of a graph: the parts that no single device, taken away, cuts in two. A ring always lies within one."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Adjacency = NDArray[np.bool_]
"""Shape (n, n), symmetric, False on the diagonal."""


def bit_rows(adjacent: Adjacency) -> list[int]:
    """Returns each row as one integer whose bit ``j`` is ``adjacent[i, j]``."""
    packed = np.packbits(adjacent, axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def blocks(adjacent: Adjacency) -> list[list[int]]:
    """Returns the biconnected components with at least three vertices, each sorted, the largest first.

    Low points (Hopcroft and Tarjan 1973). Renumbering the vertices in the order of the search makes the low point of a
    vertex the first neighbour in its row, so that a dense graph of n vertices costs n steps of Python, not n * n.
    """
    order, parent = _search(bit_rows(adjacent))
    n = len(order)
    if n == 0:
        return []
    renumbered = adjacent[np.ix_(order, order)]
    children = np.flatnonzero(parent >= 0)
    renumbered[children, parent[children]] = False
    low = np.where(renumbered.any(axis=1), renumbered.argmax(axis=1), n)
    low = np.minimum(low, np.arange(n))
    for v in range(n - 1, 0, -1):
        if parent[v] >= 0:
            low[parent[v]] = min(low[parent[v]], low[v])
    found = _collect(parent, low)
    return sorted((sorted(order[v] for v in block) for block in found if len(block) > 2), key=lambda b: (-len(b), b))


def _search(rows: Sequence[int]) -> tuple[list[int], NDArray[np.int64]]:
    """Returns the vertices in the order of a depth-first search, and each one's parent as a place in that order."""
    unvisited = (1 << len(rows)) - 1
    order: list[int] = []
    parent: list[int] = []
    while unvisited:
        root = (unvisited & -unvisited).bit_length() - 1
        unvisited &= unvisited - 1
        stack = [len(order)]
        order.append(root)
        parent.append(-1)
        while stack:
            onward = rows[order[stack[-1]]] & unvisited
            if not onward:
                stack.pop()
                continue
            bit = onward & -onward
            unvisited ^= bit
            parent.append(stack[-1])
            stack.append(len(order))
            order.append(bit.bit_length() - 1)
    return order, np.array(parent, dtype=np.int64)


def _collect(parent: NDArray[np.int64], low: NDArray[np.int64]) -> list[list[int]]:
    """Returns the blocks: a child that reaches no further than its parent begins one."""
    block_of: list[list[int]] = [[] for _ in parent]
    found: list[list[int]] = []
    for v, up in enumerate(parent.tolist()):
        if up < 0:
            continue
        if low[v] >= up:
            found.append([up])
            block_of[v] = found[-1]
        else:
            block_of[v] = block_of[up]
        block_of[v].append(v)
    return found
