"""Ports for servers of TensorFlow, which are told all addresses of their cluster before any of them is started."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

# A server with this in its environment may bind a port that is reserved here.
SHARING = {"TF_GRPC_REUSE_PORT": "1"}


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Nobody else gets them meanwhile. A port that was merely free is somebody's connection a moment later.

    At all addresses, as servers bind: at one alone it may be a port that somebody's connection has at another.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(("", 0))
        yield [int(each.getsockname()[1]) for each in sockets]
