"""A real agent under a controller that the tests play: workers, ends, losses of either side, and no process left."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from plait.agent.messages import (
    Acknowledge,
    CheckDevice,
    DeviceChecked,
    FromAgent,
    Heartbeat,
    InjectFault,
    LinkStall,
    Progress,
    Register,
    StartWorker,
    StopWorker,
    TellLost,
    ToAgent,
    Welcome,
    WorkerDown,
    WorkerUp,
)
from plait.agent.processes import descendants, is_alive, read_state
from plait.hardware.device import Device, Node
from plait.schedule.domain import Deed
from plait.wire import Codec

DEADLINE_S = 30.0
ATTEMPT = "job/train/1"
_FROM_AGENT: Codec[Any] = Codec(FromAgent)
_TO_AGENT: Codec[ToAgent] = Codec(ToAgent)


async def until(condition: Callable[[], Any]) -> Any:
    """Waits for a true value; the deadline is generous because only its absence is a failure."""
    async with asyncio.timeout(DEADLINE_S):
        while not (value := condition()):  # noqa: ASYNC110 - what is awaited happens in other processes
            await asyncio.sleep(0.01)
    return value


def memory_of(pid: int) -> tuple[int, str]:
    """Returns resident bytes and the list of mapped files."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), Path(f"/proc/{pid}/maps").read_text()


