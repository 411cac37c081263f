"""Throughput tables: measured steps a second by model, batch size, workers and accelerator type."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from plait.errors import PlaitError
from plait.schedule.policy import Configuration, Rate
from plait.sim.jobs import Rates
from plait.words import did_you_mean

SPREAD = "_unconsolidated_steps_per_s"
PACKED = "_steps_per_s"


class BadTrace(PlaitError):
    """A trace or table that cannot be read; the message has the file, the line and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputTable:
    """Steps a second, summed over the gang, as Gavel publishes them.

    ``steps_per_s[model, batch][type, workers]`` is (consolidated, spread); 0.0: it does not fit. ``types`` are upper
    case, in the order of the file's columns.
    """

    types: tuple[str, ...]
    steps_per_s: Mapping[tuple[str, int | None], Mapping[tuple[str, int], tuple[float, float]]]
    _rates: dict[tuple[str, int | None, int], Rates] = field(default_factory=dict, compare=False, repr=False)

    def sizes(self, model: str, batch: int | None) -> tuple[int, ...]:
        """Returns the numbers of workers that the table has for this model, ascending."""
        return tuple(sorted({workers for _, workers in self._of(model, batch)}))

    def rates(self, model: str, batch: int | None, gang: int) -> Rates:
        """Returns work a second of a job whose batch was tuned for ``gang`` workers; jobs of a kind share one mapping.

        Work is steps at that batch: with n workers only ``min(1, 5 s / (4 s + n))`` of the steps' samples count, the
        statistical efficiency for a gradient noise scale of 4 s batches (Pollux, equation 7).
        """
        key = (model, batch, gang)
        if key not in self._rates:
            found: dict[Configuration, Rate] = {}
            for (name, workers), (packed, spread) in self._of(model, batch).items():
                efficiency = min(1.0, 5.0 * gang / (4.0 * gang + workers)) if workers != gang else 1.0
                counts = ((name, workers),)
                if packed > 0:
                    found[Configuration(counts=counts)] = Rate(per_s=packed * efficiency)
                if spread > 0 and workers > 1:
                    found[Configuration(counts=counts, is_spread=True)] = Rate(per_s=spread * efficiency)
            self._rates[key] = found
        return self._rates[key]

    def _of(self, model: str, batch: int | None) -> Mapping[tuple[str, int], tuple[float, float]]:
        known = self.steps_per_s.get((model, batch))
        if known is None:
            models = sorted({name for name, _ in self.steps_per_s})
            hint = did_you_mean(model, models) if model not in models else ""
            raise BadTrace(f"the throughput table has no {model!r} with batch size {batch}{hint}")
        return known


def read_table(path: Path) -> ThroughputTable:
    """Reads a table with the columns model, batch_size_per_gpu, gpus, TYPE_steps_per_s and TYPE_unconsolidated_....

    Raises:
        BadTrace: A column is missing or a value is no number.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        columns = reader.fieldnames or []
        types = [name.removesuffix(PACKED) for name in columns if name.endswith(PACKED) and not name.endswith(SPREAD)]
        missing = {"model", "batch_size_per_gpu", "gpus"} - set(columns)
        if missing or not types:
            raise BadTrace(f"{path}: no column {', '.join(sorted(missing)) or 'TYPE' + PACKED}")
        found: dict[tuple[str, int | None], dict[tuple[str, int], tuple[float, float]]] = {}
        for row in reader:
            try:
                batch = int(row["batch_size_per_gpu"]) if row["batch_size_per_gpu"] else None
                workers = int(row["gpus"])
                for name in types:
                    packed = float(row[name + PACKED] or 0.0)
                    spread = float(row.get(name + SPREAD) or 0.0)
                    found.setdefault((row["model"], batch), {})[name.upper(), workers] = (packed, spread)
            except ValueError as error:
                raise BadTrace(f"{path}:{reader.line_num}: {error}") from error
    return ThroughputTable(types=tuple(name.upper() for name in types), steps_per_s=found)
