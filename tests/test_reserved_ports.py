"""A port that is reserved is nobody else's, at whatever address, and takes no connections."""

from __future__ import annotations

import errno
import socket

import pytest

from tests.reserved_ports import reserved_ports


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", ""])
def test_reserved_port_is_shared_by_those_who_say_so_and_nobody_else_gets_it(address: str) -> None:
    with reserved_ports(1) as (port,), socket.socket() as server, socket.socket() as other:
        with pytest.raises(OSError, match="in use") as refused:
            other.bind((address, port))
        assert refused.value.errno == errno.EADDRINUSE
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("localhost", port))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind((address, port))
