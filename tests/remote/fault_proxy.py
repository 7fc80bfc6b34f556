"""A proxy between a client and an S3 server that does to requests what networks and stores do to them.

    with FaultProxy(seaweedfs.endpoint) as proxy:
        store = open_store(seaweedfs.address("some/run", endpoint=proxy.endpoint))
        proxy.plan = seeded_faults(random, share=0.2)       # each fifth request, by chance, any fault that it can have
        proxy.plan = nth_request(3, Fault.LOSE_ANSWER)      # only the third from now on
        proxy.plan = every_request(Fault.DROP)              # the store is away
        proxy.plan = None                                   # and comes back

`proxy.seen` are the requests in their order, each with the fault that it had. A plan is any function of a Request to a
Fault or None; it is asked under a lock, one request after the other.
"""

from __future__ import annotations

import random
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

_DELAY_SECONDS = 0.05
# How many later requests overtake one that is held.
_OVERTAKEN_BY = 2
_NEWEST_LISTED = re.compile(rb"<Contents>(?:(?!<Contents>).)*</Contents>(?!.*<Contents>)", re.DOTALL)


class Fault(StrEnum):
    """What happens to a request."""

    # Before the server saw it.
    DROP = "the connection ends and the server never sees it"
    CUT_REQUEST = "the server sees half of it"
    BUSY = "503 Slow Down, and the server never sees it"
    CONFLICT = "409, as when two conditional puts meet: nothing was put"
    # The server did what it was asked.
    LOSE_ANSWER = "it is done, and the answer is lost"
    CUT_ANSWER = "it is done, and half of the answer arrives"
    FAIL_AFTERWARDS = "it is done, and the answer is 500"
    TAKEN_AFTERWARDS = "it is done, and the answer is 412, as that to another try of ours"
    # In another order.
    DELAY = "it takes longer"
    OVERTAKEN = "later requests are done before"
    LATE = "the connection ends, and it is done behind later requests"
    # An answer that is not true any more.
    STALE_LISTING = "the newest name is not listed yet"


ONLY_CONDITIONAL = frozenset({Fault.CONFLICT, Fault.TAKEN_AFTERWARDS})
ONLY_LISTINGS = frozenset({Fault.STALE_LISTING})
# A store that keeps its promises, behind a network that keeps none.
OF_THE_NETWORK = frozenset(Fault) - ONLY_LISTINGS


@dataclass(frozen=True, slots=True)
class Request:
    """`name`: of the object, or the prefix of a listing, as the server knows it (with the bucket for an object)."""

    number: int
    method: str
    name: str
    is_conditional: bool
    is_listing: bool
    fault: Fault | None = None

    def may_have(self, fault: Fault) -> bool:
        if fault in ONLY_CONDITIONAL:
            return self.is_conditional
        return self.is_listing or fault not in ONLY_LISTINGS


Plan = Callable[[Request], Fault | None]


def seeded_faults(chance: random.Random, *, share: float, faults: Collection[Fault] = OF_THE_NETWORK) -> Plan:
    """That share of the requests has one of these faults. `chance` is used by nobody else meanwhile."""
    ordered = sorted(faults)

    def plan(request: Request) -> Fault | None:
        possible = [fault for fault in ordered if request.may_have(fault)]
        return chance.choice(possible) if possible and chance.random() < share else None

    return plan


def nth_request(number: int, fault: Fault, wanted: Callable[[Request], bool] = lambda _: True) -> Plan:
    """The n-th request from now on of those that are wanted, counted from 1."""
    count = 0

    def plan(request: Request) -> Fault | None:
        nonlocal count
        count += wanted(request)
        return fault if wanted(request) and count == number else None

    return plan


def every_request(fault: Fault) -> Plan:
    return lambda request: fault if request.may_have(fault) else None


