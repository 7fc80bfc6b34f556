"""One named thread that does one job at a time, so that writing never stops training."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundWorker:
    """Runs jobs on its own thread, one at a time; a job that is given while another runs waits for its turn.

    A job must not raise: it reports its own failure.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._wake = threading.Condition()
        self._jobs: list[Callable[[], None]] = []
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        with self._wake:
            return bool(self._jobs)

    def submit(self, job: Callable[[], None]) -> None:
        with self._wake:
            self._jobs.append(job)
            if self._thread is None:
                self._is_stopping = False
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._wake.notify_all()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Until nothing is left to do; True when that is so."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._jobs, timeout_seconds)

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
            try:
                job()
            finally:
                with self._wake:
                    self._jobs.pop(0)
                    self._wake.notify_all()
