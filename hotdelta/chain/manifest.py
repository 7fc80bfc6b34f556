"""The commit record of one full or one delta: its fields, its JSON, and every way it can be malformed.

Reading never trusts: size, types, names and numbers are checked before anything is used.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

from hotdelta.chain import names
from hotdelta.chain.position import STATE_ID_HEX_DIGITS, Node, Position
from hotdelta.errors import ManifestError

FORMAT_VERSION = 1
MAX_MANIFEST_BYTES = 4 * 1024 * 1024
DIGEST_HEX_DIGITS = 64
SIGNATURE_HEX_DIGITS = 64
STRATEGIES = ("mod", "div")


class Kind(StrEnum):
    FULL = "full"
    DELTA = "delta"


class Tracking(StrEnum):
    """How the trainer knows which rows of a table changed."""

    TOUCHED = "touched"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class TableRecord:
    """What one commit says about one table.

    The rows of a table that the trainer keeps in several parts lie part after part; `part_rows` says how many each
    has (empty: one part), and `strategy` which ids they hold: mod, div, or empty when that is not known.
    """

    shape: tuple[int, ...]
    dtype: str
    tracking: Tracking
    rows_changed: int
    rows_deleted: int = 0
    part_rows: tuple[int, ...] = ()
    strategy: str = ""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a commit: a plain name in the manifest's own directory, its size and its BLAKE3 digest."""

    name: str
    bytes: int
    digest: str
    role: str


@dataclass(frozen=True, slots=True)
class HighestStep:
    """The largest steps that names of fulls and deltas have ever used here, so that no name is used twice."""

    full: int = -1
    delta: int = -1


