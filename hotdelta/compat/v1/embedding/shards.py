"""An embedding variable in parts, which parameter servers hold: each part has an index, rows and counts of its own.

Which part has a key follows from the key alone: the remainder of its division by their number, which is never negative.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from hotdelta.compat.v1.embedding.variable import EmbeddingVariable, LookedUpByKeys
from hotdelta.errors import ConfigurationError
from hotdelta.logs import counted
from hotdelta.train.keys.index import where_true

_PART = re.compile(r"(.+)/part_\d+")


def part_name(variable: str, number: int) -> str:
    return f"{variable}/part_{number}"


def other_parts(model: Iterable[str], checkpoint: Iterable[str]) -> list[str]:
    """A line for each variable that is in other parts than in the checkpoint: its keys would be looked for elsewhere.

    Both are names of tables with keys.
    """
    own, saved = _part_counts(model), _part_counts(checkpoint)
    return [
        f"{name}: {counted(count, 'part')} in the model, {saved[name]} in the checkpoint"
        for name, count in own.items()
        if saved.get(name, count) != count
    ]


def _part_counts(tables: Iterable[str]) -> Counter[str]:
    found = ((_PART.fullmatch(table), table) for table in tables)
    return Counter(table if match is None else match[1] for match, table in found)


class ShardedEmbeddingVariable(LookedUpByKeys):
    """What a partitioner makes of an embedding variable. Optimizers train its parts."""

    def __init__(self, name: str, shards: Sequence[EmbeddingVariable]) -> None:
        self.full_name = name
        self.width = shards[0].width
        self._shards = tuple(shards)

    def __iter__(self) -> Iterator[EmbeddingVariable]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def name(self) -> str:
        return self.full_name

    @property
    def dtype(self) -> tf.DType:
        return self._shards[0].dtype

    def look_up_keys(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        places, dealt = self._deal(keys)
        found = [shard.look_up_keys(own) for shard, own in zip(self._shards, dealt, strict=True)]
        first, positions = tf.constant(0, tf.int64), []
        for rows, own in found:
            positions.append(own + first)
            first += tf.shape(rows, out_type=tf.int64)[0]
        return tf.concat([rows for rows, _ in found], axis=0), tf.dynamic_stitch(places, positions)

    def key_count(self) -> tf.Tensor:
        return tf.add_n([shard.key_count() for shard in self._shards])

    def frequencies(self, keys: tf.Tensor) -> tf.Tensor:
        return self._ask(keys, EmbeddingVariable.frequencies)

    def last_steps(self, keys: tf.Tensor) -> tf.Tensor:
        return self._ask(keys, EmbeddingVariable.last_steps)

    def export(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Part after part."""
        parts = zip(*(shard.export() for shard in self._shards), strict=True)
        keys, rows, versions, frequencies = (tf.concat(part, axis=0) for part in parts)
        return keys, rows, versions, frequencies

    def _ask(self, keys: tf.Tensor, ask: Callable[[EmbeddingVariable, tf.Tensor], tf.Tensor]) -> tf.Tensor:
        places, dealt = self._deal(keys)
        found = [ask(shard, own) for shard, own in zip(self._shards, dealt, strict=True)]
        return tf.dynamic_stitch(places, found)

    def _deal(self, keys: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """For each part the places of its keys in the vector, and the keys."""
        parts = tf.math.floormod(keys, tf.constant(len(self), tf.int64))
        places = [where_true(tf.equal(parts, number)) for number in range(len(self))]
        return [tf.cast(each, tf.int32) for each in places], [tf.gather(keys, each) for each in places]


def _refuse(variable: ShardedEmbeddingVariable, *_: Any, **__: Any) -> NoReturn:
    raise ConfigurationError(
        f"{variable.full_name} is an embedding variable in {len(variable)} parts, and no tensor",
        hint="look its rows up by keys with tf.nn.embedding_lookup, or read all of them with export()",
    )


tf.register_tensor_conversion_function(ShardedEmbeddingVariable, _refuse)
