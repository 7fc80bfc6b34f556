"""What the user of a custom loop gives, as what is saved: variables under keys, slots of tables, the serving graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.history.verification import directory_of
from hotdelta.errors import ConfigurationError
from hotdelta.train.model.id_rules import IdRule, module_id_rules
from hotdelta.train.model.module_keys import (
    given_variables,
    module_resources,
    module_variables,
    refuse_keras_2,
)
from hotdelta.train.model.optimizer_slots import KeyedVariable, SlotVariable, is_variable, raw
from hotdelta.train.model.shard_slots import optimizer_state
from hotdelta.train.serving.files import save_serving_graph
from hotdelta.train.serving.module import trace_module
from hotdelta.train.serving.twin import refuse_other_shapes, refuse_served_shards

_KINDS: Mapping[str, tuple[type, str]] = {
    "tables": (Iterable, "give a list of keys, or of variables of the model"),
    "slots": (Mapping, "give variables by table key and name: {table: {name: variable}}"),
    "tracking": (Mapping, 'give "touched" or "changed" by table key'),
    "signatures": (Mapping, "give tf.functions with an input_signature, by name"),
    "state": (Mapping, "give functions by name"),
}


def refuse_other_kinds(**given: Any) -> None:
    """Raises ConfigurationError for an argument of DeltaWriter that is not what its name stands for."""
    for name, value in given.items():
        kind, hint = _KINDS[name]
        if value is not None and not isinstance(value, kind):
            raise ConfigurationError(f"{name} is {value!r}", hint=hint)


def keyed_variables(model: tf.Module | Mapping[str, tf.Variable]) -> list[KeyedVariable]:
    if isinstance(model, Mapping):
        return given_variables(model)
    if not isinstance(model, tf.Module):
        raise ConfigurationError(
            f"a {type(model).__name__} is neither a tf.Module nor a mapping of names to variables",
            hint="for a Keras model use hotdelta.keras.DeltaCheckpoint, whose step() is for loops of your own",
        )
    return [KeyedVariable(key, raw(variable)) for key, variable in sorted(module_variables(model).items())]


def id_rules_of(model: tf.Module | Mapping[str, tf.Variable]) -> dict[str, IdRule]:
    return module_id_rules(model) if isinstance(model, tf.Module) else {}


def built_optimizer_state(
    optimizer: Any, keyed: list[KeyedVariable]
) -> tuple[list[SlotVariable], list[KeyedVariable]]:
    if optimizer is None:
        return [], []
    refuse_keras_2(optimizer)
    if not hasattr(optimizer, "built"):
        raise ConfigurationError(f"optimizer is {optimizer!r}", hint="give a Keras optimizer, already built")
    if not optimizer.built:
        raise ConfigurationError(
            "the optimizer has no variables yet", hint="call optimizer.build(trainable_variables) first"
        )
    return optimizer_state(optimizer, keyed)


def given_slots(slots: Mapping[str, Any], keyed: list[KeyedVariable]) -> list[SlotVariable]:
    variables = {item.key: item.variable for item in keyed}
    unknown = sorted(set(slots) - set(variables))
    if unknown:
        raise ConfigurationError(f"slots are given for {unknown[0]!r}, which is not a variable of the model")
    for key, named in slots.items():
        if not isinstance(named, Mapping) or not all(map(is_variable, named.values())):
            raise ConfigurationError(
                f"the slots of {key!r} are {named!r}", hint="give variables by their names"
            )
    return [
        SlotVariable(f"slots/{name}/{key}", raw(variable), variables[key])
        for key, named in slots.items()
        for name, variable in named.items()
    ]


def serving_graph(
    keyed: list[KeyedVariable],
    served: tf.Module | Mapping[str, tf.Variable],
    signatures: Mapping[str, Any] | None,
    table_keys: set[str],
    id_rules: Mapping[str, IdRule],
) -> tuple[Any, Callable[[Path], None]]:
    if not signatures:
        return None, lambda _run_dir: None
    served_keyed = keyed_variables(served)
    refuse_served_shards(served_keyed)
    refuse_other_shapes(served_keyed, keyed)
    resources = module_resources(served) if isinstance(served, tf.Module) else ()
    key_of = {id(item.variable): item.key for item in served_keyed}
    module, schema = trace_module(
        signatures, keys=key_of, tables=table_keys, resources=resources, id_rules=id_rules
    )

    def publish(run_dir: Path) -> None:
        save_serving_graph(directory_of(run_dir, Kind.DELTA), module, schema)

    return schema, publish
