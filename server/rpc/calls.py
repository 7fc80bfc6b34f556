"""One call: its message read within the limits, answered by its protocol, every error of ours told by its status."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from hotdelta.errors import HotdeltaError, NotReadyError, OverloadedError, RequestError
from hotdelta.logs import event
from server.figures import RequestFigures
from server.rpc.http2.stream import Stream
from server.rpc.messages import Message, MessageKind, kind, service
from server.rpc.status_codes import MODEL_NAME, POSITION, Metadata, StatusCode, code_of, told_beside
from server.served_model import ServedVersion
from server.tokens import PredictTokens

logger = logging.getLogger(__name__)

_UNEXPECTED = "the server failed at this request; its log says why"


class Call:
    """What comes and goes beside the messages: metadata. Belongs to the event loop."""

    def __init__(self, stream: Stream, tokens: PredictTokens | None) -> None:
        self._stream = stream
        self._tokens = tokens
        self.told: Metadata = ()

    def require_token(self) -> None:
        """Raises UnauthorizedError, unless nobody needs one."""
        if self._tokens is not None:
            self._tokens.require(self.metadata("authorization"))

    def metadata(self, name: str) -> str | None:
        """Of several of one name the last; None for bytes, too."""
        value = self._stream.metadata.get(name)
        return value if isinstance(value, str) else None

    def tell(self, version: ServedVersion, model_name: str | None) -> None:
        """Which position of which model an answer came from."""
        told = {POSITION: version.position, MODEL_NAME: model_name}
        self.told = tuple((name, str(value)) for name, value in told.items() if value is not None)


Respond = Callable[[Message, Call], Awaitable[Message]]
RespondAll = Callable[[AsyncIterator[Message], Call], AsyncIterator[Message]]
Answer = Callable[[Stream], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Service:
    """A service by its full name, and who answers its methods.

    `streams`: those that are answered by any number of messages. `reads`: what is read where the contract's own message
    would have to be gone through value by value; its bytes must mean the same. `refused`: a hint for each method of the
    public contract that is not answered here. `protocol`: under which its calls are counted, if they are.
    `needs_no_token`: methods that everybody may call.
    """

    name: str
    methods: Mapping[str, Respond] = field(default_factory=dict)
    streams: Mapping[str, RespondAll] = field(default_factory=dict)
    reads: Mapping[str, MessageKind] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    protocol: str | None = None
    needs_no_token: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Calls that have not said anything yet or never end.

    `message_seconds`: within which the message of a call has to be here, complete.
    """

    message_seconds: float
    max_streams: int


