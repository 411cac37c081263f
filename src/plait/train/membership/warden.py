"""The warden: a small process beside each worker that speaks for it in the group.

It imports no torch and shares no interpreter lock with training, so its heartbeats stop only when its node does. It
runs :mod:`plait.train.membership.protocol` over TCP connections to the other wardens, watches its worker (a dead one
ends it at once, a frozen one is killed after the heartbeat time-out) and relays what the worker's process group needs
to find its peers. It never closes a connection while it lives: the end of a connection therefore means that the
process at the other end, and with it the worker, is dead.
"""

import asyncio
import contextlib
import ctypes
import hmac
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from plait.train.membership import protocol as p
from plait.train.membership import speech as s
from plait.train.membership.frames import HEADER_BYTES, FrameBuffer, frame, from_wire, to_wire
from plait.train.membership.pulse import Pulse

TICKS = 16
"""Looks at peers and worker in a heartbeat time-out: what a silence is noticed late by, and what the warden costs."""

MOST_TICK_S = 0.1
DIAL_AGAIN_S = 0.1
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WardenConfig:
    """What a warden is started with; ``seeds`` maps members to ``host:port``, ``listen`` is this one's."""

    me: str
    listen: str
    seeds: dict[str, str]
    joining: bool
    secret: str
    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    formation_timeout_s: float
    worker_pid: int


def order(member: str) -> tuple[int, str]:
    """Sorts w2 before w10; of two members the greater dials."""
    return len(member), member


class Peer:
    """The connection to one other warden."""

    def __init__(self, name: str, writer: asyncio.StreamWriter) -> None:
        self.name = name
        self.writer = writer
        self.last_heard_s = time.monotonic()
        self.progress: tuple[int, str] = (0, "")
        self.is_silent = False

    def send(self, value: Any) -> None:
        """Queues one frame; a broken connection is noticed by its reader."""
        if self.writer.is_closing():
            return
        with contextlib.suppress(ConnectionError, RuntimeError):
            self.writer.write(frame(value))


