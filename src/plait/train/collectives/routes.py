"""By which plan the members of one generation exchange their values: along their islands, or each with each."""

from collections.abc import Sequence

from plait.train.collectives.plan import Plan, chunks_of, direct, islands
from plait.train.collectives.planned import Route
from plait.train.compression.codec import Codec
from plait.train.compression.message import MessageLayout


class Routes:
    """The routes of one generation, each made once.

    A link between islands is what an exchange waits for. So where islands have several members, values are added up
    inside each first, and each crosses once each way. Where none has, or all members are on one, it is two hops.

    Attributes:
        island_of: For each member, the number of its island; members are islands of their own where there is but one.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """``names`` tells the island of each member, in words."""
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self.island_of = tuple(numbers[name] for name in names) if len(numbers) > 1 else tuple(range(len(names)))
        self._known: dict[tuple[MessageLayout, str], Route] = {}

    @property
    def has_islands(self) -> bool:
        """Whether there are several islands, and some have several members."""
        return len(set(self.island_of)) < len(self.island_of)

    def of(self, message: MessageLayout, codec: Codec) -> Route:
        """Returns the route of a message in a code."""
        key = (message, codec.name)
        if key not in self._known:
            self._known[key] = Route(self._plan(message, codec), message, codec)
        return self._known[key]

    def _plan(self, message: MessageLayout, codec: Codec) -> Plan:
        chunks = chunks_of(message.payload_bytes(codec))
        if self.has_islands:
            return islands(self.island_of, message.count, None, chunks)
        return direct(len(self.island_of), message.count, None, chunks)
