"""Where a followed job shows: a live bar on a terminal, single lines elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from plait.cli.narrator import split_text
from plait.cli.output import console, say

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from plait.controller.answers import ProgressAnswer

PLAIN_INTERVAL_S = 5.0
"""The least time between two progress lines of one task where stdout is no terminal."""


class Screen(Protocol):
    """Shows lines that stay and progress that is replaced; used as a context manager."""

    def line(self, text: str) -> None:
        """Shows a line that stays."""
        ...

    def progress(self, progress: "Sequence[ProgressAnswer]", now_s: float) -> None:
        """Shows the newest progress; ``now_s`` is on a clock that never goes back."""
        ...

    def __enter__(self) -> Self:
        """Takes the screen."""
        ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Gives it back."""
        ...


@dataclass(slots=True)
class PlainScreen:
    """One line a change; progress at most every ``PLAIN_INTERVAL_S`` a task, and always the last step."""

    _told: dict[str, tuple[float, int]] = field(default_factory=dict)

    def line(self, text: str) -> None:
        """Prints the line."""
        say(text)

    def progress(self, progress: "Sequence[ProgressAnswer]", now_s: float) -> None:
        """Prints the tasks that are due."""
        for line in progress:
            told_s, told_step = self._told.get(line["attempt_id"], (float("-inf"), -1))
            is_last = line["step"] == line["total_steps"]
            if line["step"] == told_step or (now_s - told_s < PLAIN_INTERVAL_S and not is_last):
                continue
            self._told[line["attempt_id"]] = (now_s, line["step"])
            total = f"/{line['total_steps']}" if line["total_steps"] else ""
            say(f"{line['task']}: step {line['step']}{total}, {', '.join(figures(line))}")

    def __enter__(self) -> Self:
        """Needs nothing."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Needs nothing."""


@dataclass(slots=True)
class SilentScreen:
    """Shows nothing: for ``--json``, where stdout belongs to the one document."""

    def line(self, text: str) -> None:
        """Drops the line."""

    def progress(self, progress: "Sequence[ProgressAnswer]", now_s: float) -> None:
        """Drops the progress."""

    def __enter__(self) -> Self:
        """Needs nothing."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Needs nothing."""


@dataclass(slots=True)
class LiveScreen:
    """A bar a task at the bottom of the terminal; lines scroll above it."""

    _bars: "Progress | None" = None
    _known: "dict[str, TaskID]" = field(default_factory=dict)

    def line(self, text: str) -> None:
        """Prints the line above the bars."""
        from rich.markup import escape

        (self._bars.console if self._bars is not None else console()).print(escape(text))

    def progress(self, progress: "Sequence[ProgressAnswer]", now_s: float) -> None:  # noqa: ARG002 - rich has a clock
        """Moves the bars."""
        bars = self._bars
        if bars is None:
            return
        for line in progress:
            task = line["task"]
            if task not in self._known:
                self._known[task] = bars.add_task(task, total=line["total_steps"], figures="")
            bars.update(
                self._known[task],
                completed=line["step"],
                total=line["total_steps"],
                figures=", ".join(figures(line)),
            )

    def __enter__(self) -> Self:
        """Starts drawing."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bars = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[figures]}", markup=False),
            console=console(),
            refresh_per_second=5,
        )
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stops drawing; the bars stay as they last were."""
        if self._bars is not None:
            self._bars.stop()


def figures(line: "ProgressAnswer") -> list[str]:
    """Returns the figures of a progress line in words, the important ones first."""
    shown = [f"{line['samples_per_s']:.4g} samples/s{_against(line)}"]
    if line["loss"] is not None:
        shown.append(f"loss {line['loss']:.4g}")
    if line["split"]:
        idle = sum(count == 0 for count in line["split"].values())
        shown.append(f"world size {len(line['split'])}" + (f" ({idle} left out)" if idle else ""))
        shown.append(f"split {split_text(line['split'])}")
    return shown


def _against(line: "ProgressAnswer") -> str:
    total = line["device_samples_per_s"]
    return f" of {total:.4g} ({line['samples_per_s'] / total:.0%})" if total else ""
