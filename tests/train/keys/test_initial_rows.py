"""What new rows begin with: a matter of the key and the seed, and of nothing else."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hotdelta.errors import ConfigurationError
from hotdelta.train.keys.initial_rows import ConstantRows, KeyedRows, NormalRows, UniformRows
from hotdelta.train.keys.user_words import keyed_rows

KEYS = np.random.default_rng(5).integers(-(2**63), 2**63 - 1, 5_000)
KINDS = [UniformRows(-0.05, 0.05), NormalRows(0.1, 2.0), UniformRows(-1.0, 1.0, seed=7)]


@pytest.mark.parametrize("initial", KINDS)
def test_a_row_depends_on_its_key_alone(initial: KeyedRows) -> None:
    whole = initial.rows(tf.constant(KEYS), 5).numpy()
    traced = tf.function(lambda keys: initial.rows(keys, 5))
    order = np.random.default_rng(1).permutation(len(KEYS))
    assert np.array_equal(traced(tf.constant(KEYS[order])).numpy(), whole[order])
    for at in (0, 17, 4_999):
        assert np.array_equal(initial.rows(tf.constant(KEYS[at : at + 1]), 5).numpy()[0], whole[at])


def test_these_are_the_rows_of_these_keys() -> None:
    """Once and for all: a trainer that resumes years later makes the same."""
    keys = tf.constant([0, -1, 2**63 - 1], tf.int64)
    assert UniformRows(-1.0, 1.0).rows(keys, 2).numpy().tolist() == [
        [_uniform(key, column) for column in range(2)] for key in (0, -1, 2**63 - 1)
    ]
    assert NormalRows(0.0, 1.0).rows(keys, 2).numpy().tolist() == [
        [1.8167877197265625, 0.2259674072265625],
        [-1.898651123046875, -0.1235809326171875],
        [-0.3329010009765625, -2.085906982421875],
    ]


def _uniform(key: int, column: int) -> float:
    """SplitMix64 in Python's own numbers."""
    step = 0x9E3779B97F4A7C15
    word = _mixed(_mixed((key + step) % 2**64) + step * (column + 1))
    return (word >> 40) * 2 / 2**24 - 1


def _mixed(word: int) -> int:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word %= 2**64
        word = (word ^ word >> shift) * factor % 2**64
    return word ^ word >> 31


def test_distributions() -> None:
    uniform = UniformRows(2.0, 4.0).rows(tf.constant(KEYS), 8).numpy()
    assert uniform.min() >= 2.0
    assert uniform.max() < 4.0
    assert abs(uniform.mean() - 3.0) < 0.01
    assert abs(uniform.std() - 2 / 12**0.5) < 0.01
    normal = NormalRows(1.0, 0.5).rows(tf.constant(KEYS), 8).numpy()
    assert abs(normal.mean() - 1.0) < 0.01
    assert abs(normal.std() - 0.5) < 0.01
    assert abs(np.corrcoef(normal[:, 0], normal[:, 1])[0, 1]) < 0.05


def test_seeds_and_neighbours_differ() -> None:
    keys = tf.range(1_000, dtype=tf.int64)
    one, other = (
        UniformRows(0.0, 1.0, 1).rows(keys, 4).numpy(),
        UniformRows(0.0, 1.0, 2).rows(keys, 4).numpy(),
    )
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.05
    assert abs(np.corrcoef(one[1:].ravel(), one[:-1].ravel())[0, 1]) < 0.05


@pytest.mark.parametrize(
    "given, expected",
    [
        ("zeros", ConstantRows(0.0)),
        ("uniform", UniformRows(-0.05, 0.05, 3)),
        (keras.initializers.Constant(2.5), ConstantRows(2.5)),
        (keras.initializers.RandomUniform(-1, 2, seed=9), UniformRows(-1.0, 2.0, 9)),
        (keras.initializers.RandomNormal(0.5, 2), NormalRows(0.5, 2.0, 3)),
        (NormalRows(0.0, 1.0), NormalRows(0.0, 1.0)),
    ],
)
def test_what_users_say(given: object, expected: KeyedRows) -> None:
    assert keyed_rows(given, seed=3) == expected


@pytest.mark.parametrize("given", ["orthogonal", keras.initializers.GlorotUniform(), object(), None])
def test_what_needs_more_than_a_key_is_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match="cannot make a row from its key"):
        keyed_rows(given, seed=0)
