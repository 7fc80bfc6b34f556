"""JSON that nobody vouches for: typed access to its fields. Knows no format, only what a field may hold.

Nothing is guessed: a value is what its reader asks for, or a ManifestError says which field is not.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn, Self

from hotdelta.errors import ManifestError

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,254}")
_HEX = re.compile(r"[0-9a-f]*")
_MAX_INTEGER = 2**63 - 1


class Fields:
    """Typed access to a JSON object; every complaint (a ManifestError) names the field."""

    def __init__(self, document: Any, where: str) -> None:
        if not isinstance(document, dict):
            raise ManifestError(f"{where} is not an object")
        self._document = document
        self.where = where

    @classmethod
    def parse(cls, text: bytes, where: str) -> Self:
        """`where` is what to call the whole document in a complaint."""
        try:
            document = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"{where} is not JSON: {error}") from error
        return cls(document, where)

    def _get(self, name: str) -> Any:
        if name not in self._document:
            raise ManifestError(f"{self.where} has no {name!r}")
        return self._document[name]

    def _wrong(self, name: str, expected: str) -> NoReturn:
        raise ManifestError(f"{self.where}: {name!r} is not {expected}")

    def text(self, name: str) -> str:
        value = self._get(name)
        if not isinstance(value, str) or not 0 < len(value) <= 1024:
            self._wrong(name, "a text of 1 to 1024 characters")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self._get(name) is None else self.text(name)

    def hex(self, name: str, digits: int) -> str:
        value = self.text(name)
        if len(value) != digits or not _HEX.fullmatch(value):
            self._wrong(name, f"{digits} lower-case hexadecimal digits")
        return value

    def optional_hex(self, name: str, digits: int) -> str:
        return self.hex(name, digits) if name in self._document else ""

    def choice(self, name: str, allowed: Any) -> str:
        value = self.text(name)
        if value not in [str(choice) for choice in allowed]:
            self._wrong(name, f"one of {', '.join(str(choice) for choice in allowed)}")
        return value

    def file_name(self, name: str) -> str:
        value = self.text(name)
        if not _FILE_NAME.fullmatch(value):
            self._wrong(name, "a plain file name")
        return value

    def integer(self, name: str) -> int:
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MAX_INTEGER:
            self._wrong(name, "a 64-bit integer")
        return value

    def count(self, name: str) -> int:
        value = self.integer(name)
        if value < 0:
            self._wrong(name, "a count")
        return value

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

    def optional_choice(self, name: str, allowed: Any) -> str:
        return self.choice(name, allowed) if self._document.get(name) else ""

    def object(self, name: str) -> Fields:
        return Fields(self._get(name), f"{self.where}: {name!r}")

    def optional_object(self, name: str) -> Fields | None:
        return None if self._get(name) is None else self.object(name)

    def objects(self) -> list[tuple[str, Fields]]:
        return [(key, self.object(key)) for key in self._document]

    def list_of_objects(self, name: str) -> list[Fields]:
        value = self._get(name)
        if not isinstance(value, list):
            self._wrong(name, "a list")
        return [Fields(item, f"{self.where}: {name!r}[{index}]") for index, item in enumerate(value)]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
