"""Real processes that write checkpoints and are killed at random moments."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from plait.train.checkpoint.repository import Repository
from plait.train.checkpoint.stores import open_store
from torture_states import Verdicts

VALUES = 400_000


WRITER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from torture_states import save, state_at
from plait.train.checkpoint.nearest import load
from plait.train.checkpoint.repository import Repository
from plait.train.checkpoint.stores import open_store
repository = Repository(open_store(sys.argv[2]))
found = load(repository)
step = found.step if found else 0
claim = repository.claim(step or None)
print("ready", flush=True)
while True:
    step += 1
    save(repository, claim, state_at((0,), step, int(sys.argv[3])), step, 0.0)
    print(step, flush=True)
    repository.retain(claim)
"""


def killed_writers(url: str, count: int, chance: random.Random, verdicts: Verdicts, where: str) -> None:
    """Kills real writer processes at random moments, one after another at one place; their states are larger."""
    from plait.train.checkpoint.nearest import load

    acknowledged = 0
    variables = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", WRITER, str(Path(__file__).parent), url, str(VALUES)]
    for number in range(count):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                verdicts.wrong.append(f"{where} kill {number}: the writer did not start")
            timer = threading.Timer(chance.uniform(0.0, 0.5), process.send_signal, (signal.SIGKILL,))
            timer.start()
            for line in process.stdout:
                acknowledged = int(line)
            timer.join()
        verdicts.runs += 1
        verdicts.restores += 1
        verdicts.by_fault["real SIGKILL"] += 1
        verdicts.by_store[where] += 1
        found = load(Repository(open_store(url)))
        step = found.step if found else 0
        if step < acknowledged or (found and not _plausible(found.state, step)):
            verdicts.wrong.append(f"{where} kill {number}: step {step} restored, {acknowledged} acknowledged")


def _plausible(state: dict[str, Any], step: int) -> bool:
    """Returns whether all values of a state agree: other processes hash otherwise, so the mark itself is not known."""
    marks = {float(tensor.min()) for tensor in (state["weights"], state["moments"]["m"], state["moments"]["n"])}
    marks |= {float(tensor.max()) for tensor in (state["weights"], state["moments"]["m"], state["moments"]["n"])}
    return len(marks) == 1 and state["step"] == step
