"""What a policy believes of rates and remaining work: the truth, an estimate with errors and corrections, nothing."""

import math
from dataclasses import dataclass, field
from random import Random

from plait.schedule.policy import Configuration, Rate
from plait.sim.jobs import Rates, SimJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """How far estimates are off.

    Attributes:
        rate_error: Standard deviation of the logarithm of estimated over true rate, drawn once for each job, type and
            number of workers.
        work_error: The same for remaining work, drawn once for each job.
        knows_remaining: False: remaining work is never told.
        is_corrected: After a minute on a type the measured rate replaces the estimate there, and corrects the job's
            estimates for other numbers of workers of that type by the same factor.
        seed: Of the errors.
    """

    rate_error: float = 0.0
    work_error: float = 0.0
    knows_remaining: bool = True
    is_corrected: bool = True
    seed: int = 0

    def begin(self) -> "Knowledge":
        """Returns what is believed at the beginning of a run."""
        return Knowledge(self)


@dataclass(slots=True)
class _Known:
    rates: Rates
    seen_s: dict[tuple[str, int], float] = field(default_factory=dict)


class Knowledge:
    """The beliefs of one run, which change as jobs run."""

    SETTLED_S = 60.0

    def __init__(self, beliefs: Beliefs) -> None:
        self.beliefs = beliefs
        self._known: dict[str, _Known] = {}
        self._factor: dict[str, float] = {}

    def rates(self, job: SimJob) -> Rates:
        """Returns the rates that the policy is shown; the job's own object where nothing is off."""
        if self.beliefs.rate_error == 0:
            return job.rates
        return self._of(job).rates

    def remaining(self, job: SimJob, left: float) -> float | None:
        """Returns the remaining work that the policy is told."""
        if not self.beliefs.knows_remaining:
            return None
        if self.beliefs.work_error == 0:
            return left
        if job.id not in self._factor:
            draw = Random(f"{self.beliefs.seed}/{job.id}/work").gauss(0.0, self.beliefs.work_error)
            self._factor[job.id] = math.exp(draw)
        return left * self._factor[job.id]

    def observe(self, job: SimJob, name: str, number: int, seconds: float) -> None:
        """Takes note of a measured rate."""
        if self.beliefs.rate_error == 0 or not self.beliefs.is_corrected or seconds <= 0:
            return
        known = self._of(job)
        before_s = known.seen_s.get((name, number), 0.0)
        known.seen_s[name, number] = before_s + seconds
        if before_s < self.SETTLED_S <= before_s + seconds:
            known.rates = self._corrected(known, job, name, number)

    def _of(self, job: SimJob) -> _Known:
        known = self._known.get(job.id)
        if known is None:
            known = self._known[job.id] = _Known(rates=self._drawn(job))
        return known

    def _drawn(self, job: SimJob) -> Rates:
        """Returns the true rates times one lognormal factor for each number of workers of each type."""
        drawn: dict[Configuration, Rate] = {}
        for configuration, rate in job.rates.items():
            draw = Random(f"{self.beliefs.seed}/{job.id}/{configuration.counts}").gauss(0.0, self.beliefs.rate_error)
            drawn[configuration] = Rate(per_s=rate.per_s * math.exp(draw), relative_error=self.beliefs.rate_error)
        return drawn

    def _corrected(self, known: _Known, job: SimJob, name: str, number: int) -> Rates:
        packed = Configuration(counts=((name, number),))
        if packed not in job.rates:
            return known.rates
        factor = job.rates[packed].per_s / known.rates[packed].per_s
        new: dict[Configuration, Rate] = {}
        for configuration, rate in known.rates.items():
            (kind, workers) = configuration.counts[0]
            if (kind, workers) == (name, number):
                new[configuration] = Rate(per_s=job.rates[configuration].per_s, relative_error=0.0)
            elif kind == name and (kind, workers) not in known.seen_s:
                new[configuration] = Rate(per_s=rate.per_s * factor, relative_error=rate.relative_error)
            else:
                new[configuration] = rate
        return new
