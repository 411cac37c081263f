"""What was measured between islands, kept by their names: it outlasts changes of who is a member."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from plait.train.comm.planner import PLAIN, Candidate, Network, Table, candidates

Trials = Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]
"""By codec and shape: (bytes, seconds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNetwork:
    """A network that members have measured together.

    Attributes:
        members: The island of each member at that time, by name.
        network: What was measured; islands are numbered in the order in which ``members`` names them first.
        coded_ratio: By codec, bytes of a message over those of fp32.
        trials: What each way of an all-reduce took; true of these members only.
    """

    members: tuple[str, ...]
    network: Network
    coded_ratio: Mapping[str, float]
    trials: Trials = field(default_factory=dict)

    @classmethod
    def of(cls, members: Sequence[str], table: Table) -> Self:
        """Keeps what a table was made of."""
        trials: dict[str, dict[str, list[tuple[int, float]]]] = {}
        for candidate, taken in table.measured_s.items():
            trials.setdefault(candidate.codec, {})[candidate.shape] = list(taken)
        return cls(members=tuple(members), network=table.network, coded_ratio=dict(table.coded_ratio), trials=trials)

    def tables(self, members: Sequence[str]) -> dict[str, Table] | None:
        """Returns, by codec, the ways to sum over members of these islands; ``None`` where an island is not known.

        What was tried counts where the members are the same. For others, those that are left of them say, the formula
        goes by the links that were measured.
        """
        before, now = list(dict.fromkeys(self.members)), list(dict.fromkeys(members))
        if len(now) < 2 or not set(now) <= set(before):
            return None
        rows = [before.index(name) for name in now]
        old = self.network
        network = Network(
            island_of=tuple(now.index(name) for name in members),
            latency_s=tuple(tuple(old.latency_s[i][j] for j in rows) for i in rows),
            bytes_per_s=tuple(tuple(old.bytes_per_s[i][j] for j in rows) for i in rows),
            uplink_bytes_per_s=tuple(old.uplink_bytes_per_s[i] for i in rows),
            codec_s_per_byte=old.codec_s_per_byte,
        )
        is_same = tuple(members) == self.members
        ways = candidates(network, [name for name in self.coded_ratio if name != "fp32"])
        return {name: self._table(network, ways, name, is_same) for name in self.coded_ratio}

    def _table(self, network: Network, ways: Sequence[Candidate], codec: str, is_same: bool) -> Table:
        own = tuple(way for way in ways if way.codec == codec)
        taken = self.trials.get(codec, {}) if is_same else {}
        tried = {way: [(int(size), float(s)) for size, s in taken[way.shape]] for way in own if way.shape in taken}
        table = Table(network, own, self.coded_ratio, tried)
        table.fix()
        return table

    def as_json(self) -> dict[str, Any]:
        """Returns all of it as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Returns what :meth:`as_json` was taken of, the same to the last bit."""
        network = values["network"]
        return cls(
            members=tuple(values["members"]),
            network=Network(
                island_of=tuple(network["island_of"]),
                latency_s=tuple(map(tuple, network["latency_s"])),
                bytes_per_s=tuple(map(tuple, network["bytes_per_s"])),
                uplink_bytes_per_s=tuple(network["uplink_bytes_per_s"]),
                codec_s_per_byte=dict(network["codec_s_per_byte"]),
            ),
            coded_ratio=dict(values["coded_ratio"]),
            trials=values["trials"],
        )


def way_for(tables: Mapping[str, Table], codec: str, size_bytes: int) -> Candidate:
    """Returns the way for so many bytes of fp32 in a codec.

    Where the codec has no table (bf16 in the warm-up of a one-bit run), it is the best shape of exact sums that goes
    along islands or each with each.
    """
    if codec in tables:
        return tables[codec].choice(size_bytes).candidate
    exact = tables["fp32"]
    fitting = [way for way in exact.candidates if way.shape not in {PLAIN, "ring"}]
    shape = min(fitting, key=lambda way: exact.predicted_s(way, size_bytes)).shape
    return Candidate(shape, codec)
