"""From how a process ended to a cause that failure rules can act on."""

import signal as signals

from plait.spec.job import FailureCause

EXIT_OOM = 75
EXIT_NETWORK = 76
EXIT_DEVICE_FAULT = 77
EXIT_NOTICE = 78

_BY_CODE: dict[int, tuple[FailureCause, str]] = {
    EXIT_OOM: ("oom", "out of device memory although nothing smaller fits"),
    EXIT_NETWORK: ("network", "gave up the network or was expelled from its group"),
    EXIT_DEVICE_FAULT: ("device_fault", "its device failed"),
    EXIT_NOTICE: ("lost", "was told to end (SIGTERM), and left in order"),
}


def describe_end(exit_code: int | None, signal: int | None) -> str:
    """Returns words for an exit code or a signal."""
    if signal is not None:
        try:
            return f"killed by {signals.Signals(signal).name}"
        except ValueError:
            return f"killed by signal {signal}"
    return f"exit code {exit_code}"


def failure_of(
    exit_code: int | None,
    signal: int | None,
    *,
    stop_reason: str | None,
    given_up: str | None,
    kernel_killed_for_memory: bool,
) -> tuple[FailureCause | None, str]:
    """Returns the cause and a sentence for it; the cause is None where the worker ended well.

    Args:
        exit_code: None where a signal ended the process.
        signal: None where the process ended by itself.
        stop_reason: Why the worker was being stopped; None where nobody had asked for it.
        given_up: Why the agent killed it of its own accord, such as ``frozen for 1.5 s``; None where it did not.
        kernel_killed_for_memory: The kernel's count of out-of-memory kills rose while the process ended.
    """
    end = describe_end(exit_code, signal)
    cause: FailureCause | None
    if exit_code == 0:
        cause, detail = None, ""
    elif given_up is not None:
        cause, detail = "lost", f"{given_up}, so {end}"
    elif stop_reason is not None:
        cause, detail = "cancelled", f"{end} while being stopped: {stop_reason}"
    elif signal == signals.SIGKILL and kernel_killed_for_memory:
        cause, detail = "oom", f"{end} by the kernel, which ran out of memory"
    elif signal is not None:
        cause, detail = "lost", end
    elif exit_code in _BY_CODE:
        cause, words = _BY_CODE[exit_code]
        detail = f"{end}: {words}"
    else:
        cause, detail = "user", end
    return cause, detail
