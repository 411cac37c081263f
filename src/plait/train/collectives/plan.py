r"""Who sends which values to whom in an all-reduce: pure plans, without a socket or a clock.

A plan cuts the values into ranges and gives each a tree to a *root*: values are added up on their way to it, and the
sum goes back down. Everything that adds up to an all-reduce in two sweeps is such a plan: direct exchange (every range
a star), the ring (every range a chain), one leader an island, reduce-scatter and all-gather inside islands with an
exchange across. Since only the root's sum is handed out, all members end with the same bits, whatever the shapes.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from plait.train.compression.reference import BLOCK

CHUNK_BYTES = 2**19
MOST_CHUNKS = 32
MOST_EXACT_RING = 8
"""Rings of up to so many members are tried in every order; longer ones are improved two links at a time."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The way of one range of values.

    Attributes:
        first: Where the range begins, in values.
        end: Where it ends.
        up: For each member, whom it sends its sum to; the root itself for the root.
        down: For each member, from whom it gets the result; the root itself for the root.
    """

    first: int
    end: int
    up: tuple[int, ...]
    down: tuple[int, ...]

    @property
    def root(self) -> int:
        """The member that has the whole sum first."""
        return next(member for member, parent in enumerate(self.up) if member == parent)


@dataclass(frozen=True, slots=True)
class Plan:
    """An all-reduce of ``count`` values over ``size`` members.

    Attributes:
        shape: What it is, in a word or two.
        size: Number of members.
        count: Number of values.
        trees: In the order in which they are to be sent; their ranges are all values, each once.
        island_of: For each member, the number of its island. What travels between islands may be encoded.
    """

    shape: str
    size: int
    count: int
    trees: tuple[Tree, ...]
    island_of: tuple[int, ...]

    def is_across(self, a: int, b: int) -> bool:
        """Whether two members belong to different islands."""
        return self.island_of[a] != self.island_of[b]

    def values_by_link(self) -> Mapping[tuple[int, int], tuple[int, int]]:
        """Returns, by (sender, receiver), how many values travel: as they are, and as they are between islands."""
        plain: Counter[tuple[int, int]] = Counter()
        across: Counter[tuple[int, int]] = Counter()
        for tree in self.trees:
            has_across = self.crosses(tree)
            for member in range(self.size):
                for link, is_result in (((member, tree.up[member]), False), ((tree.down[member], member), True)):
                    if link[0] == link[1]:
                        continue
                    counts = across if (has_across if is_result else self.is_across(*link)) else plain
                    counts[link] += tree.end - tree.first
        return {link: (plain[link], across[link]) for link in plain.keys() | across.keys()}

    def crosses(self, tree: Tree) -> bool:
        """Whether a tree's result has to leave the island of its root; it travels encoded everywhere then."""
        return any(self.is_across(member, parent) for member, parent in enumerate(tree.down))

    def depth(self) -> int:
        """Returns how many messages follow one another at most from a member's values to the last result."""
        return round(self.delay_s(lambda _, __: 1.0))

    def delay_s(self, latency_s: Callable[[int, int], float]) -> float:
        """Returns how long the smallest messages take from a member's values to the last result.

        Args:
            latency_s: Of a message from one member to another.
        """
        return max((_way_s(tree.up, latency_s) + _way_s(tree.down, latency_s) for tree in self.trees), default=0.0)


def _way_s(parents: tuple[int, ...], latency_s: Callable[[int, int], float]) -> float:
    """Returns the longest way to the root; links are taken to be as fast in both directions."""
    most_s = 0.0
    for member in range(len(parents)):
        way_s, at = 0.0, member
        while parents[at] != at:
            way_s, at = way_s + latency_s(at, parents[at]), parents[at]
        most_s = max(most_s, way_s)
    return most_s


@functools.lru_cache(maxsize=256)
def direct(size: int, count: int, shares: tuple[float, ...] | None = None, chunks: int = 1) -> Plan:
    """Every member adds up one part of each chunk and hands it out: two hops, whatever the size.

    Args:
        size: Number of members.
        count: Number of values.
        shares: What part each member adds up; ``None``: equal ones. See :func:`fair_shares`.
        chunks: Into how many pieces the values are cut first, so that results come back while more values leave.
    """
    return islands(tuple(range(size)), count, shares, chunks, shape="direct" if shares is None else "weighted")


@functools.lru_cache(maxsize=256)
def islands(
    island_of: tuple[int, ...],
    count: int,
    shares: tuple[float, ...] | None = None,
    chunks: int = 1,
    *,
    shape: str = "islands",
    lanes: int | None = None,
) -> Plan:
    """Reduce-scatter inside islands, exchange across between those who hold the same range, all-gather inside.

    Islands may be of unequal size: the members of each cut a range evenly among themselves, and where the cuts of two
    islands differ the range is cut at both.

    Args:
        island_of: For each member, the number of its island, from 0 without a gap.
        count: Number of values.
        shares: For each island, what part of the values it adds up; ``None``: equal ones.
        chunks: Into how many pieces the values are cut first.
        shape: The plan's name.
        lanes: How many members of each island talk to other islands; ``None``: all.
    """
    number = max(island_of) + 1
    members = [[m for m, island in enumerate(island_of) if island == i] for i in range(number)]
    given = shares or (1.0,) * number
    if len(given) != number or not all(members):
        raise ValueError(f"{len(given)} shares for islands {island_of}")
    trees = []
    for start, stop in itertools.pairwise(cuts(count, [1.0] * chunks)):
        edges = [start + edge for edge in cuts(stop - start, given)]
        # Each island's pieces come in turn, so that all links have something to do from the start.
        pieces = [_lanes(island, *span, members, lanes) for island, span in enumerate(itertools.pairwise(edges))]
        trees += [tree for turn in itertools.zip_longest(*pieces) for tree in turn if tree is not None]
    return Plan(shape, len(island_of), count, tuple(trees), island_of)


