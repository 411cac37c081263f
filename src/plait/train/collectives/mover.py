"""Moves the exchanges of a mesh on while their owner computes."""

import contextlib
import logging
import os
import threading

from plait.train.collectives.mesh import Mesh

logger = logging.getLogger("plait")

_LOOK_S = 1.0


class Mover:
    """A thread that takes in what has come and sends on what is due, from :meth:`go` to :meth:`rest`.

    A mesh is driven by whoever waits for it; nobody else may while this thread does.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._changed = threading.Condition()
        self._is_wanted = self._is_moving = self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="plait-move", daemon=True)
        self._thread.start()

    def go(self) -> None:
        """Something was started: moves it on, also what has to be written that was not before."""
        with self._changed:
            if self._is_closed:
                return
            self._is_wanted = True
            os.eventfd_write(self._bell, 1)
            self._changed.notify_all()

    def rest(self) -> None:
        """Returns once the thread leaves the mesh alone."""
        with self._changed:
            if not self._is_wanted and not self._is_moving:
                return
            self._is_wanted = False
            os.eventfd_write(self._bell, 1)
            self._changed.wait_for(lambda: not self._is_moving)
            self._hush()

    def close(self) -> None:
        """Ends the thread; the mesh must be closed afterwards, not before."""
        self.rest()
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        os.close(self._bell)

    def _hush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_wanted or self._is_closed)
                if self._is_closed:
                    return
                self._is_moving = True
            try:
                while self._is_wanted and self._mesh.broken is None:
                    self._hush()
                    self._mesh.take(_LOOK_S, self._bell)
            except Exception:
                logger.exception("an exchange could not be moved on")
                self._mesh.close()  # whoever waits has to know
            with self._changed:
                self._is_moving = False
                if self._mesh.broken is not None:
                    self._is_wanted = False
                self._changed.notify_all()
