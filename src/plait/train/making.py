"""The parts of a session that follow from its settings and the user's model and data."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from plait import __version__
from plait.errors import PlaitError
from plait.train.collectives.exchange import Exchange, SumExchange
from plait.train.collectives.fixed import FixedExchange
from plait.train.collectives.layout import FlatLayout
from plait.train.membership.warden import WardenConfig
from plait.train.norm import Exchange as NormExchange
from plait.train.norm import GhostStatistics, convert
from plait.train.replica import Replica
from plait.train.settings import Place, Settings
from plait.train.sync_norm import StepSums, check_settings
from plait.train.telling import EngineConfig
from plait.train.work import DataPlan

BatchNormKind = Literal["ghost", "sync", "keep"]
_WIRE_TYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def converted(model: nn.Module, kind: BatchNormKind, settings: Settings) -> tuple[nn.Module, StepSums | None]:
    """Returns the model with its BatchNorm layers replaced, and where sync layers get their sums from."""
    if kind == "keep":
        return model, None
    if kind == "ghost":
        return convert(model, "ghost"), None
    check_settings(bitwise=settings.bitwise, max_fused=settings.max_fused)
    exchange = NormExchange()
    return convert(model, "sync", exchange), StepSums(exchange)


def data_plan(dataset: Dataset[Any], settings: Settings, *, shuffle: bool) -> DataPlan:
    """Returns which samples each step takes.

    Raises:
        PlaitError: It is no map-style data set.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise PlaitError(
            f"the data set is a {type(dataset).__name__}; Plait deals samples by number and needs a map-style"
            " data set with __len__ and __getitem__"
        )
    return DataPlan(
        num_samples=len(dataset),
        global_batch=settings.global_batch_size,
        micro_batches=settings.micro_batches,
        seed=settings.seed,
        shuffle=shuffle,
    )


def replica_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler | None,
    settings: Settings,
    *,
    clip_grad_norm: float | None,
    before_step: Callable[[], None] | None,
) -> Replica:
    """Returns what all members hold alike."""
    base = settings.base_batch_size or settings.global_batch_size
    plan = settings.precision
    return Replica(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        ghosts=GhostStatistics(model),
        rule=settings.learning_rate,
        batch_ratio=settings.global_batch_size / base,
        clip_grad_norm=clip_grad_norm,
        uses_scale="fp16" in {plan.global_precision, *(entry.precision for entry in plan.device_specific)},
        before_step=before_step,
    )


def exchange_of(layout: FlatLayout, parameters: Sequence[nn.Parameter], plan: DataPlan, settings: Settings) -> Exchange:
    """Returns the exchange of gradients, with values as they are."""
    if settings.bitwise:
        return FixedExchange(parameters, plan.micro_batches)
    wire = _WIRE_TYPES[settings.precision.reduce]
    if wire is torch.float32 and torch.float64 in layout.dtypes:
        wire = torch.float64
    return SumExchange(layout, parameters, wire)


def contract(layout: FlatLayout, plan: DataPlan, total: int, settings: Settings) -> tuple[tuple[str, str], ...]:
    """Returns what has to be the same on all members, in words."""
    fields = {
        "Plait version": __version__,  # first: what another version tells may have other fields
        "torch version": torch.__version__.partition("+")[0],
        "parameters": f"{len(layout.names)} tensors, {layout.digest()}",
        "gradient layout": f"{len(layout.stretches)} stretches of at most {settings.bucket_bytes} bytes",
        "precision.reduce": settings.precision.reduce,
        "bitwise": str(settings.bitwise),
        "global batch size": str(plan.global_batch),
        "micro_batches": str(plan.micro_batches),
        "seed": str(plan.seed),
        "samples in the data set": str(plan.num_samples),
        "shuffle": str(plan.shuffle),
        "total steps": str(total),
        "split": settings.split,
        "learning rate rule": settings.learning_rate,
    }
    return tuple(fields.items())


def warden_config(settings: Settings, place: Place) -> WardenConfig:
    """Returns what this process's warden is started with."""
    return WardenConfig(
        me=place.me,
        listen=place.listen,
        seeds=dict(place.seeds),
        joining=place.joins,
        secret=place.secret,
        heartbeat_interval_s=settings.heartbeat_interval_s,
        heartbeat_timeout_s=settings.heartbeat_timeout_s,
        formation_timeout_s=settings.formation_timeout_s,
        worker_pid=os.getpid(),
    )


def engine_config(
    settings: Settings,
    place: Place,
    plan: DataPlan,
    total: int,
    same: tuple[tuple[str, str], ...],
    *,
    scales: bool,
) -> EngineConfig:
    """Returns what does not change during a run; ``scales`` is whether gradients here come multiplied."""
    return EngineConfig(
        me=place.me,
        plan=plan,
        total_steps=total,
        contract=same,
        accelerator_type=place.accelerator_type,
        island=place.island,
        measures=place.measures or settings.measures,
        secret=place.secret,
        split=settings.split,
        forced_split=place.forced_split,
        max_fused=settings.max_fused,
        most=settings.max_share,
        exchange_timeout_s=settings.exchange_timeout_s,
        heartbeat_timeout_s=settings.heartbeat_timeout_s,
        overlap=settings.overlap,
        duty_ratio=place.duty_ratio,
        joins=place.joins,
        scales_backward=scales,
    )
