"""Ranks of a DCP save and of a load on another number of ranks; forked, so that torch is imported once.

``reshard_ranks.py PLACE SAVERS LOADERS`` prints one JSON line for each loading rank: bytes it read and bytes it holds.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from plait.train.checkpoint.dcp import PlaitReader, PlaitWriter

ROWS, COLUMNS = 4001, 2048
SAVERS = int(sys.argv[2])
warnings.simplefilter("ignore")
torch.set_num_threads(1)


def values(kind: int) -> torch.Tensor:
    return (torch.arange(ROWS * COLUMNS, dtype=torch.float32) * (kind + 1)).reshape(ROWS, COLUMNS)


def sharded(whole: torch.Tensor, mesh: Any) -> DTensor:
    return dist.tensor.distribute_tensor(whole, mesh, [Shard(0)])


def state(mesh: Any, *, filled: bool) -> dict[str, Any]:
    whole = values(0) if filled else torch.zeros(ROWS, COLUMNS)
    moment = values(1) if filled else torch.zeros(ROWS, COLUMNS)
    return {
        "model": {"w": sharded(whole, mesh)},
        "optimizer": {"m": sharded(moment, mesh), "step": torch.tensor(7.0 if filled else 0.0)},
        "scale": dist.tensor.distribute_tensor(torch.full((3,), 5.0 if filled else 0.0), mesh, [Replicate()]),
        "scheduler": {"last_epoch": 4 if filled else 0},
    }


def own(rank: int) -> dict[str, Any]:
    """What belongs to one rank alone: random numbers, and what its compression still owes."""
    generator = torch.Generator().manual_seed(100 + rank)
    return {"random": generator.get_state(), "owed": torch.full((10 + rank,), float(rank)), "cursor": 1000 * rank}


def save(place: str, rank: int, mesh: Any) -> None:
    whole = {**state(mesh, filled=True), f"rank{rank}": own(rank)}
    dcp.save(whole, storage_writer=PlaitWriter(place, step=3))  # type: ignore[attr-defined]


def load(place: str, rank: int, mesh: Any) -> None:
    mine = state(mesh, filled=False)
    saved_by = rank % SAVERS
    former = own(saved_by)
    target = {"random": torch.zeros_like(former["random"]), "owed": torch.zeros(10 + saved_by), "cursor": -1}
    mine[f"rank{saved_by}"] = target
    reader = PlaitReader(place)
    dcp.load(mine, storage_reader=reader)  # type: ignore[attr-defined]
    for name, kind in (("w", 0), ("m", 1)):
        part = mine["model" if kind == 0 else "optimizer"][name]
        assert torch.equal(part.to_local(), sharded(values(kind), mesh).to_local()), name
    assert mine["scale"].to_local().tolist() == [5.0] * 3
    assert mine["optimizer"]["step"] == 7.0
    assert mine["scheduler"]["last_epoch"] == 4
    loaded = mine[f"rank{saved_by}"]
    assert torch.equal(loaded["random"], former["random"])
    assert torch.equal(loaded["owed"], former["owed"])
    assert loaded["cursor"] == 1000 * saved_by
    held = sum(mine[part][name].to_local().nbytes for part, name in (("model", "w"), ("optimizer", "m")))
    line = json.dumps({"rank": rank, "read": reader.bytes_read, "held": held}) + "\n"
    os.write(1, line.encode())  # in one piece: all ranks write to one pipe


def run(world: int, work: Callable[[str, int, Any], None], place: str) -> None:
    """Forks the ranks and waits for them."""
    children = []
    for rank in range(world):
        if (pid := os.fork()) == 0:
            code = 1
            try:
                store = dist.FileStore(  # type: ignore[attr-defined]
                    f"{place}-{work.__name__}-{world}", world
                )
                dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
                work(place, rank, init_device_mesh("cpu", (world,)))
                code = 0
            except BaseException as error:  # noqa: BLE001 - of a child that must not go on as its parent
                os.write(2, f"rank {rank}: {error!r}\n".encode())
            finally:
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    if any(codes):
        sys.exit(f"{work.__name__} on {world} ranks ended with {codes}")


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    run(SAVERS, save, sys.argv[1])
    run(int(sys.argv[3]), load, sys.argv[1])
