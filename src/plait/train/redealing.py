"""What a new generation does with the running step: micro-batches that nobody holds any more are dealt again."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plait.train.bitwise import FixedPointScale
from plait.train.collectives.fixed import FixedExchange
from plait.train.membership.link import NewGeneration
from plait.train.membership.outcome import Outcome
from plait.train.share import Share, with_samples
from plait.train.work import redeal

if TYPE_CHECKING:
    from plait.train.engine import StepEngine


def share_again(engine: "StepEngine", outcome: Outcome, new: NewGeneration, payloads: Mapping[str, Any]) -> None:
    """Deals the micro-batches of the running step that nobody in the group holds any more."""
    plan, me = engine.config.plan, engine.config.me
    begun = [m for m in new.members if new.reports[m].applied == outcome.step and payloads[m]["ks"] is not None]
    if not begun or outcome.step >= engine.config.total_steps or engine.sums is not None:
        engine.share = None  # with statistics over the whole step, what one member ran says nothing without the rest
        return
    held = {m: frozenset(payloads[m]["ks"]) for m in begun}
    left = {m: int(payloads[m]["left"]) for m in begun}
    able = [m for m in new.members if m not in engine.standing.shadows]
    speeds = {m: s for m in able if (s := engine.replica.balancer.speed_of(m)) is not None}
    extra = redeal(
        held, able, num_micro_batches=plan.micro_batches, speeds=speeds, caps=engine.standing.caps, remaining=left
    )
    assigned = {m: tuple(sorted(held.get(m, frozenset()) | set(extra.get(m, ())))) for m in new.members}
    mine = with_samples(plan, engine.step, extra.get(me, ()))
    if engine.share is None:
        engine.begin_given(Share(assigned=assigned, pending=mine))
    else:
        engine.share.assigned = assigned
        engine.share.pending += mine
    _adopt_scale(engine, outcome.step, new, payloads)
    dealt = sum(len(ks) for ks in extra.values())
    if dealt:
        engine.reason = f"{dealt} micro-batches of step {outcome.step} were dealt again to those who go on"
        engine.observers.on_split(engine.step, {m: len(ks) for m, ks in assigned.items()}, engine.reason)


def take_scale(engine: "StepEngine", step: int, new: NewGeneration, payloads: Mapping[str, Any]) -> None:
    """A member without state judges and keeps fixed-point sums too, so it needs the scale that they are on."""
    exchange = engine.exchange
    at_step = [p for m, p in payloads.items() if new.reports[m].applied == step and p["fixed"] is not None]
    if isinstance(exchange, FixedExchange) and at_step:
        exchange.scale = FixedPointScale(tuple(min(at_step, key=lambda p: int(p["redone"]))["fixed"]))


def _adopt_scale(engine: "StepEngine", step: int, new: NewGeneration, payloads: Mapping[str, Any]) -> None:
    """In fixed point, a step that some members have begun to run again on another scale is run so by all."""
    told = [p for m, p in payloads.items() if new.reports[m].applied == step and p["fixed"] is not None]
    best = max(told, key=lambda p: int(p["redone"]), default=None)
    if best is None or best["redone"] <= engine.redone or not isinstance(engine.exchange, FixedExchange):
        return
    engine.exchange.scale = FixedPointScale(tuple(best["fixed"]))
    engine.exchange.begin_step()
    engine.redone = int(best["redone"])
    if engine.share is not None:
        engine.run_share_again(engine.share)
