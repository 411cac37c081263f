"""Rates of jobs of which only the duration is known: in proportion to the speeds of types."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from plait.schedule.policy import Configuration, Rate
from plait.sim.jobs import Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Relative speed by accelerator type; a job's recorded duration is that on ``reference``.

    ``scaling`` is the exponent by which speed grows with workers (1: in proportion). It matters only where jobs are
    resized.
    """

    by_type: Mapping[str, float] = field(default_factory=dict)
    reference: str = ""
    scaling: float = 0.9
    _known: dict[tuple[int, tuple[str, ...], tuple[int, ...]], Rates] = field(
        default_factory=dict, compare=False, repr=False
    )

    def rates(self, workers: int, allowed: tuple[str, ...] = (), sizes: tuple[int, ...] = ()) -> Rates:
        """Returns seconds of recorded duration done in a second, by configuration; jobs of a kind share one mapping.

        Args:
            workers: Those that it was recorded with.
            allowed: Types that it may use; empty: all.
            sizes: Numbers of workers that it may run with; empty: only as recorded.
        """
        key = (workers, allowed, sizes)
        if key not in self._known:
            base = self.by_type.get(self.reference) or 1.0
            self._known[key] = {
                Configuration(counts=((name, size),)): Rate(per_s=speed / base * (size / workers) ** self.scaling)
                for name, speed in self.by_type.items()
                if not allowed or name in allowed
                for size in sizes or (workers,)
            }
        return self._known[key]
