"""A MonitoredSession that says in the log when TensorFlow waits for a cluster without a word.

Closing the Session of a server that was killed, making a new one, and a step whose server hangs all take as long as the
server is away. Training goes on by itself when it is back, and nothing here hastens that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hotdelta.tensorflow_internals import put_around_session
from hotdelta.train.servers.patience import PATIENCE


class WatchedSession:
    """What a MonitoredSession calls, with an eye on each call that may wait. `servers`: their addresses, by task."""

    def __init__(self, session: Any, servers: Mapping[str, str]) -> None:
        self._session = session
        self._servers = servers

    def run(self, *args: Any, **kwargs: Any) -> Any:
        with PATIENCE.waiting_for(lambda: self._servers):
            return self._session.run(*args, **kwargs)

    def run_step_fn(self, *args: Any, **kwargs: Any) -> Any:
        with PATIENCE.waiting_for(lambda: self._servers):
            return self._session.run_step_fn(*args, **kwargs)

    def should_stop(self) -> Any:
        with PATIENCE.waiting_for(lambda: self._servers):
            return self._session.should_stop()

    def close(self) -> None:
        with PATIENCE.waiting_for(lambda: self._servers):
            self._session.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def make_watched(make_session: Callable[[], Any], servers: Mapping[str, str]) -> Any:
    """What `make_session` returns, a MonitoredSession; making it may take as long as the cluster does."""
    if not servers:
        return make_session()
    with PATIENCE.waiting_for(lambda: servers):
        session = make_session()
    put_around_session(session, lambda inner: WatchedSession(inner, servers))
    return session
