"""Says in the log when TensorFlow waits for a cluster without a word: for a server that is gone, or that hangs.

Closing the Session of a server that was killed, making a new one, and a step whose server hangs all take as long as the
server is away. Training goes on by itself when it is back, and nothing here hastens that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.saved_variables import is_remote
from hotdelta.logs import event

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 30.0
STOP_SECONDS = 10.0


class ClusterWatch:
    """Reports a call that takes longer than `patience_seconds`, and again each time it took twice as long.

    One thread makes the calls; a thread of its own looks at the clock, until `stop`.
    """

    def __init__(self, servers: Iterable[str], *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._servers = ", ".join(servers)
        self._patience_seconds = patience_seconds
        self._since: float | None = None
        self._reported: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="hotdelta-cluster-watch", daemon=True)
        self._thread.start()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a call that may wait for the cluster."""
        self._since = since = time.monotonic()
        try:
            yield
        finally:
            self._since = None
            if self._reported == since:
                seconds = round(time.monotonic() - since)
                event(logger, logging.WARNING, "the cluster answers again", seconds=seconds)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(STOP_SECONDS)

    def _look(self) -> None:
        due_seconds = self._patience_seconds
        while not self._stopped.wait(self._patience_seconds / 4):
            since = self._since
            if since is None or since != self._reported:
                due_seconds = self._patience_seconds
            if since is not None and time.monotonic() - since >= due_seconds:
                due_seconds *= 2
                self._reported = since
                event(
                    logger,
                    logging.WARNING,
                    "still waiting for the cluster; training goes on when all of it is there",
                    seconds=round(time.monotonic() - since),
                    servers=self._servers,
                )


class WatchedSession:
    """What a MonitoredSession calls, with a watch on each call that may wait."""

    def __init__(self, session: Any, watch: ClusterWatch) -> None:
        self._session = session
        self._watch = watch

    def run(self, *args: Any, **kwargs: Any) -> Any:
        with self._watch.waiting():
            return self._session.run(*args, **kwargs)

    def run_step_fn(self, *args: Any, **kwargs: Any) -> Any:
        with self._watch.waiting():
            return self._session.run_step_fn(*args, **kwargs)

    def should_stop(self) -> Any:
        with self._watch.waiting():
            return self._session.should_stop()

    def close(self) -> None:
        try:
            with self._watch.waiting():
                self._session.close()
        finally:
            self._watch.stop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def servers_of(variables: Iterable[Any]) -> list[str]:
    """The tasks of other processes that hold variables."""
    devices = [tf.DeviceSpec.from_string(each.device or "") for each in variables if is_remote(each.device)]
    return sorted({f"/job:{device.job}/task:{device.task or 0}" for device in devices})
