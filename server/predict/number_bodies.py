"""Reads bodies that are mostly numbers, without a Python object for each of them: three times as fast for 256 rows.

Decides nothing: what is unusual, or wrong, is left to whoever reads JSON as it is, and so are its words.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import simdjson

from hotdelta.errors import HotdeltaError
from server.served_model import Array

Read = TypeVar("Read")

# Below this a Python object for each number costs less than a look at the whole.
_LEAST_BYTES = 1024
_LEAST_NUMBERS = 32
# Lists of objects are walked one by one.
_MOST_OBJECTS = 64
_ARRAYS = {simdjson.Array}


class _UnusualError(Exception):
    """Something that is not read here."""


def read_numbers(body: bytes, read: Callable[[Any], Read], parse: Callable[[bytes], Any]) -> Read:
    """What `read` makes of the document in `body`: with arrays in the place of long lists of numbers where that is
    possible, else of what `parse` returns. Raises what these two raise.
    """
    document = document_with_arrays(body)
    if document is not None:
        try:
            return read(document)
        except HotdeltaError:
            # Told by what was really sent.
            pass
    return read(parse(body))


def document_with_arrays(body: bytes) -> dict[str, Any] | None:
    """The JSON object in `body`; None when it should be read in another way.

    Lists of numbers are arrays of int64, or of float64 when one of them is no integer, of the shape that they have.
    """
    # No byte-order mark: this parser would take it.
    if len(body) < _LEAST_BYTES or body[:1] != b"{":
        return None
    try:
        document = simdjson.Parser().parse(body)
        walk = _Walk()
        found: dict[str, Any] = walk.members(document)
    except (_UnusualError, ValueError, TypeError, KeyError, RuntimeError, RecursionError):
        return None
    # With all levels of all lists looked at, brackets that are left over are those of lists among the numbers.
    return found if walk.has_arrays and walk.brackets == body.count(b"[") else None


class _Walk:
    """One document on its way. `brackets`: of all lists that were seen."""

    def __init__(self) -> None:
        self.brackets = 0
        self.has_arrays = False

    def members(self, given: Any) -> dict[str, Any]:
        names = list(given.keys())
        if any("\0" in name for name in names):
            # The parser would look for what stands before it.
            raise _UnusualError
        # Not by its items: those are Python objects all through.
        found = {key: self._value(given[key]) for key in names}
        if len(found) != len(given):
            # A name that is there twice: which of them counts is not decided here.
            raise _UnusualError
        return found

    def _value(self, value: Any) -> Any:
        if isinstance(value, simdjson.Object):
            return self.members(value)
        if not isinstance(value, simdjson.Array):
            return value
        given: Any = value
        if len(given) and isinstance(given[0], simdjson.Object):
            return self._objects(given)
        numbers = _numbers(given)
        if len(numbers) < _LEAST_NUMBERS:
            few = given.as_list()
            self.brackets += _count_lists(few)
            return few
        self.has_arrays = True
        shape = self._shape(given)
        if np.prod(shape) != len(numbers):
            raise _UnusualError
        return numbers.reshape(shape)

    def _objects(self, given: Any) -> list[Any]:
        if len(given) > _MOST_OBJECTS:
            raise _UnusualError
        self.brackets += 1
        return [self._value(given[number]) for number in range(len(given))]

    def _shape(self, value: Any) -> list[int]:
        """Of nested lists that have one."""
        shape: list[int] = []
        level: list[Any] = [value]
        while True:
            sizes = set(map(len, level))
            if len(sizes) > 1:
                raise _UnusualError
            self.brackets += len(level)
            shape += sizes
            if not isinstance(level[0][0], simdjson.Array):
                return shape
            level = list(level[0]) if len(level) == 1 else list(chain.from_iterable(level))
            if set(map(type, level)) != _ARRAYS:
                raise _UnusualError


def _count_lists(value: Any) -> int:
    return 1 + sum(map(_count_lists, value)) if isinstance(value, list) else 0


def _numbers(value: Any) -> Array:
    """All that are in it, whatever the lists in it. Raises TypeError, ValueError for what is no number."""
    try:
        return np.frombuffer(value.as_buffer(of_type="i"), np.int64)
    except TypeError:
        return np.frombuffer(value.as_buffer(of_type="d"), np.float64)
