"""Which servers of TensorFlow do not answer: asked by connections of its own, beside everything that may hang."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

ANSWER_SECONDS = 2.0
LOOK_SECONDS = 20.0


def silent_servers(addresses: Mapping[str, str]) -> dict[str, str]:
    """Why those that are silent are. One after the other, and only as many as there is time for."""
    found: dict[str, str] = {}
    until = time.monotonic() + LOOK_SECONDS
    for server, address in addresses.items():
        reason = why_silent(address) if time.monotonic() < until else None
        if reason is not None:
            found[server] = reason
    return found


def why_silent(address: str) -> str | None:
    """None when it answers. A gRPC server speaks first; of one that is stopped only its system accepts connections."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS) as connection:
            return None if connection.recv(1) else "it hangs up"
    except TimeoutError:
        return "it says nothing"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    except ValueError:
        return f"{address!r} is no address"
