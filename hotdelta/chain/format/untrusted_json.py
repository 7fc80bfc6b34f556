"""JSON that nobody vouches for: typed access to its fields. Knows no format, only what a field may hold.

Nothing is guessed: a value is what its reader asks for, or a ManifestError says which field is not.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from typing import Any, NoReturn, Self

from hotdelta.errors import ManifestError

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,254}")
_HEX = re.compile(r"[0-9a-f]*")
_MAX_INTEGER = 2**63 - 1


class Fields:
    """Typed access to a JSON object; every complaint (a ManifestError) names the field."""

    __slots__ = ("_document", "_name", "_parent")

    def __init__(self, document: Any, name: str | tuple[str, int], parent: Fields | None = None) -> None:
        """`name` is what to call it in a complaint; of an object in another, the field that it is there, and in a
        list its place."""
        self._document = document
        self._name = name
        self._parent = parent
        if not isinstance(document, dict):
            raise ManifestError(f"{self.where} is not an object")

    @property
    def where(self) -> str:
        name = self._name if isinstance(self._name, str) else f"{self._name[0]!r}[{self._name[1]}]"
        return name if self._parent is None else f"{self._parent.where}: {name}"

    @classmethod
    def parse(cls, text: bytes, where: str) -> Self:
        """`where` is what to call the whole document in a complaint."""
        try:
            document = _DECODER.decode(text.decode(json.detect_encoding(text), "surrogatepass"))
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"{where} is not JSON: {error}") from error
        return cls(document, where)

    def _get(self, name: str) -> Any:
        try:
            return self._document[name]
        except KeyError:
            raise ManifestError(f"{self.where} has no {name!r}") from None

    def _wrong(self, name: str, expected: str) -> NoReturn:
        raise ManifestError(f"{self.where}: {name!r} is not {expected}")

    def text(self, name: str) -> str:
        value = self._document.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= 1024:
            self._get(name)
            self._wrong(name, "a text of 1 to 1024 characters")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self._get(name) is None else self.text(name)

    def hex(self, name: str, digits: int) -> str:
        value = self._document.get(name)
        if not isinstance(value, str) or len(value) != digits or not _HEX.fullmatch(value):
            self.text(name)
            self._wrong(name, f"{digits} lower-case hexadecimal digits")
        return value

    def optional_hex(self, name: str, digits: int) -> str:
        return self.hex(name, digits) if name in self._document else ""

    def choice(self, name: str, allowed: Collection[str]) -> str:
        value = self._document.get(name)
        if not isinstance(value, str) or value not in allowed:
            self.text(name)
            self._wrong(name, f"one of {', '.join(map(str, allowed))}")
        return value

    def file_name(self, name: str) -> str:
        value = self._document.get(name)
        if not isinstance(value, str) or not _FILE_NAME.fullmatch(value):
            self.text(name)
            self._wrong(name, "a plain file name")
        return value

    def integer(self, name: str) -> int:
        value = self._document.get(name)
        if type(value) is not int or not -_MAX_INTEGER <= value <= _MAX_INTEGER:
            self._get(name)
            self._wrong(name, "a 64-bit integer")
        return value

    def count(self, name: str) -> int:
        value = self._document.get(name)
        if type(value) is not int or not 0 <= value <= _MAX_INTEGER:
            self.integer(name)
            self._wrong(name, "a count")
        return value

    def optional_count(self, name: str) -> int | None:
        return self.count(name) if name in self._document else None

    def number(self, name: str) -> float:
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            self._wrong(name, "a finite number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return None if self._get(name) is None else self.number(name)

    def shape(self, name: str) -> tuple[int, ...]:
        value = self._get(name)
        if not isinstance(value, list) or not 1 <= len(value) <= 32:
            self._wrong(name, "a shape of 1 to 32 dimensions")
        if not all(type(size) is int and 0 <= size < 2**48 for size in value):
            self._wrong(name, "a list of sizes")
        if math.prod(value) >= 2**62:
            self._wrong(name, "a shape that fits in memory")
        return tuple(value)

    def optional_counts(self, name: str) -> tuple[int, ...]:
        value = self._document.get(name, [])
        if not isinstance(value, list) or not all(
            type(count) is int and 0 <= count < 2**48 for count in value
        ):
            self._wrong(name, "a list of counts")
        return tuple(value)

    def optional_choice(self, name: str, allowed: Collection[str]) -> str:
        return self.choice(name, allowed) if self._document.get(name) else ""

    def object(self, name: str) -> Fields:
        return Fields(self._get(name), repr(name), self)

    def optional_object(self, name: str) -> Fields | None:
        return None if self._get(name) is None else self.object(name)

    def objects(self) -> list[tuple[str, Fields]]:
        return [(key, self.object(key)) for key in self._document]

    def list_of_objects(self, name: str) -> list[Fields]:
        value = self._get(name)
        if not isinstance(value, list):
            self._wrong(name, "a list")
        # Names are spelled only for a complaint.
        return [Fields(item, (name, index), self) for index, item in enumerate(value)]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


# Made once: json.loads would make one for each document that refuses NaN.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
