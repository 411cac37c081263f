"""When to ask a store again, and how fast to send. Pure: time and chance are arguments."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits that double, each drawn evenly between its half and its whole, so that many writers spread out."""

    first_s: float = 0.2
    most_s: float = 10.0
    attempts: int = 6

    def wait_s(self, failures: int, chance: float) -> float | None:
        """Returns how long to wait after so many failures, None to give up; ``chance`` is uniform in [0, 1)."""
        if failures >= self.attempts:
            return None
        whole = min(self.first_s * 2.0 ** (failures - 1), self.most_s)
        return whole * (0.5 + 0.5 * chance)


@dataclass(slots=True)
class RateCap:
    """A token bucket of one second: lets ``bytes_per_s`` through on average."""

    bytes_per_s: float
    _free_bytes: float = 0.0
    _at_s: float | None = None

    def wait_s(self, num_bytes: int, now_s: float) -> float:
        """Takes so many bytes and returns how long to wait before they may be sent."""
        if self._at_s is None:
            self._at_s, self._free_bytes = now_s, self.bytes_per_s
        gained = max(0.0, now_s - self._at_s) * self.bytes_per_s
        self._at_s = max(now_s, self._at_s)
        self._free_bytes = min(self._free_bytes + gained, self.bytes_per_s) - num_bytes
        return max(0.0, -self._free_bytes / self.bytes_per_s)
