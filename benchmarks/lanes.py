"""Lanes: one fleet of workers for each method under test, all started together and driven block by block in turn.

Only one lane works at a time, the others wait for their next order, so all methods see the same machine at nearly the
same moment. A block's time runs from the first worker's start to the last worker's end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from fleet import Control, Nursery, Ports, Worker, plait_environment


@dataclass(frozen=True)
class Block:
    """The outcome of a block: seconds, samples of all ranks, and each rank's own answer."""

    duration_s: float
    samples: int
    answers: tuple[dict[str, Any], ...]

    @property
    def cpu_s_per_sample(self) -> float:
        """Processor time of all ranks, main process and its threads, for one sample; hardly moved by other load."""
        return float(sum(answer["cpu_s"] for answer in self.answers)) / self.samples

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.duration_s


class Lane:
    """The workers of one method, rank by rank."""

    def __init__(self, name: str, control: Control, workers: Sequence[Worker]) -> None:
        self.name = name
        self.workers = list(workers)
        self._control = control
        self._control.accept([worker.name for worker in workers], self.workers)

        self._is_ready = False

    def wait_until_ready(self) -> None:
        """Waits until every worker has built its model and its group."""
        if self._is_ready:
            return
        self._is_ready = True
        for worker in self.workers:
            self._control.hear(worker.name, self.workers)

    def run(self, orders: Sequence[dict[str, Any]], timeout_s: float = 120.0) -> tuple[dict[str, Any], ...]:
        """Sends each rank its order and returns the answers in order of rank."""
        named = {worker.name: order for worker, order in zip(self.workers, orders, strict=True)}
        answers = self._control.ask(named, self.workers, timeout_s)
        return tuple(answers[worker.name] for worker in self.workers)

    def end(self) -> None:
        self._control.tell({worker.name: {"do": "end"} for worker in self.workers})


def start_ddp(nursery: Nursery, directory: Path, ports: Ports, world: int, environment: dict[str, str]) -> Lane:
    """Starts ``world`` ranks of plain DDP on loopback."""
    name, port = f"ddp{world}", ports.pair()
    control = Control(directory, name)
    common = {
        **environment,
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "BENCH_CONTROL": str(control.path),
    }
    workers = []
    for rank in range(world):
        own = {"RANK": str(rank), "BENCH_NAME": f"{name}-{rank}"}
        log = directory / f"{name}-{rank}.log"
        workers.append(nursery.spawn(own["BENCH_NAME"], "lane_ddp.py", common | own, log))
    return Lane("ddp", control, workers)


_numbers = count()


def start_plait(nursery: Nursery, directory: Path, ports: Ports, world: int, environment: dict[str, str]) -> Lane:
    """Starts ``world`` members of a new Plait session on loopback."""
    name = f"plait{world}-{next(_numbers)}"
    control = Control(directory, name)
    addresses = {f"w{rank}": f"127.0.0.1:{ports.pair()}" for rank in range(world)}
    workers = []
    for member, address in addresses.items():
        own = {
            **environment,
            **plait_environment(member, address, addresses, directory / f"{name}-run"),
            "BENCH_CONTROL": str(control.path),
            "BENCH_NAME": f"{name}-{member}",
        }
        log = directory / f"{name}-{member}.log"
        workers.append(nursery.spawn(own["BENCH_NAME"], "lane_plait.py", own, log))
    return Lane("plait", control, workers)


def ddp_block(lane: Lane, batches: Sequence[int], steps: int, speeds: Sequence[float | None]) -> Block:
    """Runs ``steps`` steps of DDP with a fixed batch for each rank."""
    orders: list[dict[str, Any]] = [
        {"do": "run", "batch": batch, "steps": steps, "global_batch": sum(batches), "samples_per_s": speed}
        for batch, speed in zip(batches, speeds, strict=True)
    ]
    answers = lane.run(orders)
    return Block(_span_s(answers), steps * sum(batches), answers)


def alone_block(
    lane: Lane, batches: Sequence[int], seconds: float, speeds: Sequence[float | None]
) -> tuple[float, ...]:
    """Lets each rank train by itself for some seconds, all at once, and returns their rates in samples/s."""
    orders: list[dict[str, Any]] = [
        {"do": "alone", "batch": batch, "seconds": seconds, "global_batch": batch, "samples_per_s": speed}
        for batch, speed in zip(batches, speeds, strict=True)
    ]
    return tuple(answer["samples"] / (answer["end_s"] - answer["start_s"]) for answer in lane.run(orders))


def plait_block(lane: Lane, global_batch: int, steps: int, speeds: Sequence[float | None]) -> Block:
    """Runs ``steps`` global steps of a Plait session."""
    orders: list[dict[str, Any]] = [{"do": "run", "steps": steps, "samples_per_s": speed} for speed in speeds]
    answers = lane.run(orders)
    return Block(_span_s(answers), steps * global_batch, answers)


def _span_s(answers: Sequence[dict[str, Any]]) -> float:
    return float(max(answer["end_s"] for answer in answers) - min(answer["start_s"] for answer in answers))


def split_of(block: Block) -> dict[int, tuple[int, ...]]:
    """Returns the samples that each rank took, by global step, as the workers counted them."""
    steps = sorted({int(step) for answer in block.answers for step in answer["samples"]})
    return {step: tuple(int(answer["samples"].get(str(step), 0)) for answer in block.answers) for step in steps}


def spread(values: Sequence[float]) -> str:
    """Returns ``median [lowest .. highest] n`` for the table."""
    if not values:
        return "none"
    return f"{median(values):.3f} [{min(values):.3f} .. {max(values):.3f}] n={len(values)}"


def proportional(global_batch: int, speeds: Sequence[float]) -> list[int]:
    """Returns the simple split by hand: proportional, rounded, the remainder to the fastest."""
    shares = [max(1, round(global_batch * speed / sum(speeds))) for speed in speeds]
    shares[shares.index(max(shares))] += global_batch - sum(shares)
    return shares


def equal(global_batch: int, world: int) -> list[int]:
    """Returns what a distributed sampler gives: the same batch to every rank."""
    return [global_batch // world] * world
