"""The child process that one probe runs in: ``python -m plait.hardware.vendors.child NAME FD SECONDS``.

The fragment goes pickled to the file descriptor; what drivers print goes wherever stdout and stderr lead.
"""

import contextlib
import os
import pickle
import resource
import sys
import time
from collections.abc import Sequence

from plait.hardware.context import CommandResult
from plait.hardware.contexts import LiveContext

LARGEST_OUTPUT_BYTES = 64 << 20
"""A driver that prints without end fills no disk."""


_TO_ANSWER = 0.15
"""Part of the time that is kept for the answer itself."""


class _HostWithDeadline(LiveContext):
    """This host for a limited time: each tool gets what is left of it, and is asked only once."""

    def __init__(self, time_limit_s: float) -> None:
        super().__init__(time_limit_s=time_limit_s)
        self._ends_s = time.monotonic() + time_limit_s * (1 - _TO_ANSWER)
        self._answers: dict[tuple[str, ...], CommandResult] = {}

    def run(self, argv: Sequence[str]) -> CommandResult:
        """Returns what the tool printed, now or the first time."""
        words = tuple(argv)
        if words not in self._answers:
            left_s = max(self._ends_s - time.monotonic(), 0.05)
            self._answers[words] = LiveContext(time_limit_s=left_s, env=self.env).run(argv)
        return self._answers[words]


def main(arguments: list[str]) -> int:
    """Runs one probe on this host and returns the exit status."""
    from plait.hardware.vendors import VENDORS

    name, descriptor, time_limit_s = arguments[0], int(arguments[1]), float(arguments[2])
    with contextlib.suppress(ValueError, OSError):  # a lower limit is in force already
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_OUTPUT_BYTES, LARGEST_OUTPUT_BYTES))
    vendor = next(vendor for vendor in VENDORS if vendor.name == name)
    fragment = vendor.probe(_HostWithDeadline(time_limit_s), use_library="--no-library" not in arguments)
    with os.fdopen(descriptor, "wb") as file:
        pickle.dump(fragment, file)
    sys.stdout.flush()
    # Some drivers crash while they are unloaded, when the answer has long been given.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