@dataclass(frozen=True, slots=True)
class Manifest:
    """One committed full or delta. Immutable; equal manifests describe the same commit."""

    kind: Kind
    position: Position
    state_id: str
    parent: Node | None
    base: Position | None
    prefix: str
    step: int
    created_at: float
    schema: str
    tables: Mapping[str, TableRecord]
    files: tuple[FileRecord, ...]
    highest_step: HighestStep
    watermark: float | None = None
    signature: str = ""

    @property
    def node(self) -> Node:
        return Node(self.position, self.state_id)

    @property
    def serving_bytes(self) -> int:
        return sum(file.bytes for file in self.files if file.role != names.ROLE_TRAINING)

    @property
    def total_bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def rows_changed(self) -> int:
        return sum(table.rows_changed for table in self.tables.values())

    def to_json(self) -> bytes:
        return json.dumps(_to_document(self), indent=1, allow_nan=False).encode() + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Raises ManifestError for anything that this version cannot use."""
        if len(text) > MAX_MANIFEST_BYTES:
            raise ManifestError(f"manifest of {len(text)} bytes is larger than {MAX_MANIFEST_BYTES}")
        try:
            document = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"manifest is not JSON: {error}") from error
        return _from_document(_Fields(document, "manifest"))


def _to_document(manifest: Manifest) -> dict[str, Any]:
    parent = manifest.parent
    return {
        "format_version": FORMAT_VERSION,
        "kind": str(manifest.kind),
        "position": str(manifest.position),
        "state_id": manifest.state_id,
        "parent": {"position": str(parent.position), "state_id": parent.state_id} if parent else None,
        "base": str(manifest.base) if manifest.base else None,
        "prefix": manifest.prefix,
        "step": manifest.step,
        "created_at": manifest.created_at,
        "watermark": manifest.watermark,
        "schema": manifest.schema,
        "highest_step": {"full": manifest.highest_step.full, "delta": manifest.highest_step.delta},
        "tables": {
            key: {
                "shape": list(table.shape),
                "dtype": table.dtype,
                "tracking": str(table.tracking),
                "rows_changed": table.rows_changed,
                "rows_deleted": table.rows_deleted,
                **(
                    {"part_rows": list(table.part_rows), "strategy": table.strategy}
                    if table.part_rows
                    else {}
                ),
            }
            for key, table in manifest.tables.items()
        },
        "files": [
            {"name": file.name, "bytes": file.bytes, "blake3": file.digest, "role": file.role}
            for file in manifest.files
        ],
        **({"signature": manifest.signature} if manifest.signature else {}),
    }


def _from_document(fields: _Fields) -> Manifest:
    version = fields.integer("format_version")
    if version != FORMAT_VERSION:
        raise ManifestError(
            f"manifest has format_version {version}, this hotdelta reads {FORMAT_VERSION}",
            hint="upgrade hotdelta on this machine, or write with the same version as you read",
        )
    parent = fields.optional_object("parent")
    base = fields.optional_text("base")
    highest = fields.object("highest_step")
    manifest = Manifest(
        kind=Kind(fields.choice("kind", Kind)),
        position=Position.parse(fields.text("position")),
        state_id=fields.hex("state_id", STATE_ID_HEX_DIGITS),
        parent=_read_parent(parent) if parent else None,
        base=Position.parse(base) if base else None,
        prefix=fields.file_name("prefix"),
        step=fields.integer("step"),
        created_at=fields.number("created_at"),
        watermark=fields.optional_number("watermark"),
        schema=fields.hex("schema", DIGEST_HEX_DIGITS),
        tables={key: _read_table(table) for key, table in fields.object("tables").objects()},
        files=tuple(_read_file(file) for file in fields.list_of_objects("files")),
        highest_step=HighestStep(full=highest.integer("full"), delta=highest.integer("delta")),
        signature=fields.optional_hex("signature", SIGNATURE_HEX_DIGITS),
    )
    _check_consistent(manifest)
    return manifest


def _check_consistent(manifest: Manifest) -> None:
    if manifest.kind is Kind.DELTA and manifest.parent is None:
        raise ManifestError("a delta has no parent")
    if manifest.parent is not None and manifest.parent.position >= manifest.position:
        raise ManifestError(f"parent {manifest.parent} is not before {manifest.position}")
    file_names = [file.name for file in manifest.files]
    if len(set(file_names)) != len(file_names):
        raise ManifestError("a file is listed twice")
    if [file.role for file in manifest.files].count(names.ROLE_INDEX) != 1:
        raise ManifestError("a commit has exactly one index file")
    for name in file_names:
        if not name.startswith(f"{manifest.prefix}."):
            raise ManifestError(f"file {name!r} does not belong to prefix {manifest.prefix!r}")


def _read_parent(fields: _Fields) -> Node:
    return Node(Position.parse(fields.text("position")), fields.hex("state_id", STATE_ID_HEX_DIGITS))


def _read_table(fields: _Fields) -> TableRecord:
    table = TableRecord(
        shape=fields.shape("shape"),
        dtype=fields.text("dtype"),
        tracking=Tracking(fields.choice("tracking", Tracking)),
        rows_changed=fields.count("rows_changed"),
        rows_deleted=fields.count("rows_deleted"),
        part_rows=fields.optional_counts("part_rows"),
        strategy=fields.optional_choice("strategy", STRATEGIES),
    )
    if table.part_rows and sum(table.part_rows) != table.shape[0]:
        raise ManifestError(f"{fields.where} has parts that do not add up to its rows")
    if table.rows_changed > table.shape[0] or table.rows_deleted > table.shape[0]:
        raise ManifestError(f"{fields.where} changes more rows than it has")
    return table


def _read_file(fields: _Fields) -> FileRecord:
    return FileRecord(
        name=fields.file_name("name"),
        bytes=fields.count("bytes"),
        digest=fields.hex("blake3", DIGEST_HEX_DIGITS),
        role=fields.choice("role", (names.ROLE_INDEX, names.ROLE_SERVING, names.ROLE_TRAINING)),
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,254}")
_HEX = re.compile(r"[0-9a-f]*")
_MAX_INTEGER = 2**63 - 1


class _Fields:
    """Typed access to a JSON object; every complaint names the field."""

    def __init__(self, document: Any, where: str) -> None:
        if not isinstance(document, dict):
            raise ManifestError(f"{where} is not an object")
        self._document = document
        self.where = where

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

    def object(self, name: str) -> _Fields:
        return _Fields(self._get(name), f"{self.where}: {name!r}")

    def optional_object(self, name: str) -> _Fields | None:
        return None if self._get(name) is None else self.object(name)

    def objects(self) -> list[tuple[str, _Fields]]:
        return [(key, self.object(key)) for key in self._document]

    def list_of_objects(self, name: str) -> list[_Fields]:
        value = self._get(name)
        if not isinstance(value, list):
            self._wrong(name, "a list")
        return [_Fields(item, f"{self.where}: {name!r}[{index}]") for index, item in enumerate(value)]


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