class Warden:
    """Feeds the protocol with what happens and carries out what it says."""

    def __init__(self, config: WardenConfig, channel: socket.socket, pulse: Pulse) -> None:
        self.config = config
        self.channel = channel
        self.addresses = dict(config.seeds)
        self.peers: dict[str, Peer] = {}
        self.dialing: set[str] = set()
        self.published: list[list[Any]] = []
        self.why_lost: dict[str, str] = {}
        self.withdrawn_s: dict[tuple[str, str], float] = {}
        self.pulse = pulse
        self.stat = os.open(f"/proc/{config.worker_pid}/stat", os.O_RDONLY)
        self.worker_writer: asyncio.StreamWriter | None = None
        self.state = p.joiner(config.me)
        self.has_report = False
        self.started_s = time.monotonic()
        self.last_tick_s = self.started_s
        self.frozen_since_s: float | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serves until the worker ends."""
        reader, self.worker_writer = await asyncio.open_connection(sock=self.channel)
        host, port = self.config.listen.rsplit(":", 1)
        try:
            server = await asyncio.start_server(self._answer, host, int(port))
        except OSError as error:
            self._tell(["fault", f"cannot listen on {self.config.listen}: {error.strerror or error}"])
            await self.worker_writer.drain()
            return
        own = server.sockets[0].getsockname()
        self.addresses[self.config.me] = f"{host}:{own[1]}"
        self._tell(["listening", self.addresses[self.config.me]])
        self._spawn(self._tick())
        await self._hear_worker(reader)

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    # The worker

    def _tell(self, value: list[Any]) -> None:
        assert self.worker_writer is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            self.worker_writer.write(frame(value))

    async def _hear_worker(self, reader: asyncio.StreamReader) -> None:
        """Serves the worker; when it is gone this process ends at once, which is what tells the others."""
        buffer = FrameBuffer()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for value in buffer.feed(data):
                    self._from_worker(value)
        os._exit(0)

    def _from_worker(self, value: list[Any]) -> None:
        kind, *rest = value
        if kind == "store":
            self._relay(rest)
        elif kind == "peers":
            self.addresses.update(rest[0])
        elif kind == "ready":
            self._begin(s.Report(*rest[0]))
        elif kind == "gone":
            for member in rest[0]:
                self.why_lost.setdefault(member, "its agent says that it is dead")
                self._feed(s.Died(member))
        else:
            self._feed(_WORKER_EVENTS[kind](*[s.Report(*report) for report in rest]))

    def _begin(self, report: s.Report) -> None:
        """The worker has built its model: from now on this member takes part."""
        if self.config.joining:
            self.state = p.joiner(self.config.me, report)
        else:
            self.state = p.founder(self.config.me, tuple(self.config.seeds), report)
        self.has_report = True
        for peer in list(self.peers.values()):
            self._feed(s.Heard(peer.name))
            peer.send(["ready"])
        if not self.peers:
            self._feed(s.Heard(self.config.me))

    def _relay(self, rest: list[Any]) -> None:
        generation, members, key, value = rest
        if self.published and self.published[0][0] != generation:
            self.published.clear()
        self.published.append(rest)
        for member in members:
            if member in self.peers:
                self.peers[member].send(["store", generation, key, value])

    # Other wardens

    def _feed(self, event: s.Input) -> None:
        if not self.has_report:
            if isinstance(event, s.Died):
                self.state = p.Member(
                    me=self.config.me, installed=self.state.installed, gone=self.state.gone | {event.member}
                )
            return
        self.state, outputs = p.step(self.state, event)
        for output in outputs:
            self._carry_out(output)

    def _carry_out(self, output: s.Output) -> None:
        match output:
            case s.Send(to, message):
                if to in self.peers:
                    self.peers[to].send(["message", to_wire(message)])
            case s.StopWorker():
                self._tell(["stop"])
            case s.GoOn(ballot, members, reports):
                plain = {name: [r.applied, r.held, r.payload] for name, r in reports}
                lost = {m: why for m, why in self.why_lost.items() if m not in members}
                addresses = {m: a for m, a in self.addresses.items() if m in members}
                self._tell(["go", list(ballot), list(members), plain, lost, addresses])
            case s.Expelled(ballot):
                self._tell(["expelled", str(ballot)])
            case s.Released():
                self._tell(["released"])
            case s.AllDone():
                self._tell(["all_done"])

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._converse(reader, writer, None)

    async def _dial(self, member: str) -> None:
        refused_after_contact = False
        while member not in self.peers and member not in self.state.gone:
            host, port = self.addresses[member].rsplit(":", 1)
            try:
                reader, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), 1.0)
            except (OSError, TimeoutError):
                await asyncio.sleep(DIAL_AGAIN_S)
                continue
            refused_after_contact = await self._converse(reader, writer, member)
            if refused_after_contact:
                break
        self.dialing.discard(member)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, expected: str | None) -> bool:
        """Exchanges frames until the connection ends; returns whether it had become a peer's."""
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        roster = {m: a for m, a in self.addresses.items() if m not in self.state.gone}
        writer.write(frame(["hello", self.config.me, self.config.secret, roster, self.has_report]))
        peer: Peer | None = None
        buffer = FrameBuffer()
        lost_for_sure = True
        try:
            while data := await reader.read(1 << 16):
                for value in buffer.feed(data):
                    if peer is None:
                        peer = self._greet(value, writer, expected)
                        if peer is None:
                            writer.close()
                            return False
                    else:
                        self._from_peer(peer, value)
        except (ConnectionResetError, BrokenPipeError):
            pass  # its socket is closed; which of the two comes depends on whether its end was seen before the reset
        except (OSError, ValueError):
            lost_for_sure = False
        if peer is not None and self.peers.get(peer.name) is peer and lost_for_sure:
            del self.peers[peer.name]
            self.why_lost.setdefault(peer.name, f"its process died at step {peer.progress[0]} ({peer.progress[1]})")
            self._feed(s.Died(peer.name))
        return peer is not None

    def _greet(self, value: Any, writer: asyncio.StreamWriter, expected: str | None) -> Peer | None:
        if not (isinstance(value, list) and len(value) == 5 and value[0] == "hello"):
            return None
        _, name, secret, roster, is_ready = value
        if not hmac.compare_digest(str(secret).encode(), self.config.secret.encode()) or (expected or name) != name:
            return None
        for member, address in roster.items():
            self.addresses.setdefault(member, address)
        peer = Peer(name, writer)
        self.peers[name] = peer
        for generation, members, key, kept in self.published:  # a generation may form before all have met
            if name in members:
                peer.send(["store", generation, key, kept])
        if self.has_report:  # the worker may have become ready between the greeting that was sent and this one
            peer.send(["ready"])
        if is_ready:
            self._feed(s.Heard(name))
        return peer

    def _from_peer(self, peer: Peer, value: list[Any]) -> None:
        peer.last_heard_s = time.monotonic()
        if peer.is_silent:
            peer.is_silent = False
            self.why_lost.pop(peer.name, None)
            self._feed(s.Heard(peer.name))
        kind, *rest = value
        if kind == "beat":
            peer.progress = (int(rest[0]), str(rest[1]))
            for member, address in rest[2].items():
                self.addresses.setdefault(member, address)
        elif kind == "ready":
            self._feed(s.Heard(peer.name))
        elif kind == "store":
            self._tell(["store", *rest])
        elif kind == "message":
            message = from_wire(rest[0])
            if isinstance(message, s.Complaint) and message.silent is not None:
                self._spawn(self._hear_later(peer.name, message))
            else:
                if isinstance(message, s.Withdrawn):
                    self.withdrawn_s[peer.name, message.member] = time.monotonic()
                self._feed(s.Received(peer.name, message))

    async def _hear_later(self, sender: str, message: s.Complaint) -> None:
        """Whoever is cut off falls silent to all at about the same time: wait for what this member hears itself."""
        came_s = time.monotonic()
        await asyncio.sleep(self.config.heartbeat_timeout_s / 2)
        if self.withdrawn_s.get((sender, message.silent or ""), 0.0) >= came_s:
            return
        self._feed(s.Received(sender, message))

    # Time

    async def _tick(self) -> None:
        next_beat_s = 0.0
        tick_s = min(MOST_TICK_S, self.config.heartbeat_timeout_s / TICKS)
        while True:
            now_s = time.monotonic()
            if now_s - self.last_tick_s > self.config.heartbeat_timeout_s / 2:
                for peer in self.peers.values():  # this process itself was held up: accuse nobody for that
                    peer.last_heard_s = now_s
            self.last_tick_s = now_s
            self._dial_missing()
            if now_s >= next_beat_s:
                next_beat_s = now_s + self.config.heartbeat_interval_s
                roster = self.addresses if len(self.addresses) > len(self.config.seeds) else {}
                for peer in self.peers.values():
                    peer.send(["beat", *self.pulse.read(), roster])
            self._look_for_silence(now_s)
            self._look_at_worker(now_s)
            await asyncio.sleep(tick_s)

    def _dial_missing(self) -> None:
        for member, address in self.addresses.items():
            if not address:
                continue  # under torchrun names are known first, and addresses when all have found one another
            known = member in self.peers or member in self.dialing or member in self.state.gone
            if not known and member != self.config.me and order(self.config.me) > order(member):
                self.dialing.add(member)
                self._spawn(self._dial(member))

    def _look_for_silence(self, now_s: float) -> None:
        for peer in list(self.peers.values()):
            silent_s = now_s - peer.last_heard_s
            if silent_s > self.config.heartbeat_timeout_s and not peer.is_silent:
                peer.is_silent = True
                self.why_lost[peer.name] = (
                    f"nothing was heard from it for {silent_s:.2f} s, last at step {peer.progress[0]}"
                    f" ({peer.progress[1]})"
                )
                self._feed(s.Silent(peer.name))
        self._look_for_a_group(now_s)
        if self.has_report and not self.config.joining and now_s - self.started_s > self.config.formation_timeout_s:
            for member in self.config.seeds:
                never_came = member not in self.peers and member not in self.state.gone | self.state.silent
                if never_came and member != self.config.me and member not in self.why_lost:
                    self.why_lost[member] = f"it did not come within {self.config.formation_timeout_s:g} s"
                    self._feed(s.Silent(member))

    def _look_for_a_group(self, now_s: float) -> None:
        """One that would join a group which has ended, or cannot be reached, must not wait for ever."""
        if not (self.config.joining and self.has_report and self.state.installed is None):
            return
        others = {member for member in self.addresses if member != self.config.me}
        names = ", ".join(sorted(others, key=order))
        if others <= self.state.gone:
            self._tell(["fault", f"came too late to join: {names} had ended"])
        elif now_s - self.started_s > self.config.formation_timeout_s:
            self._tell(["fault", f"was let in by none of {names} within {self.config.formation_timeout_s:g} s"])

    def _look_at_worker(self, now_s: float) -> None:
        """A stopped process cannot be asked; after the time-out it is killed, so that nobody need doubt its end."""
        try:
            stat = os.pread(self.stat, 256, 0)
        except OSError:
            os._exit(0)
        if stat.rpartition(b")")[2].split()[0] not in b"Tt":
            self.frozen_since_s = None
            return
        if self.frozen_since_s is None:
            self.frozen_since_s = now_s
        if now_s - self.frozen_since_s >= self.config.heartbeat_timeout_s:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.config.worker_pid, signal.SIGKILL)
            os._exit(0)


_WORKER_EVENTS: dict[str, Any] = {
    "stopped": s.Stopped,
    "failed": s.ExchangeFailed,
    "leave": s.WantsToLeave,
    "done": s.Finished,
}


def _first_frame(channel: socket.socket) -> Any:
    """Reads the configuration: it holds a secret, which a command line would show to everybody on the node."""
    header = channel.recv(HEADER_BYTES, socket.MSG_WAITALL)
    return json.loads(channel.recv(int.from_bytes(header, "big"), socket.MSG_WAITALL))


def main() -> None:
    """Runs the warden of the worker that started this process."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    config = WardenConfig(**_first_frame(channel))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != config.worker_pid:
        return
    for number in (signal.SIGINT, signal.SIGTERM):  # the worker decides when both end
        signal.signal(number, signal.SIG_IGN)
    channel.setblocking(False)
    asyncio.run(Warden(config, channel, Pulse(int(sys.argv[2]))).run())
    os._exit(0)


if __name__ == "__main__":
    main()
