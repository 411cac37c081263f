"""What a worker writes down: one JSON object a committed step, on the machine-wide monotonic clock."""

import hashlib
import json
import os
import time
from collections.abc import Iterable

from torch import Tensor


class StepLog:
    """Appends lines to the file named by ``BENCH_STEPS``; a line is whole or absent, whatever kills the worker."""

    def __init__(self) -> None:
        self._file = os.open(os.environ["BENCH_STEPS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **fields: object) -> None:
        os.write(self._file, (json.dumps({"at_s": time.monotonic(), **fields}) + "\n").encode())


def digest(parameters: Iterable[Tensor]) -> str:
    """Returns a hash of the bytes of the parameters."""
    total = hashlib.sha1(usedforsecurity=False)
    for parameter in parameters:
        total.update(parameter.detach().cpu().contiguous().numpy().data)
    return total.hexdigest()[:16]
