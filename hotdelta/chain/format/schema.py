"""What a served model is made of: variables, signatures, vocabularies. A delta fits only its own schema.

Optimizer slots are not part of it: a recompiled optimizer does not concern a server.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from blake3 import blake3

from hotdelta.chain.format.key_index import BUCKET_COLUMNS, COUNTS_SHAPE
from hotdelta.errors import ManifestError

# Readers take no more of a file that claims to be one.
MAX_SCHEMA_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class VariableSpec:
    """One variable that serving needs. Of a table, deltas carry rows; of any other, the whole value."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    is_table: bool


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named input or output of a signature; None is a size that is known only at run time."""

    name: str
    shape: tuple[int | None, ...] | None
    dtype: str


@dataclass(frozen=True, slots=True)
class SignatureSpec:
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class KeyTable:
    """The three variables, by their keys, that are one table with an open vocabulary.

    `rows` and `index` grow: of the rows in their shape only the first ones are in use. `counts` says how many.
    """

    rows: str
    index: str
    counts: str


@dataclass(frozen=True)
class Schema:
    """The variables in their fixed order, the user's signatures, and the digest of each rule that makes ids.

    Such a rule is a lookup vocabulary, or how a layer hashes or buckets what it is given.
    """

    variables: tuple[VariableSpec, ...]
    signatures: Mapping[str, SignatureSpec]
    vocabularies: Mapping[str, str]
    key_tables: tuple[KeyTable, ...] = ()

    @property
    def tables(self) -> tuple[VariableSpec, ...]:
        return tuple(variable for variable in self.variables if variable.is_table)

    @property
    def others(self) -> tuple[VariableSpec, ...]:
        return tuple(variable for variable in self.variables if not variable.is_table)

    @property
    def growing(self) -> frozenset[str]:
        """The keys of the tables whose shape is what is reserved: their values have as many rows as are in use."""
        return frozenset(key for table in self.key_tables for key in (table.rows, table.index))

    @property
    def reserved_bytes(self) -> int:
        """What the tables that grow have room for, or more: eight bytes for each number."""
        return sum(8 * math.prod(spec.shape) for spec in self.tables if spec.key in self.growing)

    def only(self, keys: Collection[str]) -> Schema:
        """Of these variables alone."""
        return replace(
            self,
            variables=tuple(spec for spec in self.variables if spec.key in keys),
            key_tables=tuple(table for table in self.key_tables if table.rows in keys),
        )

    def why_not_part_of(self, whole: Schema) -> str:
        """What keeps a chain of the other schema from updating the variables of this one; empty when nothing does.

        Signatures do not matter: what a chain carries are variables. What rows mean does.
        """
        specs = {spec.key: spec for spec in whole.variables}
        for spec in self.variables:
            found = specs.get(spec.key)
            if found != spec:
                return f"{spec.key!r} is {_show(found)} in the chain, and {_show(spec)} in the export"
        rules = {*self.vocabularies, *(parts_rule(spec.key) for spec in self.variables)}
        for rule in sorted(rules):
            if self.vocabularies.get(rule) != whole.vocabularies.get(rule):
                return f"the chain makes ids by another rule: {rule!r}"
        ours = {spec.key for spec in self.variables}
        found_tables = {table for table in whole.key_tables if ours & {table.rows, table.index, table.counts}}
        for table in sorted(found_tables ^ set(self.key_tables), key=lambda table: table.rows):
            return f"the chain has other tables of keys: {table.rows!r}"
        return ""

    @cached_property
    def digest(self) -> str:
        """Kept: whoever plans asks each time, of a schema that may have thousands of variables."""
        return blake3(self.to_json()).hexdigest()

    def to_json(self) -> bytes:
        document: dict[str, Any] = {
            "variables": [
                {"key": v.key, "shape": list(v.shape), "dtype": v.dtype, "is_table": v.is_table}
                for v in self.variables
            ],
            "signatures": {
                name: {"inputs": _tensors(spec.inputs), "outputs": _tensors(spec.outputs)}
                for name, spec in sorted(self.signatures.items())
            },
            "vocabularies": dict(sorted(self.vocabularies.items())),
        }
        if self.key_tables:
            document["key_tables"] = [
                {"rows": t.rows, "index": t.index, "counts": t.counts} for t in self.key_tables
            ]
        return json.dumps(document, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> Schema:
        try:
            document = json.loads(text)
            schema = cls(
                variables=tuple(
                    VariableSpec(v["key"], tuple(v["shape"]), v["dtype"], v["is_table"])
                    for v in document["variables"]
                ),
                signatures={
                    name: SignatureSpec(_read_tensors(spec["inputs"]), _read_tensors(spec["outputs"]))
                    for name, spec in document["signatures"].items()
                },
                vocabularies=dict(document["vocabularies"]),
                key_tables=tuple(
                    KeyTable(t["rows"], t["index"], t["counts"]) for t in document.get("key_tables", ())
                ),
            )
            _check_key_tables(schema)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ManifestError(f"schema file cannot be read: {error!r}") from error
        return schema


def parts_rule(key: str) -> str:
    """The name, among vocabularies, of the layout of a table that is in parts: which ids its rows hold."""
    return f"{key} in parts"


def _check_key_tables(schema: Schema) -> None:
    """Raises ValueError for a key table that is not made of rows, buckets and the counts of them."""
    specs = {spec.key: spec for spec in schema.variables}
    for table in schema.key_tables:
        rows, index, counts = (specs[key] for key in (table.rows, table.index, table.counts))
        if not rows.is_table or not rows.shape:
            raise ValueError(f"{rows} is not a table of rows")
        if replace(index, shape=index.shape[1:]) != VariableSpec(index.key, (BUCKET_COLUMNS,), "int64", True):
            raise ValueError(f"{index} is not a table of buckets")
        if counts != VariableSpec(counts.key, COUNTS_SHAPE, "int64", False):
            raise ValueError(f"{counts} is not the counts of a table")


def _show(spec: VariableSpec | None) -> str:
    if spec is None:
        return "missing"
    return f"{'table' if spec.is_table else 'variable'} {spec.dtype}{list(spec.shape)}"


def _tensors(specs: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
    return [
        {"name": t.name, "shape": None if t.shape is None else list(t.shape), "dtype": t.dtype} for t in specs
    ]


def _read_tensors(documents: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(d["name"], None if d["shape"] is None else tuple(d["shape"]), d["dtype"])
        for d in documents
    )
