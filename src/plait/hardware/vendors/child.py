"""The child process that one probe runs in: ``python -m plait.hardware.vendors.child NAME FD [--no-library]``.

The fragment goes pickled to the file descriptor; what drivers print goes wherever stdout and stderr lead.
"""

import contextlib
import os
import pickle
import resource
import sys

LARGEST_OUTPUT_BYTES = 64 << 20
"""A driver that prints without end fills no disk."""


def main(arguments: list[str]) -> int:
    """Runs one probe on this host and returns the exit status."""
    from plait.hardware.contexts import LiveContext
    from plait.hardware.vendors import VENDORS

    name, descriptor, time_limit_s = arguments[0], int(arguments[1]), float(arguments[2])
    with contextlib.suppress(ValueError, OSError):  # a lower limit is in force already
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_OUTPUT_BYTES, LARGEST_OUTPUT_BYTES))
    vendor = next(vendor for vendor in VENDORS if vendor.name == name)
    # A tool gets less than the whole time, so that one that hangs costs its own answer and not all.
    ctx = LiveContext(time_limit_s=time_limit_s * 0.7)
    fragment = vendor.probe(ctx, use_library="--no-library" not in arguments)
    with os.fdopen(descriptor, "wb") as file:
        pickle.dump(fragment, file)
    sys.stdout.flush()
    # Some drivers crash while they are unloaded, when the answer has long been given.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