class FakeController:
    """Takes one agent in, remembers what it says, and can go away and come back at the same port."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.acknowledges = True
        self.lease_s: float | None = None
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def come(self) -> None:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def go(self) -> None:
        assert self._server is not None
        self._server.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            message = _FROM_AGENT.decode(line)
            self.heard.append(message)
            if isinstance(message, Register):
                self._writer = writer
                self.say(Welcome(heartbeat_interval_s=0.1, lease_s=self.lease_s))
            elif isinstance(message, Heartbeat) and self.acknowledges:
                self.say(Acknowledge(number=0, heartbeat_sent_s=message.sent_s))
            elif isinstance(message, WorkerUp | WorkerDown | DeviceChecked | LinkStall) and self.acknowledges:
                self.say(Acknowledge(number=message.number))
        writer.close()

    def say(self, order: ToAgent) -> None:
        assert self._writer is not None
        self._writer.write(_TO_AGENT.encode(order) + b"\n")

    def of(self, kind: type, worker_id: str | None = None) -> list[Any]:
        return [m for m in self.heard if isinstance(m, kind) and worker_id in {None, getattr(m, "worker_id", None)}]

    async def up(self, worker_id: str) -> WorkerUp:
        found = await until(lambda: self.of(WorkerUp, worker_id))
        assert isinstance(found[0], WorkerUp)
        return found[0]

    async def down(self, worker_id: str) -> WorkerDown:
        found = await until(lambda: self.of(WorkerDown, worker_id))
        assert isinstance(found[0], WorkerDown)
        return found[0]


class Agent:
    """The agent's process and the files around it."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.logs = directory / "logs"
        self.port = port
        self.process: asyncio.subprocess.Process | None = None
        (directory / "token").write_text("secret\n")
        device = Device(id="n0/0", node="n0", index=0, accelerator_type="A100")
        node = Node(id="n0", address="127.0.0.1", devices=(device,))
        (directory / "node.json").write_bytes(Codec[Node](Node).encode(node))

    async def start(self, *extra: str) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "plait.agent", "--controller", f"127.0.0.1:{self.port}"),
            *("--token-file", str(self.directory / "token"), "--node-file", str(self.directory / "node.json")),
            *("--state-dir", str(self.state), *extra),
        )

    @property
    def guardian(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def pid(self) -> int:
        return int(json.loads((self.state / "agent.lock").read_text())["agent"])

    async def exit_code(self) -> int:
        assert self.process is not None
        async with asyncio.timeout(DEADLINE_S):
            return await self.process.wait()

    def order(self, worker_id: str, code: str, **environment: str) -> StartWorker:
        return StartWorker(
            attempt_id=ATTEMPT,
            worker_id=worker_id,
            rank=0,
            command=(sys.executable, "-S", "-c", code),
            working_directory=str(self.directory),
            environment=tuple(environment.items()),
            device_ids=("n0/0",),
            log_directory=str(self.logs),
        )

    def log(self, worker_id: str) -> list[str]:
        """Lines of a worker's log without their time stamps."""
        file = self.logs / f"{worker_id}.log"
        return [line.split(" ", 1)[1] for line in file.read_text("utf-8").splitlines()] if file.exists() else []

    async def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            await self.exit_code()


@pytest.fixture
async def controller() -> AsyncIterator[FakeController]:
    fake = FakeController()
    await fake.come()
    yield fake
    await fake.go()


@pytest.fixture
async def agent(controller: FakeController, tmp_path: Path) -> AsyncIterator[Agent]:
    one = Agent(tmp_path, controller.port)
    yield one
    await one.close()


SLEEP = "import time; print('up', flush=True); time.sleep(600)"
FAMILY = """
import os, subprocess, sys, time
group = subprocess.Popen(['sleep', '600'])
session = subprocess.Popen(['sleep', '600'], start_new_session=True)
wiped = subprocess.Popen(['sh', '-c', 'sleep 600 & echo $!'], env={'PATH': os.environ['PATH']},
                         start_new_session=True, stdout=subprocess.PIPE, text=True)
print(group.pid, session.pid, wiped.stdout.readline().strip(), flush=True)
time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 600)
"""


async def family_of(agent: Agent, worker_id: str) -> list[int]:
    """Returns the children that a FAMILY worker printed, all alive."""
    line = await until(lambda: [line for line in agent.log(worker_id) if line.startswith("out ")])
    pids = [int(word) for word in line[0].split()[1:]]
    assert len(pids) == 3
    assert all(is_alive(pid) for pid in pids)
    return pids


def connect(agent: Agent) -> str:
    """Code of a worker that opens its channel as ``chan`` and says hello."""
    return (
        "import json, os, socket, time, signal\n"
        "sock = socket.socket(socket.AF_UNIX); sock.connect(os.environ['PLAIT_AGENT']); chan = sock.makefile('rw')\n"
        "def say(**line): chan.write(json.dumps(line) + '\\n'); chan.flush()\n"
        f"say(kind='hello', attempt_id='{ATTEMPT}', worker_id=os.environ['ME'])\n"
    )


async def test_an_agent_registers_and_its_heart_beats(controller: FakeController, agent: Agent) -> None:
    await agent.start()
    await until(lambda: len(controller.of(Heartbeat)) >= 3)
    register = controller.heard[0]
    assert isinstance(register, Register)
    assert register.token == "secret"
    assert register.node.id == "n0"
    resident_bytes, mapped = memory_of(agent.pid)
    assert resident_bytes <= 40 * 2**20
    assert "libtorch" not in mapped


async def test_output_and_exit_codes_are_reported(controller: FakeController, agent: Agent) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    code = "import os, sys; print('hi', os.environ['X']); sys.stderr.write('oh\\n'); raise SystemExit(77)"
    controller.say(agent.order("w0", code, X="7"))
    controller.say(agent.order("w1", "pass"))
    down = await controller.down("w0")
    assert (down.exit_code, down.signal, down.failure) == (77, None, "device_fault")
    assert (await controller.down("w1")).failure is None
    assert {"out hi 7", "err oh"} <= set(agent.log("w0"))
    assert any("exit code 77" in line for line in agent.log("w0"))


async def test_a_command_that_does_not_exist_is_the_users_fault(controller: FakeController, agent: Agent) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    order = StartWorker(
        attempt_id=ATTEMPT,
        worker_id="w0",
        rank=0,
        command=("no-such-command",),
        working_directory="",
        environment=(),
        device_ids=(),
        log_directory=str(agent.logs),
    )
    controller.say(order)
    down = await controller.down("w0")
    assert (down.exit_code, down.failure) == (127, "user")
    assert "no-such-command" in down.detail


async def test_orders_are_idempotent(controller: FakeController, agent: Agent) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    controller.say(agent.order("w0", SLEEP))
    up = await controller.up("w0")
    controller.say(agent.order("w0", SLEEP))
    again = await until(lambda: controller.of(WorkerUp, "w0")[1:])
    assert again[0].pid == up.pid
    controller.say(StopWorker(attempt_id=ATTEMPT, worker_id="w0", grace_s=5.0, reason="enough"))
    down = await controller.down("w0")
    assert (down.signal, down.failure) == (signal.SIGTERM, "cancelled")
    assert "enough" in down.detail
    controller.say(agent.order("w0", SLEEP))
    repeated = await until(lambda: controller.of(WorkerDown, "w0")[1:])
    assert (repeated[0].signal, repeated[0].failure) == (down.signal, down.failure)
    controller.say(StopWorker(attempt_id=ATTEMPT, worker_id="w9", grace_s=5.0))
    assert (await controller.down("w9")).failure == "lost"
    controller.say(agent.order("w9", SLEEP))
    await until(lambda: controller.of(WorkerDown, "w9")[1:])
    assert not controller.of(WorkerUp, "w9")


async def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(
    controller: FakeController, agent: Agent
) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    code = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('no', flush=True))\n" + SLEEP
    controller.say(agent.order("w0", code + "\ntime.sleep(600)\n"))
    await until(lambda: "out up" in agent.log("w0"))
    controller.say(StopWorker(attempt_id=ATTEMPT, worker_id="w0", grace_s=0.5))
    assert (await controller.down("w0")).signal == signal.SIGKILL
    assert "out no" in agent.log("w0")


