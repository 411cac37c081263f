"""What trials of recovery showed, as lines of a file, and what they say together."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from fault_trial import Fault, Outcome
from step_records import Delay

CAUSES = ("oom", "kill", "freeze", "notice", "agent", "node", "link", "flapping")


@dataclass(frozen=True)
class Result:
    """What one trial showed."""

    cause: str
    turn: int
    outcome: Outcome
    victim_code: int | None
    is_bitwise: bool
    has_changed: bool = False
    known_s: float | None = None
    loss: float | None = None
    hash: str = ""

    @property
    def steps_lost(self) -> int:
        return max(self.outcome.redone, self.outcome.skipped)

    @property
    def is_finished(self) -> bool:
        found = self.outcome
        return not (found.problem or found.unequal or found.lost or found.repeated)


@dataclass
class Undisturbed:
    """Runs without a fault: the weights in fixed point, and the losses of the others."""

    hash: str = ""
    losses: list[float] = field(default_factory=list)

    @property
    def noise(self) -> float:
        """How far the losses of the runs lie apart, as a ratio."""
        return max(self.losses) / min(self.losses)


def table(results: list[Result]) -> None:
    """Prints a line for each cause."""
    heads = f"{'trials':>6s} {'finished':>8s} {'known after':>15s} {'downtime':>17s} {'steps lost':>10s}"
    print(f"\n  {'':9s} {'':6s} {'':8s} {'median  worst':>15s} {'median  worst':>17s}\n  {'cause':9s} {heads}")
    for cause in CAUSES:
        mine = [result for result in results if result.cause == cause]
        if not mine:
            continue
        known = [result.known_s for result in mine if result.known_s is not None]
        down = [result.outcome.delay.beyond_s for result in mine if result.outcome.delay]
        cells = f"{_two(known):>15s} {_two(down):>17s} {max(r.steps_lost for r in mine):10d}"
        print(f"  {cause:9s} {len(mine):6d} {sum(result.is_finished for result in mine):8d} {cells}")


def _two(seconds: list[float]) -> str:
    return f"{median(seconds):.3f} {max(seconds):.3f} s" if seconds else "nobody left"


def compared(results: list[Result], undisturbed: Undisturbed) -> dict[str, float | None]:
    """Returns how the weights and the losses are to those of runs without a fault."""
    exact = [result for result in results if result.is_bitwise and result.hash]
    same = [result.hash == undisturbed.hash for result in exact if not result.has_changed]
    changed = [result.hash == undisturbed.hash for result in exact if result.has_changed]
    usual = median(undisturbed.losses)
    losses = [result.loss / usual for result in results if not result.is_bitwise and result.loss is not None]
    return {
        "equal_share_same_members": sum(same) / len(same) if same else None,
        "equal_share_changed": sum(changed) / len(changed) if changed else None,
        "loss_over_undisturbed_max": max(losses, default=None),
        "loss_over_undisturbed_min": min(losses, default=None),
        "loss_noise": undisturbed.noise,
    }


def told(result: Result) -> str:
    """Returns a trial in one line."""
    found = result.outcome
    after = "no new step" if found.delay is None else f"new step after {found.delay.since_fault_s:6.3f} s"
    books = f"lost {found.lost} repeated {found.repeated} redone {found.redone} unequal {len(found.unequal)}"
    mark = "" if result.is_finished else f"\n    PROBLEM {found.problem}"
    whom = f"w{found.fault.victim}@{found.fault.step}"
    mode = "fixed point" if result.is_bitwise else "as usual"
    return f"  {result.cause:9s} {whom:7s} {mode:11s} {after}  {books}  victim's exit {result.victim_code}{mark}"


def joined(runs: Sequence[Undisturbed]) -> Undisturbed:
    """Returns the runs without a fault of several files as one; all have the same weights in fixed point.

    Raises:
        ValueError: They do not.
    """
    hashes = {run.hash for run in runs}
    if len(hashes) != 1:
        raise ValueError(
            f"runs without a fault ended with other weights ({sorted(hashes)}): not to be counted together"
        )
    return Undisturbed(hashes.pop(), [loss for run in runs for loss in run.losses])


def written(result: Result | Undisturbed) -> str:
    """Returns a line of a file from which :func:`read_back` makes the same."""
    return json.dumps(asdict(result), separators=(",", ":")) + "\n"


def read_back(files: Sequence[Path]) -> tuple[list[Result], list[Undisturbed]]:
    """Returns the trials and the runs without a fault that files hold."""
    results, undisturbed = [], []
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if "losses" in row:
                undisturbed.append(Undisturbed(**row))
            else:
                results.append(Result(**{**row, "outcome": _outcome(row["outcome"])}))
    return results, undisturbed


def _outcome(row: Mapping[str, Any]) -> Outcome:
    delay = row["delay"]
    return Outcome(**{**row, "fault": Fault(**row["fault"]), "delay": Delay(**delay) if delay is not None else None})
