"""Programs that the agent asks something: short, apart from it, and with a time limit, for drivers hang and crash."""

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO

from plait.agent.processes import die_with_parent, send_group

_LONGEST_ANSWER_BYTES = 1 << 20
_TAIL_BYTES = 2048
_AFTERLIFE_S = 0.5
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The last line that a program printed; ``line`` is None where it gave none, and ``why`` says what became of it."""

    line: str | None
    why: str = ""


class Children:
    """The programs that run now."""

    def __init__(self) -> None:
        self._running: set[int] = set()

    @property
    def pids(self) -> frozenset[int]:
        """Processes that are no strays, and whose end somebody waits for."""
        return frozenset(self._running)

    async def ask(self, command: Sequence[str], environment: Mapping[str, str], limit_s: float) -> Answer:
        """Runs a program and returns the last line that it printed."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as noise:
            try:
                process = subprocess.Popen(  # noqa: ASYNC220 - starting takes a moment; asyncio's own way takes a thread
                    command,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=noise,
                    start_new_session=True,
                    # As for workers: the agent has one thread, and nothing of it outlives it.
                    preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509
                )
            except OSError as error:
                return Answer(line=None, why=f"could not be started: {error}")
            self._running.add(process.pid)
            try:
                return await self._ended(process, out, noise, limit_s)
            finally:
                self._running.discard(process.pid)

    async def _ended(
        self, process: subprocess.Popen[bytes], out: IO[bytes], noise: IO[bytes], limit_s: float
    ) -> Answer:
        has_ended = await _ends(process.pid, limit_s)
        send_group(process.pid, signal.SIGKILL)
        if not has_ended:
            await _until_reaped(process)
            return Answer(line=None, why=f"no answer within {limit_s:g} s, stopped{_last_words(noise)}")
        code = process.wait()
        out.seek(0)
        lines = out.read(_LONGEST_ANSWER_BYTES).decode("utf-8", "replace").strip().splitlines()
        if code == 0 and lines:
            return Answer(line=lines[-1])
        how = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"ended with status {code}"
        return Answer(line=None, why=how + _last_words(noise))


async def _ends(pid: int, limit_s: float) -> bool:
    """Waits for the end of a process of this one, which keeps its number until it is reaped."""
    loop = asyncio.get_running_loop()
    handle = os.pidfd_open(pid)
    ended = asyncio.Event()
    loop.add_reader(handle, ended.set)
    try:
        async with asyncio.timeout(limit_s):
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    return True


async def _until_reaped(process: subprocess.Popen[bytes]) -> None:
    for _ in range(round(_AFTERLIFE_S / _LOOK_S)):
        if process.poll() is not None:
            return
        await asyncio.sleep(_LOOK_S)
    process.returncode = -signal.SIGKILL  # it sleeps in its driver: the kernel ends it when it comes loose


def _last_words(noise: IO[bytes]) -> str:
    noise.seek(0, os.SEEK_END)
    noise.seek(max(0, noise.tell() - _TAIL_BYTES))
    lines = [line.strip() for line in noise.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return f"; it last said: {lines[-1][:200]}" if lines else ""
