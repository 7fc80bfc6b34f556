"""What a served model is made of: variables, signatures, vocabularies. A delta fits only its own schema.

Optimizer slots are not part of it: a recompiled optimizer does not concern a server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from hotdelta.errors import ManifestError


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
class Schema:
    """The variables in their fixed order, the user's signatures, and the digest of each rule that makes ids.

    Such a rule is a lookup vocabulary, or how a layer hashes or buckets what it is given.
    """

    variables: tuple[VariableSpec, ...]
    signatures: Mapping[str, SignatureSpec]
    vocabularies: Mapping[str, str]

    @property
    def tables(self) -> tuple[VariableSpec, ...]:
        return tuple(variable for variable in self.variables if variable.is_table)

    @property
    def others(self) -> tuple[VariableSpec, ...]:
        return tuple(variable for variable in self.variables if not variable.is_table)

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
        return ""

    @property
    def digest(self) -> str:
        return blake3(self.to_json()).hexdigest()

    def to_json(self) -> bytes:
        document = {
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
        return json.dumps(document, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> Schema:
        try:
            document = json.loads(text)
            return cls(
                variables=tuple(
                    VariableSpec(v["key"], tuple(v["shape"]), v["dtype"], v["is_table"])
                    for v in document["variables"]
                ),
                signatures={
                    name: SignatureSpec(_read_tensors(spec["inputs"]), _read_tensors(spec["outputs"]))
                    for name, spec in document["signatures"].items()
                },
                vocabularies=dict(document["vocabularies"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ManifestError(f"schema file cannot be read: {error!r}") from error


def parts_rule(key: str) -> str:
    """The name, among vocabularies, of the layout of a table that is in parts: which ids its rows hold."""
    return f"{key} in parts"


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
