"""The user's side of the loop: the loader hands out this device's share, the optimizer's step closes it."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from plait.errors import PlaitError
from plait.train.collectives.samples import GradientsChanged
from plait.train.engine import StepEngine
from plait.train.work import rng_key


class ShareLoader:
    """Yields this device's share of each global step as batches of fused micro-batches, over all epochs."""

    def __init__(
        self,
        engine: StepEngine,
        dataset: Dataset[Any],
        collate: Callable[[list[Any]], Any],
        device: torch.device,
        *,
        draws_random: bool = True,
    ) -> None:
        self._engine = engine
        self._draws_random = draws_random
        self._dataset = dataset
        self._collate = collate
        self._device = device
        self._ahead: tuple[int, tuple[int, ...], Any] | None = None
        engine.read_ahead = self._read_ahead

    def __len__(self) -> int:
        """Global steps that are left; a device may get more or fewer batches than that."""
        return max(0, self._engine.config.total_steps - self._engine.step)

    def __iter__(self) -> Iterator[Any]:
        """Yields batches until all steps are committed."""
        engine = self._engine
        while (ks := engine.next_chunk()) is not None:
            step = engine.step
            yield self.batch(step, ks)
            if engine.chunk:
                raise PlaitError(
                    f"the batch of step {step} was not used: the loop must call backward() on its loss and then"
                    " optimizer.step() for every batch"
                )

    def batch(self, step: int, ks: Sequence[int]) -> Any:
        """Returns the samples of some micro-batches, and seeds all random numbers for the pass that follows."""
        ahead, self._ahead = self._ahead, None
        batch = ahead[2] if ahead is not None and ahead[:2] == (step, tuple(ks)) else self._read(step, ks)
        seed = _seed_of(self._engine, step, ks[0])
        _seed_host(seed)
        if self._device.type != "cpu":
            torch.manual_seed(seed)  # all kinds of devices; slow where none is there
        return batch

    def _read(self, step: int, ks: Sequence[int]) -> Any:
        plan, samples = self._engine.config.plan, []
        for k in ks:
            if self._draws_random:
                _seed_host(_seed_of(self._engine, step, k))
            samples += [self._dataset[int(index)] for index in plan.indices(step, k)]
        return _to_device(self._collate(samples), self._device)

    def _read_ahead(self, step: int, ks: tuple[int, ...]) -> None:
        self._ahead = (step, ks, self._read(step, ks))


class GlobalStep:
    """One global step in the explicit form of a loop; iterate over it, then commit it.

    After a fault the same step may come again with the work that was dealt to this device anew.
    """

    def __init__(self, engine: StepEngine, loader: ShareLoader) -> None:
        self.number = engine.step
        self._engine = engine
        self._loader = loader
        self._first: tuple[int, ...] | None = None

    def begin(self) -> bool:
        """Waits for work; False when all steps are committed."""
        self._first = self._engine.next_chunk()
        self.number = self._engine.step
        return self._first is not None

    def __iter__(self) -> Iterator[Any]:
        """Yields this device's batches of the step."""
        ks, self._first = self._first, None
        while ks is not None:
            yield self._loader.batch(self.number, ks)
            ks = self._engine.next_chunk() if not self._engine.chunk else None

    def backward(self, loss: Tensor, *, count: int | None = None) -> None:
        """Runs backward on the mean loss of the batch at hand.

        Args:
            loss: Mean over the batch's samples, or over ``count`` items of it.
            count: What the batch counts for instead of its samples (valid tokens, say).
        """
        engine = self._engine
        if count is not None:
            engine.weigh(count)
        engine.record(float(loss.detach()))
        loss.backward()
        if engine.share is not None and engine.share.pending:
            engine.end_chunk()

    def commit(self) -> bool:
        """Closes this device's share; returns whether the step is committed (otherwise it comes again)."""
        if not self._engine.chunk or not self._engine.exchange.ran_backward:
            raise PlaitError(f"step {self.number} was committed without a backward pass for its last batch")
        return _close(self._engine)


class CommittingOptimizer(torch.optim.Optimizer):
    """The user's optimizer with ``step`` as the commit point of a global step."""

    def __init__(self, inner: torch.optim.Optimizer, engine: StepEngine) -> None:  # its state is the inner one's
        self._inner = inner
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        """Whatever else is asked is the inner optimizer's."""
        return getattr(self.__dict__["_inner"], name)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The inner optimizer's groups."""
        return self._inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The inner optimizer's state."""
        return self._inner.state

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Closes the batch at hand; commits and updates once the whole global step is there.

        Raises:
            PlaitError: a closure was given, no backward pass ran, or the gradients were changed after it.
        """
        if closure is not None:
            raise PlaitError("optimizers that call a closure (such as LBFGS) evaluate it alone; a group cannot")
        engine = self._engine
        if not engine.chunk:
            raise PlaitError("optimizer.step() was called without a batch of the loader")
        if not engine.exchange.ran_backward:
            raise PlaitError("optimizer.step() was called before backward(); nothing was sent")
        _close(engine)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the inner optimizer's."""
        self._inner.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's."""
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inner optimizer's."""
        self._inner.load_state_dict(state_dict)

    def __repr__(self) -> str:
        """Shows what is inside."""
        return f"CommittingOptimizer({self._inner!r})"


def _close(engine: StepEngine) -> bool:
    try:
        return engine.end_chunk()
    except GradientsChanged:
        raise PlaitError(
            "gradients were changed between backward() and optimizer.step(), where they are this device's part"
            " only; use run.prepare(..., clip_grad_norm=...) or run.before_step(...) for the global gradient"
        ) from None


def _seed_of(engine: StepEngine, step: int, k: int) -> int:
    return rng_key(engine.config.plan.seed, step, k) >> 1


def _seed_host(seed: int) -> None:
    """Seeds what data sets and models draw from on the host."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - what users' data sets draw from


def _to_device(batch: Any, device: torch.device) -> Any:
    if device.type == "cpu":
        return batch
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: _to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(_to_device(value, device) for value in batch)
    return batch
