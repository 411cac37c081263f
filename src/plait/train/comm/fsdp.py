"""The hook between islands for FSDP2: sharded inside an island by PyTorch, averaged across by the engine.

mesh = init_device_mesh("cpu", (islands, members), mesh_dim_names=("across", "inside"))
for layer in model.layers:
    fully_shard(layer, mesh=mesh["inside"])
fully_shard(model, mesh=mesh["inside"])
engine = plait.comm.CommEngine(mesh["across"].get_group(), island=f"island {mesh['across'].get_local_rank()}")
plait.comm.attach_fsdp(model, engine, "int8")
"""

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from plait.errors import PlaitError
from plait.train.collectives.mesh import Mesh, MeshWork
from plait.train.collectives.planned import Debt, PlannedSum, Route, StageTimes
from plait.train.comm.engine import CommEngine
from plait.train.compression import codec as codec_of
from plait.train.compression.message import message_layout


class ShardExchange:
    """Replaces the shard of one FSDP unit's gradient by its mean over the islands; waits for it, as FSDP asks."""

    def __init__(self, engine: CommEngine, codec: str) -> None:
        self._engine = engine
        self._codec = codec_of(codec)
        self._route: Route | None = None
        self._debt: Debt | None = None

    def __call__(self, shard: Tensor) -> None:
        """Averages the shard in place; FSDP calls it after its reduce-scatter."""
        if self._route is None or self._route.plan.count != shard.numel():
            layout = message_layout([(shard.numel(), 1)])  # of the parameters' shapes a shard knows nothing
            plan = self._engine.plan(shard.numel(), None, layout.payload_bytes(self._codec))
            self._route = Route(plan, layout, self._codec)
            self._debt = Debt(shard.numel(), shard.device) if self._codec.feeds_back else None
        route, debt = self._route, self._debt
        values = shard

        def begin(mesh: Mesh, times: StageTimes) -> MeshWork:
            nonlocal values
            values = shard if shard.dtype == torch.float32 else shard.float()
            values.mul_(1.0 / self._engine.size)
            return mesh.start(lambda key, ranks: PlannedSum(mesh, key, ranks, values, route, debt=debt, times=times))

        def end(work: MeshWork) -> Tensor:
            assert isinstance(work, PlannedSum)
            if debt is not None and not work.is_poisoned:
                debt.commit()
            return values if values is shard else shard.copy_(values)

        self._engine.submit(begin, end, shard.device).wait()


def attach_fsdp(model: nn.Module, engine: CommEngine, codec: str = "bf16") -> int:
    """Averages the gradients of an FSDP2 model over the members of the engine's group, who hold the same shards.

    Args:
        model: With ``fully_shard`` applied over this island alone; every sharded module in it gets its own hook.
        engine: Over the members of other islands that hold the same shards.
        codec: What travels between islands; ``low_rank`` is not among them, since shards are not matrices.

    Returns:
        How many modules there are.

    Raises:
        PlaitError: Nothing in the model is sharded, or there is no such codec.
    """
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not sharded:
        raise PlaitError(f"no part of {type(model).__name__} is sharded: call fully_shard on it first")
    for module in sharded:
        module.set_all_reduce_hook(ShardExchange(engine, codec))
    return len(sharded)
