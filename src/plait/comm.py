"""Gradients over one slow link, for scripts that use PyTorch's own data parallelism and nothing else of Plait.

See the guide "One slow link".
"""

from plait.train.collectives.planned import StageTimes
from plait.train.comm.ddp import DdpExchange, ddp_hook
from plait.train.comm.engine import CommBroken, CommEngine
from plait.train.comm.fsdp import attach_fsdp

__all__ = ["CommBroken", "CommEngine", "DdpExchange", "StageTimes", "attach_fsdp", "ddp_hook"]
