"""The commit record of one full or one delta: its fields, its JSON, and every way it can be malformed.

Reading never trusts: size, types, names and numbers are checked before anything is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hotdelta.chain.format import names
from hotdelta.chain.format.position import STATE_ID_HEX_DIGITS, Node, Position
from hotdelta.chain.format.schema import VariableSpec
from hotdelta.chain.format.untrusted_json import Fields
from hotdelta.errors import ManifestError

# Readers take every version from the first to this one: tests/golden holds a chain of each. What a reader of an earlier
# version would understand is written as that version: without growing tables, the first.
FORMAT_VERSION = 2
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


_OPTIONAL_COUNTS = ("rows_in_use", "keys_live", "keys_new")
_KINDS = tuple(map(str, Kind))
_TRACKINGS = tuple(map(str, Tracking))


@dataclass(frozen=True, slots=True)
class TableRecord:
    """What one commit says about one table.

    The rows of a table that the trainer keeps in several parts lie part after part; `part_rows` says how many each
    has (empty: one part), and `strategy` which ids they hold: mod, div, or empty when that is not known. Of a growing
    table `shape` is what is reserved, and the state of this commit has its first `rows_in_use` rows (None: it has all).
    Of a table with keys, `rows_deleted` are the keys of the parent that are gone; `keys_live` and `keys_new` are those
    that it has now, and those that the parent did not have (None: not said).
    """

    shape: tuple[int, ...]
    dtype: str
    tracking: Tracking
    rows_changed: int
    rows_deleted: int = 0
    part_rows: tuple[int, ...] = ()
    strategy: str = ""
    rows_in_use: int | None = None
    keys_live: int | None = None
    keys_new: int | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the table's values at this commit: a growing table has as many rows as are in use."""
        return self.shape if self.rows_in_use is None else (self.rows_in_use, *self.shape[1:])


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
    def positions(self) -> int:
        """Over how many positions it leads: of a delta that others were folded into, or before which commits failed,
        several. What it changes, so many cuts may have changed."""
        if self.parent is None or self.parent.position.run != self.position.run:
            return 1
        return self.position.seq - self.parent.position.seq

    @property
    def serving_bytes(self) -> int:
        return sum(file.bytes for file in self.files if file.role != names.ROLE_TRAINING)

    @property
    def total_bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def rows_changed(self) -> int:
        return sum(table.rows_changed for table in self.tables.values())

    def shape_of(self, variable: VariableSpec) -> tuple[int, ...]:
        """What a variable of its schema has in this state: of a growing table the rows that are in use."""
        record = self.tables.get(variable.key)
        is_growing = record is not None and record.rows_in_use is not None
        return record.stored_shape if record is not None and is_growing else variable.shape

    def to_json(self) -> bytes:
        return json.dumps(_to_document(self), indent=1, allow_nan=False).encode() + b"\n"

    def signed_bytes(self) -> bytes:
        """What a signature is made of: sorted, compact JSON of everything but the signature itself."""
        document = _to_document(self)
        document.pop("signature", None)
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Raises ManifestError for anything that this version cannot use."""
        if len(text) > MAX_MANIFEST_BYTES:
            raise ManifestError(f"manifest of {len(text)} bytes is larger than {MAX_MANIFEST_BYTES}")
        return _from_document(Fields.parse(text, "manifest"))


def _to_document(manifest: Manifest) -> dict[str, Any]:
    parent = manifest.parent
    return {
        "format_version": _version_of(manifest),
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
                **{name: count for name in _OPTIONAL_COUNTS if (count := getattr(table, name)) is not None},
            }
            for key, table in manifest.tables.items()
        },
        "files": [
            {"name": file.name, "bytes": file.bytes, "blake3": file.digest, "role": file.role}
            for file in manifest.files
        ],
        **({"signature": manifest.signature} if manifest.signature else {}),
    }


def _version_of(manifest: Manifest) -> int:
    has_growing = any(table.rows_in_use is not None for table in manifest.tables.values())
    return FORMAT_VERSION if has_growing else 1


def _from_document(fields: Fields) -> Manifest:
    version = fields.integer("format_version")
    if version < 1:
        raise ManifestError(f"manifest has format_version {version}, and the first is 1")
    if version > FORMAT_VERSION:
        raise ManifestError(
            f"manifest has format_version {version}, and this hotdelta reads none above {FORMAT_VERSION}",
            hint="upgrade hotdelta on this machine, or write with the same version as you read",
        )
    parent = fields.optional_object("parent")
    base = fields.optional_text("base")
    highest = fields.object("highest_step")
    manifest = Manifest(
        kind=Kind(fields.choice("kind", _KINDS)),
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
    start = f"{manifest.prefix}."
    for name in file_names:
        if not name.startswith(start):
            raise ManifestError(f"file {name!r} does not belong to prefix {manifest.prefix!r}")


def _read_parent(fields: Fields) -> Node:
    return Node(Position.parse(fields.text("position")), fields.hex("state_id", STATE_ID_HEX_DIGITS))


def _read_table(fields: Fields) -> TableRecord:
    table = TableRecord(
        shape=fields.shape("shape"),
        dtype=fields.text("dtype"),
        tracking=Tracking(fields.choice("tracking", _TRACKINGS)),
        rows_changed=fields.count("rows_changed"),
        rows_deleted=fields.count("rows_deleted"),
        part_rows=fields.optional_counts("part_rows"),
        strategy=fields.optional_choice("strategy", STRATEGIES),
        **{name: fields.optional_count(name) for name in _OPTIONAL_COUNTS},
    )
    if table.part_rows and sum(table.part_rows) != table.shape[0]:
        raise ManifestError(f"{fields.where} has parts that do not add up to its rows")
    if table.stored_shape[0] > table.shape[0]:
        raise ManifestError(f"{fields.where} has more rows in use than it reserves")
    if table.rows_changed > table.stored_shape[0] or table.rows_deleted > table.stored_shape[0]:
        raise ManifestError(f"{fields.where} changes more rows than it has")
    if max(table.keys_live or 0, table.keys_new or 0) > table.stored_shape[0]:
        raise ManifestError(f"{fields.where} has more keys than rows")
    return table


def _read_file(fields: Fields) -> FileRecord:
    return FileRecord(
        name=fields.file_name("name"),
        bytes=fields.count("bytes"),
        digest=fields.hex("blake3", DIGEST_HEX_DIGITS),
        role=fields.choice("role", names.ROLES),
    )