async def test_an_elastic_worker_is_asked_to_leave_and_exits_well(controller: FakeController, agent: Agent) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    code = connect(agent) + "print('said', flush=True); print('got', chan.readline().strip(), flush=True)\n"
    controller.say(agent.order("w0", code, ME="w0"))
    await until(lambda: "out said" in agent.log("w0"))
    controller.say(StopWorker(attempt_id=ATTEMPT, worker_id="w0", grace_s=60.0, reason="resized"))
    down = await controller.down("w0")
    assert (down.exit_code, down.failure) == (0, None)
    assert 'out got {"kind":"leave"}' in agent.log("w0")


async def test_progress_is_passed_on_and_losses_are_told(controller: FakeController, agent: Agent) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    controller.say(TellLost(attempt_id=ATTEMPT, lost=("w7",)))
    listen = (
        "say(kind='progress', step=3, total_steps=9, samples_per_s=1.5, loss=0.5, generation='2', "
        "split=[['w0', 3], ['w1', 1]], reason='measured', elastic=True)\n"
        "for line in chan: print('got', line.strip(), flush=True)\n"
    )
    controller.say(agent.order("w0", connect(agent) + listen, ME="w0"))
    controller.say(agent.order("w1", SLEEP, ME="w1"))
    progress = (await until(lambda: controller.of(Progress)))[0]
    assert (progress.worker_id, progress.step, progress.loss) == ("w0", 3, 0.5)
    assert progress.split == (("w0", 3), ("w1", 1))
    # What was lost before the hello is told at the hello; what dies on this node is told without the controller.
    await until(lambda: 'out got {"lost":["w7"],"kind":"lost"}' in agent.log("w0"))
    os.kill((await controller.up("w1")).pid, signal.SIGKILL)
    await until(lambda: 'out got {"lost":["w1"],"kind":"lost"}' in agent.log("w0"))
    assert (await controller.down("w1")).failure == "lost"


