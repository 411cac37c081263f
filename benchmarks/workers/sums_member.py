"""One member of the benchmark of small sums: on each turn it sums one tensor, by one method after the other."""

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore

from plait.train.collectives.mesh import Mesh
from plait.train.collectives.mesh_builder import MeshBuilder


def connected(store: Store, rank: int, world: int) -> Mesh:
    """Returns the direct connections of this member."""
    builder = MeshBuilder("127.0.0.1", rank, world, "benchmark")
    store.set(f"address/{rank}", builder.address)
    return builder.connect(lambda other: store.get(f"address/{other}").decode(), 30.0)


def all_to_all(group: Any, tensor: Tensor, world: int) -> None:
    """Everybody sends everything to everybody through the back end, and adds up."""
    sent = tensor.repeat(world)
    received = torch.empty_like(sent)
    group.alltoall_base(received, sent, [], [], dist.AllToAllOptions()).wait()
    tensor.copy_(received.view(world, -1).sum(0))


def main() -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), world, rank == 0)
    group: Any = dist.ProcessGroupGloo(store, rank, world, timedelta(seconds=60))
    mesh = connected(store, rank, world)
    methods: dict[str, Callable[[Tensor], Any]] = {
        "ring": lambda tensor: group.allreduce([tensor], dist.AllreduceOptions()).wait(),
        "all_to_all": lambda tensor: all_to_all(group, tensor, world),
        "direct": lambda tensor: mesh.all_reduce(tensor).wait(),
    }
    times: dict[str, list[float]] = {}
    names = list(methods)
    for turn in range(int(os.environ["BENCH_TURNS"])):
        time.sleep(0.01)  # as between the exchanges of a training run: all threads have gone to sleep
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            for count in (32, 57_000):
                mesh.all_reduce(torch.zeros(1)).wait()
                values = torch.full((count,), float(rank + 1))
                start_s = time.perf_counter()
                methods[name](values)
                times.setdefault(f"{name}/{count}", []).append(time.perf_counter() - start_s)
                if float(values[-1]) != world * (world + 1) / 2:
                    raise SystemExit(f"{name} summed {count} values to {float(values[-1])}")
    if rank == 0:
        sys.stdout.write(json.dumps(times) + "\n")
    mesh.all_reduce(torch.zeros(1)).wait()


if __name__ == "__main__":
    main()
