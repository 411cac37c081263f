"""Where this node's saver is: the one that its agent runs, or one that is started here."""

import hashlib
import os
import socket
import subprocess
import sys
import time

from plait.errors import PlaitError
from plait.train.checkpoint.saver import receive, send, socket_address
from plait.train.checkpoint.segment import Segment

SAVER_ENVIRONMENT = "PLAIT_SAVER"
"""The name of the saver that the node's agent runs."""

_START_TIMEOUT_S = 30.0
_LOOK_S = 0.02


class SaverUnreachable(PlaitError):
    """The process that makes snapshots durable does not run."""


def saver_name(url: str) -> str:
    """Returns what the saver of a place is called."""
    own = hashlib.sha256(url.encode()).hexdigest()[:16]  # where no agent runs one for its whole node
    return os.environ.get(SAVER_ENVIRONMENT) or own


def connect(url: str, *, starts: bool) -> socket.socket:
    """Returns a connection to the saver, started here where there is no agent that does and ``starts`` says so.

    Raises:
        SaverUnreachable: There is none.
    """
    name, deadline_s, is_started = saver_name(url), time.monotonic() + _START_TIMEOUT_S, False
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            connection.connect(socket_address(name))
        except OSError as error:
            connection.close()
            if not starts or time.monotonic() > deadline_s:
                raise SaverUnreachable(f"no saver for {url} runs here: {error.strerror}") from error
            if not is_started and SAVER_ENVIRONMENT not in os.environ:
                _start(name)
                is_started = True
            time.sleep(_LOOK_S)
        else:
            return connection


def left_segments(url: str) -> list[Segment]:
    """Returns the shared memory that trainers have left with the saver here."""
    try:
        connection = connect(url, starts=False)
    except SaverUnreachable:
        return []
    found = []
    with connection:
        send(connection, {"kind": "fetch", "url": url})
        while (got := receive(connection)) is not None and got[0]["kind"] == "segment":
            found.append(Segment.attach(got[1][0]))
        send(connection, {"kind": "bye"})
    return found


def _start(name: str) -> None:
    # A session of its own: what ends the trainer by its process group does not end the saver.
    subprocess.run(
        [sys.executable, "-m", "plait.train.checkpoint.saver", "--name", name, "--linger-s", "2", "--detach"],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        check=False,
    )
