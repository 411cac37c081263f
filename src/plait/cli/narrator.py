"""Turns the controller's journal into lines for people: what happens to one job, told once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from plait.cli.output import counted

Document = Mapping[str, Any]
CAUSES = {
    "oom": "out of memory",
    "network": "network given up",
    "device_fault": "device fault",
    "user": "error in the program",
}
"""Causes of failures in words; the others are words already."""


@dataclass(slots=True)
class Narrator:
    """Tells what concerns one job; remembers where each worker is, so that losses name their device.

    Feed it journal records in order; each record is ``{"event": ..., "commands": [...]}``.
    """

    job_id: str
    nodes: set[str] = field(default_factory=set)
    _places: dict[tuple[str, str], str] = field(default_factory=dict)
    _splits: dict[str, str] = field(default_factory=dict)
    _waits: dict[str, str] = field(default_factory=dict)

    def tell(self, record: Document) -> Iterator[str]:
        """Yields the lines of one record; most records have none."""
        yield from self._event(record["event"])
        for command in record.get("commands", ()):
            if command["kind"] == "test_device":
                yield f"device {command['device']} is being tested, which failed: {command['reason']}"
            if command.get("attempt_id", "").startswith(f"{self.job_id}/"):
                yield from self._command(command)

    def _event(self, event: Document) -> Iterator[str]:
        kind = event["kind"]
        attempt_id = event.get("attempt_id")
        if attempt_id is not None:
            if not attempt_id.startswith(f"{self.job_id}/"):
                return
            yield from self._of_attempt(kind, event)
        elif "job_id" in event:
            if event["job_id"] == self.job_id:
                yield from self._request(kind, event)
        elif "node" in event:
            yield from self._node(kind, event)
        elif "device" in event:
            yield f"device {event['device']} {_device_told(kind, event)}"

    def _of_attempt(self, kind: str, event: Document) -> Iterator[str]:
        attempt_id = event["attempt_id"]
        task = _task(attempt_id)
        if kind == "worker_exited":
            yield from self._exit(event)
        elif kind == "fault_injected":
            yield f"{task}: {event['deed']} of {self._who(attempt_id, event['worker_id'])} is asked for, as a drill"
        elif kind == "link_stalled":
            yield f"{task}: {self._who(attempt_id, event['worker_id'])} was held up: {event['reason']}"
        elif kind == "step_reported":
            yield from self.split(task, dict(event["split"]), event["reason"])

    def _node(self, kind: str, event: Document) -> Iterator[str]:
        if kind == "node_joined":
            node = event["node"]["id"]
            yield f"node {node} is back" if node in self.nodes else f"node {node} joined"
            self.nodes.add(node)
        elif kind == "node_lost":
            yield f"node {event['node']} is lost: {event['reason']}"
        else:
            yield f"node {event['node']} {'is drained' if kind == 'node_drained' else 'takes work again'}"

    def _request(self, kind: str, event: Document) -> Iterator[str]:
        if kind == "job_submitted":
            yield f"job {self.job_id} is accepted"
        elif kind == "job_cancelled":
            yield "cancellation is asked for"
        else:
            workers = event["workers"]
            yield f"{event['task']}: {workers['min']} to {workers['max']} workers are asked for"

    def _exit(self, event: Document) -> Iterator[str]:
        who = self._who(event["attempt_id"], event["worker_id"])
        task = _task(event["attempt_id"])
        if event.get("failure") in {None, "cancelled"}:  # as asked; why it was asked has its own line
            return
        how = f"signal {event['signal']}" if event.get("signal") else f"exit code {event['exit_code']}"
        detail = f": {event['detail']}" if event.get("detail") and event["detail"] != how else ""
        yield f"{task}: {who} ended ({CAUSES.get(event['failure'], event['failure'])}, {how}){detail}"

    def waiting(self, task: str, state: str, reason: str) -> Iterator[str]:
        """Yields a line where the task waits for another reason than the last one told."""
        told = self._waits.get(task)
        self._waits[task] = reason if state == "waiting" else ""
        if state == "waiting" and reason and reason != told:
            yield f"{task}: waits: {reason}"

    def split(self, task: str, split: Mapping[str, int], reason: str) -> Iterator[str]:
        """Yields a line where the split of a task is another than the last one told."""
        shown = split_text(split)
        if shown and self._splits.get(task) != shown:
            self._splits[task] = shown
            yield f"{task}: split {shown}" + (f" ({reason})" if reason else "")

    def _command(self, command: Document) -> Iterator[str]:
        kind, attempt_id = command["kind"], command["attempt_id"]
        task = _task(attempt_id)
        if kind == "start_task":
            placement = command["placement"]
            for worker in placement["workers"]:
                self._settle(attempt_id, worker)
            places = ", ".join(self._who(attempt_id, worker["worker_id"]) for worker in placement["workers"])
            yield f"{task}: starts with {counted(len(placement['workers']), 'worker')}: {places}"
            for reason in placement.get("reasons", ()):
                yield f"{task}: {reason}"
        elif kind == "resize_task":
            reason = f": {command['reason']}" if command.get("reason") else ""
            for worker in command.get("add", ()):
                self._settle(attempt_id, worker)
                yield f"{task}: {self._who(attempt_id, worker['worker_id'])} joins{reason}"
            for worker_id in command.get("remove", ()):
                yield f"{task}: {self._who(attempt_id, worker_id)} leaves{reason}"
        elif kind == "stop_task":
            yield f"{task}: is stopped: {command['reason']}"

    def _settle(self, attempt_id: str, worker: Document) -> None:
        place = f"{'+'.join(worker['device_ids']) or worker['node']}"
        self._places[attempt_id, worker["worker_id"]] = f"{place} ({worker['accelerator_type']})"

    def _who(self, attempt_id: str, worker_id: str) -> str:
        place = self._places.get((attempt_id, worker_id))
        return f"{worker_id} on {place}" if place else worker_id


def _device_told(kind: str, event: Document) -> str:
    if kind == "device_lost":
        return f"is lost: {event['reason']}"
    if kind == "device_tested":
        return f"{'passed' if event['passed'] else 'failed'} its test: {event['detail']}"
    return "is back"


def split_text(split: Mapping[str, int]) -> str:
    """Returns ``w0:8 w1:4 w2:0`` for a split of micro-batches over members."""
    return " ".join(f"{member}:{count}" for member, count in sorted(split.items(), key=_member_number))


def _member_number(entry: tuple[str, int]) -> tuple[int, str]:
    digits = entry[0].lstrip("w")
    return (int(digits) if digits.isdigit() else 1 << 30, entry[0])


def _task(attempt_id: str) -> str:
    return attempt_id.rsplit("/", 2)[1]
