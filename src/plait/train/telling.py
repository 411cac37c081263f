"""What a member says of a step: its ballot to the others, the facts to those who watch; and what it was set to."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.optim import Optimizer

from plait.train.collectives.travel import Travel
from plait.train.observers import StepFacts
from plait.train.optimizers import OneBitAdam
from plait.train.share import Share
from plait.train.vote import Ballot, Vote
from plait.train.work import DataPlan

if TYPE_CHECKING:
    from plait.train.engine import StepEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What does not change during a run."""

    me: str
    plan: DataPlan
    total_steps: int
    contract: tuple[tuple[str, str], ...]
    accelerator_type: str
    island: str = ""
    """Members of one island have fast links to one another; empty: those at one address are one."""
    secret: str = ""
    split: str = "by_throughput"
    forced_split: Mapping[str, int] | None = None
    max_fused: int | None = None
    most: int | None = None
    exchange_timeout_s: float = 60.0
    heartbeat_timeout_s: float = 1.0
    overlap: bool = True
    """Whether gradients travel while the backward pass still runs."""
    duty_ratio: float = 1.0
    measures: str = "auto"
    """When the network is measured: ``auto``, where it is worth it; ``now``, after some steps; ``never``."""
    joins: bool = False
    """Whether this member joins a group that already runs."""
    scales_backward: bool = False
    """Whether this device's gradients come multiplied by the global scale."""


def ballot_of(engine: "StepEngine", share: Share, travel: Travel | None, *, found_inf: bool) -> Ballot:
    """Returns what a member puts into the vote that closes a step, whose exchange has come through."""
    optimizer, exchange = engine.replica.optimizer, engine.exchange
    leaves_owing = engine.standing.wants_to_leave and exchange.owes and not exchange.settles
    return Ballot(
        step=engine.step,
        plan_hash=_plan_hash(engine),
        count=share.count,
        found_inf=found_inf,
        loss_sum=share.loss_sum if share.count else 0.0,
        compute_us=share.compute_us,
        travel_us=0 if travel is None else max(1, round(1e6 * travel.seconds)),
        rates_hash=_rates_hash(optimizer),
        micro_batches=len(share.run),
        is_ready=not engine.is_shadow,
        most=engine.most,
        wants_freeze=isinstance(optimizer, OneBitAdam) and optimizer.wants_freeze and not engine.is_shadow,
        wants_settled=leaves_owing or engine.wants_settled(),
        wants_measuring=engine.standing.wants_measuring(),
    )


def _plan_hash(engine: "StepEngine") -> int:
    """A number that differs where members disagree on the generation."""
    return _hash31(f"{engine.standing.generation} {engine.standing.members}")


def _rates_hash(optimizer: Optimizer) -> int:
    """A number that differs where members would apply a step differently."""
    return _hash31(str([(float(g["lr"]), float(g.get("weight_decay", 0.0))) for g in optimizer.param_groups]))


def _hash31(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def facts_of(engine: "StepEngine", vote: Vote, share: Share) -> StepFacts:
    """Returns what is known of a step that was committed just now."""
    sizes = engine.config.plan.counts(vote.step)
    return StepFacts(
        step=vote.step,
        total_steps=engine.config.total_steps,
        loss=vote.loss,
        samples=engine.config.plan.step_size(vote.step),
        step_s=time.monotonic() - share.begun_s,
        generation=engine.standing.generation,
        members=vote.members,
        counts={m: sum(sizes[k] for k in ks) for m, ks in share.assigned.items()},
        types=engine.standing.types,
        reason=engine.reason,
    )