def _lanes(root_island: int, first: int, end: int, members: Sequence[Sequence[int]], lanes: int | None) -> list[Tree]:
    """Cuts a range among the members of each island, or the first of them, and gives each piece its tree."""
    if first == end:
        return []
    held = [[first + edge for edge in cuts(end - first, [1.0] * len(island[:lanes]))] for island in members]
    edges = sorted({edge for each in held for edge in each})
    trees = []
    for low, high in itertools.pairwise(edges):
        holders = [island[_place(each, low)] for island, each in zip(members, held, strict=True)]
        root = holders[root_island]
        parents = [0] * sum(len(island) for island in members)
        for island, holder in zip(members, holders, strict=True):
            for member in island:
                parents[member] = holder
            parents[holder] = root
        trees.append(Tree(low, high, tuple(parents), tuple(parents)))
    return trees


def _place(edges: Sequence[int], at: int) -> int:
    return next(i for i in range(len(edges) - 1) if edges[i] <= at < edges[i + 1])


@functools.lru_cache(maxsize=256)
def ring(order: tuple[int, ...], count: int) -> Plan:
    """Each range goes once around to be added up and once more to be handed out, as in gloo and NCCL.

    Args:
        order: All members, in the order of the ring; see :func:`ring_order`.
        count: Number of values.
    """
    size = len(order)
    edges = cuts(count, [1.0] * size)
    trees = []
    for number in range(size):
        if edges[number] == edges[number + 1]:
            continue
        up, down = [0] * size, [0] * size
        for step in range(size):
            member, before, after = (order[(number + step + d) % size] for d in (0, -1, 1))
            # The chain up ends at the root, place `number`; the chain down begins there.
            up[member] = after if step else member
            down[member] = before if step else member
        trees.append(Tree(edges[number], edges[number + 1], tuple(up), tuple(down)))
    return Plan("ring", size, count, tuple(trees), (0,) * size)


def ring_order(seconds_per_byte: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Returns the order of members in which a ring is fastest: its slowest link first, then the sum over its links.

    Args:
        seconds_per_byte: By sender and receiver; the diagonal is ignored.

    Returns:
        All members, beginning with 0. Exact up to 8 members; beyond, the best that swapping two links at a time finds
        from the nearest-neighbour ring.
    """
    size = len(seconds_per_byte)

    def cost(order: Sequence[int]) -> tuple[float, float]:
        links = [seconds_per_byte[a][b] for a, b in itertools.pairwise([*order, order[0]])] if size > 1 else [0.0]
        return (max(links), sum(links))

    if size <= MOST_EXACT_RING:
        return min(((0, *rest) for rest in itertools.permutations(range(1, size))), key=cost)
    order = _nearest(seconds_per_byte)
    best = cost(order)
    improved = True
    while improved:
        improved = False
        for i, j in itertools.combinations(range(1, size), 2):
            other = [*order[:i], *reversed(order[i : j + 1]), *order[j + 1 :]]
            if cost(other) < best:
                order, best, improved = other, cost(other), True
    return tuple(order)


def _nearest(seconds_per_byte: Sequence[Sequence[float]]) -> list[int]:
    order, left = [0], set(range(1, len(seconds_per_byte)))
    while left:
        last = order[-1]
        order.append(min(left, key=lambda member: (seconds_per_byte[last][member], member)))
        left.discard(order[-1])
    return order


def fair_shares(bytes_per_s: Sequence[float]) -> tuple[float, ...]:
    """Returns what part each of several members (or islands) adds up, so that all are done at the same time.

    With n members and a part f, a member sends and receives ``1 + (n - 2) f`` times the values: the parts of others
    that it contributes to, and its own sum to all others. The time T is the least for which the parts reach 1; a
    member whose link is too slow for that gets none.

    Args:
        bytes_per_s: What the link of each carries in one direction.
    """
    size = len(bytes_per_s)
    if size < 3:
        return (1.0 / size,) * size  # whatever the parts, both send all values once
    low, high = 0.0, size / min(bytes_per_s)
    for _ in range(200):
        time_s = (low + high) / 2
        enough = sum(max(0.0, (time_s * rate - 1.0) / (size - 2)) for rate in bytes_per_s) >= 1.0
        low, high = (low, time_s) if enough else (time_s, high)
    parts = [max(0.0, (high * rate - 1.0) / (size - 2)) for rate in bytes_per_s]
    return tuple(part / sum(parts) for part in parts)


def chunks_of(wire_bytes: float) -> int:
    """Returns into how many chunks to cut values that take so many bytes on slow links."""
    return max(1, min(MOST_CHUNKS, int(wire_bytes // CHUNK_BYTES)))


def cuts(count: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Returns where to cut ``count`` values into parts of these weights: on whole blocks where there are enough.

    Fewer values than 8 blocks a part are cut anywhere, so that parts of small messages are alike too.
    """
    unit = BLOCK if count >= 8 * BLOCK * len(weights) else 1
    total = sum(weights)
    inner = [min(count, round(count * done / total / unit) * unit) for done in itertools.accumulate(weights[:-1])]
    return (0, *inner, count)
