"""What a trace holds, whatever its format: jobs with their arrival, size and work, and how fast they run where."""

from collections.abc import Mapping
from dataclasses import dataclass

from plait.schedule.policy import Configuration, Rate

Rates = Mapping[Configuration, Rate]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """One job of a trace.

    Attributes:
        id: Unique; sorts in the order of the trace.
        submitted_at_s: Seconds from the beginning of the trace.
        num_workers: Gang size as the trace has it.
        work: In the unit of ``rates``, summed over the gang.
        rates: Work a second by configuration; jobs of one kind share one object.
        kind: What it trains, for people.
        workers: Elastic range, (fewest, most) workers; both ``num_workers`` where it is rigid.
        allowed: Types that it may use; empty: any that ``rates`` has.
    """

    id: str
    submitted_at_s: float
    num_workers: int
    work: float
    rates: Rates
    kind: str = ""
    workers: tuple[int, int] = (0, 0)
    allowed: tuple[str, ...] = ()
    project: str = "default"
    priority: int = 0
    weight: float = 1.0
    deadline_at_s: float | None = None

    @property
    def size_range(self) -> tuple[int, int]:
        """The fewest and most workers that it runs with."""
        return self.workers if self.workers[1] else (self.num_workers, self.num_workers)

    def rate(self, accelerator_type: str, num_workers: int, *, is_spread: bool = False) -> float:
        """Returns work a second there; a spread placement without its own rate is as fast as a consolidated one."""
        counts = ((accelerator_type, num_workers),)
        known = self.rates.get(Configuration(counts=counts, is_spread=is_spread))
        if known is None and is_spread:
            known = self.rates.get(Configuration(counts=counts))
        return known.per_s if known is not None else 0.0
