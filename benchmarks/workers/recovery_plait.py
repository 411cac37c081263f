"""One member of a Plait session that writes down every committed step and, at the end, the books of its samples."""

import os

import torch

import plait
from workers.models import Numbered, Recorded, adam_with_ledger
from workers.step_log import StepLog, digest


def main() -> None:
    torch.set_num_threads(1)
    log = StepLog()
    global_batch, steps = int(os.environ["BENCH_BATCH"]), int(os.environ["BENCH_STEPS_TOTAL"])
    model = Recorded(global_batch * steps, float(os.environ["BENCH_SAMPLE_S"]))
    parameters = list(model.parameters())
    dataset = Numbered(global_batch * steps)
    with plait.session(
        global_batch_size=global_batch, micro_batches=int(os.environ["BENCH_MICRO"]), seed=int(os.environ["BENCH_SEED"])
    ) as run:
        replica, optimizer, loader = run.prepare(model, adam_with_ledger(model), dataset, epochs=1)
        known = run.step
        log.write(event="ready", step=known, world=list(run.world))

        def note() -> int:
            if run.step > known:
                log.write(event="step", step=run.step, hash=digest(parameters), world=list(run.world))
            return int(run.step)

        for x, y, number in loader:
            known = note()
            replica(x, y, number).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            known = note()
        known = note()
        used, again = model.books(global_batch)
        log.write(event="end", step=known, used=used, again=again, hash=digest(parameters), world=list(run.world))


if __name__ == "__main__":
    main()
