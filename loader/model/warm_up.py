"""Requests that a model answers before anybody else asks it, so that nobody pays for a first time.

Those that its export brings, as TensorFlow Serving reads them (`assets.extra/tf_serving_warmup_requests`), or else some
that are made from its signatures. Never decides whether a model may serve: what cannot be asked is left out, and said.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from hotdelta.chain import SignatureSpec
from hotdelta.errors import HotdeltaError
from hotdelta.logs import event
from hotdelta.signature_calls import zeros_for
from loader.model.session_graph import first_line

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]
Request = tuple[str, Mapping[str, Array]]

WARM_UP_FILE = "assets.extra/tf_serving_warmup_requests"
# As many as TensorFlow Serving takes.
MAX_REQUESTS = 1000
MAX_SECONDS = 60.0

_DEFAULT_SIGNATURE = "serving_default"
_TENSOR = type(tf.make_tensor_proto(0))

# Numbers of fields: PredictionLog.predict_log, PredictLog.request, PredictRequest.model_spec and .inputs,
# ModelSpec.signature_name; key and value of an entry of a map.
_PREDICT_LOG, _REQUEST, _MODEL_SPEC, _INPUTS, _SIGNATURE_NAME, _KEY, _VALUE = 6, 1, 1, 2, 3, 1, 2


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """Where the requests came from, how many were answered, and how many were not."""

    source: str
    answered: int
    refused: int


def warm_up(
    predict: Callable[[str, Mapping[str, Array]], object],
    path: Path,
    signatures: Mapping[str, SignatureSpec],
    *,
    sizes: Iterable[int],
    clock: Callable[[], float] = time.monotonic,
) -> WarmedUp:
    """Ask a model what the export at `path` brings, else each of its signatures for batches of these sizes."""
    start = clock()
    source, requests = "the export", _read_or_say(path / WARM_UP_FILE)
    if not requests:
        source, requests = "its signatures", list(_made(signatures, sizes))
    answered, refused, problem = 0, 0, ""
    for signature, feeds in requests:
        if clock() - start > MAX_SECONDS:
            problem = f"{len(requests) - answered - refused} are left out after {MAX_SECONDS:g} seconds"
            break
        try:
            predict(signature, feeds)
            answered += 1
        except HotdeltaError as error:
            # A model may refuse zeros; then its first request is its warm-up.
            refused += 1
            problem = problem or str(error)
    milliseconds = (clock() - start) * 1000
    event(
        logger, logging.INFO, "warmed up", source=source, answered=answered, refused=refused, ms=milliseconds
    )
    if problem and source == "the export":
        event(logger, logging.WARNING, "not all warm-up requests were answered", path=path, reason=problem)
    return WarmedUp(source, answered, refused)


def _made(signatures: Mapping[str, SignatureSpec], sizes: Iterable[int]) -> Iterator[Request]:
    for size in sizes:
        for name, spec in signatures.items():
            yield name, zeros_for(spec, rows=size)


def _read_or_say(path: Path) -> list[Request]:
    """What is in the file, if there is one; nothing when it cannot be read."""
    if not path.is_file():
        return []
    try:
        return read_requests(path)
    except (tf.errors.OpError, OSError, ValueError, TypeError) as error:
        # TensorFlow names the node of a graph that nobody has made.
        reason = first_line(error).rpartition("}} ")[2]
        event(logger, logging.WARNING, "warm-up requests cannot be read", path=path, reason=reason)
        return []


def read_requests(path: Path) -> list[Request]:
    """The predictions among the PredictionLogs of a TFRecord file. Raises tf.errors.OpError, ValueError."""
    found = []
    for record in tf.data.TFRecordDataset(str(path)).take(MAX_REQUESTS).as_numpy_iterator():
        for log in _fields(record, _PREDICT_LOG):
            for request in _fields(log, _REQUEST):
                found.append(_request(request))
    if not found:
        raise ValueError("there is no prediction in it")
    return found


def _request(data: bytes) -> Request:
    names = [name for spec in _fields(data, _MODEL_SPEC) for name in _fields(spec, _SIGNATURE_NAME)]
    feeds = {}
    for entry in _fields(data, _INPUTS):
        key = b"".join(_fields(entry, _KEY)).decode()
        feeds[key] = tf.make_ndarray(_TENSOR.FromString(b"".join(_fields(entry, _VALUE))))
    return names[-1].decode() if names and names[-1] else _DEFAULT_SIGNATURE, feeds


def _fields(data: bytes, number: int) -> Iterator[bytes]:
    """The values of one field of a message, if they have a length. Raises ValueError when it is no message."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        kind = tag & 7
        if kind == 2:
            size, place = _varint(data, place)
            if place + size > len(data):
                raise ValueError("a message ends too early")
            if tag >> 3 == number:
                yield data[place : place + size]
            place += size
        elif kind == 0:
            _, place = _varint(data, place)
        elif kind in (1, 5):
            place += 8 if kind == 1 else 4
        else:
            raise ValueError(f"this is no message: it has a field of kind {kind}")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            break
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a message ends too early")
