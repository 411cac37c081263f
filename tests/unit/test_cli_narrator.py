"""The lines that tell what happens to a job."""

from typing import Any

from plait.cli.narrator import Narrator, split_text


def worker(name: str, device: str = "a100/0", accelerator_type: str = "A100") -> dict[str, Any]:
    return {
        "worker_id": name,
        "device_ids": [device],
        "accelerator_type": accelerator_type,
        "node": device.partition("/")[0],
    }


def start(*workers: dict[str, Any], reasons: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "event": {"kind": "job_submitted", "id": 1, "job_id": "j-1"},
        "commands": [
            {"kind": "start_task", "attempt_id": "j-1/t/1", "placement": {"workers": list(workers), "reasons": reasons}}
        ],
    }


def exit_of(name: str, **fields: Any) -> dict[str, Any]:
    event = {"kind": "worker_exited", "attempt_id": "j-1/t/1", "worker_id": name, "exit_code": None, "signal": None}
    return {"event": event | fields, "commands": []}


def told(narrator: Narrator, *records: dict[str, Any]) -> list[str]:
    return [line for record in records for line in narrator.tell(record)]


def test_a_start_names_every_worker_with_its_device_and_the_reasons() -> None:
    lines = told(Narrator("j-1"), start(worker("w0"), worker("w1", "t4/0", "T4"), reasons=("fastest first",)))
    assert lines == [
        "job j-1 is accepted",
        "t: starts with 2 workers: w0 on a100/0 (A100), w1 on t4/0 (T4)",
        "t: fastest first",
    ]


def test_a_loss_names_the_device_the_cause_and_how_it_ended() -> None:
    narrator = Narrator("j-1")
    told(narrator, start(worker("w0"), worker("w1", "t4/0", "T4")))
    lost = exit_of("w1", signal=9, failure="lost", detail="the others go on")
    assert told(narrator, lost) == ["t: w1 on t4/0 (T4) ended (lost, signal 9): the others go on"]
    oom = exit_of("w0", exit_code=75, failure="device_fault")
    assert told(narrator, oom) == ["t: w0 on a100/0 (A100) ended (device fault, exit code 75)"]


def test_a_clean_exit_needs_no_line() -> None:
    assert told(Narrator("j-1"), exit_of("w0", exit_code=0, failure=None)) == []
    assert told(Narrator("j-1"), exit_of("w0", signal=15, failure="cancelled")) == []


def test_joins_and_leaves_carry_the_reason() -> None:
    command = {
        "kind": "resize_task",
        "attempt_id": "j-1/t/1",
        "add": [worker("w2", "v100/0", "V100")],
        "remove": ["w0"],
        "reason": "a V100 became free",
    }
    record = {"event": {"kind": "tick", "id": 5}, "commands": [command]}
    assert told(Narrator("j-1"), record) == [
        "t: w2 on v100/0 (V100) joins: a V100 became free",
        "t: w0 leaves: a V100 became free",
    ]


def test_other_jobs_are_not_told_even_where_their_names_begin_alike() -> None:
    narrator = Narrator("j-1")
    other = {"kind": "start_task", "attempt_id": "j-10/t/1", "placement": {"workers": [worker("w0")], "reasons": []}}
    record = {"event": {"kind": "job_submitted", "id": 1, "job_id": "j-10"}, "commands": [other]}
    loss = exit_of("w0", exit_code=1, failure="user")
    loss["event"]["attempt_id"] = "j-10/t/1"
    assert told(narrator, record, loss) == []


def test_a_split_is_told_once_and_again_when_it_changes() -> None:
    narrator = Narrator("j-1")
    assert list(narrator.split("t", {"w0": 8, "w1": 4}, "measured")) == ["t: split w0:8 w1:4 (measured)"]
    assert list(narrator.split("t", {"w1": 4, "w0": 8}, "the split in force is the best one")) == []
    report = {"kind": "step_reported", "attempt_id": "j-1/t/1", "split": [["w0", 9], ["w1", 3]], "reason": ""}
    assert told(narrator, {"event": report, "commands": []}) == ["t: split w0:9 w1:3"]


def test_a_wait_is_told_once_for_each_reason() -> None:
    narrator = Narrator("j-1")
    assert list(narrator.waiting("t", "waiting", "2 free, 4 wanted")) == ["t: waits: 2 free, 4 wanted"]
    assert list(narrator.waiting("t", "waiting", "2 free, 4 wanted")) == []
    assert list(narrator.waiting("t", "running", "placed")) == []
    assert list(narrator.waiting("t", "waiting", "2 free, 4 wanted")) == ["t: waits: 2 free, 4 wanted"]


def test_nodes_and_devices_are_told() -> None:
    events: list[dict[str, Any]] = [
        {"kind": "node_joined", "node": {"id": "n0"}},
        {"kind": "node_lost", "node": "n0", "reason": "silent for 5s"},
        {"kind": "node_joined", "node": {"id": "n0"}},
        {"kind": "node_drained", "node": "n0"},
        {"kind": "node_resumed", "node": "n0"},
        {"kind": "device_lost", "device": "n0/1", "reason": "ECC"},
        {"kind": "device_returned", "device": "n0/1"},
        {"kind": "tick"},
        {"kind": "price_changed", "accelerator_type": "T4", "price_per_hour": 1.0},
    ]
    assert told(Narrator("j-1"), *({"event": event, "commands": []} for event in events)) == [
        "node n0 joined",
        "node n0 is lost: silent for 5s",
        "node n0 is back",
        "node n0 is drained",
        "node n0 takes work again",
        "device n0/1 is lost: ECC",
        "device n0/1 is back",
    ]


def test_members_of_a_split_are_in_the_order_of_their_numbers() -> None:
    assert split_text({"w10": 1, "w2": 3, "w0": 2}) == "w0:2 w2:3 w10:1"
