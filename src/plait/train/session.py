"""``plait.session()``: plain PyTorch loops on unequal devices that come and go."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset, default_collate

from plait.errors import PlaitError
from plait.hardware.catalog import UnknownAccelerator, capability
from plait.spec.job import Checkpoint, PrecisionPlan
from plait.train.collectives.exchange import Exchange
from plait.train.ddp import begin_anew, layout_of, local_device, wrapped_alone
from plait.train.engine import StepEngine
from plait.train.exits import exit_code_of_leave, exit_codes
from plait.train.faults import FaultInjector
from plait.train.loop import CommittingOptimizer, GlobalStep, ShareLoader
from plait.train.making import (
    BatchNormKind,
    contract,
    converted,
    data_plan,
    engine_config,
    exchange_of,
    replica_of,
    warden_config,
)
from plait.train.membership.link import WardenLink
from plait.train.notice import heed_notice
from plait.train.observers import Observers, StepFacts
from plait.train.opening import opened_by_with
from plait.train.operators.swap import swap_in_forward
from plait.train.optimizers import OneBitAdam
from plait.train.precision import ComputePrecision, check_reduce, compute_plan
from plait.train.regroup import Left
from plait.train.rendezvous import complete_place, trade_addresses
from plait.train.replica import Replica
from plait.train.retreat import fits
from plait.train.saving import Saving
from plait.train.scaling import autocast_forward, set_tf32
from plait.train.settings import (
    Place,
    Rule,
    Settings,
    Split,
    from_job,
    job_from_environment,
    place_from_environment,
    units_of,
)
from plait.train.transfer import StateServer
from plait.train.wiring import wire_of
from plait.train.work import DataPlan

logger = logging.getLogger("plait")

_START_TIMEOUT_S = 60.0


@opened_by_with
def session(
    *,
    global_batch_size: int = 32,
    micro_batches: int | None = None,
    seed: int = 0,
    bitwise: bool = False,
    precision: PrecisionPlan | None = None,
    heartbeat_interval_s: float = 0.2,
    heartbeat_timeout_s: float = 1.0,
    bucket_bytes: int = 25 * 2**20,
    split: Split = "by_throughput",
    max_fused: int | None = None,
    max_share: int | None = None,
    learning_rate: Rule = "none",
    base_batch_size: int | None = None,
    compression: str = "none",
) -> Iterator["Session"]:
    """Opens a training session; under ``plait run`` the job file's settings win over these arguments.

    It works in one process, under torchrun, and under Plait's agents, with the same loop.

    Args:
        global_batch_size: Samples in a global step, whoever computes them.
        micro_batches: K, the units in which a step is split over devices; by default the largest divisor of the batch
            up to 32.
        seed: Of the order of the data and of all random numbers.
        bitwise: Sum gradients in fixed point, so that weights have the same bits for any split on like devices.
        precision: What each device computes in, and the type gradients meet in.
        heartbeat_interval_s: Between signs of life among workers.
        heartbeat_timeout_s: Silence after which a worker is given up.
        bucket_bytes: Gradients that travel together at most.
        split: ``by_throughput`` or ``even``.
        max_fused: The most micro-batches in one forward pass; by default what was measured to be fastest, beginning
            with the whole share.
        max_share: The most micro-batches that this device takes in a step, whatever its speed; 0 leaves it out.
        learning_rate: Rule for a global batch other than ``base_batch_size``.
        base_batch_size: The global batch that the learning rate was chosen for.
        compression: The codec that gradients travel in, such as ``bf16`` or ``int8``. With
            :class:`plait.OneBitAdam` as the optimizer it is chosen by itself.

    Yields:
        The session.

    Raises:
        PlaitError: the environment or the job does not allow this session; the message says what.
    """
    settings = Settings(
        global_batch_size=global_batch_size,
        micro_batches=units_of(global_batch_size, micro_batches),
        seed=seed,
        bitwise=bitwise,
        precision=precision or PrecisionPlan(),
        heartbeat_interval_s=heartbeat_interval_s,
        heartbeat_timeout_s=heartbeat_timeout_s,
        bucket_bytes=bucket_bytes,
        split=split,
        max_fused=max_fused,
        max_share=max_share,
        learning_rate=learning_rate,
        base_batch_size=base_batch_size,
        compression=compression,
    )
    job = job_from_environment()
    if job is not None:
        settings = from_job(settings, job)
    with exit_codes(), Session(settings, place_from_environment()) as opened:
        try:
            yield opened
        except Left:
            logger.info("%s has left the group", opened.member)
            opened._save(opened._prepared, force=True)  # noqa: SLF001 - if all leave, the run goes on from here
            raise SystemExit(exit_code_of_leave(was_noticed=opened.was_noticed)) from None


class Session:
    """One process's part in a training run; made by :func:`session`."""

    def __init__(self, settings: Settings, place: Place) -> None:
        """Sets up what needs no model."""
        check_reduce(settings.precision)
        self.settings = settings
        self.place = place
        self.device = local_device()
        self.compute = self._compute_precision()
        set_tf32(self.compute)
        self._link: WardenLink | None = None
        self._server: StateServer | None = None
        self._engine: StepEngine | None = None
        self._observers: Observers | None = None
        self._saving: Saving | None = None
        self._loader: ShareLoader | None = None
        self._undo_autocast: Callable[[], None] = lambda: None
        self._undo_operators: Callable[[], None] = lambda: None
        self._undo_notice: Callable[[], object] = lambda: None
        self._before_step: Callable[[], None] | None = None
        self.was_noticed = False

    def _compute_precision(self) -> ComputePrecision:
        try:
            known = capability(self.place.accelerator_type)
        except UnknownAccelerator:
            known = None
        return compute_plan(self.settings.precision, self.place.accelerator_type, known)

    def __enter__(self) -> Self:
        """Starts the session."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends this member's part: waits for the others where all is done, leaves where it is not."""
        try:
            if self._engine is not None and kind is None:
                self._depart(self._engine)
            if self._saving is not None:
                self._saving.wait()
        finally:
            self._close()

    def _depart(self, engine: StepEngine) -> None:
        if engine.is_finished:
            self._save(engine, force=True)
            engine.standing.finish()
        else:
            engine.standing.leave()

    def _close(self) -> None:
        self._undo_autocast()
        self._undo_operators()
        self._undo_notice()
        if self._link is not None:
            self._link.close()
        if self._server is not None:
            self._server.close()
        if self._observers is not None:
            self._observers.close()
        if self._saving is not None:
            self._saving.close()

    # What users ask

    @property
    def member(self) -> str:
        """This worker's name, such as ``w0``."""
        return self.place.me

    @property
    def world(self) -> tuple[str, ...]:
        """The members of the present generation, sorted."""
        return self._engine.standing.members if self._engine is not None else (self.member,)

    @property
    def rank(self) -> int:
        """This member's index in :attr:`world`."""
        return self.world.index(self.member)

    @property
    def is_leader(self) -> bool:
        """Whether this is the lowest member, which is the one to print and to write checkpoints."""
        return self.rank == 0

    @property
    def generation(self) -> str:
        """The name of the present generation."""
        return self._prepared.standing.generation

    @property
    def step(self) -> int:
        """Committed global steps."""
        return self._prepared.step

    @property
    def epoch(self) -> int:
        """The epoch of the data that the running step lies in."""
        return self._prepared.config.plan.epoch_of(self.step)

    @property
    def total_steps(self) -> int:
        """Global steps of the whole run."""
        return self._prepared.config.total_steps

    @property
    def _prepared(self) -> StepEngine:
        if self._engine is None:
            raise PlaitError("the session has no model yet: call run.prepare(model, optimizer, dataset) first")
        return self._engine

    def record(self, *, loss: Tensor | float) -> None:
        """Adds the mean loss over the batch at hand to what the step reports; call it before ``optimizer.step()``."""
        self._prepared.record(float(loss.detach()) if isinstance(loss, Tensor) else float(loss))

    def weigh(self, count: int) -> None:
        """Makes the batch at hand count for ``count`` (valid tokens, say) instead of its samples.

        The loss must then be the mean over these; call it before ``backward()``.
        """
        if isinstance(self._prepared.replica.optimizer, OneBitAdam):
            raise PlaitError("run.weigh() does not go with OneBitAdam: shares of its momentum are told before counting")
        self._prepared.weigh(count)

    def fits(self) -> AbstractContextManager[None]:
        """Guards the pass of one batch: where memory runs out in it, its samples come again in smaller batches.

        ::

            for x, y in loader:
                with run.fits():
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()

        The global batch and its gradient stay what they were, and what fits is remembered. Where not even one
        micro-batch fits, ``DoesNotFit`` tells what was asked for and what there was.
        """
        return fits(self._prepared, self.device)

    def on_commit(self, tell: Callable[[StepFacts], None]) -> None:
        """Has ``tell`` called after each committed step, on every member."""
        self._observing().on_commit.append(tell)

    def before_step(self, change: Callable[[], None]) -> None:
        """Has ``change`` called on the global gradients right before each update, on every member alike."""
        self._before_step = change
        if self._engine is not None:
            self._engine.replica.before_step = change

    def save_every(
        self, interval_s: float, path: str, *, keep: int = 3, keep_every: int | None = None, keep_best: int = 0
    ) -> None:
        """Writes a checkpoint under ``path`` every so many seconds, and resumes from it; call it before prepare.

        Besides the last ``keep``, the first at or after each multiple of ``keep_every`` steps stays, and the
        ``keep_best`` with the lowest :meth:`score`.
        """
        wanted = Checkpoint(
            url=path, interval_s=interval_s, keep=keep, keep_every_steps=keep_every, keep_best=keep_best
        )
        self.settings = replace(self.settings, checkpoint=wanted)

    def score(self, value: float) -> None:
        """Tells how good the weights are now, lower is better: checkpoints carry it from the next one on.

        Best called on every member after an evaluation; that of the one that saves counts.
        """
        if self._saving is not None:
            self._saving.score = float(value)

    def steps(self) -> Iterator[GlobalStep]:
        """Yields global steps, for a loop in the explicit form.

        ::

            for step in run.steps():
                for batch in step:
                    step.backward(loss_of(model, batch))
                step.commit()
        """
        engine = self._prepared
        assert self._loader is not None
        while (step := GlobalStep(engine, self._loader)).begin():
            yield step
            if engine.chunk:
                raise PlaitError(f"step {step.number} was not committed: call step.commit() after its batches")

    # Setting up

    def prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Dataset[Any],
        *,
        epochs: int = 1,
        steps: int | None = None,
        scheduler: LRScheduler | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
        shuffle: bool = True,
        draws_random: bool = True,
        batch_norm: BatchNormKind = "ghost",
        clip_grad_norm: float | None = None,
        find_unused_parameters: bool = False,
    ) -> tuple[Any, Any, "ShareLoader"]:
        """Joins the group with this model; returns model, optimizer and loader for a plain loop.

        Model and optimizer come back wrapped, to be used under their old names.

        Args:
            model: Any module; it is moved to this member's device. All members start from the first member's weights.
            optimizer: Over the model's parameters.
            dataset: A map-style data set, the same on all members.
            epochs: Passes over the data set; one loop over the loader runs all of them.
            steps: Global steps instead of epochs.
            scheduler: Its ``step()`` is called after each committed step, on all members; do not call it yourself.
            collate: Makes a batch of a list of samples.
            shuffle: Whether each epoch has its own random order.
            draws_random: Whether reading a sample draws random numbers, as augmentation does. Without, none are seeded
                for each micro-batch, which makes reading cheaper.
            batch_norm: ``ghost`` normalises each micro-batch by itself, so that results do not depend on the split;
                ``sync`` normalises over all samples of a step, weighted by count, on any kind of device, at three small
                exchanges a layer (each share runs in one forward pass); ``keep`` leaves BatchNorm layers alone, and
                their statistics differ between members.
            clip_grad_norm: Clips the norm of the global gradient before each update. Clipping in the loop cannot work:
                a member that has no work in a step runs no loop.
            find_unused_parameters: As in DistributedDataParallel.
        """
        if self._engine is not None:
            raise PlaitError("this session has a model already; open another session for another model")
        plan = data_plan(dataset, self.settings, shuffle=shuffle)
        total = steps if steps is not None else epochs * plan.steps_per_epoch
        model = model.to(self.device)
        model, sums = converted(model, batch_norm, self.settings)
        replica = replica_of(
            model,
            optimizer,
            scheduler,
            self.settings,
            clip_grad_norm=clip_grad_norm,
            before_step=self._before_step,
        )
        replica.sums = sums
        layout, parameters = layout_of(model, self.settings.bucket_bytes)
        exchange = exchange_of(layout, parameters, plan, self.settings)
        self._undo_operators = self._swap_operators(model)
        self._undo_autocast = autocast_forward(model, self.compute, self.device.type, lambda: replica.scale.scale)
        wrapped = wrapped_alone(model, exchange, find_unused_parameters)
        if self.settings.checkpoint is not None:
            self._saving = Saving(self.settings.checkpoint, self.member)
            found = self._saving.restore(replica, exchange, joins=self.place.joins)
            if found is not None:
                self._observing().on_restored(found.step, found.where, found.reason)
        compression = wire_of(self.settings, replica, exchange, layout, parameters)
        self._connect(replica.step)
        same = contract(layout, plan, total, self.settings)
        same = (*same, ("batch_norm", batch_norm), ("compression", compression))
        self._engine = self._make_engine(plan, total, same, replica, exchange)
        self._engine.standing.form()
        self._undo_notice = heed_notice(self.member, partial(self._leave_on_notice, self._engine))
        self._engine.begin_passes_anew = partial(begin_anew, wrapped, exchange)
        self._loader = ShareLoader(self._engine, dataset, collate, self.device, draws_random=draws_random)
        return wrapped, CommittingOptimizer(optimizer, self._engine), self._loader

    def _swap_operators(self, model: nn.Module) -> Callable[[], None]:
        """Swaps in the device's own operators that the plan names for its type; returns what undoes it."""
        wanted = self.settings.precision.of(self.place.accelerator_type).custom_ops
        undo, reasons = swap_in_forward(model, wanted, self.device)
        for reason in reasons:
            logger.info("%s", reason)
        return undo

    def _connect(self, step: int) -> None:
        place = self.place
        if not place.seeds and place.rendezvous is None:
            return
        self.place = place = complete_place(place)
        self._link = WardenLink(warden_config(self.settings, place))
        self._link.progress(step, "starting")
        address = self._link.wait_listening(_START_TIMEOUT_S)
        if place.rendezvous is not None:
            self._link.peers(trade_addresses(place, address))
        self._server = StateServer(address.rsplit(":", 1)[0], place.secret)

    def _make_engine(
        self,
        plan: DataPlan,
        total: int,
        same: tuple[tuple[str, str], ...],
        replica: Replica,
        exchange: Exchange,
    ) -> StepEngine:
        config = engine_config(self.settings, self.place, plan, total, same, scales=self.compute.needs_scaling)
        observers = self._observing()
        faults = FaultInjector(self.member, os.environ.get("PLAIT_FAULTS", ""))
        engine = StepEngine(config, replica, exchange, self._link, self._server, observers, faults)
        observers.on_commit.append(lambda _facts: self._save(engine, force=False))
        if self._saving is not None:
            engine.wants_settled = partial(self._saving.wants_settled, engine)
        if observers.agent is not None and self._link is not None:
            link = self._link

            observers.agent.listen(link.gone, engine.standing.ask_to_leave)
        return engine

    def _leave_on_notice(self, engine: StepEngine) -> None:
        """Leaves for a SIGTERM, which is nobody's notice where the agent has asked before."""
        self.was_noticed = not engine.standing.wants_to_leave
        engine.standing.ask_to_leave()

    def _observing(self) -> Observers:
        if self._observers is None:
            self._observers = Observers.from_environment(self.member)
        return self._observers

    def _save(self, engine: StepEngine, *, force: bool) -> None:
        if self._saving is not None:
            self._saving.save_if_due(engine, force=force)
