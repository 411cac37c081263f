"""States that tell whose they are, saved as the saver does, and what came of restoring them."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from plait.train.checkpoint.repository import Claim, Repository

VALUES = 3000


def state_at(lineage: tuple[int, ...], step: int, values: int = VALUES) -> dict[str, Any]:
    """Returns the state that a history of lives reaches: every value tells life and step, so a mix shows."""
    import torch

    mark = float(hash((lineage, step)) % 1_000_003)
    return {
        "weights": torch.full((values,), mark),
        "moments": {"m": torch.full((values // 2,), mark, dtype=torch.float64), "n": torch.full((7,), mark)},
        "lineage": list(lineage),
        "step": step,
    }


def save(repository: Repository, claim: Claim, state: dict[str, Any], step: int, written_s: float) -> None:
    """Saves as the saver does."""
    from plait.train.checkpoint.arena import state_layout
    from plait.train.checkpoint.index import Index
    from plait.train.checkpoint.tree import raw_bytes

    layout, tensors, values = state_layout(state)
    data = bytearray(layout.image.num_bytes)
    data[: len(layout.image.header)] = layout.image.header
    for tensor, offset in zip(tensors, layout.image.offsets, strict=True):
        raw = raw_bytes(tensor)
        data[offset : offset + len(raw)] = raw
    index = Index(form=layout.index.form, values=tuple(values), tensors=layout.index.tensors)
    prefix = repository.prefix(claim, step)
    receipt = repository.write(prefix, 0, index, data, len(data))
    repository.commit(claim, step, prefix, [receipt], written_s=written_s)


def is_whole(state: dict[str, Any], lineage: tuple[int, ...], step: int) -> bool:
    """Returns whether a restored state is, bit for bit, the one of this history and step."""
    import torch

    wanted = state_at(lineage, step)
    pairs = ((state["weights"], wanted["weights"]), (state["moments"]["m"], wanted["moments"]["m"]),
             (state["moments"]["n"], wanted["moments"]["n"]))  # fmt: skip
    return state["step"] == step and tuple(state["lineage"]) == lineage and all(torch.equal(a, b) for a, b in pairs)


@dataclass(slots=True)
class Verdicts:
    """What came of all runs."""

    runs: int = 0
    restores: int = 0
    wrong: list[str] = field(default_factory=list)
    flips: int = 0
    flips_found: int = 0
    by_fault: Counter[str] = field(default_factory=Counter)
    by_store: Counter[str] = field(default_factory=Counter)