class FaultProxy:
    """Listens at a port of loopback from its construction on. Each connection has a thread."""

    def __init__(self, endpoint: str, plan: Plan | None = None) -> None:
        self.plan = plan
        self.held_seconds = 0.3
        """So long a request waits for those that overtake it: many clients have none until it is answered."""
        self.seen: list[Request] = []
        self._upstream = urlsplit(endpoint).netloc
        self._changed = threading.Condition()
        self._answered: set[int] = set()
        self._is_closed = False
        self._server = _Server(("127.0.0.1", 0), self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="fault-proxy", daemon=True
        )
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def faults(self) -> Counter[Fault]:
        """How often which fault happened."""
        with self._changed:
            return Counter(request.fault for request in self.seen if request.fault is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def arrived(self, method: str, target: str, headers: Any) -> Request:
        parts = urlsplit(target)
        prefix = re.search(r"(?:^|&)prefix=([^&]*)", parts.query)
        is_listing = method == "GET" and "list-type=2" in parts.query
        request = Request(
            number=0,
            method=method,
            name=unquote(prefix[1] if is_listing and prefix else parts.path),
            is_conditional=method == "PUT" and headers.get("If-None-Match") == "*",
            is_listing=is_listing,
        )
        with self._changed:
            request = replace(request, number=len(self.seen) + 1)
            fault = self.plan(request) if self.plan else None
            if fault is not None and not request.may_have(fault):
                fault = None
            request = replace(request, fault=fault)
            self.seen.append(request)
        return request

    def wait_until_overtaken(self, request: Request) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or self._answered_since(request.number) >= _OVERTAKEN_BY,
                self.held_seconds,
            )

    def answered(self, request: Request) -> None:
        with self._changed:
            self._answered.add(request.number)
            self._changed.notify_all()

    def _answered_since(self, number: int) -> int:
        return sum(later in self._answered for later in range(number + 1, len(self.seen) + 1))

    def wait_a_little(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, _DELAY_SECONDS)

    def connect(self) -> HTTPConnection:
        return HTTPConnection(self._upstream, timeout=60)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Of connections that the client keeps: they would be waited for.
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], proxy: FaultProxy) -> None:
        self.proxy = proxy
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what clients do."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _proxy(self) -> FaultProxy:
        assert isinstance(self.server, _Server)
        return self.server.proxy

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        assert "Transfer-Encoding" not in self.headers, "bodies in chunks are not relayed"
        proxy = self._proxy
        request = proxy.arrived(self.command, self.path, self.headers)
        match request.fault:
            case Fault.DROP:
                self._end()
            case Fault.CUT_REQUEST:
                self._end()
                self._send_half(body)
            case Fault.BUSY:
                self._tell(_error(503, "SlowDown"))
            case Fault.CONFLICT:
                self._tell(_error(409, "ConditionalRequestConflict"))
            case Fault.LATE:
                self._end()
                proxy.wait_until_overtaken(request)
                self._ask(body)
            case _:
                if request.fault is Fault.OVERTAKEN:
                    proxy.wait_until_overtaken(request)
                elif request.fault is Fault.DELAY:
                    proxy.wait_a_little()
                self._relay(self._ask(body), request.fault)
        proxy.answered(request)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """What was seen is kept by the proxy."""

    def _relay(self, answer: _Answer | None, fault: Fault | None) -> None:
        if answer is None or fault is Fault.LOSE_ANSWER:
            # Whose server is away is away as well.
            self._end()
        elif fault is Fault.FAIL_AFTERWARDS:
            self._tell(_error(500, "InternalError"))
        elif fault is Fault.TAKEN_AFTERWARDS:
            self._tell(_error(412, "PreconditionFailed"))
        elif fault is Fault.STALE_LISTING:
            body = _NEWEST_LISTED.sub(b"", answer.body)
            self._tell(replace(answer, body=body))
        else:
            self._tell(answer, is_cut=fault is Fault.CUT_ANSWER)

    def _ask(self, body: bytes) -> _Answer | None:
        """None when the server does not answer."""
        connection = self._proxy.connect()
        try:
            self._begin(connection)
            connection.send(body)
            answer = connection.getresponse()
            return _Answer(answer.status, answer.reason, answer.getheaders(), answer.read())
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()

    def _send_half(self, body: bytes) -> None:
        connection = self._proxy.connect()
        try:
            self._begin(connection)
            connection.send(body[: len(body) // 2])
        except OSError:
            pass
        finally:
            connection.close()

    def _begin(self, connection: HTTPConnection) -> None:
        """As it came, also the host: it is signed."""
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders()

    def _tell(self, answer: _Answer, *, is_cut: bool = False) -> None:
        head = [f"HTTP/1.1 {answer.status} {answer.reason}"]
        dropped = {"transfer-encoding", "connection"} | (
            set() if self.command == "HEAD" else {"content-length"}
        )
        head += [f"{name}: {value}" for name, value in answer.headers if name.lower() not in dropped]
        if self.command != "HEAD" and answer.status != 204:
            head.append(f"Content-Length: {len(answer.body)}")
        told = "\r\n".join([*head, "", ""]).encode("latin-1")
        if is_cut:
            # Half of what there is: of the object, or of the head when there is nothing else.
            told = told + answer.body[: len(answer.body) // 2] if answer.body else told[: len(told) // 2]
            self.wfile.write(told)
            self._end()
        else:
            self.wfile.write(told + answer.body)

    def _end(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def _error(status: int, code: str) -> _Answer:
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>by the proxy</Message></Error>'.encode()
    return _Answer(status, code, [("Content-Type", "application/xml")], body)
