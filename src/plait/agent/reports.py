"""What the controller hears of workers, and what the agent remembers of those that ended."""

import time
from collections import OrderedDict
from typing import Protocol

from plait.agent.messages import DeviceChecked, KnownWorker, LinkStall, Progress, WorkerDown, WorkerUp
from plait.agent.outbox import Outbox, Report
from plait.agent.worker import WorkerKey
from plait.agent.worker_lines import ProgressLine
from plait.spec.job import FailureCause

PROGRESS_EVERY_S = 0.2
MOST_REMEMBERED = 1000
"""Ended workers that the agent can still answer for; the controller never reuses ids, so old ones are never asked."""


class Sender(Protocol):
    """Where reports go."""

    def report(self, report: Report) -> None:
        """Keeps the report until it is acknowledged."""
        ...

    def tell(self, progress: Progress) -> None:
        """Sends progress, or drops it."""
        ...


class Reports:
    """Numbers reports, remembers ends, and thins progress out."""

    def __init__(self, outbox: Outbox, sender: Sender) -> None:
        self._outbox = outbox
        self._sender = sender
        self._ended: OrderedDict[WorkerKey, WorkerDown] = OrderedDict()
        self._latest: dict[WorkerKey, ProgressLine] = {}
        self._sent_at: dict[WorkerKey, float] = {}

    def up(self, key: WorkerKey, pid: int) -> None:
        """The worker's process runs."""
        number = self._outbox.next_number()
        self._sender.report(WorkerUp(number=number, attempt_id=key[0], worker_id=key[1], pid=pid))

    def down(
        self,
        key: WorkerKey,
        failure: FailureCause | None,
        detail: str,
        *,
        exit_code: int | None,
        signal: int | None,
        is_transient: bool = False,
        faulty_devices: tuple[str, ...] = (),
    ) -> None:
        """The worker ended, or will never run here."""
        self.flush_progress(key)
        self._sent_at.pop(key, None)
        report = WorkerDown(
            number=self._outbox.next_number(),
            attempt_id=key[0],
            worker_id=key[1],
            exit_code=exit_code,
            signal=signal,
            failure=failure,
            detail=detail,
            is_transient=is_transient,
            faulty_devices=faulty_devices,
        )
        self._ended[key] = report
        while len(self._ended) > MOST_REMEMBERED:
            self._ended.popitem(last=False)
        self._sender.report(report)

    def checked(self, device: str, test: int, *, passed: bool, detail: str) -> None:
        """A device was tested."""
        number = self._outbox.next_number()
        self._sender.report(DeviceChecked(number=number, device=device, test=test, passed=passed, detail=detail))

    def stalled(self, key: WorkerKey, reason: str, *, is_transient: bool) -> None:
        """A link gave no answer for a while."""
        number = self._outbox.next_number()
        stall = LinkStall(number=number, attempt_id=key[0], worker_id=key[1], is_transient=is_transient, reason=reason)
        self._sender.report(stall)

    def repeat_down(self, key: WorkerKey) -> bool:
        """Says again how a worker ended; returns whether that is known."""
        old = self._ended.get(key)
        if old is not None:
            self.down(
                key,
                old.failure,
                old.detail,
                exit_code=old.exit_code,
                signal=old.signal,
                is_transient=old.is_transient,
                faulty_devices=old.faulty_devices,
            )
        return old is not None

    def ended(self) -> tuple[KnownWorker, ...]:
        """Returns the workers that have ended."""
        return tuple(
            KnownWorker(
                attempt_id=down.attempt_id,
                worker_id=down.worker_id,
                alive=False,
                exit_code=down.exit_code,
                signal=down.signal,
            )
            for down in self._ended.values()
        )

    def progress(self, key: WorkerKey, line: ProgressLine) -> None:
        """Keeps only the latest line of each worker; it goes out at most five times a second."""
        self._latest[key] = line
        if time.monotonic() - self._sent_at.get(key, 0.0) >= PROGRESS_EVERY_S:
            self.flush_progress(key)

    def flush_progress(self, key: WorkerKey | None = None) -> None:
        """Sends what is held back of one worker, or of all."""
        for which in [key] if key is not None else list(self._latest):
            line = self._latest.pop(which, None)
            if line is not None:
                self._sent_at[which] = time.monotonic()
                self._sender.tell(_progress(which, line))


def _progress(key: WorkerKey, line: ProgressLine) -> Progress:
    return Progress(
        attempt_id=key[0],
        worker_id=key[1],
        step=line.step,
        total_steps=line.total_steps,
        samples_per_s=line.samples_per_s,
        loss=line.loss,
        generation=line.generation,
        split=line.split,
        reason=line.reason,
        elastic=line.elastic,
        device_samples_per_s=line.device_samples_per_s,
    )