async def test_nonsense_from_a_worker_harms_nobody_else(controller: FakeController, agent: Agent) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    code = connect(agent) + "chan.write('{]\\n'); chan.flush(); print('left:', repr(chan.read()), flush=True)\n"
    controller.say(agent.order("w0", code, ME="w0"))
    await controller.down("w0")
    assert "out left: ''" in agent.log("w0")
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect(str(agent.state / "agent.sock"))
    stranger.sendall(b'{"kind":"hello","attempt_id":"x","worker_id":"y"}\n')
    loop = asyncio.get_running_loop()
    stranger.setblocking(False)
    assert await loop.sock_recv(stranger, 10) == b""
    stranger.close()
    controller.say(agent.order("w1", "pass"))
    assert (await controller.down("w1")).exit_code == 0


async def test_a_worker_ends_with_all_its_children(controller: FakeController, agent: Agent) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    controller.say(agent.order("w0", FAMILY))
    controller.say(agent.order("w1", FAMILY))
    family, other = await family_of(agent, "w0"), await family_of(agent, "w1")
    os.kill((await controller.up("w0")).pid, signal.SIGKILL)
    await controller.down("w0")
    # Its group and its children with their own session are dead when the end is reported. A child that wiped its
    # environment cannot be told from the other worker's and goes when no worker lives.
    assert not is_alive(family[0])
    assert not is_alive(family[1])
    assert all(is_alive(pid) for pid in other)
    controller.say(StopWorker(attempt_id=ATTEMPT, worker_id="w1", grace_s=1.0))
    await controller.down("w1")
    await until(lambda: not any(is_alive(pid) for pid in (*family, *other)))


@pytest.mark.parametrize("victim", ["agent", "guardian"])
async def test_killing_the_agent_leaves_no_process(controller: FakeController, agent: Agent, victim: str) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    controller.say(agent.order("w0", FAMILY))
    family = await family_of(agent, "w0")
    everything = [process.pid for process in descendants(agent.guardian)]
    assert {*family, agent.pid} <= set(everything)
    os.kill(agent.pid if victim == "agent" else agent.guardian, signal.SIGKILL)
    await agent.exit_code()
    await until(lambda: not any(is_alive(pid) for pid in everything))


async def test_agent_and_guardian_killed_at_once_leave_what_the_next_agent_kills(
    controller: FakeController, agent: Agent
) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    controller.say(agent.order("w0", FAMILY))
    family = await family_of(agent, "w0")
    worker = (await controller.up("w0")).pid
    os.kill(agent.guardian, signal.SIGSTOP)
    os.kill(agent.pid, signal.SIGKILL)
    os.kill(agent.guardian, signal.SIGKILL)
    await agent.exit_code()
    await until(lambda: not is_alive(worker))
    await agent.start()
    # The child that wiped its environment bears no mark any more; nothing but a control group could find it.
    await until(lambda: not any(is_alive(pid) for pid in family[:2]))
    os.kill(family[2], signal.SIGKILL)


async def test_workers_outlive_the_controller_and_reports_wait_for_it(controller: FakeController, agent: Agent) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    controller.say(agent.order("w0", SLEEP))
    controller.say(agent.order("w1", SLEEP))
    first, second = await controller.up("w0"), await controller.up("w1")
    await controller.go()
    os.kill(second.pid, signal.SIGKILL)
    await until(lambda: any("SIGKILL" in line for line in agent.log("w1")))
    controller.acknowledges = False
    controller.heard.clear()
    await controller.come()
    down = await controller.down("w1")
    register = controller.of(Register)[0]
    known = {worker.worker_id: worker for worker in register.workers}
    assert known["w0"].alive
    assert not known["w1"].alive
    assert known["w1"].signal == signal.SIGKILL
    assert is_alive(first.pid)
    # Unacknowledged reports come again with each connection, under their old number.
    await controller.go()
    controller.heard.clear()
    controller.acknowledges = True
    await controller.come()
    assert (await controller.down("w1")).number == down.number


async def test_the_address_file_goes_before_the_command_line(controller: FakeController, agent: Agent) -> None:
    agent.port = 1  # nobody listens there
    agent.state.mkdir(parents=True)
    (agent.state / "controller").write_text(f"127.0.0.1:{controller.port}\n")
    await agent.start()
    await until(lambda: controller.of(Register))


