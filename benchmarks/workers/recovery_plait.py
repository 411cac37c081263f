"""One member of a Plait session that writes down every committed step and, at the end, the books of its samples.

With ``BENCH_OOM_STEP`` each sample needs ``BENCH_SAMPLE_MB`` while its batch is worked on from that step on, and from
the first pass of several micro-batches on its process may take only part of what that pass needs. With
``BENCH_BITWISE`` gradients are summed in fixed point.
"""

import os
import resource
import time
from pathlib import Path

import torch
from torch import nn

import plait
from workers.models import Numbered, Recorded, adam_with_ledger
from workers.step_log import StepLog, digest

ROOM_RATIO, LEAST_ROOM = 0.6, 1.5
"""Room over the need of a pass that does not fit, and over that of one micro-batch, which does."""


class Room:
    """A real limit on memory, from some step on."""

    def __init__(self) -> None:
        self._step = int(os.environ.get("BENCH_OOM_STEP", "-1"))
        self._is_set = False
        self._least = int(os.environ["BENCH_BATCH"]) // int(os.environ["BENCH_MICRO"])

    def need(self, step: int, samples: int) -> torch.Tensor | None:
        """Returns the memory that a batch needs, none before the limit holds."""
        if self._step < 0 or step < self._step:
            return None
        sample_bytes = int(os.environ["BENCH_SAMPLE_MB"]) * 2**20
        if not self._is_set and samples > self._least:
            self._is_set = True
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            room = round(sample_bytes * max(ROOM_RATIO * samples, LEAST_ROOM * self._least))
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room, resource.RLIM_INFINITY))
        # Address space is what is limited; filling it would time the machine's page faults.
        return torch.empty(samples * sample_bytes, dtype=torch.uint8)


def keep_pace(step: int) -> None:
    """Waits until a step may begin, where steps have a time-table; whoever is late goes on at once."""
    pace_s = float(os.environ.get("BENCH_PACE_S", "0"))
    if pace_s > 0.0:
        time.sleep(max(0.0, float(os.environ["BENCH_BEGUN_S"]) + step * pace_s - time.monotonic()))


def main() -> None:
    torch.set_num_threads(1)
    log, room = StepLog(), Room()
    global_batch, steps = int(os.environ["BENCH_BATCH"]), int(os.environ["BENCH_STEPS_TOTAL"])
    model = Recorded(global_batch * steps, float(os.environ["BENCH_SAMPLE_S"]))
    parameters = list(model.parameters())
    dataset = Numbered(global_batch * steps)
    with plait.session(
        global_batch_size=global_batch,
        micro_batches=int(os.environ["BENCH_MICRO"]),
        seed=int(os.environ["BENCH_SEED"]),
        bitwise=os.environ.get("BENCH_BITWISE") == "1",
        heartbeat_timeout_s=float(os.environ.get("BENCH_HEARTBEAT_S", "1")),
    ) as run:
        if "BENCH_SAVE" in os.environ:
            run.save_every(10.0, os.environ["BENCH_SAVE"])
        replica, optimizer, loader = run.prepare(model, adam_with_ledger(model), dataset, epochs=1)
        log.write(event="ready", step=run.step, world=list(run.world))
        # Also a member that is left without work commits each step, though its loop sees none of them.
        run.on_commit(
            lambda facts: log.write(
                event="step", step=facts.step + 1, hash=digest(parameters), world=[name for name, _ in facts.members]
            )
        )
        for x, y, number in loader:
            with run.fits():
                needed = room.need(run.step, len(x))
                replica(x, y, number).mean().backward()
                del needed
                optimizer.step()
                optimizer.zero_grad()
            keep_pace(run.step)
        used, again = model.books(global_batch)
        with torch.no_grad():
            loss = float(nn.functional.cross_entropy(model.net(dataset.vectors), dataset.labels))
        world = list(run.world)
        log.write(event="end", step=run.step, used=used, again=again, hash=digest(parameters), world=world, loss=loss)


if __name__ == "__main__":
    main()