class Calls:
    """Finds who answers a method. Belongs to the event loop."""

    def __init__(
        self,
        services: tuple[Service, ...],
        limits: CallLimits,
        requests: dict[str, RequestFigures],
        tokens: PredictTokens | None,
    ) -> None:
        """`requests`: where calls are counted by protocol. `tokens`: what callers have to send; None: nothing."""
        self._services = services
        self._limits = limits
        self._requests = requests
        self._tokens = tokens
        self._open_streams: set[asyncio.Task[Any] | None] = set()
        self._is_ending = False
        self._answers: dict[str, Answer] = {}
        for each in services:
            self._add(each)

    async def respond(self, stream: Stream) -> None:
        """Answers one call, whatever becomes of it."""
        answer = self._answers.get(stream.path)
        if answer is None:
            stream.finish(StatusCode.UNIMPLEMENTED, self._why_not(stream.path))
        else:
            await answer(stream)

    def end_streams(self) -> None:
        """They would keep a server that stops from stopping."""
        self._is_ending = True
        for task in self._open_streams:
            if task is not None:
                task.cancel()

    def _add(self, each: Service) -> None:
        described = service(each.name).methods_by_name
        figures = RequestFigures()
        if each.protocol is not None:
            figures = self._requests.setdefault(each.protocol, figures)
        for method in (*each.methods, *each.streams):
            read = each.reads.get(method) or kind(described[method].input_type.full_name)
            tokens = None if method in each.needs_no_token else self._tokens
            path = f"/{each.name}/{method}"
            if method in each.methods:
                self._answers[path] = self._unary(read, each.methods[method], figures, tokens)
            else:
                self._answers[path] = self._stream(read, each.streams[method], tokens)

    def _unary(
        self, read: MessageKind, respond: Respond, figures: RequestFigures, tokens: PredictTokens | None
    ) -> Answer:
        async def answer(stream: Stream) -> None:
            started, code = time.perf_counter(), StatusCode.CANCELLED
            try:
                call = Call(stream, tokens)
                call.require_token()
                body = await self._receive(stream)
                answered = await respond(_parse(read, body), call)
                stream.answer(answered.SerializeToString(), call.told)
                code = StatusCode.OK
            except HotdeltaError as error:
                code = _refuse(stream, error)
            except Exception:
                # The edge: the log has the trace, the client learns only that it was not his fault.
                logger.exception("unexpected failure of a gRPC call")
                code = StatusCode.INTERNAL
                stream.finish(code, _UNEXPECTED)
            finally:
                figures.observe(code.name, time.perf_counter() - started)

        return answer

    async def _receive(self, stream: Stream) -> bytes:
        if stream.has_message:
            return await anext(stream)
        seconds = self._limits.message_seconds
        try:
            async with asyncio.timeout(seconds):
                return await anext(stream)
        except StopAsyncIteration as error:
            raise RequestError("the call has no message") from error
        except TimeoutError as error:
            raise RequestError(
                f"no message came within {seconds:g} seconds", hint="send it with the call"
            ) from error

    def _stream(self, read: MessageKind, respond: RespondAll, tokens: PredictTokens | None) -> Answer:
        async def answer(stream: Stream) -> None:
            task = asyncio.current_task()
            self._open_streams.add(task)
            try:
                if len(self._open_streams) > self._limits.max_streams:
                    raise OverloadedError(
                        f"{self._limits.max_streams} streams are open",
                        hint="try again, or ask another server",
                    )
                call = Call(stream, tokens)
                call.require_token()
                async for message in respond(_parse_all(read, stream), call):
                    stream.send(message.SerializeToString())
                stream.finish(StatusCode.OK)
            except HotdeltaError as error:
                _refuse(stream, error)
            except asyncio.CancelledError:
                if not self._is_ending:
                    raise
                _refuse(stream, NotReadyError("the server is stopping", hint="ask another one"))
            except Exception:
                logger.exception("unexpected failure of a gRPC stream")
                stream.finish(StatusCode.INTERNAL, _UNEXPECTED)
            finally:
                self._open_streams.discard(task)

        return answer

    def _why_not(self, path: str) -> str:
        _, _, rest = path.partition("/")
        name, _, method = rest.partition("/")
        asked = next((each for each in self._services if each.name == name), None)
        if asked is None:
            return f"there is no service {name}. Services: {', '.join(each.name for each in self._services)}"
        hint = asked.refused.get(method) or f"methods: {', '.join([*asked.methods, *asked.streams])}"
        return f"{method} is not answered here. {hint}"


def _parse(read: MessageKind, body: bytes) -> Message:
    try:
        return read.FromString(body)
    except DecodeError as error:
        raise RequestError(f"the message is no {read.DESCRIPTOR.full_name}: {error}") from error


async def _parse_all(read: MessageKind, stream: Stream) -> AsyncIterator[Message]:
    async for body in stream:
        yield _parse(read, body)
        stream.forget_message()


def _refuse(stream: Stream, error: HotdeltaError) -> StatusCode:
    code = code_of(type(error))
    if code is StatusCode.INTERNAL:
        event(logger, logging.ERROR, "a prediction failed", reason=error)
    stream.finish(code, str(error), told_beside(error))
    return code