async def test_a_frozen_worker_is_killed_as_lost(controller: FakeController, agent: Agent) -> None:
    await agent.start("--frozen-limit-s", "0.5")
    await until(lambda: controller.of(Heartbeat))
    controller.say(agent.order("w0", SLEEP))
    os.kill((await controller.up("w0")).pid, signal.SIGSTOP)
    down = await controller.down("w0")
    assert (down.signal, down.failure) == (signal.SIGKILL, "lost")
    assert "frozen" in down.detail


async def test_an_expired_lease_ends_what_no_peer_can_fence_off(controller: FakeController, agent: Agent) -> None:
    controller.lease_s = 0.5
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    stay = "print('said', flush=True)\nwhile True: time.sleep(1)\n"
    progress = "say(kind='progress', step=1, split=[['w1', 1], ['elsewhere', 1]])\n"
    controller.say(agent.order("w0", SLEEP))
    controller.say(agent.order("w1", connect(agent) + progress + stay, ME="w1"))
    member = await controller.up("w1")
    await until(lambda: controller.of(Progress, "w1"))
    lone = await controller.up("w0")
    assert is_alive(lone.pid)
    controller.acknowledges = False  # heard no more, as with a link that is cut
    down = await controller.down("w0")
    assert down.failure == "lost"
    assert "lease" in down.detail
    assert is_alive(member.pid)


async def test_a_useless_agent_ends_by_itself(controller: FakeController, agent: Agent) -> None:
    await agent.start("--linger-s", "0.5")
    await until(lambda: controller.of(Heartbeat))
    await controller.go()
    assert await agent.exit_code() == 0


async def test_an_agent_dies_with_its_owner_workers_first(controller: FakeController, agent: Agent) -> None:
    owner = await asyncio.create_subprocess_exec("sleep", "600")
    await agent.start("--die-with", str(owner.pid))
    await until(lambda: controller.of(Heartbeat))
    controller.say(agent.order("w0", FAMILY))
    family = await family_of(agent, "w0")
    owner.kill()
    await owner.wait()
    assert await agent.exit_code() == 0
    assert not any(is_alive(pid) for pid in family)
    assert (await controller.down("w0")).failure == "cancelled"


async def test_an_agent_that_is_frozen_still_dies_with_its_owner(controller: FakeController, agent: Agent) -> None:
    owner = await asyncio.create_subprocess_exec("sleep", "600")
    await agent.start("--die-with", str(owner.pid))
    await until(lambda: controller.of(Heartbeat))
    controller.say(agent.order("w0", SLEEP))
    worker = (await controller.up("w0")).pid
    for pid in (agent.pid, worker):
        os.kill(pid, signal.SIGSTOP)
    owner.kill()
    await owner.wait()
    assert await agent.exit_code() == 128 + signal.SIGKILL
    assert not is_alive(worker)


async def test_a_second_agent_of_the_node_is_refused(controller: FakeController, agent: Agent, tmp_path: Path) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    second = Agent(tmp_path, controller.port)
    await second.start()
    assert await second.exit_code() == 2


async def test_the_worker_leads_a_session_of_its_own(controller: FakeController, agent: Agent) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    controller.say(agent.order("w0", SLEEP))
    pid = (await controller.up("w0")).pid
    state = read_state(pid)
    assert state is not None
    assert (state.group, state.session, state.parent) == (pid, pid, agent.pid)


async def test_a_device_is_tested_in_a_process_of_its_own_and_the_outcome_reported(
    controller: FakeController, agent: Agent
) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    controller.say(CheckDevice(device="n0/0", test=7, limit_s=DEADLINE_S))
    controller.say(CheckDevice(device="n0/9", test=8, limit_s=DEADLINE_S))
    await until(lambda: len(controller.of(DeviceChecked)) == 2)
    found = {checked.device: checked for checked in controller.of(DeviceChecked)}
    assert (found["n0/0"].passed, found["n0/0"].test) == (True, 7)
    assert "8 products of 256 x 256 are exact" in found["n0/0"].detail
    assert (found["n0/9"].passed, found["n0/9"].detail) == (False, "this node has no such device")


