"""Who runs which micro-batches of the running step, as one member sees it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from plait.train.replica import Replica
from plait.train.split import even_split
from plait.train.work import DataPlan, redeal


@dataclass(slots=True)
class Share:
    """This member's part of the running step, and what it knows of everybody's.

    Attributes:
        assigned: The micro-batches of each member.
        pending: Those of this member that are still to run.
        run: Those that it has run.
        compute_us: Microseconds of computing so far, before any exchange.
        count: Samples (or valid tokens) run so far.
        loss_sum: Sum of the losses recorded so far, ``None`` where none was.
        begun_s: When the step began here, on the monotonic clock.
    """

    assigned: dict[str, tuple[int, ...]] = field(default_factory=dict)
    pending: list[int] = field(default_factory=list)
    run: list[int] = field(default_factory=list)
    compute_us: int = 0
    count: int = 0
    loss_sum: float | None = None
    begun_s: float = field(default_factory=time.monotonic)


def shares_of_step(
    able: list[str],
    plan: DataPlan,
    replica: Replica,
    *,
    forced: Mapping[str, int] | None,
    is_even: bool,
    caps: Mapping[str, int | None],
) -> tuple[dict[str, int], str]:
    """Returns how many micro-batches each member runs in the step that begins, and why; the same on all members.

    Args:
        able: Members that have state, sorted.
        plan: Of the data.
        replica: Holds the split that was planned when the last step committed, and the speeds measured so far.
        forced: A split that was given from outside, used while the group is the one that it names.
        is_even: Whether speeds are to be ignored.
        caps: The most micro-batches of a member; ``None`` is no limit.

    Raises:
        CapacityExceeded: The caps leave some micro-batches without a member.
    """
    num = plan.micro_batches
    if forced is not None and set(forced) == set(able):
        return dict(forced), "the split was given"
    if is_even:
        return even_split(num, tuple(able), caps).as_dict(), "an even split was asked for"
    planned = replica.planned
    if planned is not None and set(planned.shares) == set(able):
        return dict(planned.shares), planned.reason
    speeds = {m: s for m in able if (s := replica.balancer.speed_of(m)) is not None}
    dealt = redeal({}, able, num_micro_batches=num, speeds=speeds, caps=caps)
    why = "the group has changed: by the speeds measured so far" if speeds else "even: nothing is measured yet"
    return {m: len(ks) for m, ks in dealt.items()}, why


def with_samples(plan: DataPlan, step: int, ks: tuple[int, ...]) -> list[int]:
    """Returns the micro-batches that are not empty; the last step of an epoch may have empty ones."""
    counts = plan.counts(step)
    return [k for k in ks if counts[k] > 0]
