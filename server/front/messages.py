"""The messages between a front-end and the model's process: frames of a fixed head, numbers and the bytes of arrays.

Both ends are the same release on the same machine, and trust each other: nothing is checked twice, and no number is
turned into another byte order. Every frame and every array begins at a multiple of eight bytes, for numpy.

    frame   size u64, kind u8, small u8, model u16, number u32, then what the kind has
    ASK     small: protocol; generation u32, signature u16, arrays u8, run u32, seq u32, wait_ms u32 (run 0: none)
    ASK_MANY  of requests that can share a call, with numbers from this one on: as ASK, with how many they are in place
            of wait_ms, the rows u32 of each, then all rows in the same arrays
    ANSWER  small: arrays; step i64, export_version i64, run u32, seq u32 (run 0: none), names, arrays
    ANSWER_MANY  as ANSWER, with the rows of all of them
    APART   they are answered one by one; small: whether that is so because outputs do not have the rows of inputs
    others  nothing, or JSON that ends with blanks
    array   dtype u8, axes u8, bytes u64, the size of each axis u64, its bytes (texts: the length u32 of each, then all)
"""

from __future__ import annotations

import enum
import functools
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by it, as it does where TensorFlow is
import numpy as np
import orjson

from hotdelta import errors
from hotdelta.chain import Position
from hotdelta.errors import HotdeltaError, PredictionError
from server.predict import route as predict_route
from server.predict.request import PredictRequest
from server.protocols.open_inference import rest as open_inference
from server.protocols.tensorflow_serving import rest as tensorflow_serving
from server.served_model import Array, ServedVersion


class Kind(enum.IntEnum):
    """What a frame is. From the front-end: ASK to ASK_MANY; from the model's process the rest."""

    ASK = 1
    CHECK = 2
    READY = 3
    REPORT = 4
    ASK_MANY = 5
    ANSWER = 10
    ERROR = 11
    OUTDATED = 12
    CURRENT = 13
    SETTINGS = 14
    DOCUMENT = 15
    TELL = 16
    STOP = 17
    ANSWER_MANY = 18
    APART = 19


# As which requests are counted; their place in this list is what an ASK has.
PROTOCOLS = (predict_route.PROTOCOL, tensorflow_serving.PROTOCOL, open_inference.PROTOCOL)

HEAD = struct.Struct("=QBBHI")
ASK = struct.Struct("=QBBHIIHBxIII4x")
_ANSWER = struct.Struct("=QBBHIqqII")
_ARRAY = struct.Struct("=BB6xQ")
_SHAPES = [struct.Struct(f"={axes}Q") for axes in range(65)]

