"""Measures the network of a session between two of its steps, over connections of their own, and can be given up."""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from plait.train.collectives.mesh import Mesh
from plait.train.comm.engine import CommEngine
from plait.train.comm.known import KnownNetwork
from plait.train.comm.planner import Table, topology_hash
from plait.train.comm.probe import measured
from plait.train.comm.tuning import write_document

_TIMEOUT_S = 60.0
_LOOK_S = 0.01


class _ProbeEngine(CommEngine):
    """An engine over connections that are there already; ``plain`` sums as the session does otherwise."""

    def __init__(self, mesh: Mesh, names: Sequence[str], plain: Callable[[Tensor], None]) -> None:
        self.group = None
        self._plain = plain
        self._open(mesh, names, _TIMEOUT_S)

    def plain(self, tensor: Tensor) -> torch.futures.Future[Tensor]:
        """Sums at once, in the caller's thread."""
        self._plain(tensor)
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(tensor)
        return done


class QuietMeasuring:
    """A measuring that runs in a thread, while its owner looks whether the group still stands."""

    def __init__(
        self, connect: Callable[[], Mesh], names: Sequence[str], codecs: Sequence[str], plain: Callable[[Tensor], None]
    ) -> None:
        """``connect`` makes connections to all members; ``names`` are those of the members' islands."""
        self.known: KnownNetwork | None = None
        self.error: Exception | None = None
        self._engine: CommEngine | None = None
        arguments = (connect, tuple(names), tuple(codecs), plain)
        self._thread = threading.Thread(target=self._run, args=arguments, name="plait-measure", daemon=True)
        self._thread.start()

    def is_over(self) -> bool:
        """Waits a moment; returns whether the measuring has ended, well or not."""
        self._thread.join(_LOOK_S)
        return not self._thread.is_alive()

    def give_up(self) -> None:
        """Ends it soon, here and at the others."""
        if self._engine is not None:
            self._engine.abort("the group is about to change")

    def _run(
        self,
        connect: Callable[[], Mesh],
        names: tuple[str, ...],
        codecs: tuple[str, ...],
        plain: Callable[[Tensor], None],
    ) -> None:
        try:
            self._engine = engine = _ProbeEngine(connect(), names, plain)
            table = measured(engine, codecs)
            engine.close()
            self.known = KnownNetwork.of(names, table)
        except Exception as error:  # noqa: BLE001 - handed to the waiting thread
            self.error = error


def save_table(table: Table, names: Sequence[str], switches: Sequence[str] = ()) -> None:
    """Writes what is used, and why, for ``plait explain comm``, where this process has a run's directory."""
    if "PLAIT_RUN_DIR" in os.environ:
        folder = Path(os.environ["PLAIT_RUN_DIR"]) / "comm"
        write_document(folder / f"{topology_hash(names, sorted(table.coded_ratio))}.json", table, switches)
