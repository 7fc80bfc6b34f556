"""What a front-end and the model's process write is what the other reads, wherever the bytes are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hotdelta import errors
from hotdelta.chain import Position
from hotdelta.errors import HotdeltaError, PredictionError
from server.front.messages import (
    ASK,
    Frames,
    Kind,
    ToldVersion,
    answer_frame,
    ask_frame,
    document_frame,
    error_frame,
    number_of,
    read_answer,
    read_arrays,
    read_document,
    read_error,
    short_frame,
)
from server.http.error_responses import error_response
from server.predict.request import PredictRequest
from server.served_model import Array

VERSION = ToldVersion(Position(3, 17), 170, 2)
NUMBERS = st.sampled_from(
    ["bool", "int8", "int64", "uint16", "uint64", "float16", "float32", "float64", "complex64"]
)
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


def of_numbers() -> st.SearchStrategy[Array]:
    return NUMBERS.flatmap(lambda dtype: arrays.arrays(dtype, SHAPES))


def of_texts() -> st.SearchStrategy[Array]:
    return arrays.arrays(object, SHAPES, elements=st.binary(max_size=20), fill=st.nothing())


def is_same(one: Array, other: Array) -> bool:
    if one.dtype == object:
        return other.dtype == object and one.shape == other.shape and one.tolist() == other.tolist()
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@given(st.dictionaries(st.text(min_size=1, max_size=5), of_numbers() | of_texts(), min_size=1, max_size=3))
def test_an_answer_is_read_as_it_was_written(outputs: dict[str, Array]) -> None:
    read, version = read_answer(answer_frame(7, outputs, VERSION), 0)

    assert list(read) == list(outputs)
    assert all(is_same(read[name], array) for name, array in outputs.items())
    assert (version.position, version.step, version.export_version) == (Position(3, 17), 170, 2)


@given(of_numbers() | of_texts(), st.booleans())
def test_a_request_is_read_as_it_was_written(array: Array, has_position: bool) -> None:
    asked = PredictRequest(
        "s", {"b": array, "a": np.arange(3)}, None, Position(1, 2) if has_position else None, 9
    )
    frame = ask_frame(asked, ["a", "b"], number=2**32 - 1, generation=4, model=5, signature=6, protocol=1)

    found = ASK.unpack_from(frame)
    assert found[1:] == (Kind.ASK, 1, 5, 2**32 - 1, 4, 6, 2, *((1, 2) if has_position else (0, 0)), 9)
    first, second = read_arrays(frame, ASK.size, 2)
    assert is_same(first, np.arange(3))
    assert is_same(second, array)


def test_bfloat16_goes_through() -> None:
    array = np.array([1.5, -2.0], "bfloat16")

    assert is_same(read_answer(answer_frame(1, {"x": array}, VERSION), 0)[0]["x"], array)


def test_an_answer_without_a_position_has_none() -> None:
    _, version = read_answer(answer_frame(1, {}, ToldVersion(None, 0, 1)), 0)

    assert version.position is None


def test_what_cannot_be_written_is_refused_with_its_dtype() -> None:
    with pytest.raises(PredictionError, match="datetime64"):
        answer_frame(1, {"x": np.array(["2020-01-01"], "datetime64[s]")}, VERSION)


@given(st.lists(st.binary(max_size=50), max_size=8), st.data())
def test_frames_are_whole_wherever_they_are_cut(said: list[bytes], data: st.DataObject) -> None:
    frames = [document_frame(Kind.REPORT, text.hex(), number=number) for number, text in enumerate(said)]
    stream = b"".join((*frames, short_frame(Kind.STOP, number=99)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader, found = Frames(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        for piece, place, kind in reader.feed(stream[start:end]):
            found.append(
                (kind, number_of(piece, place), read_document(piece, place) if kind != Kind.STOP else "")
            )

    assert found == [
        *((Kind.REPORT, number, text.hex()) for number, text in enumerate(said)),
        (Kind.STOP, 99, ""),
    ]


def every_error() -> list[HotdeltaError]:
    """One of each class that there is, with something in all that it has to say."""
    kinds, found = [HotdeltaError], []
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        error: Any = kind.__new__(kind)
        Exception.__init__(error, "it is wrong")
        error.message, error.hint = "it is wrong", "put it right"
        for name, value in (("max_rows", 3), ("max_bytes", 4), ("wanted", "3.1"), ("live", "2.9")):
            setattr(error, name, value)
        found.append(error)
    return found


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_every_error_is_answered_as_it_would_be_without_front_ends(error: HotdeltaError) -> None:
    told = read_error(error_frame(1, error), 0)

    expected, answered = error_response(error), error_response(told)
    assert (answered.status_code, answered.body) == (expected.status_code, expected.body)
    assert answered.raw_headers == expected.raw_headers


def test_a_long_message_stays_as_it_is() -> None:
    error = errors.RequestError("x" * 5000, hint="less")

    assert str(read_error(error_frame(1, error), 0)) == str(error)
