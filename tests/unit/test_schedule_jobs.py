"""Jobs: their DAG, their ends, cancelling, resizing, price windows."""

import pytest

from plait.schedule import machine
from plait.schedule.commands import ResizeTask, StartTask, StopTask
from plait.schedule.events import JobCancelled, JobSubmitted, ResizeRequested, Tick, WorkerExited, WorkerStarted
from plait.schedule.scenario import Scenario, started_attempts, task_of
from plait.spec.cluster import Cluster, PriceWindow
from plait.spec.job import Job, Task, WorkerRange

NIGHT = PriceWindow(name="night", from_s=22 * 3600, to_s=6 * 3600, price_per_hour=(("A100", 1.7),))


def test_tasks_follow_the_dag_and_the_job_succeeds_with_the_last() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2)
    scenario.submit(
        "j",
        task_of(name="test", needs=("left", "right")),
        task_of(name="left", needs=("first",)),
        task_of(name="right", needs=("first",)),
        task_of(name="first"),
    )
    assert list(scenario.state.attempts) == ["j/first/0"]
    assert scenario.task("j", "test").reason == "needs left, right to have succeeded"
    assert started_attempts(scenario.finished("j/first/0")) == ["j/left/0", "j/right/0"]
    assert started_attempts(scenario.finished("j/left/0")) == []
    assert started_attempts(scenario.finished("j/right/0")) == ["j/test/0"]
    assert scenario.state.jobs["j"].state == "running"
    scenario.finished("j/test/0")
    assert (scenario.state.jobs["j"].state, scenario.state.jobs["j"].exit_code) == ("succeeded", 0)
    assert not scenario.state.open_jobs


def test_states_go_from_waiting_over_starting_and_running_to_succeeded() -> None:
    scenario = Scenario()
    scenario.submit("j", task_of(workers=(2, 2)))
    states = [scenario.task("j").state]
    scenario.join("n0", "A100", 2)
    states.append(scenario.task("j").state)
    scenario.feed(WorkerStarted, attempt_id="j/train/0", worker_id="w1")
    states.append(scenario.task("j").state)
    scenario.feed(WorkerStarted, attempt_id="j/train/0", worker_id="w0")
    states.append(scenario.task("j").state)
    scenario.finished("j/train/0")
    states.append(scenario.task("j").state)
    assert states == ["waiting", "starting", "starting", "running", "succeeded"]


def test_a_failed_task_stops_the_others_and_gives_the_job_its_exit_code() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2)
    scenario.submit("j", task_of(name="bad"), task_of(name="good"), task_of(name="later", needs=("bad",)))
    commands = scenario.ended("j/bad/0", "w0", "user", exit_code=3)
    assert [c.attempt_id for c in commands if isinstance(c, StopTask)] == ["j/good/0"]
    assert scenario.state.jobs["j"].state == "running"
    scenario.ended("j/good/0", "w0", "lost")
    job = scenario.state.jobs["j"]
    assert (job.state, job.exit_code) == ("failed", 3)
    assert {name: task.state for name, task in job.tasks.items()} == {
        "bad": "failed",
        "good": "cancelled",
        "later": "cancelled",
    }
    assert "task bad failed: w0 on n0/0 failed (exit code 3)" in job.reason


@pytest.mark.parametrize("moment", ["waiting", "starting", "running", "stopping"])
def test_a_job_can_be_cancelled_at_any_moment(moment: str) -> None:
    scenario = Scenario()
    if moment != "waiting":
        scenario.join("n0", "A100", 2)
    scenario.submit("j", task_of(workers=(2, 2)))
    if moment in ("running", "stopping"):
        scenario.started("j/train/0")
    if moment == "stopping":
        scenario.ended("j/train/0", "w0", "lost")
    assert scenario.task("j").state == moment
    commands = scenario.feed(JobCancelled, job_id="j")
    assert [type(command) for command in commands] == ([StopTask] if moment in ("starting", "running") else [])
    for worker_id in ("w0", "w1"):
        scenario.ended("j/train/0", worker_id, "lost")
    job = scenario.state.jobs["j"]
    assert (job.state, job.exit_code, job.reason) == ("cancelled", 130, "cancelled by request")
    assert scenario.feed(JobCancelled, job_id="j") == ()


def test_a_job_that_was_cancelled_holds_its_devices_until_its_workers_are_gone() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 1)
    scenario.submit("first", task_of())
    scenario.submit("second", task_of())
    assert started_attempts(scenario.feed(JobCancelled, job_id="first")) == []
    assert started_attempts(scenario.ended("first/train/0", "w0", "lost")) == ["second/train/0"]


def test_a_job_is_accepted_once() -> None:
    scenario = Scenario()
    scenario.submit("j", task_of("A100"))
    scenario.submit("j", task_of("T4"))
    assert scenario.state.jobs["j"].job.tasks[0].resources.any_of[0].accelerator == "A100"


