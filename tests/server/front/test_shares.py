"""Who takes the next connection, of several that accept from one socket."""

from __future__ import annotations

import asyncio
import socket
import tempfile

from server.front.shares import ConnectionShares
from server.http.accepting import Accepting


def test_whoever_has_more_than_somebody_else_who_takes_connections_leaves_the_next_one_to_others() -> None:
    with tempfile.TemporaryFile() as file:
        first = ConnectionShares.make(file, 3)
        second = ConnectionShares(file.fileno(), 3)
        first.tell(0, 2)
        assert not first.has_more_than_others(0), "nobody else is there"
        second.tell(1, 1)
        assert first.has_more_than_others(0)
        assert not second.has_more_than_others(1)
        second.add(1)
        assert not first.has_more_than_others(0)
        second.add(1)
        assert second.has_more_than_others(1)
        first.leave(0)
        assert not second.has_more_than_others(1)


class AlwaysOthers:
    """Somebody else has fewer, and does not come."""

    taken = 0

    def is_of_others(self) -> bool:
        return True

    def note_taken(self) -> None:
        self.taken += 1


def test_a_connection_that_nobody_else_takes_is_taken_all_the_same() -> None:
    turns = AlwaysOthers()

    async def take(listener: socket.socket) -> None:
        taken: asyncio.Queue[socket.socket] = asyncio.Queue()
        accepting = Accepting(listener, taken.put_nowait, at_once=1, turns=turns)
        for _ in range(3):
            with socket.create_connection(listener.getsockname()), await taken.get():
                pass
        accepting.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(take(listener))
    assert turns.taken == 3
