"""By which plan the members of one generation exchange their values: by what was measured, or along their islands."""

from collections.abc import Sequence
from statistics import median

from plait.train.collectives.plan import Plan, chunks_of, direct, islands
from plait.train.collectives.planned import Route
from plait.train.collectives.travel import Travel
from plait.train.comm.known import KnownNetwork, way_for
from plait.train.comm.planner import PLAIN, SIZES, plan_of
from plait.train.compression.codec import Codec
from plait.train.compression.message import MessageLayout

WINDOW_STEPS = 16


class Routes:
    """The routes of one generation, each made once; the same on all members.

    As long as nothing is known of the links: a link between islands is what an exchange waits for. So where islands
    have several members, values are added up inside each first, and each crosses once each way. Where none has, or all
    members are on one, it is two hops. What was measured is corrected by what steps take, by numbers that all members
    have alike; so all change at the same step.

    Attributes:
        names: The island of each member, in words.
        island_of: For each member, the number of its island; members are islands of their own where there is but one.
        tables: By codec, the ways that were measured; ``None`` as long as nothing is known of these islands.
        switches: What steps have changed, in words.
    """

    def __init__(self, names: Sequence[str], known: KnownNetwork | None = None) -> None:
        """``known`` may be of other members, as long as their islands are among those that were measured."""
        self.names = tuple(names)
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self.island_of = tuple(numbers[name] for name in names) if len(numbers) > 1 else tuple(range(len(names)))
        self.tables = known.tables(names) if known is not None else None
        self.switches: list[str] = []
        self._known: dict[tuple[MessageLayout, str], Route] = {}
        self._window: dict[tuple[str, tuple[int, ...]], list[float]] = {}

    @property
    def has_islands(self) -> bool:
        """Whether there are several islands, and some have several members."""
        return len(set(self.island_of)) < len(self.island_of)

    def is_plain(self, size_bytes: int) -> bool:
        """Whether so many bytes of fp32 are summed by the back end, and not by a plan."""
        if self.tables is None:
            return not self.has_islands
        return way_for(self.tables, "fp32", size_bytes).shape == PLAIN

    def of(self, message: MessageLayout, codec: Codec) -> Route:
        """Returns the route of a message in a code."""
        key = (message, codec.name)
        if key not in self._known:
            self._known[key] = Route(self._plan(message, codec), message, codec)
        return self._known[key]

    def observe(self, travel: Travel, seconds: float) -> list[str]:
        """Takes in a step that counts, the same on all members; returns in words what goes another way from now on.

        Args:
            travel: What its exchanges carried.
            seconds: How long they were under way for who began them last: nobody kept that member waiting.
        """
        if self.tables is None or travel.codec not in self.tables:
            return []
        window = self._window.setdefault((travel.codec, travel.sizes_bytes), [])
        window.append(seconds)
        if len(window) < WINDOW_STEPS:
            return []
        table = self.tables[travel.codec]
        table.observe_together(travel.sizes_bytes, median(window))  # single steps are held up by anything
        window.clear()
        changes = table.decide()
        told = [f"{SIZES[row]} bytes: {way} in place of {table.in_use[row]}" for row, way in changes.items()]
        if told:
            table.in_use.update(changes)
            self.switches += told
            self._known.clear()
        return told

    def _plan(self, message: MessageLayout, codec: Codec) -> Plan:
        chunks = chunks_of(message.payload_bytes(codec))
        if self.tables is not None:
            way = way_for(self.tables, codec.name, 4 * message.count)
            if way.shape != PLAIN:
                return plan_of(way, self.tables["fp32"].network, message.count, chunks)
        if self.has_islands:
            return islands(self.island_of, message.count, None, chunks)
        return direct(len(self.island_of), message.count, None, chunks)
