"""One named thread that does one job at a time, so that writing never stops training; or whoever waits for the jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hotdelta.errors import HotdeltaError


class BackgroundWorker:
    """Runs jobs on its own thread, one at a time; a job that is given while another runs waits for its turn.

    A job must not raise: it reports its own failure. One that raises all the same ends the thread, and whoever waits
    or submits next is told.
    """

    def __init__(self, name: str, *, on_idle: Callable[[], None] = lambda: None) -> None:
        """`on_idle` is called on the thread, after the last job that it had."""
        self._name = name
        self._on_idle = on_idle
        self._wake = threading.Condition()
        self._jobs: list[Callable[[], None]] = []
        self._is_stopping = False
        self.is_dead = False
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        with self._wake:
            return bool(self._jobs)

    def start(self) -> None:
        """Not left to the first job: that may come at the end of the process, when no thread can be started."""
        with self._wake:
            if self._thread is None:
                self._is_stopping = self.is_dead = False
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        self.start()
        with self._wake:
            self._refuse_dead()
            self._jobs.append(job)
            self._wake.notify_all()

    def wait(self) -> None:
        """Until nothing is left to do."""
        with self._wake:
            self._wake.wait_for(lambda: not self._jobs or self.is_dead)
            self._refuse_dead()

    def require_alive(self) -> None:
        """For whoever neither waits nor submits. Raises HotdeltaError when a job ended the thread."""
        with self._wake:
            self._refuse_dead()

    def stop(self, timeout_seconds: float) -> bool:
        """Finish what was submitted, then end the thread. False when it did not end in time."""
        with self._wake:
            thread = self._thread
            self._is_stopping = True
            self._wake.notify_all()
        if thread is None:
            return True
        thread.join(timeout_seconds)
        if thread.is_alive():
            return False
        self._thread = None
        return True

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._jobs or self._is_stopping)
                if not self._jobs:
                    return
                job = self._jobs[0]
            is_over = False
            try:
                job()
                is_over = True
            finally:
                with self._wake:
                    self._jobs.pop(0)
                    self.is_dead = not is_over
                    self._wake.notify_all()
                if not self.is_busy:
                    self._on_idle()

    def _refuse_dead(self) -> None:
        if self.is_dead:
            raise HotdeltaError(
                f"thread {self._name} ended with an exception",
                hint="its traceback was printed; please report it",
            )


class CallersWorker(BackgroundWorker):
    """Runs jobs on the thread that waits for them, which meets what they raise: for what belongs to training."""

    def start(self) -> None:
        """There is no thread."""

    def wait(self) -> None:
        while self._jobs:
            self._jobs.pop(0)()
