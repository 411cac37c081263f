"""What devices cost over a span of time: fixed prices, windows of the day, and changes as of spot markets."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from plait.spec.cluster import PriceWindow

DAY_S = 86400


class Tariff:
    """Prices by type over time, as the scheduler sees them: a change overrides windows, windows override the rest."""

    def __init__(
        self,
        prices_per_hour: Mapping[str, float],
        windows: Sequence[PriceWindow] = (),
        changes: Sequence[tuple[float, str, float]] = (),
        day_s: int = 0,
    ) -> None:
        # The scheduler lets announced prices override windows, and the fixed ones are announced at the beginning.
        first = [(0.0, name, price) for name, price in prices_per_hour.items()]
        self._changes: dict[str, list[tuple[float, float]]] = {}
        for at_s, name, price in sorted([*first, *changes], key=lambda change: change[0]):
            self._changes.setdefault(name, []).append((at_s, price))
        self._windows = windows
        self._day_s = day_s

    def cost(self, name: str, start_s: float, end_s: float) -> float:
        """Returns what one device of the type costs from start to end; types without a price cost nothing."""
        changes = self._changes.get(name)
        if changes is None:
            return self._by_windows(name, start_s, end_s)
        if len(changes) == 1:
            at_s, price = changes[0]
            return price * max(0.0, end_s - max(start_s, at_s)) / 3600.0 + self._by_windows(
                name, start_s, min(end_s, at_s)
            )
        total = self._by_windows(name, start_s, min(end_s, changes[0][0]))
        for (at_s, price), until_s in zip(changes, [*(at for at, _ in changes[1:]), end_s], strict=True):
            total += price * max(0.0, min(end_s, until_s) - max(start_s, at_s)) / 3600.0
        return total

    def _by_windows(self, name: str, start_s: float, end_s: float) -> float:
        prices = [(w, dict(w.price_per_hour)[name]) for w in self._windows if name in dict(w.price_per_hour)]
        if not prices or end_s <= start_s:
            return 0.0
        total = 0.0
        for from_s, to_s in _pieces(start_s, end_s, self._edges(), self._day_s):
            middle = ((from_s + to_s) / 2 + self._day_s) % DAY_S
            # The last open window that names the type wins, as in the scheduler.
            open_now = [price for window, price in prices if _holds(window, middle)]
            total += (open_now[-1] if open_now else 0.0) * (to_s - from_s) / 3600.0
        return total

    def _edges(self) -> list[int]:
        return sorted({edge % DAY_S for window in self._windows for edge in (window.from_s, window.to_s)})


def _holds(window: PriceWindow, day_s: float) -> bool:
    if window.from_s < window.to_s:
        return window.from_s <= day_s < window.to_s
    return day_s >= window.from_s or day_s < window.to_s


def _pieces(start_s: float, end_s: float, edges: Sequence[int], day_s: int) -> Iterator[tuple[float, float]]:
    """Goes over the span cut at the edges of each day."""
    cuts = [start_s]
    day = int((start_s + day_s) // DAY_S)
    while day * DAY_S - day_s <= end_s:
        cuts.extend(at for edge in edges if start_s < (at := day * DAY_S - day_s + edge) < end_s)
        day += 1
    cuts.append(end_s)
    return pairwise(cuts)