async def test_a_test_that_takes_too_long_has_failed(controller: FakeController, agent: Agent) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    controller.say(CheckDevice(device="n0/0", test=7, limit_s=0.05))
    (checked,) = await until(lambda: controller.of(DeviceChecked))
    assert not checked.passed
    assert "no answer within 0.05 s" in checked.detail


async def test_a_device_whose_driver_calls_it_broken_is_blamed_and_fails_its_test(
    controller: FakeController, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = agent.directory / "devices.yaml"
    devices.write_text("devices: [{type: A100, count: 1, health: ok}]\n")
    monkeypatch.setenv("PLAIT_FAKE_DEVICES", str(devices))
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    broken = "devices: [{type: A100, count: 1, health: 2 uncorrectable memory errors}]"
    code = f"import pathlib; pathlib.Path({str(devices)!r}).write_text({broken!r}); raise SystemExit(1)"
    controller.say(agent.order("w0", "raise SystemExit(77)"))
    forgiven = await controller.down("w0")
    assert (forgiven.failure, forgiven.is_transient) == ("device_fault", True)
    assert "its driver finds nothing wrong (n0/0 ok)" in forgiven.detail
    controller.say(agent.order("w1", code))
    down = await controller.down("w1")
    assert (down.failure, down.is_transient, down.faulty_devices) == ("device_fault", False, ("n0/0",))
    assert "n0/0: 2 uncorrectable memory errors" in down.detail
    controller.say(CheckDevice(device="n0/0", test=3, limit_s=DEADLINE_S))
    (checked,) = await until(lambda: controller.of(DeviceChecked))
    assert (checked.passed, checked.detail) == (False, "health 2 uncorrectable memory errors")


async def test_a_stall_of_a_worker_is_told_with_what_the_counters_say(controller: FakeController, agent: Agent) -> None:
    await agent.start()
    await until(lambda: controller.of(Heartbeat))
    code = (
        "import json, os, socket, time\n"
        "line = socket.socket(socket.AF_UNIX); line.connect(os.environ['PLAIT_AGENT'])\n"
        "say = lambda **said: line.sendall(json.dumps(said).encode() + b'\\n')\n"
        f"say(kind='hello', attempt_id={ATTEMPT!r}, worker_id='w0')\n"
        "say(kind='stalled', step=3, waited_s=0.9, reason='step 3 waited for w1')\n"
        "time.sleep(600)\n"
    )
    controller.say(agent.order("w0", code))
    (stall,) = await until(lambda: controller.of(LinkStall))
    assert (stall.worker_id, stall.is_transient) == ("w0", True)
    assert stall.reason.startswith("step 3 waited for w1")


@pytest.mark.parametrize(
    ("deed", "signal_number", "failure", "words"),
    [
        ("kill", signal.SIGKILL, "lost", "killed by SIGKILL"),
        ("notice", signal.SIGTERM, "lost", "killed by SIGTERM"),
        ("device_fault", signal.SIGKILL, "device_fault", "as a drill"),
        ("freeze", signal.SIGKILL, "lost", "frozen for"),
    ],
)
async def test_drills(
    controller: FakeController, agent: Agent, deed: Deed, *, signal_number: int, failure: str, words: str
) -> None:
    await agent.start("--frozen-limit-s", "0.3")
    await until(lambda: controller.of(Heartbeat))
    controller.say(agent.order("w0", "import time; print('up', flush=True); time.sleep(600)"))
    await until(lambda: "out up" in agent.log("w0"))
    controller.say(InjectFault(attempt_id=ATTEMPT, worker_id="w9", deed=deed))
    controller.say(InjectFault(attempt_id=ATTEMPT, worker_id="w0", deed=deed))
    down = await controller.down("w0")
    assert (down.signal, down.failure) == (signal_number, failure)
    assert words in down.detail
