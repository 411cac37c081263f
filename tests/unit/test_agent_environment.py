"""What the agent adds to a worker's environment."""

from pathlib import Path

import pytest

from plait.agent.environment import (
    DEFAULT_FROZEN_LIMIT_S,
    MARK,
    VISIBLE_DEVICES_LABEL,
    VISIBLE_IDS_LABEL,
    frozen_limit_s,
    interface_of,
    visible_devices,
    worker_environment,
)
from plait.agent.messages import StartWorker
from plait.agent.worker_socket import socket_path
from plait.hardware.device import Device, Node
from plait.spec.job import Job, Task
from plait.wire import Codec


def node(num_devices: int = 4, labels: tuple[tuple[str, str], ...] = ()) -> Node:
    devices = tuple(
        Device(id=f"n0/{index}", node="n0", index=index, accelerator_type="A100") for index in range(num_devices)
    )
    return Node(id="n0", address="127.0.0.1", devices=devices, labels=labels)


def order(environment: dict[str, str], device_ids: tuple[str, ...] = ("n0/2",)) -> StartWorker:
    return StartWorker(
        attempt_id="j/t/1",
        worker_id="w0",
        rank=0,
        command=("true",),
        working_directory="/",
        environment=tuple(environment.items()),
        device_ids=device_ids,
        log_directory="/",
    )


def environment_for(order: StartWorker, node: Node, inherited: dict[str, str]) -> dict[str, str]:
    return worker_environment(
        node, order, inherited=inherited, socket_path=Path("/s/agent.sock"), interface="eth0", mark="m"
    )


def test_the_order_goes_before_what_is_inherited() -> None:
    made = environment_for(order({"A": "order", "OMP_NUM_THREADS": "3"}), node(), {"A": "agent", "B": "agent"})
    assert made["A"] == "order"
    assert made["B"] == "agent"
    assert made["OMP_NUM_THREADS"] == "3"
    assert made["PLAIT_AGENT"] == "/s/agent.sock"
    assert made["GLOO_SOCKET_IFNAME"] == "eth0"
    assert made[MARK] == "m"


def test_one_thread_unless_somebody_says_otherwise() -> None:
    assert environment_for(order({}), node(), {})["OMP_NUM_THREADS"] == "1"
    assert environment_for(order({}), node(), {"OMP_NUM_THREADS": "2"})["OMP_NUM_THREADS"] == "2"


def test_devices_are_hidden_only_where_the_node_says_by_which_variable() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in environment_for(order({}), node(), {})
    labelled = node(labels=((VISIBLE_DEVICES_LABEL, "CUDA_VISIBLE_DEVICES"),))
    assert "CUDA_VISIBLE_DEVICES" in environment_for(order({}), labelled, {})


@pytest.mark.parametrize("local_rank", [0, 1, 2, 3])
@pytest.mark.parametrize("own", [0, 1, 2, 3])
def test_a_worker_finds_its_device_at_its_local_rank(local_rank: int, own: int) -> None:
    shown = visible_devices(node(), order({"LOCAL_RANK": str(local_rank)}, (f"n0/{own}",))).split(",")
    assert shown[local_rank] == str(own)
    assert sorted(shown) == ["0", "1", "2", "3"]


def test_a_worker_with_several_devices_sees_only_those() -> None:
    assert visible_devices(node(), order({}, ("n0/1", "n0/3"))) == "1,3"


def test_ids_of_the_driver_go_before_what_the_agent_inherited() -> None:
    labels = ((VISIBLE_DEVICES_LABEL, "CUDA_VISIBLE_DEVICES"), (VISIBLE_IDS_LABEL, "4,5,6,7"))
    inherited = {"CUDA_VISIBLE_DEVICES": "4,5,6,7", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    made = environment_for(order({"LOCAL_RANK": "1"}, ("n0/2",)), node(labels=labels), inherited)
    assert made["CUDA_VISIBLE_DEVICES"] == "4,6,5,7", "the worker's own device stands at its local rank"
    wanted = environment_for(order({"CUDA_VISIBLE_DEVICES": "9"}), node(labels=labels), inherited)
    assert wanted["CUDA_VISIBLE_DEVICES"] == "9", "the job's own word counts"


def test_cuda_counts_as_the_driver_does() -> None:
    cuda = node(labels=((VISIBLE_DEVICES_LABEL, "CUDA_VISIBLE_DEVICES"),))
    assert environment_for(order({}), cuda, {})["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert (
        environment_for(order({}), cuda, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
    )
    hip = node(labels=((VISIBLE_DEVICES_LABEL, "HIP_VISIBLE_DEVICES"),))
    assert "CUDA_DEVICE_ORDER" not in environment_for(order({}), hip, {})


def test_the_frozen_limit_is_the_jobs_heartbeat_timeout() -> None:
    job = Codec[Job](Job).encode(Job(name="j", tasks=(Task(name="t", command=("true",)),))).decode()
    assert frozen_limit_s(order({"PLAIT_JOB": job}), None) == 1.0
    assert frozen_limit_s(order({"PLAIT_JOB": job}), 7.0) == 7.0
    assert frozen_limit_s(order({}), None) == DEFAULT_FROZEN_LIMIT_S
    assert frozen_limit_s(order({"PLAIT_JOB": "nonsense"}), None) == DEFAULT_FROZEN_LIMIT_S


def test_the_interface_is_found_by_its_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.254") is None


def test_a_long_state_directory_gets_a_short_socket_path(tmp_path: Path) -> None:
    short = tmp_path / "s"
    assert len(str(short)) > 95 or socket_path(short) == short / "agent.sock"
    long = tmp_path / ("d" * 100)
    assert len(str(socket_path(long))) < 100
    assert socket_path(long) == socket_path(long)
    assert socket_path(long) != socket_path(tmp_path / ("e" * 100))
