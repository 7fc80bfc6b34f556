"""Headers have one limit, however they arrive."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from server.http.protocol import MAX_HEAD_BYTES
from tests.server.connections import LENGTH, ask, read_answer, request, serving
from tests.server.fake_model import FakeModel


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with serving(FakeModel()) as found:
        yield found


@pytest.mark.parametrize("headers", [[f"X: {'a' * MAX_HEAD_BYTES}"], ["X: a"] * (MAX_HEAD_BYTES // 6)])
def test_headers_that_come_at_once_have_the_same_limit(address: tuple[str, int], headers: list[str]) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(request(*headers, LENGTH))
        assert read_answer(connection) == (431, {"error": "the headers are larger than 65536 bytes"})


def test_a_large_body_does_not_count_as_headers(address: tuple[str, int]) -> None:
    body = b'{"instances": [[1, 2]]}' + b" " * 2 * MAX_HEAD_BYTES
    status, document = ask(address, request(f"X: {'a' * 60_000}", f"Content-Length: {len(body)}", body=body))
    assert (status, document["predictions"]) == (200, [3.0])
