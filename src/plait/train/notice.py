"""SIGTERM, the notice that clouds and schedulers give: the worker leaves at its next safe point instead of dying."""

import logging
import signal
import threading
from collections.abc import Callable
from functools import partial

logger = logging.getLogger("plait")


def heed_notice(member: str, leave: Callable[[], None]) -> Callable[[], object]:
    """Has the first SIGTERM call ``leave``; a second one ends the process at once.

    A handler of the program's own is left alone, and only the main thread can set one.

    Returns:
        What puts things back as they were.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return lambda: None

    def told(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        logger.warning("%s was told to end: it leaves at its next safe point", member)
        leave()

    signal.signal(signal.SIGTERM, told)
    return partial(signal.signal, signal.SIGTERM, signal.SIG_DFL)
