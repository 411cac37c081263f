"""One rank of the benchmarks of all-reduces: sums tensors in whichever way it is told, and times it."""

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from plait import comm
from workers.comm_rank import sent_bytes
from workers.lane import Orders

GOODPUT_BYTES = 6 * 2**20


class Ways:
    """All ways to sum a tensor, by name."""

    def __init__(self) -> None:
        dist.init_process_group("gloo", timeout=timedelta(seconds=300))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # gloo's ring goes by rank; one that crosses the link at every step is a group with other ranks.
        order = [int(n) for n in os.environ.get("BENCH_BAD_ORDER", "").split(",") if n]
        self._bad: Any = None
        if order:
            store = PrefixStore("bad", dist.distributed_c10d._get_default_store())  # noqa: SLF001
            self._bad = dist.ProcessGroupGloo(store, order.index(self.rank), self.size, timedelta(seconds=300))
        self.engine = comm.CommEngine()

    def sum(self, way: str, values: Tensor) -> None:
        known: dict[str, Callable[[], object]] = {
            "ring": lambda: dist.all_reduce(values),
            "bad ring": lambda: self._bad.allreduce([values]).wait(),
            "auto": lambda: self.engine.all_reduce(values, "auto").wait(),
        }
        if way in known:
            known[way]()
        elif self.engine.tuning is not None and "/" not in way:
            table = self.engine.tuned().table
            candidate = next(c for c in table.candidates if str(c) == way)
            self.engine.all_reduce_by(values, candidate, table).wait()
        else:
            shape, codec = way.split("/")
            self.engine.all_reduce(values, codec, shape).wait()

    def check(self, way: str, values: Tensor, count: int) -> None:
        """The values were ones: what loses nothing multiplies them by the number of ranks each time."""
        if "/" not in way or way.endswith("fp32"):
            assert bool((values == float(self.size) ** count).all()), way


def goodput(ways: Ways, order: dict[str, Any]) -> float | None:
    """Sends a stream over one plain connection from rank ``from`` to rank ``to``; returns bytes a second there."""
    if ways.rank == order["to"]:
        with socket.create_server((order["address"], order["port"])) as server:
            dist.barrier()
            connection, _ = server.accept()
            with connection:
                received, half_s = 0, 0.0
                while received < GOODPUT_BYTES:
                    received += len(connection.recv(1 << 18))
                    if not half_s and received >= GOODPUT_BYTES // 2:  # what a rate limit lets through at once is over
                        half_s, half = time.monotonic(), received
                rate = (received - half) / (time.monotonic() - half_s)
        dist.barrier()
        return rate
    dist.barrier()
    if ways.rank == order["from"]:
        with socket.create_connection((order["address"], order["port"])) as connection:
            connection.sendall(bytes(GOODPUT_BYTES))
    dist.barrier()
    return None


def main() -> None:
    torch.set_num_threads(1)
    orders, ways = Orders(), Ways()
    orders.answer(ready=True)
    while (order := orders.next()) is not None:
        if order["do"] == "tune":
            start_s = time.monotonic()
            table = ways.engine.tune(order["codecs"])
            orders.answer(
                took_s=time.monotonic() - start_s,
                ways=[str(c) for c in table.candidates],
                uplinks=table.network.uplink_bytes_per_s,
            )
        elif order["do"] == "predict":
            table = ways.engine.tuned().table
            predicted = {str(c): table.predicted_s(c, order["bytes"]) for c in table.candidates}
            choice = table.choice(order["bytes"])
            orders.answer(predicted=predicted, choice=str(choice.candidate), reason=choice.reason)
        elif order["do"] == "goodput":
            orders.answer(bytes_per_s=goodput(ways, order))
        else:
            values = torch.ones(order["bytes"] // 4)
            dist.barrier()
            sent, start_s = sent_bytes(), time.monotonic()
            for _ in range(order["count"]):
                ways.sum(order["way"], values)
            end_s = time.monotonic()
            dist.barrier()
            ways.check(order["way"], values, order["count"])
            orders.answer(start_s=start_s, end_s=end_s, sent_bytes=sent_bytes() - sent)
    ways.engine.close()


if __name__ == "__main__":
    main()
