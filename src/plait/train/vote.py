"""The vote: one small integer all-reduce that closes a step.

A member casts its vote once all of its exchange has come through; so whoever sees the vote's result knows that every
member of the generation holds the complete reduced gradient. It also carries what must be known to all: the count, the
loss, and each device's time, so that all members balance alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plait.errors import ContractMismatch

_LOSS_UNIT = 2.0**-24
_FIXED = 9
_PER_MEMBER = 6
_NO_LIMIT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """What one member puts in."""

    step: int
    plan_hash: int
    count: int
    found_inf: bool = False
    loss_sum: float | None = None
    compute_us: int = 0
    travel_us: int = 0
    rates_hash: int = 0
    micro_batches: int = 0
    is_ready: bool = True
    most: int | None = None
    wants_freeze: bool = False
    wants_settled: bool = False
    wants_measuring: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberVote:
    """What a vote says of one member.

    Attributes:
        compute_us: Its microseconds of computing before the exchange.
        micro_batches: What it ran.
        is_ready: Whether it has state and may be given work.
        most: The most micro-batches that it can take, ``None`` for no limit.
        travel_us: Microseconds in which something of the exchange was under way here; 0 where nobody timed it.
    """

    compute_us: int
    micro_batches: int
    is_ready: bool
    most: int | None = None
    travel_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """The result: the same on all members.

    ``count`` is samples or valid tokens over all of them; ``freezes`` says that momenta travel from the next step on,
    ``settles`` that the next step sends all that members owe, ``measures`` that the network is measured before it.
    """

    step: int
    count: int
    found_inf: bool
    loss: float | None
    members: tuple[tuple[str, MemberVote], ...]
    freezes: bool = False
    settles: bool = False
    measures: bool = False

    @property
    def ready(self) -> frozenset[str]:
        """Members that have state and may be given work."""
        return frozenset(name for name, member in self.members if member.is_ready)

    @property
    def caps(self) -> dict[str, int | None]:
        """The most micro-batches of each member."""
        return {name: member.most for name, member in self.members}

    @property
    def travel_s(self) -> float | None:
        """How long the exchange was under way for who began last; ``None`` unless all have timed it."""
        times = [member.travel_us for _, member in self.members]
        return min(times) / 1e6 if all(times) else None

    def as_json(self) -> dict[str, Any]:
        """Returns the vote as JSON values, for a member that missed it."""
        members = [[m, v.compute_us, v.micro_batches, v.is_ready, v.most, v.travel_us] for m, v in self.members]
        return {
            "step": self.step,
            "count": self.count,
            "inf": self.found_inf,
            "loss": self.loss,
            "members": members,
            "freezes": self.freezes,
            "settles": self.settles,
            "measures": self.measures,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Vote":
        """Returns the vote that :meth:`as_json` was taken of."""
        members = tuple(
            (m, MemberVote(compute_us=us, micro_batches=n, is_ready=ready, most=most, travel_us=travel_us))
            for m, us, n, ready, most, travel_us in values["members"]
        )
        return cls(
            step=values["step"],
            count=values["count"],
            found_inf=values["inf"],
            loss=values["loss"],
            members=members,
            freezes=values["freezes"],
            settles=values["settles"],
            measures=values["measures"],
        )


def cast(ballot: Ballot, index: int, size: int) -> Tensor:
    """Returns the int64 tensor that member ``index`` of ``size`` puts into the all-reduce."""
    values = torch.zeros(_FIXED + _PER_MEMBER * size, dtype=torch.int64)
    loss = ballot.loss_sum
    finite = loss is not None and abs(loss) < 2.0**36
    values[:_FIXED] = torch.tensor(
        [
            ballot.step,
            ballot.plan_hash,
            ballot.count,
            int(ballot.found_inf),
            round(loss / _LOSS_UNIT) if loss is not None and finite else 0,
            ballot.count if finite else 0,
            int(ballot.wants_freeze),
            int(ballot.wants_settled),
            int(ballot.wants_measuring),
        ]
    )
    at = _FIXED + _PER_MEMBER * index
    most = _NO_LIMIT if ballot.most is None else ballot.most
    own = [ballot.compute_us, ballot.micro_batches, int(ballot.is_ready), most, ballot.travel_us, ballot.rates_hash]
    values[at : at + _PER_MEMBER] = torch.tensor(own)
    return values


def read(values: list[int], members: tuple[str, ...], ballot: Ballot) -> Vote:
    """Returns what the reduced numbers say.

    Raises:
        ContractMismatch: members voted on different steps or splits, or would apply the step at different learning
            rates; nothing may be applied.
    """
    size = len(members)
    if values[0] != ballot.step * size or values[1] != ballot.plan_hash * size:
        raise ContractMismatch(
            f"the members of this generation do not work on the same step: the sum of their steps is {values[0]},"
            f" {size} times {ballot.step} was expected"
        )
    told = []
    rates: dict[int, list[str]] = {}
    for index, name in enumerate(members):
        at = _FIXED + _PER_MEMBER * index
        compute_us, micro_batches, is_ready, most, travel_us, rates_hash = values[at : at + _PER_MEMBER]
        vote = MemberVote(
            compute_us=compute_us,
            micro_batches=micro_batches,
            is_ready=bool(is_ready),
            most=None if most == _NO_LIMIT else most,
            travel_us=travel_us,
        )
        told.append((name, vote))
        if vote.is_ready:
            rates.setdefault(rates_hash, []).append(name)
    _check_rates(ballot.step, list(rates.values()))
    return Vote(
        step=ballot.step,
        count=values[2],
        found_inf=values[3] > 0,
        loss=values[4] * _LOSS_UNIT / values[5] if values[5] and values[5] == values[2] else None,
        members=tuple(told),
        freezes=values[6] > 0,
        settles=values[7] > 0,
        measures=values[8] > 0,
    )


def _check_rates(step: int, alike: list[list[str]]) -> None:
    """Refuses a step that would leave members with different weights."""
    if len(alike) > 1:
        groups = " and ".join(", ".join(names) for names in alike)
        raise ContractMismatch(
            f"in step {step} {groups} have different learning rates or weight decays, as loops of their own count"
            " differently: hand the schedule to prepare(scheduler=...)"
        )
