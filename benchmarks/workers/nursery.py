"""Forks benchmark workers from one process that has already imported the heavy modules.

A worker starts in a tenth of a second instead of several: a benchmark measures training, not ``import torch``.
Reads one JSON object a line from stdin (``{"name", "script", "environment", "log", "namespace"}``), forks, and reports
``{"event": "started" | "stopped" | "exited", ...}`` on stdout with the monotonic time at which it saw the event.
Every worker leads its own session and dies with the nursery.
"""

import ctypes
import faulthandler
import importlib
import json
import os
import runpy
import select
import signal
import sys
import time
import traceback
from pathlib import Path

PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def enter_network_namespace(name: str) -> None:
    """Moves this process into the network namespace ``name`` (as made by ``ip netns add``)."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), name)
    finally:
        os.close(descriptor)


def tell(message: dict[str, object]) -> None:
    os.write(1, (json.dumps(message) + "\n").encode())


def run_worker(order: dict[str, object], wake: tuple[int, int]) -> int:
    """Becomes the worker that ``order`` describes and returns its exit code."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    die_with_parent()
    for descriptor in wake:
        os.close(descriptor)
    log = os.open(str(order["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.register(signal.SIGUSR1)
    try:
        if order.get("namespace"):
            enter_network_namespace(str(order["namespace"]))
        environment = order["environment"]
        assert isinstance(environment, dict)
        os.environ.update({str(key): str(value) for key, value in environment.items()})
        sys.argv = [str(order["script"])]
        runpy.run_path(str(order["script"]), run_name="__main__")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it is, the log must hold it
        traceback.print_exc()
        return 1
    return 0


def reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        at_s = time.monotonic()
        if os.WIFSTOPPED(status):
            tell({"event": "stopped", "pid": pid, "at_s": at_s})
        else:
            tell({"event": "exited", "pid": pid, "at_s": at_s, "code": os.waitstatus_to_exitcode(status)})


def serve() -> None:
    die_with_parent()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    for module in sys.argv[1:]:
        importlib.import_module(module)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    tell({"event": "ready"})
    buffer = b""
    while True:
        ready, _, _ = select.select([0, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
            reap()
        if 0 not in ready:
            continue
        data = os.read(0, 1 << 16)
        if not data:
            return
        buffer += data
        while b"\n" in buffer:
            line, buffer = buffer.split(b"\n", 1)
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                code = run_worker(order, (wake_read, wake_write))
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
            tell({"event": "started", "name": order["name"], "pid": pid, "at_s": time.monotonic()})


if __name__ == "__main__":
    serve()