# The place in this list stands for the dtype.
_DTYPES = tuple(
    np.dtype(name)
    for name in (
        *("object", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
        *("float8_e4m3fn", "float8_e5m2", "int4", "uint4"),
    )
)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_LENGTH = np.dtype("uint32")

# What an error has beside its message and its hint.
_FIELDS: dict[type[HotdeltaError], tuple[str, ...]] = {
    errors.BodyTooLargeError: ("max_bytes",),
    errors.TooManyRowsError: ("max_rows",),
    errors.PositionNotReachedError: ("wanted", "live"),
}
# Those that can be made of these. Any other is told as its nearest ancestor, which has the same status.
_TOLD: dict[str, type[HotdeltaError]] = {
    kind.__name__: kind
    for kind in (
        *_FIELDS,
        *(
            errors.HotdeltaError,
            errors.AdminOffError,
            errors.NotReadyError,
            errors.PredictionError,
            errors.OverloadedError,
        ),
        *(errors.DeadlineError, errors.RequestError, errors.UnauthorizedError, errors.UnknownModelError),
    )
}


class Frames:
    """Cuts what arrives into whole frames."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._wanted = HEAD.size

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int, int]]:
        """Of each frame that is complete now: where it is, where it begins, and what kind it is."""
        if self._pieces:
            self._pieces.append(data)
            self._size += len(data)
            if self._size < self._wanted:
                return
            data = b"".join(self._pieces)
            self._pieces = []
        start, end = 0, len(data)
        while end - start >= HEAD.size:
            size, kind, *_ = HEAD.unpack_from(data, start)
            if end - start < size:
                self._keep(data[start:], size)
                return
            yield data, start, kind
            start += size
        if start < end:
            self._keep(data[start:], HEAD.size)

    def _keep(self, rest: bytes, wanted: int) -> None:
        self._pieces, self._size, self._wanted = [rest], len(rest), wanted


def short_frame(kind: Kind, *, number: int = 0, model: int = 0, small: int = 0) -> bytes:
    """One that says nothing but what it is."""
    return HEAD.pack(HEAD.size, kind, small, model, number)


def document_frame(kind: Kind, document: Any, *, number: int = 0) -> bytes:
    content = orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
    size = HEAD.size + len(content)
    padding = -size % 8
    return HEAD.pack(size + padding, kind, 0, 0, number) + content + b" " * padding


def read_document(data: bytes, start: int) -> Any:
    size = HEAD.unpack_from(data, start)[0]
    return orjson.loads(memoryview(data)[start + HEAD.size : start + size])


def number_of(data: bytes, start: int) -> int:
    number: int = HEAD.unpack_from(data, start)[4]
    return number


def small_of(data: bytes, start: int) -> int:
    small: int = HEAD.unpack_from(data, start)[2]
    return small


def ask_frame(
    asked: PredictRequest,
    names: Iterable[str],
    *,
    number: int,
    generation: int,
    model: int,
    signature: int,
    protocol: int,
) -> bytes:
    """`names`: of the inputs, in the order in which the other side expects them."""
    parts, size = _array_parts([asked.feeds[name] for name in names])
    position = asked.min_position
    run, seq = (0, 0) if position is None else (position.run, position.seq)
    head = ASK.pack(
        ASK.size + size,
        Kind.ASK,
        protocol,
        model,
        number,
        generation,
        signature,
        len(asked.feeds),
        run,
        seq,
        asked.wait_ms,
    )
    return b"".join((head, *parts))


def ask_many_frame(
    arrays: Sequence[Array],
    rows: Sequence[int],
    *,
    number: int,
    generation: int,
    model: int,
    signature: int,
    protocol: int,
) -> bytes:
    """`arrays`: of all of them, one below the other; `rows`: how many each has."""
    parts, size = _array_parts(arrays)
    counts = np.array(rows, _LENGTH).tobytes() + bytes(4 * (len(rows) % 2))
    head = ASK.pack(
        ASK.size + len(counts) + size,
        Kind.ASK_MANY,
        protocol,
        model,
        number,
        generation,
        signature,
        len(arrays),
        0,
        0,
        len(rows),
    )
    return b"".join((head, counts, *parts))


def read_many(data: bytes, start: int, requests: int, count: int) -> tuple[list[int], list[Array]]:
    """How many rows each request has, and the arrays of all of them."""
    place = start + ASK.size
    rows: list[int] = np.frombuffer(data, _LENGTH, requests, place).tolist()
    return rows, read_arrays(data, place + 4 * (requests + requests % 2), count)


def answer_frame(
    number: int, outputs: Mapping[str, Array], version: ServedVersion, *, kind: Kind = Kind.ANSWER
) -> bytes:
    """Raises PredictionError for dtypes that no protocol can write."""
    names = _written_names(tuple(outputs))
    parts, size = _array_parts(outputs.values())
    position = version.position
    run, seq = (0, 0) if position is None else (position.run, position.seq)
    head = _ANSWER.pack(
        _ANSWER.size + len(names) + size,
        kind,
        len(outputs),
        0,
        number,
        version.step,
        version.export_version,
        run,
        seq,
    )
    return b"".join((head, names, *parts))


def read_answer(data: bytes, start: int) -> tuple[dict[str, Array], ToldVersion]:
    _, _, count, _, _, step, export_version, run, seq = _ANSWER.unpack_from(data, start)
    place = start + _ANSWER.size
    (length,) = _SHAPES[1].unpack_from(data, place)
    names = _read_names(data[place + 8 : place + 8 + length])
    arrays = read_arrays(data, place + 8 + length + -length % 8, count)
    return dict(zip(names, arrays, strict=True)), _told_version(run, seq, step, export_version)


class ToldVersion:
    """The state that an answer came from, as the model's process has told it."""

    __slots__ = ("export_version", "position", "step")

    def __init__(self, position: Position | None, step: int, export_version: int) -> None:
        self.position = position
        self.step = step
        self.export_version = export_version


@functools.lru_cache(maxsize=16)
def _told_version(run: int, seq: int, step: int, export_version: int) -> ToldVersion:
    return ToldVersion(Position(run, seq) if run else None, step, export_version)


def error_frame(number: int, error: HotdeltaError) -> bytes:
    kind = next(kind for kind in type(error).__mro__ if _TOLD.get(kind.__name__) is kind)
    more = {name: getattr(error, name) for name in _FIELDS.get(kind, ())}
    told = {"kind": kind.__name__, "message": error.message, "hint": error.hint, "more": more}
    return document_frame(Kind.ERROR, told, number=number)


def read_error(data: bytes, start: int) -> HotdeltaError:
    told = read_document(data, start)
    return _TOLD[told["kind"]](told["message"], hint=told["hint"], **told["more"])


def _array_parts(arrays: Iterable[Array]) -> tuple[list[bytes], int]:
    """What is written of these, and how long it is together."""
    parts: list[bytes] = []
    size = 0
    for array in arrays:
        code = _CODES.get(array.dtype)
        if code is None:
            raise PredictionError(
                f"an output is {array.dtype.name}, which cannot be written",
                hint="return another dtype",
            )
        content = array.tobytes() if code else _text_bytes(array)
        axes = array.ndim
        padding = -len(content) % 8
        parts += (_ARRAY.pack(code, axes, len(content)), _SHAPES[axes].pack(*array.shape), content)
        if padding:
            parts.append(bytes(padding))
        size += _ARRAY.size + 8 * axes + len(content) + padding
    return parts, size


def read_arrays(data: bytes, place: int, count: int) -> list[Array]:
    """They lie in `data` and cannot be written to."""
    arrays: list[Array] = []
    for _ in range(count):
        code, axes, size = _ARRAY.unpack_from(data, place)
        shape = _SHAPES[axes].unpack_from(data, place + _ARRAY.size)
        place += _ARRAY.size + 8 * axes
        if not code:
            array = _texts(data, place, math.prod(shape))
        elif size:
            dtype = _DTYPES[code]
            array = np.frombuffer(data, dtype, size // dtype.itemsize, place)
        else:
            array = np.empty(0, _DTYPES[code])
        arrays.append(array if axes == 1 else array.reshape(shape))
        place += size + -size % 8
    return arrays


def _text_bytes(array: Array) -> bytes:
    texts: list[Any] = array.reshape(-1).tolist()
    if not set(map(type, texts)) <= {bytes}:
        texts = [text if isinstance(text, bytes) else str(text).encode() for text in texts]
    lengths = np.fromiter(map(len, texts), _LENGTH, len(texts))
    return b"".join((lengths.tobytes(), *texts))


def _texts(data: bytes, place: int, count: int) -> Array:
    """At the speed of C, text by text."""
    ends = (
        np.cumsum(np.frombuffer(data, _LENGTH, count, place), dtype=np.int64) if count else np.empty(0, int)
    )
    start = place + count * _LENGTH.itemsize
    borders = [start, *(ends + start).tolist()]
    array = np.empty(count, object)
    array[:] = list(map(data.__getitem__, map(slice, borders, borders[1:])))
    return array


@functools.lru_cache(maxsize=256)
def _written_names(names: tuple[str, ...]) -> bytes:
    content = orjson.dumps(names)
    return _SHAPES[1].pack(len(content)) + content + bytes(-len(content) % 8)


@functools.lru_cache(maxsize=256)
def _read_names(content: bytes) -> tuple[str, ...]:
    return tuple(orjson.loads(content))
