"""A trainer of one node that saves steps to tiers and then stays until it is killed.

``trainer.py URL LOCAL STEP:TIER,STEP:TIER...`` prints each step once it is where it should be.
"""

import sys
import time

import torch

from plait.spec.job import Checkpoint, LocalTier
from plait.train.checkpoint.snapshots import SnapshotCheckpointer, SnapshotSettings

url, local, steps = sys.argv[1:4]
wanted = Checkpoint(url=url, local=LocalTier(path=local) if local else None, peer_interval_s=60.0)
checkpointer = SnapshotCheckpointer(SnapshotSettings.of(wanted))
found = checkpointer.load()
sys.stdout.write(f"from {found.step if found is not None else None}\n")
sys.stdout.flush()
for part in steps.split(","):
    step, _, tier = part.partition(":")
    state = {"x": torch.full((200_000,), float(step)), "step": int(step)}
    if tier == "memory":
        checkpointer.snapshot(state, int(step))
    else:
        checkpointer.save(state, int(step), tiers=tier.split("+"))
        checkpointer.wait()
    sys.stdout.write(f"{step}\n")
    sys.stdout.flush()
time.sleep(600)
