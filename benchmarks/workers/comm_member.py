"""One member of a run of 1-bit Adam whose group changes; it writes the loss and its momenta's hash of each step."""

import json
import os
from pathlib import Path

import torch

import plait
from plait.train.observers import StepFacts
from workers.comm_task import BATCH, TASKS, WARM_UP_SHARE, rate_at
from workers.step_log import digest

MOST_MEMBERS = 4


def main() -> None:
    torch.set_num_threads(1)
    steps, until = int(os.environ["BENCH_STEPS"]), int(os.environ["BENCH_UNTIL"])
    seed = int(os.environ["BENCH_SEED"])
    torch.manual_seed(seed)
    task = TASKS[os.environ["BENCH_TASK"]]()
    optimizer = plait.OneBitAdam(task.model.parameters(), lr=task.lr, freeze=round(WARM_UP_SHARE * steps))
    momenta: dict[int, str] = {}
    losses: dict[int, float | None] = {}
    worked: set[str] = set()

    def note(facts: StepFacts) -> None:
        momenta[facts.step] = digest(optimizer.momentum_of(p) for p in task.model.parameters())
        losses[facts.step] = facts.loss
        worked.update(name for name, vote in facts.members if vote.micro_batches)

    def set_rate() -> None:
        for group in optimizer.param_groups:
            group["lr"] = task.lr * rate_at(run.step, steps)

    with plait.session(
        global_batch_size=BATCH * MOST_MEMBERS,
        micro_batches=2 * MOST_MEMBERS,
        split="even",
        heartbeat_timeout_s=20.0,
        seed=seed,
    ) as run:
        if "BENCH_SAVE" in os.environ:
            run.save_every(1e6, os.environ["BENCH_SAVE"])  # so, once: at the end
        run.before_step(set_rate)
        run.on_commit(note)
        replica, closing, loader = run.prepare(task.model, optimizer, task.train, steps=until, draws_random=False)
        for x, y in loader:
            loss = task.loss(replica(x), y)
            run.record(loss=loss)
            loss.backward()
            closing.step()
            closing.zero_grad()
    with torch.no_grad():
        final = float(task.loss(task.model(task.held_out[0]), task.held_out[1]))
    told = {"final": final, "losses": losses, "momenta": momenta, "worked": sorted(worked)}
    Path(os.environ["BENCH_RESULT"]).write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main()
