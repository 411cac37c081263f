"""Runs a probe where its driver can hurt nobody: in a child process with a time limit.

A driver may hang (also in the kernel, where no signal reaches it), crash, or print; the caller gets a fragment either
way, with ``error`` where there is none to give.
"""

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from typing import IO

from plait.hardware.context import Context
from plait.hardware.topology import Fragment
from plait.hardware.vendors.vendor import Vendor

DEFAULT_LIMIT_S = 5.0
_AFTERLIFE_S = 0.5
"""How long a killed child may take to go; one that sleeps in its driver is left behind."""
_TAIL_BYTES = 4096


def probe_apart(vendor: Vendor, ctx: Context, limit_s: float = DEFAULT_LIMIT_S) -> Fragment:
    """Returns what a vendor's probe finds on this host; if its child dies, what a second one without library finds."""
    first, why = _one_child(vendor, ctx, limit_s, use_library=True)
    if first is not None:
        return first
    if len(vendor.ways) == 1:
        return _failed(vendor, why)
    second, again = _one_child(vendor, ctx, limit_s, use_library=False)
    if second is None or second.error is not None:
        return _failed(vendor, f"{why}; then {again if second is None else second.error}")
    return dataclasses.replace(second, warnings=(*second.warnings, f"{vendor.name}: {why}"))


def probe_here(vendor: Vendor, ctx: Context) -> Fragment:
    """Returns what a vendor's probe finds in this process: for machines that are captured, where nothing can hang."""
    try:
        return vendor.probe(ctx, use_library=False)
    except Exception as error:  # noqa: BLE001 - a fault in one vendor's probe must not hide the others' devices
        return _failed(vendor, f"the probe failed: {type(error).__name__}: {error}")


def _one_child(vendor: Vendor, ctx: Context, limit_s: float, *, use_library: bool) -> tuple[Fragment | None, str]:
    """Returns the fragment, or ``None`` and what became of the child."""
    with tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as noise:
        command = [
            sys.executable,
            "-m",
            "plait.hardware.vendors.child",
            vendor.name,
            str(result.fileno()),
            str(limit_s),
        ]
        process = subprocess.Popen(
            command if use_library else [*command, "--no-library"],
            stdin=subprocess.DEVNULL,
            stdout=noise,
            stderr=noise,
            env=dict(ctx.env),
            pass_fds=[result.fileno()],
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return None, f"no answer within {limit_s:g} s, stopped{_last_words(noise)}"
        fragment = _read(result)
        if fragment is not None and code == 0:
            return fragment, ""
        how = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"ended with status {code}"
        return None, f"the probe {how}{_last_words(noise)}"


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
    try:
        process.wait(_AFTERLIFE_S)
    except subprocess.TimeoutExpired:
        process.returncode = -signal.SIGKILL  # stuck in the kernel: init reaps it when it comes loose


def _read(result: IO[bytes]) -> Fragment | None:
    result.seek(0)
    try:
        found = pickle.load(result)  # noqa: S301 - written by our own child, a moment ago, into an unnamed file
    except Exception:  # noqa: BLE001 - a child that died in the middle of writing
        return None
    return found if isinstance(found, Fragment) else None


def _last_words(noise: IO[bytes]) -> str:
    noise.seek(0, os.SEEK_END)
    noise.seek(max(0, noise.tell() - _TAIL_BYTES))
    lines = [line.strip() for line in noise.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return f"; it last said: {lines[-1][:200]}" if lines else ""


def _failed(vendor: Vendor, why: str) -> Fragment:
    return Fragment(origin=f"{vendor.name} probe", format=vendor.name, error=why)
