"""Instances for ``placement.py``: nodes read from dumps, boards written by hand, occupied and mixed nodes, clusters."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plait.hardware.affinity import build
from plait.hardware.discovery import identify
from plait.hardware.importers import read_dump
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.merge import merge
from plait.hardware.topology import Fragment

Matrix = NDArray[np.float64]
GB = 1e9
NVLINK_GB_PER_S = 20.0
GB_PER_S = {"pix": 24.0, "pxb": 22.0, "phb": 18.0, "node": 14.0, "sys": 9.0, "mx": 20.0, "hccs": 20.0, "xgmi": 24.0}
SCORE = {"pix": 50.0, "pxb": 40.0, "phb": 30.0, "node": 20.0, "sys": 10.0, "mx": 120.0, "hccs": 120.0, "xgmi": 120.0}
"""What go-gpuallocator and HAMi count for a pair; an NVLink counts 100, and 20 for the PCIe class below it."""
BETWEEN_GB_PER_S = (1.2, 3.1, 5.0)
"""Between unlike devices of a mixed node: copies by way of host memory."""


@dataclass(frozen=True)
class Node:
    """A machine: bytes a second and scores of each pair."""

    name: str
    bytes_per_s: Matrix
    scores: Matrix


@dataclass(frozen=True)
class Instance:
    """Choose ``k`` of the ``free`` devices of a node."""

    node: Node
    free: tuple[int, ...]
    k: int


def corpus_nodes(directory: Path) -> Iterator[Node]:
    """Yields every machine under a directory of dumps whose pairs of accelerators are all known, 3 to 16 of them.

    Twice, where both are possible: with one speed a class of link, and with what the cost model says of the machine.
    """
    for path in sorted(p for p in directory.rglob("*") if p.is_file() and p.stat().st_size < 2**20):
        try:
            fragment = read_dump(path.read_bytes(), path.name)
        except UnreadableDump:
            continue
        name = str(path.relative_to(directory))
        classes = _by_class(name, fragment)
        if classes is not None:
            yield classes
        modelled = _modelled(name, fragment)
        if modelled is not None:
            yield modelled


def _by_class(name: str, fragment: Fragment) -> Node | None:
    keys = [c.key for c in fragment.components if c.kind in {"gpu", "npu"}]
    if not 3 <= len(keys) <= 16:
        return None
    at = {key: i for i, key in enumerate(keys)}
    speeds, scores = np.full((len(keys), len(keys)), np.nan), np.zeros((len(keys), len(keys)))
    for link in fragment.links:
        if link.a in at and link.b in at and link.a != link.b:
            is_nvlink = link.kind == "nvlink"
            speed = NVLINK_GB_PER_S * link.count if is_nvlink else GB_PER_S.get(link.kind, np.nan)
            score = 100.0 * link.count + 20.0 if is_nvlink else SCORE.get(link.kind, 0.0)
            for i, j in ((at[link.a], at[link.b]), (at[link.b], at[link.a])):
                # A dump may state several links of a pair (a tree and its NVLinks): traffic takes the fastest.
                if np.isnan(speeds[i, j]) or speed * GB > speeds[i, j]:
                    speeds[i, j], scores[i, j] = speed * GB, score
    return _known(f"{name} (classes)", speeds, scores)


def _modelled(name: str, fragment: Fragment) -> Node | None:
    matrix = build({"node": identify(merge([fragment]))})
    if not 3 <= len(matrix.devices) <= 16:
        return None
    speeds = np.where(np.isnan(matrix.bytes_per_s), matrix.low_bytes_per_s, matrix.bytes_per_s)
    return _known(f"{name} (cost model)", speeds, speeds / GB)


def _known(name: str, speeds: Matrix, scores: Matrix) -> Node | None:
    n = len(speeds)
    if np.isnan(speeds[~np.eye(n, dtype=bool)]).any():
        return None
    speeds = speeds.copy()
    np.fill_diagonal(speeds, 0.0)
    scores = np.where(np.eye(n, dtype=bool), 0.0, scores)
    return Node(name, np.minimum(speeds, speeds.T), scores)


def written_nodes() -> Iterator[Node]:
    """Yields boards that are known well enough to be written down: they are there without any dump."""
    cube = {(0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 5): 2, (2, 3): 2, (4, 7): 2, (5, 6): 2, (6, 7): 2}
    cube |= {(0, 1): 1, (0, 2): 1, (1, 3): 1, (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (5, 7): 1}
    yield _board("hybrid cube mesh of 8", 8, cube, switch_of=2, socket_of=4)
    yield _board("8 in bridged pairs", 8, {(i, i + 1): 4 for i in range(0, 8, 2)}, switch_of=4, socket_of=4)
    yield _board("16 in bridged quads", 16, _quads(16), switch_of=4, socket_of=8)
    yield _board("10 behind switches of 5", 10, {}, switch_of=5, socket_of=10)
    yield _board("16 behind switches of 2", 16, {}, switch_of=2, socket_of=8)


def _quads(n: int) -> dict[tuple[int, int], int]:
    return {(a, b): 4 for a in range(n) for b in range(a + 1, n) if a // 4 == b // 4}


def _board(name: str, n: int, nvlinks: dict[tuple[int, int], int], *, switch_of: int, socket_of: int) -> Node:
    speeds, scores = np.zeros((n, n)), np.zeros((n, n))
    for a in range(n):
        for b in range(n):
            if a == b:
                continue
            kind = "pix" if a // switch_of == b // switch_of else "node" if a // socket_of == b // socket_of else "sys"
            links = nvlinks.get((min(a, b), max(a, b)), 0)
            speeds[a, b] = (NVLINK_GB_PER_S * links or GB_PER_S[kind]) * GB
            scores[a, b] = 100.0 * links + 20.0 if links else SCORE[kind]
    return Node(name, speeds, scores)


def empty(nodes: list[Node]) -> list[Instance]:
    """Returns every size of group on every node with nothing running."""
    return [Instance(node, tuple(range(len(node.scores))), k) for node in nodes for k in range(2, len(node.scores))]


def occupied(nodes: list[Node], repetitions: int, rng: random.Random) -> list[Instance]:
    """Returns groups on nodes on which some devices are taken, where the free pairs are not all equal."""
    found = []
    for node in nodes:
        n = len(node.scores)
        for _ in range(repetitions if n >= 6 else 0):
            free = tuple(sorted(rng.sample(range(n), rng.randint(4, n - 1))))
            k = rng.randint(2, len(free) - 1)
            if _is_uneven(node, free):
                found.append(Instance(node, free, k))
    return found


def _is_uneven(node: Node, free: tuple[int, ...]) -> bool:
    inner = node.bytes_per_s[np.ix_(free, free)]
    return len(np.unique(inner[~np.eye(len(free), dtype=bool)])) > 1


def mixed(nodes: list[Node], count: int, rng: random.Random) -> list[Instance]:
    """Returns groups over two unlike halves of one node, some devices taken; at most 16 devices."""
    small = [node for node in nodes if len(node.scores) <= 8]
    found: list[Instance] = []
    while len(found) < count:
        one, other = rng.sample(small, 2)
        a, b = len(one.scores), len(other.scores)
        speeds = np.full((a + b, a + b), rng.choice(BETWEEN_GB_PER_S) * GB)
        scores = np.full((a + b, a + b), SCORE["sys"])
        speeds[:a, :a], scores[:a, :a] = one.bytes_per_s, one.scores
        speeds[a:, a:], scores[a:, a:] = other.bytes_per_s, other.scores
        node = Node(f"{one.name} + {other.name}", speeds, scores)
        free = tuple(sorted(rng.sample(range(a + b), rng.randint(min(6, a + b), a + b))))
        found.append(Instance(node, free, rng.randint(2, len(free) - 1)))
    return found


CLUSTERS = (
    "one kind of node",
    "oversubscribed leaves",
    "mixed nodes and NICs",
    "cube meshes",
    "measured, 10 % noise",
    "no order at all",
)


def cluster(kind: str, n: int, rng: np.random.Generator) -> Matrix:
    """Returns the matrix of ``n`` devices in nodes of 8 behind leaf switches of 4 nodes."""
    if kind == "no order at all":
        matrix = rng.uniform(1.0, 100.0, (n, n)) * GB
        return np.minimum(matrix, matrix.T)
    node = np.arange(n) // 8
    same_node, same_leaf = node[:, None] == node[None, :], node[:, None] // 4 == node[None, :] // 4
    nodes = int(node.max()) + 1
    is_mixed = kind in {"mixed nodes and NICs", "measured, 10 % noise"}
    nic = rng.choice([3.1, 12.5, 25.0, 50.0], nodes) if is_mixed else np.full(nodes, 25.0)
    inside = rng.choice([9.0, 24.0, 100.0, 300.0], nodes) if is_mixed else np.full(nodes, 300.0)
    matrix = np.minimum(nic[node][:, None], nic[node][None, :])
    if kind != "one kind of node":
        matrix = np.where(same_leaf, matrix, matrix / rng.choice([2.0, 4.0]))
    matrix = np.where(same_node, inside[node][:, None], matrix)
    if kind == "cube meshes":
        board = next(written_nodes()).bytes_per_s / GB
        place = np.arange(n) % 8
        matrix = np.where(same_node, board[np.ix_(place, place)], matrix)
    if kind == "measured, 10 % noise":
        matrix = matrix * (1 + 0.1 * rng.standard_normal((n, n)).clip(-3, 3))
    matrix = np.minimum(matrix, matrix.T) * GB
    np.fill_diagonal(matrix, 0.0)
    return matrix
