"""Lookup layers and tables of a tf.Module: part of what is served, and of what must fit when training resumes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import hotdelta.io as hio
from exporter.sources import source_of
from hotdelta.errors import ModelMismatchError
from hotdelta.train import DeltaWriter
from hotdelta.train.model.id_rules import module_id_rules

WORDS = ["red", "green", "blue"]
BY_HAND: dict[str, Any] = {"save_secs": None, "save_incremental_secs": None}


def layer(words: list[str]) -> Any:
    made = keras.layers.StringLookup(vocabulary=words)
    made(tf.constant(words))
    return made


def hash_table(words: list[str]) -> Any:
    return tf.lookup.StaticHashTable(_numbered(words), -1)


def vocabulary_table(words: list[str]) -> Any:
    return tf.lookup.StaticVocabularyTable(_numbered(words), 2)


def _numbered(words: list[str]) -> Any:
    return tf.lookup.KeyValueTensorInitializer(words, tf.range(len(words), dtype=tf.int64))


class Scorer(tf.Module):
    def __init__(self, lookup: Any) -> None:
        super().__init__()
        self.lookup = lookup
        self.table = tf.Variable(tf.zeros((6, 2)))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
    def serve(self, word: tf.Tensor) -> Any:
        ids = self.lookup.lookup(word) if hasattr(self.lookup, "lookup") else self.lookup(word)
        return {"rows": tf.gather(self.table, ids)}


def write(run_dir: Path, scorer: Scorer, **options: Any) -> DeltaWriter:
    return DeltaWriter(run_dir, scorer, tables=["table"], **BY_HAND, **options)


@pytest.mark.parametrize("make", [layer, hash_table, vocabulary_table])
def test_a_custom_loop_is_not_resumed_with_another_vocabulary(
    make: Callable[[list[str]], Any], tmp_path: Path
) -> None:
    write(tmp_path, Scorer(make(WORDS))).close()
    with pytest.raises(ModelMismatchError, match=r"lookup: .* other rows"):
        write(tmp_path, Scorer(make(WORDS[::-1])))
    with pytest.raises(ModelMismatchError, match=r"lookup: .* other rows"):
        hio.load_persistables(Scorer(make(WORDS[::-1])), tmp_path)
    write(tmp_path, Scorer(make(WORDS))).close()


@pytest.mark.parametrize("make, fits", [(layer, True), (hash_table, True), (vocabulary_table, False)])
def test_words_may_be_added_at_the_end_where_that_moves_no_other(
    make: Callable[[list[str]], Any], fits: bool, tmp_path: Path
) -> None:
    """A StaticVocabularyTable puts the words that it does not know behind those that it knows."""
    write(tmp_path, Scorer(make(WORDS))).close()
    if fits:
        write(tmp_path, Scorer(make([*WORDS, "grey"]))).close()
    else:
        with pytest.raises(ModelMismatchError, match="lookup: makes ids by another rule"):
            write(tmp_path, Scorer(make([*WORDS, "grey"])))


def test_another_vocabulary_of_a_module_is_another_schema_for_trainer_and_exporter(tmp_path: Path) -> None:
    def trained(words: list[str]) -> str:
        scorer = Scorer(layer(words))
        with write(tmp_path / words[0], scorer, signatures={"serving_default": scorer.serve}) as writer:
            return str(writer._trainer.trackers.variables.schema.digest)

    scorer = Scorer(layer(WORDS))
    exported = source_of(scorer, signatures={"serving_default": scorer.serve}, tables=["table"]).schema
    assert trained(WORDS) == exported.digest
    assert trained(WORDS[::-1]) != exported.digest


def test_what_makes_no_ids_has_no_rule() -> None:
    module = Scorer(lookup=None)
    module.counts = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)
    module.names = _constant_table(tf.constant([0, 1, 2], tf.int64), WORDS, "")
    module.prices = _constant_table(WORDS, [1.0, 2.0, 3.0], 0.0)
    module.categories = _constant_table(WORDS, tf.constant([0, 1, 0], tf.int64), -1)
    assert module_id_rules(module) == {}


def _constant_table(keys: Any, values: Any, default: Any) -> Any:
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), default)


def test_vocabulary_that_cannot_be_read_yet_is_no_rule_and_told(caplog: pytest.LogCaptureFixture) -> None:
    class Late(tf.Module):
        def get_vocabulary(self) -> list[str]:
            raise RuntimeError("adapt first")

    assert module_id_rules(Scorer(Late())) == {}
    assert "a vocabulary cannot be read" in caplog.text
    assert "adapt first" in caplog.text
