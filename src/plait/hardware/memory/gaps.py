"""Free ranges of addresses below an open end."""

from bisect import bisect_left, bisect_right, insort


class Gaps:
    """Free ranges below an open end; gives the tightest one, joins neighbours on return."""

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._tops: list[int] = []
        self._by_size: list[tuple[int, int]] = []
        self.end = 0

    def take(self, size: int) -> int:
        """Takes ``size`` bytes from the tightest gap, or at the open end; returns the offset."""
        place = bisect_left(self._by_size, (size, 0))
        if place == len(self._by_size):
            offset = self.end
            if self._tops and self._tops[-1] == self.end:
                offset = self._lows[-1]
                self._drop(len(self._lows) - 1)
            self.end = offset + size
            return offset
        _, offset = self._by_size[place]
        index = bisect_left(self._lows, offset)
        top = self._tops[index]
        self._drop(index)
        if offset + size < top:
            self._add(offset + size, top)
        return offset

    def holds(self, offset: int, size: int) -> bool:
        """Says whether all of this range is free."""
        if offset >= self.end:
            return True
        index = bisect_right(self._lows, offset) - 1
        if index < 0 or offset >= self._tops[index]:
            return False
        return offset + size <= self._tops[index] or self._tops[index] == self.end

    def take_at(self, offset: int, size: int) -> bool:
        """Takes exactly this range; says whether all of it was free."""
        if not self.holds(offset, size):
            return False
        top = offset + size
        if offset < self.end:
            index = bisect_right(self._lows, offset) - 1
            gap_low, gap_top = self._lows[index], self._tops[index]
            self._drop(index)
            if gap_low < offset:
                self._add(gap_low, offset)
            if top < gap_top:
                self._add(top, gap_top)
        elif offset > self.end:
            self.give(self.end, offset - self.end)
        self.end = max(self.end, top)
        return True

    def fitting(self, size: int, most: int) -> list[int]:
        """Returns the offsets of up to ``most`` places for ``size`` bytes, the tightest first, the open end last."""
        place = bisect_left(self._by_size, (size, 0))
        offsets = [offset for _, offset in self._by_size[place : place + most - 1]]
        open_end = self._lows[-1] if self._tops and self._tops[-1] == self.end else self.end
        return [*offsets, open_end] if open_end not in offsets else offsets

    def give(self, offset: int, size: int) -> None:
        """Returns a range that was taken."""
        low, top = offset, offset + size
        index = bisect_right(self._lows, low)
        if index < len(self._lows) and self._lows[index] == top:
            top = self._tops[index]
            self._drop(index)
        if index and self._tops[index - 1] == low:
            low = self._lows[index - 1]
            self._drop(index - 1)
        self._add(low, top)

    def _add(self, low: int, top: int) -> None:
        index = bisect_left(self._lows, low)
        self._lows.insert(index, low)
        self._tops.insert(index, top)
        insort(self._by_size, (top - low, low))

    def _drop(self, index: int) -> None:
        low, top = self._lows.pop(index), self._tops.pop(index)
        del self._by_size[bisect_left(self._by_size, (top - low, low))]
