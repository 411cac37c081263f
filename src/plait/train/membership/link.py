"""The worker's end of its warden: asks it, hears it, never waits for it longer than it must."""

import base64
import hashlib
import hmac
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from plait.errors import MembershipLost
from plait.train.membership.frames import FrameBuffer, frame
from plait.train.membership.pulse import Pulse, new_pulse
from plait.train.membership.speech import Ballot, Report
from plait.train.membership.warden import WardenConfig


@dataclass(frozen=True, slots=True)
class NewGeneration:
    """The warden's word to go on: who is in, what each reported, who was lost and why."""

    ballot: Ballot
    members: tuple[str, ...]
    reports: Mapping[str, Report]
    lost: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)


class Warned(Exception):
    """The group is about to change; whoever waits for a peer must stop waiting."""


class WardenLink:
    """Starts the warden and exchanges frames with it. Safe to use from several threads of the worker."""

    def __init__(self, config: WardenConfig) -> None:
        self.me = config.me
        self._lock = threading.RLock()
        self._buffer = FrameBuffer()
        self._store: dict[tuple[str, str], bytes] = {}
        self._generations: deque[NewGeneration] = deque()
        self.address = ""
        self.stop_asked = False
        self.released = False
        self.all_done = False
        self._fault: str | None = None
        self._secret = config.secret
        self._socket, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        pulse = new_pulse()
        self._pulse = Pulse(pulse)
        argv = [sys.executable, "-m", "plait.train.membership.warden", str(theirs.fileno()), str(pulse)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("COV_")}
        self.process = subprocess.Popen(
            argv, pass_fds=(theirs.fileno(), pulse), stdin=subprocess.DEVNULL, env=environment
        )
        theirs.close()
        os.close(pulse)
        self._socket.sendall(frame(asdict(config)))
        self._socket.setblocking(False)

    def close(self) -> None:
        """Ends the warden; to the others that is the end of this member."""
        self._socket.close()
        self.process.kill()
        self.process.wait()

    def _send(self, value: list[object]) -> None:
        data = memoryview(frame(value))
        with self._lock:
            while data:
                try:
                    data = data[self._socket.send(data) :]
                except BlockingIOError:
                    select.select([], [self._socket], [], 1.0)
                except OSError as error:
                    raise MembershipLost(f"the warden of {self.me} is gone: {error.strerror}") from error

    def pump(self, wait_s: float = 0.0) -> None:
        """Takes in what the warden has said, waiting at most ``wait_s`` for a first word.

        Raises:
            MembershipLost: the warden is gone, could not start, or the group went on without this worker.
        """
        if wait_s > 0.0 and not select.select([self._socket], [], [], wait_s)[0]:
            return
        with self._lock:
            while True:
                try:
                    data = self._socket.recv(1 << 16)
                except BlockingIOError:
                    break
                except OSError as error:
                    raise MembershipLost(f"the warden of {self.me} is gone: {error.strerror}") from error
                if not data:
                    raise MembershipLost(f"the warden of {self.me} is gone; without it this worker cannot go on")
                for value in self._buffer.feed(data):
                    self._take(value)
            if self._fault is not None:
                raise MembershipLost(self._fault)

    def _take(self, value: list[object]) -> None:
        match value:
            case ["stop"]:
                self.stop_asked = True
            case ["go", list(ballot), list(members), dict(reports), dict(lost), dict(addresses)]:
                told = {name: Report(*report) for name, report in reports.items()}
                self.stop_asked = False  # here, not when it is taken: a stop for this very generation may follow
                self._generations.append(NewGeneration(Ballot(*ballot), tuple(members), told, lost, addresses))
            case ["store", str(generation), str(key), str(data)]:
                self._store[generation, key] = base64.b64decode(data)
            case ["listening", str(address)]:
                self.address = address
            case ["expelled", ballot]:
                self._fault = f"{self.me} was cut off and the group went on without it as generation {ballot}"
            case ["released"]:
                self.released = True
            case ["all_done"]:
                self.all_done = True
            case ["fault", str(text)]:
                self._fault = f"{self.me} {text}"

    def wait_listening(self, timeout_s: float) -> str:
        """Waits for the address on which the warden listens."""
        deadline_s = time.monotonic() + timeout_s
        while not self.address:
            if time.monotonic() > deadline_s:
                raise MembershipLost(f"the warden of {self.me} did not start within {timeout_s:g} s")
            self.pump(0.05)
        return self.address

    def next_generation(self) -> NewGeneration | None:
        """Returns the newest generation that was not taken yet, if any; it tells whom those before it lost too."""
        with self._lock:
            if not self._generations:
                return None
            newest = self._generations[-1]
            lost = {name: why for one in self._generations for name, why in one.lost.items()}
            newest = replace(newest, lost={m: why for m, why in lost.items() if m not in newest.members})
            self._generations.clear()
            keep = str(newest.ballot)
            self._store = {k: v for k, v in self._store.items() if k[0] == keep}
            return newest

    def peers(self, addresses: Mapping[str, str]) -> None:
        """Tells the warden where the others listen."""
        self._send(["peers", dict(addresses)])

    def ready(self, report: Report) -> None:
        """This worker has its model and can take part."""
        self._send(["ready", _plain(report)])

    def stopped(self, report: Report) -> None:
        """This worker has stopped at a safe point and commits nothing more in its generation."""
        self._send(["stopped", _plain(report)])

    def failed(self, report: Report) -> None:
        """An exchange broke; this worker has stopped."""
        self._send(["failed", _plain(report)])

    def leave(self, report: Report) -> None:
        """This worker has stopped and wants to leave the group."""
        self._send(["leave", _plain(report)])

    def done(self) -> None:
        """This worker has committed the last step."""
        self._send(["done"])

    def gone(self, members: list[str]) -> None:
        """The agent knows these members to be dead."""
        self._send(["gone", members])

    def token(self, generation: str) -> str:
        """Returns what members of a generation show one another; it is no secret of any other one."""
        return hmac.new(self._secret.encode(), generation.encode(), hashlib.sha256).hexdigest()

    def progress(self, step: int, phase: str) -> None:
        """Rides on the heartbeats."""
        self._pulse.write(step, phase)

    def publish(self, generation: str, members: list[str], key: str, value: bytes) -> None:
        """Gives one rendezvous value to the other members of a generation."""
        with self._lock:
            self._store[generation, key] = value
        self._send(["store", generation, members, key, base64.b64encode(value).decode()])

    def lookup(self, generation: str, key: str) -> bytes | None:
        """Returns a rendezvous value that has arrived."""
        self.pump()
        with self._lock:
            return self._store.get((generation, key))


def _plain(report: Report) -> list[object]:
    return [report.applied, report.held, report.payload]


def make_secret() -> str:
    """Returns a secret for groups that were given none."""
    return secrets.token_hex(16)
