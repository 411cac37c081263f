"""The table that an engine chooses by: measured or read at the start, corrected by rank 0, switched by all at once."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plait.train.comm.planner import SIZES, Candidate, Choice, Network, Table

WINDOW_EXCHANGES = 32
ALIKE = 0.25
"""A saved table is used again if no measured rate differs by more than this part."""

AllReduce = Callable[[Tensor], torch.futures.Future[Tensor]]


class Tuning:
    """Counts exchanges, and lets rank 0's changes take effect everywhere at the same one.

    What rank 0 decides at the end of a window travels during the next and takes effect at its end.
    """

    def __init__(self, table: Table, rank: int, all_reduce: AllReduce, saved: Path | None = None) -> None:
        """``all_reduce`` sums a small tensor over all members; ``saved`` is where rank 0 keeps the table."""
        self.table = table
        self.switches: list[str] = []
        self._rank = rank
        self._all_reduce = all_reduce
        self._saved = saved
        self._count = 0
        self._told: torch.futures.Future[Tensor] | None = None

    def choice(self, size_bytes: int) -> Choice:
        """Returns what is used for the next exchange; to be called once for each, on all members alike."""
        self._count += 1
        if self._count % WINDOW_EXCHANGES == 0:
            self._turn()
        return self.table.choice(size_bytes)

    def _turn(self) -> None:
        if self._told is not None:
            for row, number in enumerate(self._told.wait().tolist()):
                if number:
                    self._switch(row, self.table.candidates[round(number) - 1])
        word = torch.zeros(len(SIZES))
        if self._rank == 0:
            for row, candidate in self.table.decide().items():
                word[row] = 1 + self.table.candidates.index(candidate)
        self._told = self._all_reduce(word)

    def _switch(self, row: int, candidate: Candidate) -> None:
        before = self.table.in_use[row]
        self.table.in_use[row] = candidate
        self.switches.append(f"{SIZES[row]} bytes: {candidate} in place of {before}, at exchange {self._count}")
        self.save()

    def observe(self, candidate: Candidate, size_bytes: int, seconds: float) -> None:
        """Takes in how long an exchange took; only rank 0's observations count."""
        if self._rank == 0:
            self.table.observe(candidate, size_bytes, seconds)

    def save(self) -> None:
        """Writes the table, if this is rank 0 and there is a place for it."""
        if self._rank == 0 and self._saved is not None:
            write_document(self._saved, self.table, self.switches)


def write_document(path: Path, table: Table, switches: Sequence[str]) -> None:
    """Writes a table with its reasons to a file, at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(json.dumps(document(table, switches)), encoding="utf-8")
    fresh.replace(path)


def document(table: Table, switches: Sequence[str]) -> dict[str, Any]:
    """Returns a table as JSON: what was measured, and for people each row's choice with its reason."""
    rows = []
    for size_bytes in SIZES:
        choice = table.choice(size_bytes)
        rows.append(
            {
                "size_bytes": size_bytes,
                "choice": str(choice.candidate),
                "predicted_s": choice.predicted_s,
                "reason": choice.reason,
                "rivals": [[str(candidate), seconds] for candidate, seconds in choice.rivals],
            }
        )
    measured = [[c.shape, c.codec, trials] for c, trials in table.measured_s.items()]
    return {
        "network": asdict(table.network),
        "coded_ratio": dict(table.coded_ratio),
        "measured": measured,
        "rows": rows,
        "switches": list(switches),
    }


def read(text: str, network: Network, candidates: Sequence[Candidate]) -> Table | None:
    """Returns a saved table if it still fits what was just measured, else ``None``."""
    try:
        saved = json.loads(text)
        old = saved["network"]
        found = {Candidate(shape, codec): [(int(b), float(s)) for b, s in t] for shape, codec, t in saved["measured"]}
        ratios = {str(name): float(ratio) for name, ratio in saved["coded_ratio"].items()}
        rates = list(zip(old["uplink_bytes_per_s"], network.uplink_bytes_per_s, strict=True))
    except (ValueError, KeyError, TypeError):
        return None
    alike = all(1.0 - ALIKE < before / now < 1.0 + ALIKE for before, now in rates)
    if not alike or list(old["island_of"]) != list(network.island_of) or not set(found) <= set(candidates):
        return None
    table = Table(network, tuple(candidates), ratios, found)
    table.fix()
    return table
