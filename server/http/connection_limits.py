"""What clients may make the server hold: so many connections, and so many bytes on all of them together."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hotdelta.errors import OverloadedError
from hotdelta.logs import event

logger = logging.getLogger(__name__)

# How long no more is said of clients that are refused.
_SILENT_SECONDS = 60.0


class Refusals:
    """Clients that were refused because others have all that there is. Belongs to the event loop.

    The log says so at once, and then at most every minute with how many there were. `count`: of all of them.
    """

    def __init__(self, limit: str, value: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._value = value
        self._clock = clock
        self._said = -math.inf
        self._unsaid = 0
        self.count = 0

    def add(self) -> None:
        now = self._clock()
        self._unsaid += 1
        self.count += 1
        if now - self._said >= _SILENT_SECONDS:
            event(
                logger,
                logging.WARNING,
                "clients are refused",
                limit=self._limit,
                value=self._value,
                refused=self._unsaid,
            )
            self._said, self._unsaid = now, 0


class LateClients:
    """Those whose body or answer takes longer than `client_timeout_seconds`. Belongs to the event loop.

    They may go on as long as nobody needs their place. Each is known by what makes it give way.
    """

    def __init__(self) -> None:
        self._clients: dict[Callable[[], None], None] = {}

    def add(self, give_way: Callable[[], None]) -> None:
        self._clients[give_way] = None

    def discard(self, give_way: Callable[[], None]) -> None:
        self._clients.pop(give_way, None)

    def remove_first(self) -> bool:
        """Whether there was one. The first has been late longest."""
        for give_way in self._clients:
            self.discard(give_way)
            give_way()
            return True
        return False

    def remove_all(self) -> None:
        while self.remove_first():
            pass


class BufferedBytes:
    """Request bodies, and answers that are not taken yet, of all connections. Belongs to the event loop.

    An answer is counted although it is too much, because it is there already. A body that would be is refused, and
    those who are late give way to the next.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.bytes = 0
        self.late = LateClients()
        self.refusals = Refusals("--max-buffered-bytes", max_bytes)

    def take(self, size: int) -> None:
        """Before a body, or a part of one, is kept. Raises OverloadedError, and has taken nothing then."""
        if self.bytes + size > self._max_bytes:
            self.refusals.add()
            error = OverloadedError(
                f"requests and answers of {self.bytes} bytes wait already",
                hint="try again, or ask another server",
            )
            self.late.remove_all()
            raise error
        self.bytes += size

    def add(self, size: int) -> None:
        self.bytes += size

    def give_back(self, size: int) -> None:
        self.bytes -= size


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What each connection goes by; `buffered` is counted over all of them."""

    max_connections: int
    client_timeout_seconds: float
    buffered: BufferedBytes
    refusals: Refusals = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "refusals", Refusals("--max-connections", self.max_connections))
