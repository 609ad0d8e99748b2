"""Has a client follow the product that is wanted when another process says so, with a thread that sleeps until then."""

from __future__ import annotations

import multiprocessing.util
import threading

from ...errors import SoftsError
from .subscription import Course, WantedProduct

__all__ = ["Watch"]


class Watch:
    """A thread that changes the course whenever the product that is wanted has become another one.

    Args:
        course: whose; its client must be closed before the watch ends, so that the thread does not wait for a broker.
        model: names the product.
    """

    def __init__(self, course: Course, model: WantedProduct) -> None:
        self._course = course
        self._model = model
        self._is_over = False
        self._thread = threading.Thread(
            target=self._run, args=(model.read(),), name="softs-watch", daemon=True
        )
        self._thread.start()
        #: Ends the thread, at the latest when the process ends, after clients are closed. Idempotent.
        self.end = multiprocessing.util.Finalize(None, self._end, exitpriority=5)

    def _run(self, product: str) -> None:
        while not self._is_over:
            self._course.sleep_while(product)
            if self._is_over:
                return
            product = self._model.read()
            try:
                self._course.change()
            except SoftsError:
                # The client is closed, or will say so to those who ask it for samples.
                continue

    def _end(self) -> None:
        self._is_over = True
        if self._thread is threading.current_thread():
            return
        # It may have looked just before, and not sleep yet: then nobody has woken it.
        while self._thread.is_alive():
            self._model.wake()
            self._thread.join(_MOMENT_S)


_MOMENT_S = 0.01
