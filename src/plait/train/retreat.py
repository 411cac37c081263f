"""What happens when memory runs out in a step: the device takes fewer micro-batches at once, and the step goes on.

A pass that does not fit is thrown away and its micro-batches are run again in smaller passes, so the global batch and
its gradient stay what they were. What fits is remembered. Where not even one micro-batch fits, the worker ends with a
report, and the others run its share.
"""

import gc
import logging
import re
import resource
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from plait.errors import PlaitError

if TYPE_CHECKING:
    from plait.train.engine import StepEngine

logger = logging.getLogger("plait")

_ASKED = re.compile(r"tried to allocate ([\d.]+) ?(bytes|[KMGT]iB|B)", re.IGNORECASE)
_UNITS = {"bytes": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_WORDS = ("can't allocate memory", "not enough memory", "out of memory")
"""How PyTorch tells that memory ran out where it has no type of error for it: on CPUs, and on some accelerators."""


class DoesNotFit(PlaitError):
    """Memory ran out, and there is nothing smaller to try."""


def ran_out(error: BaseException) -> bool:
    """Returns whether an error says that memory ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, DoesNotFit)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)


def asked_bytes(error: BaseException) -> int | None:
    """Returns how much was asked for when memory ran out, None where the error does not say."""
    found = _ASKED.search(str(error))
    return round(float(found[1]) * _UNITS[found[2].lower()]) if found is not None else None


def free_bytes(device: torch.device) -> int | None:
    """Returns how much memory a device has left for this process, None where that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (OSError, StopIteration, ValueError):
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return free if limit == resource.RLIM_INFINITY else max(0, min(free, limit - mapped))


@contextmanager
def fits(engine: "StepEngine", device: torch.device) -> Iterator[None]:
    """Guards one pass: where memory runs out in it, its micro-batches come again, fewer at once.

    Raises:
        DoesNotFit: It was one micro-batch, or a pass that cannot be cut; the message says what was asked for.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        asked, free = asked_bytes(error), free_bytes(device)
        failed = engine.chunk
        most = engine.half_of_chunk()
        told = _told(engine, failed, asked, free)
        if most is None:
            raise DoesNotFit(told) from error
        _let_go_of_pass(error.__traceback__)
        error.__traceback__ = None
    else:
        return
    # Outside of the except block nothing refers to the error any more, nor it to the pass.
    logger.warning("%s; from now on at most %d at once", told, most)
    release(device, thoroughly=most == 1)
    engine.run_in_less(most)


def _told(engine: "StepEngine", failed: tuple[int, ...], asked: int | None, free: int | None) -> str:
    counts = engine.config.plan.counts(engine.step)
    samples = sum(counts[k] for k in failed)
    what = f"{len(failed)} micro-batch{'es' if len(failed) != 1 else ''} of {samples} samples in one pass"
    if not failed:
        what = "its exchange or update"
    wanted = f", {_size(asked)} more were asked for" if asked is not None else ""
    had = f", {_size(free)} were free" if free is not None else ""
    advice = ""
    if len(failed) == 1:
        advice = "; nothing smaller can be tried: raise micro_batches, or lower global_batch_size"
    elif failed and engine.half_of_chunk() is None:
        advice = "; a pass whose statistics are over the whole step cannot be cut: use batch_norm='ghost' or max_share"
    return f"memory ran out in step {engine.step} with {what}{wanted}{had}{advice}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 10**8 else f"{num_bytes / 1e6:.2f} MB"


def _let_go_of_pass(trace: TracebackType | None) -> None:
    """Frees what the pass that failed still holds: locals of calls that ended, and the history of the user's tensors.

    The user's own frame goes on and holds loss and outputs until it assigns them anew, which is after the next forward
    pass; with their history they would hold all that the pass has kept for its gradients.
    """
    traceback.clear_frames(trace)
    while trace is not None:
        for value in list(trace.tb_frame.f_locals.values()):
            _forget_history(value)
        trace = trace.tb_next


def _forget_history(value: Any) -> None:
    if isinstance(value, Tensor) and value.grad_fn is not None:
        try:
            value.detach_()
        except RuntimeError:  # a view of something, which is let go itself
            return
    elif isinstance(value, (list, tuple)):
        for item in value:
            _forget_history(item)
    elif isinstance(value, dict):
        for item in value.values():
            _forget_history(item)


def release(device: torch.device, *, thoroughly: bool) -> None:
    """Gives back what is held for nothing; looking through all objects of the process takes a good part of a second."""
    gc.collect() if thoroughly else gc.collect(1)
    if device.type == "cuda":
        torch.cuda.empty_cache()


def update_in_memory(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Runs ``optimizer.step()``; where memory runs out before anything was changed, once more with less of it.

    Raises:
        DoesNotFit: It ran out again, or in the middle of the update, after which these weights are no longer what the
            other members hold.
    """
    held = _versions(optimizer)
    known = set(optimizer.state)
    try:
        optimizer.step()
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        asked = asked_bytes(error)
        wanted = f" ({_size(asked)} more were asked for)" if asked is not None else ""
        if any(tensor._version != version for tensor, version in held):  # noqa: SLF001 - counts writes in place
            raise DoesNotFit(f"memory ran out in the middle of the optimizer's update{wanted}") from error
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
    else:
        return
    _make_sparing(optimizer, known)
    release(device, thoroughly=True)
    logger.warning("memory ran out in the optimizer's update%s; from now on it goes tensor by tensor", wanted)
    try:
        optimizer.step()
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        had = free_bytes(device)
        free = f", {_size(had)} were free" if had is not None else ""
        raise DoesNotFit(f"memory does not hold the optimizer's state and update{wanted}{free}") from error


def _make_sparing(optimizer: torch.optim.Optimizer, known: set[Tensor]) -> None:
    """Drops state that was begun and not completed, and has the update go tensor by tensor."""
    for parameter in set(optimizer.state) - known:
        del optimizer.state[parameter]
    for group in optimizer.param_groups:
        for flag in ("foreach", "fused"):  # these need room for all tensors of a group at once
            if flag in group:
                group[flag] = False


def _versions(optimizer: torch.optim.Optimizer) -> list[tuple[Tensor, int]]:
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    tensors += [v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
    return [(tensor, tensor._version) for tensor in tensors]  # noqa: SLF001