@pytest.mark.parametrize(
    ("tasks", "reason"),
    [
        ((), "needs tasks with distinct names"),
        ((task_of(), task_of()), "needs tasks with distinct names"),
        ((task_of(needs=("nobody",)),), "needs 'nobody', which the job does not have"),
        ((task_of(workers=(3, 2)),), "impossible range of workers: 3 to 2"),
        ((task_of(count=0),), "less than one device a worker"),
        ((task_of(name="a", needs=("b",)), task_of(name="b", needs=("a",))), "wait for each other: a, b"),
    ],
)
def test_a_job_that_makes_no_sense_fails_at_once(tasks: tuple[Task, ...], reason: str) -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 4)
    assert scenario.feed(JobSubmitted, job_id="j", job=Job(name="j", tasks=tasks)) == ()
    assert scenario.state.jobs["j"].state == "failed"
    assert reason in scenario.state.jobs["j"].reason
    assert scenario.state.jobs["j"].exit_code == 1


def test_a_resize_shrinks_and_grows_an_elastic_gang_in_place() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 4)
    scenario.submit("j", task_of(workers=(2, 4)))
    scenario.stepped("j/train/0")
    (shrink,) = scenario.feed(ResizeRequested, job_id="j", task="train", workers=WorkerRange(min=1, max=2))
    assert isinstance(shrink, ResizeTask)
    assert shrink.remove == ("w2", "w3")
    for worker_id in shrink.remove:
        scenario.ended("j/train/0", worker_id)
    (grow,) = scenario.feed(ResizeRequested, job_id="j", task="train", workers=WorkerRange(min=3, max=3))
    assert isinstance(grow, ResizeTask)
    assert [worker.worker_id for worker in grow.add] == ["w4"]
    assert scenario.attempt("j/train/0").floor == 3


def test_a_resize_of_a_gang_that_is_not_elastic_counts_from_its_next_attempt() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 4)
    scenario.submit("j", task_of(workers=(4, 4)))
    scenario.started("j/train/0")
    assert scenario.feed(ResizeRequested, job_id="j", task="train", workers=WorkerRange(min=2, max=2)) == ()
    for worker_id in ("w0", "w1", "w2", "w3"):
        scenario.ended("j/train/0", worker_id, "lost")
    scenario.tick(2.0)
    assert len(scenario.attempt("j/train/1").workers) == 2


@pytest.mark.parametrize("workers", [WorkerRange(min=0, max=2), WorkerRange(min=3, max=1)])
def test_a_resize_to_a_range_without_sense_changes_nothing(workers: WorkerRange) -> None:
    scenario = Scenario()
    scenario.submit("j", task_of(workers=(2, 4)))
    scenario.feed(ResizeRequested, job_id="j", task="train", workers=workers)
    assert scenario.task("j").workers == WorkerRange(min=2, max=4)


def test_a_task_waits_for_its_price_window_and_runs_on_after_it() -> None:
    scenario = Scenario(cluster=Cluster(price_windows=(NIGHT,)))
    scenario.submit("j", task_of(run_during="night"))
    scenario.feed(Tick, day_s=12 * 3600)
    scenario.join("n0", "A100")
    scenario.tick(1.0, day_s=12 * 3600)
    assert scenario.task("j").reason == "waits for price window 'night', which opens at 22:00"
    assert started_attempts(scenario.tick(10 * 3600, day_s=22 * 3600)) == ["j/train/0"]
    assert scenario.tick(9 * 3600, day_s=7 * 3600) == ()
    assert scenario.task("j").state == "starting"


def test_the_time_of_day_goes_on_between_ticks() -> None:
    scenario = Scenario(cluster=Cluster(price_windows=(NIGHT,)))
    scenario.join("n0", "A100")
    scenario.tick(1.0, day_s=22 * 3600 - 10)
    scenario.submit("other", task_of(run_during="night"))
    scenario.now_s += 11
    assert started_attempts(scenario.submit("j", task_of(run_during="night"))) == ["other/train/0"]


def test_a_window_that_the_cluster_does_not_have_is_told_with_the_nearest() -> None:
    scenario = Scenario(cluster=Cluster(price_windows=(NIGHT,)))
    scenario.join("n0", "A100")
    scenario.submit("j", task_of(run_during="nigth"))
    reason = "waits for price window 'nigth', which the cluster does not have; did you mean 'night'?"
    assert scenario.task("j").reason == reason


def test_an_event_that_was_applied_changes_nothing() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100")
    scenario.submit("j", task_of())
    for event in scenario.events:
        assert machine.apply(scenario.state, event) == (scenario.state, ())


def test_a_worker_of_an_old_attempt_changes_nothing() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100", 2)
    scenario.submit("j", task_of(workers=(2, 2)))
    scenario.ended("j/train/0", "w0", "lost")
    scenario.ended("j/train/0", "w1", "lost")
    scenario.tick(2.0)
    before = scenario.state
    scenario.feed(WorkerExited, attempt_id="j/train/0", worker_id="w1", exit_code=1, failure="user")
    scenario.feed(WorkerStarted, attempt_id="j/train/0", worker_id="w0")
    assert machine.is_same_but_for_time(before, scenario.state)


def test_a_snapshot_tells_apart_what_is_only_time() -> None:
    scenario = Scenario()
    scenario.join("n0", "A100")
    before = scenario.state
    scenario.tick(5.0)
    assert machine.is_same_but_for_time(before, scenario.state)
    scenario.submit("j", task_of())
    assert not machine.is_same_but_for_time(before, scenario.state)
    assert isinstance(scenario.commands[0], StartTask)
