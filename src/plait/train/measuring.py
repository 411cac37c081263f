"""When a session measures its network: once it runs, at a quiet moment, and where that can pay."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from plait.train.collectives.gloo import GlooGroup
from plait.train.collectives.routes import Routes
from plait.train.comm.known import KnownNetwork
from plait.train.membership.link import Warned

QUIET_S = 10.0
"""So long after the last change of members nothing is measured: work comes first."""

QUIET_STEPS = 5
USUAL_S = 6.0
"""What a measuring takes, about."""

MOST_FAILURES = 3
"""A network that could not be measured so often is left alone."""

MOST_SHARE = 0.02
"""A measuring may take this part of the time that is left of a run."""


class Measuring:
    """What is known of the network, and whether it is time to measure it."""

    def __init__(self, mode: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``mode`` is ``auto``, ``now`` or ``never``."""
        self.known: KnownNetwork | None = None
        self._mode = mode
        self._clock = clock
        self._since: tuple[Routes, int, float] | None = None
        self._failures = 0

    def told(self) -> dict[str, Any] | None:
        """Returns what is known, as JSON values."""
        return self.known.as_json() if self.known is not None else None

    def adopt(self, told: Iterable[Mapping[str, Any] | None]) -> None:
        """A new generation: all take the first member's knowledge that has any, so that all know the same."""
        first = next((values for values in told if values is not None), None)
        self.known = KnownNetwork.from_json(first) if first is not None else None

    def is_due(self, routes: Routes, step: int, total_steps: int) -> bool:
        """Whether to measure before the next step.

        Members at one address, or on one island, have nothing to choose. Nothing is measured either while the group
        is young, or where the run is over before it pays.
        """
        if self._mode == "never" or self._failures >= MOST_FAILURES:
            return False
        if routes.tables is not None or len(set(routes.names)) < 2:
            return False
        now_s = self._clock()
        if self._since is None or self._since[0] is not routes:
            self._since = (routes, step, now_s)
        _, first_step, first_s = self._since
        if step - first_step < QUIET_STEPS or step + 1 >= total_steps:
            return False
        if self._mode == "now":
            return True
        took_s = now_s - first_s
        left_s = (total_steps - step) * took_s / (step - first_step)
        return took_s >= QUIET_S and MOST_SHARE * left_s >= USUAL_S

    def measure(self, group: GlooGroup, codec: str, must_stop: Callable[[], bool]) -> None:
        """Measures with all members of a group, whose routes go by it from now on.

        Args:
            group: With nothing under way; its members have direct connections.
            codec: What most values travel in.
            must_stop: Whether the group is about to change.

        Raises:
            Warned: It is.
            RuntimeError: Nothing could be measured.
        """
        running = group.measuring([] if codec == "fp32" else [codec])
        while not running.is_over():
            if must_stop():
                running.give_up()
                raise Warned
        if running.known is None:
            self._failures += 1
            raise RuntimeError(f"the network could not be measured: {running.error}") from running.error
        self.known = running.known
        group.routes = Routes(group.routes.names, running.known)
