"""A delta leads exactly from one state to the next, through its encoding."""

from hypothesis import given, settings
from hypothesis import strategies as st

from plait.controller.delta import DELTA, after_delta, delta_between
from plait.hardware.device import Device, Node
from plait.schedule.commands import StartTask
from plait.schedule.events import (
    Event,
    JobCancelled,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLost,
    StepReported,
    Tick,
    WorkerExited,
    WorkerStarted,
)
from plait.schedule.machine import apply, initial
from plait.spec.job import Job, Task, WorkerRange


def happening(number: int, choice: int, attempts: list[tuple[str, str]]) -> Event:
    at_s = float(number)
    node = f"n{choice % 3}"
    attempt_id, worker_id = attempts[choice % len(attempts)] if attempts else ("job-0/train/0", "w0")
    job = Job(name="job", tasks=(Task(name="train", command=("true",), workers=WorkerRange(min=1, max=3)),))
    devices = tuple(Device(id=f"{node}/{i}", node=node, index=i, accelerator_type="T4") for i in range(2))
    events: tuple[Event, ...] = (
        NodeJoined(id=number, at_s=at_s, node=Node(id=node, address="127.0.0.1", devices=devices)),
        JobSubmitted(id=number, at_s=at_s, job_id=f"job-{number}", job=job),
        WorkerStarted(id=number, at_s=at_s, attempt_id=attempt_id, worker_id=worker_id),
        StepReported(
            id=number, at_s=at_s, attempt_id=attempt_id, step=1, total_steps=9, samples_per_s=1.0, elastic=True
        ),
        WorkerExited(id=number, at_s=at_s, attempt_id=attempt_id, worker_id=worker_id, exit_code=0),
        WorkerExited(
            id=number, at_s=at_s, attempt_id=attempt_id, worker_id=worker_id, exit_code=None, signal=9, failure="lost"
        ),
        NodeLost(id=number, at_s=at_s, node=node, reason="gone"),
        NodeDrained(id=number, at_s=at_s, node=node),
        JobCancelled(id=number, at_s=at_s, job_id=f"job-{choice % 7}"),
        Tick(id=number, at_s=at_s, day_s=number),
    )
    return events[choice % len(events)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=30))
def test_a_chain_of_deltas_leads_where_the_events_led(choices: list[int]) -> None:
    state = recovered = initial()
    attempts: list[tuple[str, str]] = []
    for number, choice in enumerate([0, 1, 1, *choices]):
        after, commands = apply(state, happening(number, choice, attempts))
        delta = DELTA.decode(DELTA.encode(delta_between(state, after)))
        recovered = after_delta(recovered, delta)
        assert recovered == after
        # The order of entries decides what is looked at first, so it has to be the same too.
        assert list(recovered.attempts) == list(after.attempts)
        assert list(recovered.jobs) == list(after.jobs)
        state = after
        for command in commands:
            if isinstance(command, StartTask):
                attempts += [(command.attempt_id, worker.worker_id) for worker in command.placement.workers]


def test_a_delta_holds_only_what_changed() -> None:
    state, number = initial(), 0
    for choice in (0, 1, 2):
        state, _ = apply(state, NodeJoined(id=number, at_s=0.0, node=Node(id=f"n{choice}", address="", devices=())))
        number += 1
    after, _ = apply(state, NodeDrained(id=number, at_s=0.0, node="n1"))
    assert set(delta_between(state, after).changed.nodes) == {"n1"}
    assert delta_between(state, after).gone == {}
