"""A model in DistributedDataParallel over this process alone, with the exchange as its communication hook."""

import os
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from plait.errors import PlaitError
from plait.train.collectives.exchange import Exchange
from plait.train.collectives.layout import FlatLayout, lay_out


def local_device() -> torch.device:
    """Returns the device of this process: its own accelerator by ``LOCAL_RANK``, or the CPU."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def layout_of(model: nn.Module, bucket_bytes: int) -> tuple[FlatLayout, list[nn.Parameter]]:
    """Returns the wire layout of a model and its parameters in that order."""
    named = list(model.named_parameters())
    layout = lay_out(named, bucket_bytes)
    if not layout.names:
        raise PlaitError(f"{type(model).__name__} has no parameter that needs a gradient")
    by_name = dict(named)
    return layout, [by_name[name] for name in layout.names]


def wrapped_alone(model: nn.Module, exchange: Exchange, find_unused: bool) -> DistributedDataParallel:
    """Wraps the model in DDP over this process alone; every byte between devices is the exchange's."""
    store = HashStore()
    group = dist.ProcessGroup(store, 0, 1)
    backend = dist.ProcessGroupGloo(store, 0, 1, timedelta(seconds=60))
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)  # noqa: SLF001
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)  # noqa: SLF001
    sync = "forward_sync_buffers"  # the name since torch 2.13 of what was broadcast_buffers
    no_sync: dict[str, Any] = {
        sync if sync in signature(DistributedDataParallel).parameters else "broadcast_buffers": False
    }
    wrapped = DistributedDataParallel(
        model,
        process_group=group,
        **no_sync,
        gradient_as_bucket_view=True,
        find_unused_parameters=find_unused,
    )
    wrapped.register_comm_hook(None, exchange.hook)
    return wrapped


def begin_anew(wrapped: DistributedDataParallel, exchange: Exchange) -> None:
    """Readies a model for a forward pass after a backward pass that broke; its gradients must have been let go.

    DDP's reducer still waits for the rest of that pass and would refuse another one, so it is made anew.
    """
    parts: Any = wrapped
    parts.reducer = parts.logger = None  # the buffers go before new ones are made
    parameters, expects_sparse = parts._build_params_for_reducer()  # noqa: SLF001 - as DDP does after unpickling
    names = parts._build_debug_param_to_name_mapping(parameters)  # noqa: SLF001
    parts._ddp_init_helper(parameters, expects_sparse, names, parts.static_graph)  # noqa: SLF001
    wrapped.register_comm_hook(None, exchange.hook)
