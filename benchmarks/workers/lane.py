"""The worker's end of a lane: orders come in, answers go out, one JSON object a line."""

import json
import os
import socket
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from workers.models import Images, Paced, SmallTransformer, Tokens, conv_net


class Orders:
    """The connection to the benchmark; says hello with the lane's and the rank's name."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.environ["BENCH_CONTROL"])
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self.answer(name=os.environ["BENCH_NAME"])

    def next(self) -> dict[str, Any] | None:
        """Waits for the next order; None when the lane ends."""
        line = self._lines.readline()
        order = json.loads(line) if line else {"do": "end"}
        return None if order["do"] == "end" else order

    def answer(self, **fields: object) -> None:
        self._socket.sendall((json.dumps(fields) + "\n").encode())


def build() -> tuple[nn.Module, Dataset[Any]]:
    """Returns the model and the data set that ``BENCH_MODEL`` names: ``images`` or ``tokens``."""
    count = int(os.environ.get("BENCH_SAMPLES", "1000000"))
    if os.environ["BENCH_MODEL"] == "images":
        return Paced(conv_net()), Images(count)
    return SmallTransformer(), Tokens(count)


def set_pace(model: nn.Module, order: dict[str, Any]) -> None:
    if isinstance(model, Paced):
        model.samples_per_s = order.get("samples_per_s")


def loss_of(output: Any, target: Any) -> Any:
    """Returns the mean cross entropy over all predictions of the batch."""
    return nn.functional.cross_entropy(output.reshape(-1, output.shape[-1]), target.reshape(-1))
