"""The served part of a model: the variables that serving needs, and the signatures that use them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hotdelta import signatures as contract
from hotdelta.chain.format.schema import KeyTable, Schema, VariableSpec
from hotdelta.errors import ConfigurationError
from hotdelta.train.model.id_rules import IdRule
from hotdelta.train.serving.trace import Signature, retrace
from hotdelta.train.tables.growth import growth_of


@dataclass(frozen=True, slots=True)
class ServingModule:
    """The variables in the order of the schema, and the traced signatures by name.

    `root` tracks the variables and whatever else the signatures capture (lookup tables with their vocabularies).
    """

    root: tf.Module
    variables: tuple[tf.Variable, ...]
    signatures: Mapping[str, Signature]

    @property
    def unknown_keys(self) -> Sequence[tf.Variable]:
        """What counts unknown keys, for each key table of the schema."""
        found: Sequence[tf.Variable] = getattr(self.root, contract.UNKNOWN_KEYS_ATTRIBUTE, ())
        return found


def trace_module(
    functions: Mapping[str, Any],
    *,
    keys: Mapping[int, str],
    tables: Iterable[str],
    resources: Iterable[Any] = (),
    id_rules: Mapping[str, IdRule] | None = None,
) -> tuple[ServingModule, Schema]:
    """The serving module of a tf.Module's own functions; `keys` maps id(tf.Variable) to the variable's key.

    Raises ConfigurationError when a function has no input signature or uses a variable that has no key.
    """
    signatures = {name: retrace(name, function) for name, function in functions.items()}
    return assemble_module(signatures, keys=keys, tables=tables, resources=resources, id_rules=id_rules)


def assemble_module(
    signatures: Mapping[str, Signature],
    *,
    keys: Mapping[int, str],
    tables: Iterable[str],
    resources: Iterable[Any] = (),
    id_rules: Mapping[str, IdRule] | None = None,
) -> tuple[ServingModule, Schema]:
    """Put traced signatures, the variables that they use, and the schema of both together."""
    _refuse_reserved(signatures)
    used = _used_variables(signatures, keys)
    table_keys = set(tables)
    schema = Schema(
        variables=tuple(_describe(key, variable, key in table_keys) for key, variable in used.items()),
        key_tables=tuple(_key_tables(used)),
        signatures={name: signature.spec for name, signature in signatures.items()},
        vocabularies={key: rule.saved.digest for key, rule in (id_rules or {}).items()},
    )
    root = tf.Module(name="hotdelta_serving")
    root.hotdelta_variables = list(used.values())
    root.hotdelta_resources = list(resources)
    if schema.key_tables:
        growths = (growth_of(used[table.rows]) for table in schema.key_tables)
        counters = [growth.unknown for growth in growths if growth is not None]
        setattr(root, contract.UNKNOWN_KEYS_ATTRIBUTE, counters)
    return ServingModule(root, tuple(used.values()), dict(signatures)), schema


def _refuse_reserved(signatures: Iterable[str]) -> None:
    for name in signatures:
        if name in contract.RESERVED_SIGNATURES:
            raise ConfigurationError(
                f"signature {name!r} has a name that exports use themselves",
                hint="name the signature differently",
            )


def _used_variables(signatures: Mapping[str, Signature], keys: Mapping[int, str]) -> dict[str, tf.Variable]:
    """What the signatures capture, by key and in the order of keys: the same when the model is built again."""
    used: dict[str, tf.Variable] = {}
    for name, signature in signatures.items():
        for variable in signature.function.variables:
            if id(variable) not in keys:
                raise ConfigurationError(
                    f"signature {name!r} uses variable {variable.name!r}, which is not part of the model",
                    hint="make it an attribute of the model (or of one of its layers), so that it is saved",
                )
            used[keys[id(variable)]] = variable
    return dict(sorted(used.items()))


def _key_tables(used: Mapping[str, tf.Variable]) -> Iterator[KeyTable]:
    """Which of the variables belong together as a table with keys."""
    keys = {id(variable): key for key, variable in used.items()}
    for key, variable in used.items():
        growth = growth_of(variable)
        if growth is not None and growth.index is not None:
            yield KeyTable(rows=key, index=keys[id(growth.index)], counts=keys[id(growth.counts)])


def _describe(key: str, variable: tf.Variable, is_table: bool) -> VariableSpec:
    growth = growth_of(variable)
    if growth is not None:
        shape = (growth.capacity, *(int(size) for size in variable.shape[1:]))
        return VariableSpec(key, shape, variable.dtype.name, is_table=True)
    if not variable.shape.is_fully_defined():
        raise ConfigurationError(
            f"variable {key!r} has the unknown shape {variable.shape}", hint="give it a shape"
        )
    return VariableSpec(key, tuple(int(size) for size in variable.shape), variable.dtype.name, is_table)
