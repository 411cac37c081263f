"""How a worker's process tells its agent what ended it: by exit codes that failure rules can act on."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from plait.errors import MembershipLost
from plait.train.retreat import DoesNotFit, ran_out

EXIT_OOM = 75
EXIT_NETWORK = 76
EXIT_NOTICE = 78

logger = logging.getLogger("plait")


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turns what is nobody's mistake into its exit code, where an agent reads it; elsewhere errors stay what they are.

    Raises:
        SystemExit: 75 where memory ran out, 76 where the group went on without this worker.
    """
    try:
        yield
    except MembershipLost as error:
        _end(error, EXIT_NETWORK)
    except (MemoryError, RuntimeError, DoesNotFit) as error:
        if not ran_out(error):
            raise
        _end(error, EXIT_OOM)


def exit_code_of_leave(*, was_noticed: bool) -> int:
    """Returns the code of a worker that left before the end of its run.

    An agent has to know whether somebody else than itself told it to, for then somebody should take its place.
    """
    return EXIT_NOTICE if was_noticed and "PLAIT_AGENT" in os.environ else 0


def _end(error: Exception, code: int) -> NoReturn:
    if "PLAIT_AGENT" not in os.environ:
        raise error
    logger.error("%s: exit code %d", error or type(error).__name__, code, exc_info=error)
    raise SystemExit(code) from error
