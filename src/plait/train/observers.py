"""Those who want to know what happens: the run's timeline, the agent, and functions of the user's."""

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plait.train.comm.planner import SIZES, Table
from plait.train.stalls import Stall
from plait.train.vote import MemberVote

logger = logging.getLogger(__name__)

_LEAST_BETWEEN_LINES_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What is known of a committed step, the same on all members but for ``step_s``, which each measures itself."""

    step: int
    total_steps: int
    loss: float | None
    samples: int
    step_s: float
    generation: str
    members: tuple[tuple[str, MemberVote], ...]
    counts: Mapping[str, int]
    types: Mapping[str, str]
    reason: str

    @property
    def samples_per_s(self) -> float:
        """Speed of the group in this step."""
        return self.samples / self.step_s if self.step_s > 0.0 else 0.0

    @property
    def device_samples_per_s(self) -> float:
        """The sum of the devices' own speeds: what they would do if none ever waited."""
        return sum(
            self.counts.get(name, 0) / (vote.compute_us / 1e6) for name, vote in self.members if vote.compute_us > 0
        )


class Timeline:
    """Appends what happens to ``timeline/{member}.jsonl`` in the run's directory."""

    def __init__(self, run_dir: Path, member: str) -> None:
        folder = run_dir / "timeline"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{member}.jsonl").open("a", encoding="utf-8", buffering=1)

    def write(self, kind: str, **values: Any) -> None:
        """Writes one row, stamped with the Unix time."""
        self._file.write(json.dumps({"kind": kind, "at": round(time.time(), 4), **values}) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class AgentLine:
    """The connection to this node's agent: progress out, losses and the wish to leave in."""

    def __init__(self, path: str, attempt: str, member: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._last_s = 0.0
        self._send({"kind": "hello", "attempt_id": attempt, "worker_id": member})

    def listen(self, on_lost: Callable[[list[str]], None], on_leave: Callable[[], None]) -> None:
        """Hands what the agent says to these functions, from a thread."""
        arguments = (on_lost, on_leave)
        threading.Thread(target=self._hear, args=arguments, name="plait-agent-line", daemon=True).start()

    def _hear(self, on_lost: Callable[[list[str]], None], on_leave: Callable[[], None]) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._socket.makefile("rb"):
                said = json.loads(line)
                if said["kind"] == "lost":
                    on_lost(list(said["lost"]))
                elif said["kind"] == "leave":
                    on_leave()

    def _send(self, value: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # an agent that is gone takes this process with it
            self._socket.sendall(json.dumps(value).encode() + b"\n")

    def progress(self, facts: StepFacts) -> None:
        """Tells how far the run is; at most ten times a second, and always of the last step."""
        now_s = time.monotonic()
        is_last = facts.step + 1 >= facts.total_steps
        if now_s - self._last_s < _LEAST_BETWEEN_LINES_S and not is_last:
            return
        self._last_s = now_s
        self._send(
            {
                "kind": "progress",
                "step": facts.step + 1,
                "total_steps": facts.total_steps,
                "samples_per_s": round(facts.samples_per_s, 3),
                "device_samples_per_s": round(facts.device_samples_per_s, 3),
                "loss": facts.loss,
                "generation": facts.generation,
                "split": [[name, vote.micro_batches] for name, vote in facts.members],
                "reason": facts.reason,
                "elastic": True,
            }
        )

    def stalled(self, stall: Stall) -> None:
        """Tells of a link that gave no answer for a while; the agent knows what its counters say."""
        self._send({"kind": "stalled", "step": stall.step, "waited_s": round(stall.waited_s, 3), "reason": str(stall)})

    def close(self) -> None:
        """Hangs up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Observers:
    """Passes what happens on to all that listen."""

    def __init__(self, timeline: Timeline | None = None, agent: AgentLine | None = None) -> None:
        self.timeline = timeline
        self.agent = agent
        self.on_commit: list[Callable[[StepFacts], None]] = []
        self._split: dict[str, int] = {}
        self._change: dict[str, Any] | None = None

    @classmethod
    def from_environment(cls, member: str) -> "Observers":
        """Opens what ``PLAIT_RUN_DIR`` and ``PLAIT_AGENT`` name."""
        run_dir, agent = os.environ.get("PLAIT_RUN_DIR"), os.environ.get("PLAIT_AGENT")
        return cls(
            Timeline(Path(run_dir), member) if run_dir else None,
            AgentLine(agent, os.environ.get("PLAIT_ATTEMPT", ""), member) if agent else None,
        )

    def on_split(self, step: int, split: Mapping[str, int], reason: str) -> None:
        """A split was decided; only a new one is written down."""
        if self.timeline is not None and dict(split) != self._split:
            self._split = dict(split)
            self.timeline.write("split", step=step, split=self._split, reason=reason)

    def on_step(self, facts: StepFacts) -> None:
        """A step was committed."""
        if self.timeline is not None:
            members = {
                name: {
                    "k": vote.micro_batches,
                    "compute_s": vote.compute_us / 1e6,
                    "samples": facts.counts.get(name, 0),
                    "accelerator_type": facts.types.get(name, ""),
                }
                for name, vote in facts.members
            }
            self.timeline.write(
                "step",
                step=facts.step,
                loss=facts.loss,
                samples=facts.samples,
                step_s=round(facts.step_s, 5),
                generation=facts.generation,
                members=members,
            )
        if self.agent is not None:
            self.agent.progress(facts)
        for tell in self.on_commit:
            tell(facts)

    def on_membership(
        self, step: int, generation: str, members: tuple[str, ...], lost: Mapping[str, str], joined: list[str]
    ) -> None:
        """The group has changed; written down when work has gone on, with the gap."""
        reasons = [f"{name} is gone: {why}" for name, why in lost.items()]
        reasons += [f"{', '.join(joined)} joined"] if joined else []
        before = self._change or {"lost": [], "joined": [], "reason": "", "known_at": round(time.time(), 4)}
        reason = "; ".join(filter(None, [before["reason"], *reasons]))
        self._change = {
            "step": step,
            "generation": generation,
            "members": list(members),
            "lost": [*before["lost"], *lost],
            "joined": [*before["joined"], *joined],
            "reason": reason or "the exchange was begun again",
            "known_at": before["known_at"],
        }
        if self.timeline is not None and not self._change["lost"] and not before["reason"]:
            self.on_resumed(None)

    def on_resumed(self, gap_s: float | None) -> None:
        """The first step after a change is committed; ``gap_s`` is how long this member's work stood still."""
        if self.timeline is not None and self._change is not None:
            gap = None if gap_s is None else round(gap_s, 4)
            self.timeline.write("membership", gap_s=gap, **self._change)
        self._change = None

    def on_plan(self, step: int, table: Table) -> None:
        """The network was measured: what each size is summed by from a step on."""
        rows = [[choice.size_bytes, str(choice.candidate), choice.reason] for choice in map(table.choice, SIZES)]
        logger.info("from step %d on, sums go by what was measured: %s", step, rows[-1][2])
        if self.timeline is not None:
            self.timeline.write("plan", step=step, choices=rows)

    def on_switch(self, step: int, switches: Sequence[str]) -> None:
        """Steps took so long that some sizes are summed another way after this one."""
        logger.info("after step %d sums go another way: %s", step, "; ".join(switches))
        if self.timeline is not None:
            self.timeline.write("switch", step=step, switches=list(switches))

    def on_settled(self, step: int) -> None:
        """What members owed after compression was sent with a step, before one left or the state was saved."""
        if self.timeline is not None:
            self.timeline.write("settled", step=step)

    def on_restored(self, step: int, where: str, reason: str) -> None:
        """The run goes on from a state that was kept."""
        if self.timeline is not None:
            self.timeline.write("restored", step=step, where=where, reason=reason)

    def on_break(self, step: int, member: str | None, unsent_bytes: int | None, reason: str) -> None:
        """A connection broke; ``member`` is at its other end, and ``unsent_bytes`` were not confirmed, where known."""
        link = f" (the link to {member}, {unsent_bytes} bytes unconfirmed)" if member is not None else ""
        logger.warning("the exchange of step %d broke%s: %s", step, link, reason)
        if self.timeline is not None:
            self.timeline.write("break", step=step, member=member, unsent_bytes=unsent_bytes, reason=reason)

    def on_stall(self, stall: Stall | None) -> None:
        """A wait for others was far longer than usual, and links of this host were stuck."""
        if stall is None:
            return
        logger.warning("%s", stall)
        if self.agent is not None:
            self.agent.stalled(stall)
        if self.timeline is not None:
            self.timeline.write(
                "stall",
                step=stall.step,
                waited_s=round(stall.waited_s, 4),
                usual_s=round(stall.usual_s, 5),
                links=[asdict(link) for link in stall.links],
                reason=str(stall),
            )

    def close(self) -> None:
        """Closes whatever is open."""
        if self.timeline is not None:
            self.timeline.close()
        if self.agent is not None:
            self.agent.close()
