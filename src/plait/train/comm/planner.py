r"""Which all-reduce is fastest for how many bytes, and why: pure decisions on a measured network.

The time of a plan is that of its busiest link, of its messages one after another, and of the codec:

.. math:: T = \max_l \frac{b_l}{B_l} + \sum_{l \in p} \alpha_l + \gamma\,S

(bytes over bandwidth; latencies on the longest way; seconds a byte of what is encoded). What this leaves out, such as
processes that share cores, is measured by candidate and size when training starts, and corrected while it goes on. A
rival takes over only when it is clearly better for several windows in a row.
"""

import bisect
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plait.train.collectives.plan import Plan, chunks_of, direct, fair_shares, islands, ring, ring_order

PLAIN = "plain"
SIZES = tuple(2**power for power in range(12, 27))
"""Bytes of fp32 for which there is a row: 4 KB to 64 MB."""

BETTER = 0.95
"""A rival has to take less than this part of the time of what is in use."""

WINDOWS = 3
"""For so many windows in a row."""

TELLING_BYTES = 2**20
"""Two trials from here on tell what larger messages will take."""

_KEPT = 0.7
_LEAST_S = 1e-6
_UNEQUAL = 1.3
CROWDED = 1.05
"""Connections that share a link do not end together, and it idles before the last one ends: 4 to 10 % of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What was measured between members.

    Attributes:
        island_of: For each member, its island.
        latency_s: Of one small message, by islands of sender and receiver.
        bytes_per_s: Of one connection, both ways at once, by islands of sender and receiver.
        uplink_bytes_per_s: Of each island, with all its members sending at once.
        codec_s_per_byte: By codec: encoding and decoding, for each byte of fp32.
    """

    island_of: tuple[int, ...]
    latency_s: tuple[tuple[float, ...], ...]
    bytes_per_s: tuple[tuple[float, ...], ...]
    uplink_bytes_per_s: tuple[float, ...]
    codec_s_per_byte: Mapping[str, float]

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.island_of)

    def rate(self, a: int, b: int) -> float:
        """Returns bytes a second of the connection between two members."""
        return self.bytes_per_s[self.island_of[a]][self.island_of[b]]


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """One way to do it: the plan's shape, and what travels between islands."""

    shape: str
    codec: str = "fp32"

    def __str__(self) -> str:
        return self.shape if self.shape == PLAIN else f"{self.shape} {self.codec}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is used for a size, and why.

    Attributes:
        size_bytes: Of the values in fp32.
        candidate: The fastest.
        predicted_s: Its time.
        reason: One sentence.
        rivals: All others with their predicted times, the fastest first.
    """

    size_bytes: int
    candidate: Candidate
    predicted_s: float
    reason: str
    rivals: tuple[tuple[Candidate, float], ...]


def topology_hash(addresses: Sequence[str], names: Sequence[str]) -> str:
    """Returns the hash under which a table is saved: of who takes part, and in what islands."""
    return hashlib.blake2b(json.dumps([list(addresses), list(names)]).encode(), digest_size=8).hexdigest()


def candidates(network: Network, codecs: Sequence[str]) -> tuple[Candidate, ...]:
    """Returns all ways that make sense on a network, doing nothing special first.

    Args:
        network: What was measured.
        codecs: Those that may be used; exact ways are always there.
    """
    uplinks = network.uplink_bytes_per_s
    has_islands = len(uplinks) < network.size
    shapes = ["islands"] if has_islands else []
    shapes += ["direct"]
    if not has_islands and network.size > 2 and max(uplinks) > _UNEQUAL * min(uplinks):
        shapes += ["weighted"]
    found = [Candidate(PLAIN), *(Candidate(shape) for shape in shapes), Candidate("ring")]
    found += [Candidate("leaders")] if has_islands else []
    found += [Candidate(shape, codec) for codec in codecs if codec != "fp32" for shape in shapes]
    return tuple(found)


def plan_of(candidate: Candidate, network: Network, count: int, chunks: int) -> Plan:
    """Returns the plan of a candidate; for ``plain`` the ring in the order of ranks that stands for it."""
    members = range(network.size)
    if candidate.shape == PLAIN:
        return ring(tuple(members), count)
    if candidate.shape == "ring":
        cost = tuple(tuple(1.0 / network.rate(a, b) for b in members) for a in members)
        return ring(ring_order(cost), count)
    shares = fair_shares(network.uplink_bytes_per_s)
    if candidate.shape in {"islands", "leaders"}:
        unequal = max(network.uplink_bytes_per_s) > _UNEQUAL * min(network.uplink_bytes_per_s)
        lanes = 1 if candidate.shape == "leaders" else None
        given = shares if unequal else None
        return islands(network.island_of, count, given, chunks, shape=candidate.shape, lanes=lanes)
    return direct(network.size, count, shares if candidate.shape == "weighted" else None, chunks)


def physical_s(plan: Plan, network: Network, coded_ratio: float, codec_s_per_byte: float) -> float:
    """Returns the time of a plan by the formula above.

    Args:
        plan: Who sends what to whom.
        network: What was measured.
        coded_ratio: Bytes of what is encoded, over those of fp32.
        codec_s_per_byte: Encoding and decoding a byte of fp32.
    """
    number = len(network.uplink_bytes_per_s)
    out, into, inside = [0.0] * number, [0.0] * number, [0.0] * number
    connections = [0] * number
    slowest_s = 0.0
    coded_bytes = 0.0
    for (a, b), (plain, coded) in plan.values_by_link().items():
        size_bytes = 4.0 * (plain + coded * coded_ratio)
        slowest_s = max(slowest_s, size_bytes / network.rate(a, b))
        coded_bytes += 4.0 * coded
        i, j = network.island_of[a], network.island_of[b]
        if i == j:
            inside[i] += size_bytes
        else:
            out[i] += size_bytes
            into[j] += size_bytes
            connections[i] += 1
    for i, uplink in enumerate(network.uplink_bytes_per_s):
        crowded = CROWDED if connections[i] > 1 else 1.0
        slowest_s = max(slowest_s, crowded * out[i] / uplink, crowded * into[i] / uplink)
        if inside[i]:  # two directions share what one connection both ways has shown
            slowest_s = max(slowest_s, inside[i] / (2.0 * network.bytes_per_s[i][i]))

    def latency_s(a: int, b: int) -> float:
        return network.latency_s[network.island_of[a]][network.island_of[b]]

    return slowest_s + plan.delay_s(latency_s) + codec_s_per_byte * coded_bytes / plan.size


@dataclass(slots=True)
class Table:
    """Choices by size on one network, calibrated by what was measured and corrected by what is observed.

    All members make the same of the same numbers; only :meth:`decide` goes by a member's own clock.

    Attributes:
        network: What was measured.
        candidates: In a fixed order, the same on all members.
        coded_ratio: By codec, bytes of a message over those of fp32.
        measured_s: By candidate, (bytes, seconds) of trials when training started, by size.
        factors: By candidate and row, what observations say over what is predicted.
        in_use: By row, what was put to use.
    """

    network: Network
    candidates: tuple[Candidate, ...]
    coded_ratio: Mapping[str, float]
    measured_s: dict[Candidate, list[tuple[int, float]]] = field(default_factory=dict)
    factors: dict[tuple[Candidate, int], float] = field(default_factory=dict)
    in_use: dict[int, Candidate] = field(default_factory=dict)
    _ahead: dict[int, tuple[Candidate, int]] = field(default_factory=dict)
    _formula_s: dict[tuple[Candidate, int], float] = field(default_factory=dict)

    def formula_s(self, candidate: Candidate, size_bytes: int) -> float:
        """Returns the physical time of a candidate."""
        known = self._formula_s.get((candidate, size_bytes))
        if known is None:
            ratio = self.coded_ratio[candidate.codec]
            plan = plan_of(candidate, self.network, max(1, size_bytes // 4), chunks_of(size_bytes * ratio))
            gamma = self.network.codec_s_per_byte.get(candidate.codec, 0.0)
            known = max(_LEAST_S, physical_s(plan, self.network, ratio, gamma))
            self._formula_s[candidate, size_bytes] = known
        return known

    def predicted_s(self, candidate: Candidate, size_bytes: int) -> float:
        """Returns the time of a candidate: by the formula, and what trials took beyond it; then corrected."""
        factor = self.factors.get((candidate, row_of(size_bytes)), 1.0)
        return factor * self._calibrated_s(candidate, size_bytes)

    def _calibrated_s(self, candidate: Candidate, size_bytes: int) -> float:
        trials = self.measured_s.get(candidate, [])
        formula_s = self.formula_s(candidate, size_bytes)
        if not trials:
            return formula_s
        sizes = [size for size, _ in trials]
        place = bisect.bisect_left(sizes, size_bytes)
        if place == 0:
            return trials[0][1]  # all smaller messages cost what the smallest did: latency
        if place == len(sizes):
            return max(trials[-1][1], formula_s + self._over_beyond_s(candidate, size_bytes))
        part = (size_bytes - sizes[place - 1]) / (sizes[place] - sizes[place - 1])
        over_s = (1.0 - part) * self._over_s(candidate, place - 1) + part * self._over_s(candidate, place)
        return max(formula_s + over_s, formula_s / 2.0)

    def _over_s(self, candidate: Candidate, trial: int) -> float:
        """Returns what a trial took beyond the formula."""
        size_bytes, seconds = self.measured_s[candidate][trial]
        return seconds - self.formula_s(candidate, size_bytes)

    def _over_beyond_s(self, candidate: Candidate, size_bytes: int) -> float:
        """Returns what the formula leaves out beyond the last trial: a fixed part and one by size.

        Trials of large messages tell by themselves, and that ``plain`` may be faster than connections of Plait's own.
        Else it is the processor's work, alike for all shapes of a codec; disturbances only ever make it look larger, so
        the least of them counts.
        """
        own = self.measured_s[candidate]
        if len(own) > 1 and own[-2][0] >= TELLING_BYTES:
            slope = self._slope(candidate) if candidate.shape == PLAIN else max(0.0, self._slope(candidate))
            return self._over_s(candidate, -1) + slope * (size_bytes - own[-1][0])
        alike = [
            (other, trials)
            for other, trials in self.measured_s.items()
            if other.codec == candidate.codec and (other.shape == PLAIN) == (candidate.shape == PLAIN)
        ]
        slope = max(0.0, min((self._slope(other) for other, trials in alike if len(trials) > 1), default=0.0))
        return min(self._over_s(other, -1) + slope * (size_bytes - trials[-1][0]) for other, trials in alike)

    def _slope(self, candidate: Candidate) -> float:
        """Returns by how many seconds a byte what the formula leaves out has grown between the last two trials."""
        trials = self.measured_s[candidate]
        return (self._over_s(candidate, -1) - self._over_s(candidate, -2)) / (trials[-1][0] - trials[-2][0])

    def choice(self, size_bytes: int) -> Choice:
        """Returns what is used for a size; what was put to use earlier stays until :meth:`decide` says otherwise."""
        row = row_of(size_bytes)
        ranked = sorted(((self.predicted_s(c, size_bytes), n, c) for n, c in enumerate(self.candidates)))
        best = self.in_use.get(row) or self._worth_it(ranked)
        best_s = next(seconds for seconds, _, c in ranked if c == best)
        rivals = tuple((c, seconds) for seconds, _, c in ranked if c != best)
        return Choice(
            size_bytes=size_bytes,
            candidate=best,
            predicted_s=best_s,
            reason=self._reason(best, best_s, rivals),
            rivals=rivals,
        )

    def _worth_it(self, ranked: Sequence[tuple[float, int, Candidate]]) -> Candidate:
        """Returns the fastest; PyTorch's own all-reduce where nothing is clearly faster."""
        for seconds, _, candidate in ranked:
            if candidate.shape == PLAIN and ranked[0][0] >= BETTER * seconds:
                return candidate
        return ranked[0][2]

    def _reason(self, best: Candidate, best_s: float, rivals: Sequence[tuple[Candidate, float]]) -> str:
        uplinks = self.network.uplink_bytes_per_s
        why = {
            PLAIN: "nothing else is clearly faster",
            "direct": "two hops, where a ring of all has more",
            "islands": f"the slowest uplink, {min(uplinks) / 1e6:.3g} MB/s, carries each value once each way",
            "leaders": f"one connection of the slowest uplink, {min(uplinks) / 1e6:.3g} MB/s, carries each value once",
            "weighted": f"whoever is behind {min(uplinks) / 1e6:.3g} MB/s adds up less",
            "ring": "in the best order every link carries the same",
        }[best.shape]
        if best.codec != "fp32":
            why += f", and {best.codec} sends {self.coded_ratio[best.codec]:.3g} of fp32"
        if not rivals:
            return why
        rival, rival_s = rivals[0]
        return f"{why}; {rival} would take {rival_s / best_s:.2f} times as long"

    def fix(self) -> None:
        """Puts the fastest of each row to use: from now on only :meth:`decide` changes it."""
        for row, size_bytes in enumerate(SIZES):
            self.in_use[row] = self.choice(size_bytes).candidate

    def observe(self, candidate: Candidate, size_bytes: int, seconds: float) -> None:
        """Takes in how long an exchange took."""
        key = (candidate, row_of(size_bytes))
        ratio = seconds / self._calibrated_s(candidate, size_bytes)
        before = self.factors.get(key)
        self.factors[key] = ratio if before is None else _KEPT * before + (1.0 - _KEPT) * ratio

    def observe_together(self, sizes_bytes: Sequence[int], seconds: float) -> None:
        """Takes in how long several exchanges took that shared the network, each by what is in use for its size."""
        used = [(self.choice(size_bytes).candidate, size_bytes) for size_bytes in sizes_bytes]
        ratio = seconds / sum(self._calibrated_s(*each) for each in used)
        for candidate, size_bytes in {(c, row_of(size)): (c, size) for c, size in used}.values():
            self.observe(candidate, size_bytes, ratio * self._calibrated_s(candidate, size_bytes))

    def decide(self) -> dict[int, Candidate]:
        """A window is over: returns which rows should use something else from now on.

        A rival that was never observed is held against the whole network's drift: the factor of what is in use tells
        about the machine as much as about the candidate, so a rival gets half of it, in logarithm.
        """
        changes = {}
        for row, size_bytes in enumerate(SIZES):
            used = self.in_use.get(row)
            drift = None if used is None else self.factors.get((used, row))
            if used is None or drift is None or len(self.candidates) < 2:
                continue
            used_s = self.predicted_s(used, size_bytes)
            rival_s, _, rival = min(
                (self._rival_s(c, size_bytes, drift), n, c) for n, c in enumerate(self.candidates) if c != used
            )
            if rival_s >= BETTER * used_s:
                self._ahead.pop(row, None)
                continue
            before, windows = self._ahead.get(row, (rival, 0))
            windows = windows + 1 if before == rival else 1
            self._ahead[row] = (rival, windows)
            if windows >= WINDOWS:
                changes[row] = rival
                del self._ahead[row]
        return changes

    def _rival_s(self, candidate: Candidate, size_bytes: int, drift: float) -> float:
        own = self.factors.get((candidate, row_of(size_bytes)))
        return self._calibrated_s(candidate, size_bytes) * (math.sqrt(drift) if own is None else own)


def row_of(size_bytes: int) -> int:
    """Returns the row of a size: the nearest power of two on a logarithmic scale."""
    return min(len(SIZES) - 1, max(0, round(math.log2(max(1, size_bytes))) - 12))
