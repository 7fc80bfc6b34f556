"""Optimizers see a sharded table as its shards: their slots, one for each shard, are put together as one slot again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotdelta.errors import ConfigurationError
from hotdelta.tensorflow_internals import ShardedVariable
from hotdelta.train.model.optimizer_slots import KeyedVariable, SlotVariable, optimizer_variables
from hotdelta.train.tables.sharded import is_sharded, shards_of

_NUMBER = "#"


def optimizer_state(
    optimizer: Any, keyed: Sequence[KeyedVariable]
) -> tuple[list[SlotVariable], list[KeyedVariable]]:
    """As `optimizer_variables`, for an optimizer that was built with the shards of sharded variables."""
    slots, rest = optimizer_variables(optimizer, _keys_of_shards(keyed))
    owners = {
        id(shard.variable): item.variable
        for item in keyed
        if is_sharded(item.variable)
        for shard in shards_of(item.variable)
    }
    whole = [slot for slot in slots if _NUMBER not in slot.key]
    parts: dict[str, list[SlotVariable]] = {}
    for slot in slots:
        if _NUMBER in slot.key:
            parts.setdefault(slot.key.rpartition(_NUMBER)[0], []).append(slot)
    return [*whole, *(_join(key, found, owners) for key, found in parts.items())], rest


def _keys_of_shards(keyed: Sequence[KeyedVariable]) -> dict[int, str]:
    keys = {}
    for item in keyed:
        if not is_sharded(item.variable):
            keys[id(item.variable)] = item.key
            continue
        for number, shard in enumerate(shards_of(item.variable)):
            keys[id(shard.variable)] = f"{item.key}{_NUMBER}{number}"
    return keys


def _join(key: str, parts: Sequence[SlotVariable], owners: Mapping[int, Any]) -> SlotVariable:
    owner = owners[id(parts[0].of)]
    by_number = sorted(parts, key=lambda slot: int(slot.key.rpartition(_NUMBER)[2]))
    if len(by_number) != len(shards_of(owner)):
        raise ConfigurationError(
            f"the optimizer has {key!r} for {len(by_number)} of {len(shards_of(owner))} shards",
            hint="build the optimizer with all shards: optimizer.build([*table.variables, ...])",
        )
    return SlotVariable(key, ShardedVariable([slot.variable for slot in by_number], name=key), owner)
