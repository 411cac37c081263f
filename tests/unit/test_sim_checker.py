"""The independent checker finds what is wrong, and nothing else."""

from dataclasses import replace

from plait.schedule.policy import Configuration, Rate
from plait.sim.checker import problems
from plait.sim.jobs import SimJob
from plait.sim.outcome import Away, Held, JobOutcome, RunOutcome


def _job(name: str, size: int = 2, project: str = "default", allowed: tuple[str, ...] = ()) -> SimJob:
    rates = {Configuration(counts=(("A", size),)): Rate(per_s=1.0)}
    return SimJob(
        id=name, submitted_at_s=10.0, num_workers=size, work=1.0, rates=rates, project=project, allowed=allowed
    )


def _held(job: str, devices: tuple[int, ...], start_s: float, end_s: float, name: str = "A") -> Held:
    return Held(job_id=job, node="n0", accelerator_type=name, devices=devices, start_s=start_s, end_s=end_s)


def _run(*timeline: Held, jobs: tuple[SimJob, ...] = (_job("x"), _job("y"))) -> RunOutcome:
    outcomes = tuple(
        JobOutcome(job=job, start_s=10.0, end_s=100.0, device_s={}, restarts=0, mean_active=1.0, fair_s=1.0)
        for job in jobs
    )
    return RunOutcome(
        policy="p", jobs=outcomes, capacity={"A": 4}, prices_per_hour={}, started_at_s=0.0, ended_at_s=100.0,
        busy_device_s={}, cost=0.0, timeline=timeline,
    )  # fmt: skip


def test_a_right_schedule_has_no_problems() -> None:
    assert problems(_run(_held("x", (0, 1), 10.0, 50.0), _held("y", (0, 1), 50.0, 90.0))) == []


def test_a_device_held_twice() -> None:
    (told,) = problems(_run(_held("x", (0, 1), 10.0, 50.0), _held("y", (1, 2), 40.0, 90.0)))
    assert "held by x until 50 s and by y from 40 s" in told


def test_half_a_gang() -> None:
    (told,) = problems(_run(_held("x", (0,), 10.0, 50.0)))
    assert told.startswith("x holds 1 devices from 10 s on; it runs with 2 to 2")


def test_a_type_that_was_not_asked_for() -> None:
    run = _run(_held("x", (0, 1), 10.0, 50.0, name="B"), jobs=(_job("x", allowed=("A",)),))
    assert problems(run) == ["x runs on B; it asked for A"]


def test_devices_before_the_submission_and_after_the_end() -> None:
    told = problems(_run(_held("x", (0, 1), 5.0, 120.0)))
    assert told == ["x ran before it was submitted", "x holds devices after its end at 100 s"]


def test_a_stranger() -> None:
    assert problems(_run(_held("z", (0, 1), 10.0, 50.0))) == ["z holds devices but is no job of the trace"]


def test_devices_of_a_node_that_failed() -> None:
    whole = _run(_held("x", (0, 1), 10.0, 50.0), _held("y", (0, 1), 70.0, 90.0))
    assert problems(replace(whole, away=(Away(node="n0", start_s=50.0, end_s=70.0),))) == []
    assert problems(replace(whole, away=(Away(node="n1", start_s=20.0, end_s=30.0),))) == [], "another node"
    failures = (Away(node="n0", start_s=80.0, end_s=85.0), Away(node="n0", start_s=20.0, end_s=30.0))
    assert problems(replace(whole, away=failures)) == [
        "x holds devices of n0, which failed at 20 s",
        "y holds devices of n0, which failed at 80 s",
    ]


def test_what_is_left_of_a_gang() -> None:
    """The worker on the node that failed is gone, the other one holds its device on."""
    other = replace(_held("x", (0,), 10.0, 60.0), node="n1")
    (told,) = problems(_run(_held("x", (0,), 10.0, 50.0), other))
    assert told == "x holds 1 devices from 50 s on; it runs with 2 to 2"


def test_a_quota() -> None:
    jobs = (_job("x", project="vision"), _job("y", project="vision"))
    run = _run(_held("x", (0, 1), 10.0, 50.0), _held("y", (2, 3), 20.0, 60.0), jobs=jobs)
    assert problems(run, {"vision": {"A": 4}}) == []
    assert problems(run, {"vision": {"A": 3}}) == ["project vision holds 4 A at 20 s; its quota is 3"]
    later = replace(run, timeline=(run.timeline[0], _held("y", (2, 3), 50.0, 60.0)))
    assert problems(later, {"vision": {"A": 2}}) == [], "one goes as the other comes"
