"""How a member without state catches up while the others go on.

A joiner is in the group from the first moment: it takes part in every exchange with nothing to give, and keeps what
comes out. Meanwhile it fetches a copy of the state as it was when it came; then it applies what it kept, step by step,
and has the same bits as everybody. The others never wait for the transfer.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from plait.errors import MembershipLost
from plait.train.collectives.exchange import Exchange
from plait.train.collectives.fixed import FixedExchange
from plait.train.replica import Extras, Replica
from plait.train.transfer import Fetch
from plait.train.vote import Vote

FETCH_AGAIN_S = 30.0
"""How long a joiner whose fetch failed waits for the generation that gives it another donor."""


@dataclass(slots=True)
class CatchUp:
    """The fetch of a state and the committed steps that wait for it."""

    fetch: Fetch
    first_step: int
    backlog: list[tuple[list[Tensor], Extras, Vote]] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The step that comes next in the group."""
        return self.first_step + len(self.backlog)

    def keep(self, exchange: Exchange, extras: Extras, vote: Vote) -> None:
        """Keeps a committed step for later."""
        self.backlog.append((exchange.result(), extras.clone(), vote))
        if isinstance(exchange, FixedExchange) and not vote.found_inf:
            exchange.follow_scale()

    def is_ready(self) -> bool:
        """Whether the state is here; raises :class:`MembershipLost` when it will not come."""
        if not self.fetch.is_over:
            return False
        if self.fetch.error is None:
            return True
        if time.monotonic() - self.fetch.started_s > FETCH_AGAIN_S:
            raise MembershipLost(self.fetch.error)
        return False  # the donor's own end will make a new generation, with another donor

    def finish(self, replica: Replica, exchange: Exchange, apply: Callable[[Vote, Extras], None]) -> None:
        """Takes over the state and applies the steps that were kept."""
        replica.load(self.fetch.state, exchange)
        for result, extras, vote in self.backlog:
            if vote.step != replica.step:
                raise MembershipLost(f"the fetched state is of step {replica.step}, the next vote of {vote.step}")
            exchange.take_result(result)
            apply(vote, extras)
