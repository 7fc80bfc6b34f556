"""The rules by which a model gives words and numbers their ids, and whether saved rows still belong to the same ones.

Neither names nor shapes of variables tell: with another vocabulary the same row is another word's. Saved is the digest
of a rule, not the rule. A vocabulary is read when it is asked for and never kept: it may have millions of words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from blake3 import blake3

from hotdelta.errors import ManifestError
from hotdelta.logs import counted
from hotdelta.tensorflow_internals import count_of_unknown, find_in_module, known_words
from hotdelta.train.model.vocabularies import read_ids, read_table, words_of

REMEDY = (
    "give each lookup layer the vocabulary that it was saved with (new words only at its end) before loading"
)


@dataclass(frozen=True, slots=True)
class SavedIdRule:
    """What a checkpoint says of a rule. `words`: how many a vocabulary has, 0 for any other rule."""

    digest: str
    words: int


@dataclass(frozen=True, slots=True)
class IdRule:
    """A rule of a live model. `read`: its words in the order of their ids, or all that decides how ids are computed.

    What `read` returns is a list of bytes, or can be written as JSON.
    """

    saved: SavedIdRule
    read: Callable[[], Any]

    @classmethod
    def of(cls, read: Callable[[], Any]) -> IdRule | None:
        """None when there is nothing to read: it makes no ids, or none yet."""
        content = read()
        if content is None:
            return None
        words = len(content) if isinstance(content, list) else 0
        return cls(SavedIdRule(_digest(content), words), read)

    def keeps(self, saved: SavedIdRule) -> bool:
        """Whether what had an id then has the same one now: a vocabulary may have got more words at its end."""
        if saved == self.saved:
            return True
        return saved.words < self.saved.words and saved.digest == _digest(self.read()[: saved.words])


def _digest(content: Any) -> str:
    if not isinstance(content, list):
        return blake3(json.dumps(content, sort_keys=True).encode()).hexdigest()
    lengths = np.fromiter(map(len, content), "<u8", len(content))
    return blake3(lengths.tobytes() + b"".join(content)).hexdigest()


def find_other_rules(rules: Mapping[str, IdRule], saved: Mapping[str, SavedIdRule]) -> list[str]:
    """One line for each rule of the model under which saved rows belong to others than when they were saved.

    A layer that has another name now fits when its rule does; that two of them changed places is not seen. What only
    one of the two has proves nothing: words may have been looked up outside of the model then, or now.
    """
    renamed = {key: rule for key, rule in saved.items() if key not in rules}
    lines = []
    for key, rule in rules.items():
        candidates = {key: saved[key]} if key in saved else renamed
        if candidates and not any(rule.keeps(candidate) for candidate in candidates.values()):
            lines.append(_describe_other(key, rule, candidates))
    return lines


def _describe_other(key: str, rule: IdRule, saved: Mapping[str, SavedIdRule]) -> str:
    if not rule.saved.words:
        return f"{key}: makes ids by another rule than the one that was saved, so that they mean other rows"
    known = " or ".join(f"{item.words} of {name}" for name, item in saved.items())
    return (
        f"{key}: another vocabulary, so that ids mean other rows: it has {counted(rule.saved.words, 'word')}, and "
        f"does not begin with those that were saved, {known}"
    )


def to_document(rules: Mapping[str, SavedIdRule]) -> dict[str, Any]:
    return {key: {"blake3": rule.digest, "words": rule.words} for key, rule in rules.items()}


def from_document(document: Any) -> dict[str, SavedIdRule]:
    """Raises ManifestError."""
    try:
        return {key: SavedIdRule(str(rule["blake3"]), int(rule["words"])) for key, rule in document.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ManifestError(f"how ids were made cannot be read: {error!r}") from error


def find_rules(readers: Iterable[tuple[str, Callable[[], Any]]]) -> dict[str, IdRule]:
    """By the given keys, without what is no rule."""
    return {key: rule for key, read in readers if (rule := IdRule.of(read)) is not None}


def module_id_rules(module: tf.Module) -> dict[str, IdRule]:
    """Of the lookup layers and the constant lookup tables that a tf.Module holds, by the path of attributes."""
    return find_rules((path, partial(_read, holder)) for path, holder in find_in_module(module, _has_id_rule))


def _has_id_rule(value: Any) -> bool:
    tables = (tf.lookup.StaticHashTable, tf.lookup.StaticVocabularyTable)
    return hasattr(value, "get_vocabulary") or type(value) in tables


def _read(holder: Any) -> Any:
    if hasattr(holder, "get_vocabulary"):
        return words_of(holder)
    if isinstance(holder, tf.lookup.StaticHashTable):
        return read_ids(holder)
    # A word that it does not know gets an id behind those that it knows: with one more of them, another id.
    table = known_words(holder)
    known = [] if table is None else read_table(table)
    return {"known": _digest(known), "unknown": count_of_unknown(holder)}
