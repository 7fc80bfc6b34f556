"""The key of a text is the one that TensorFlow computes in the graph."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from hotdelta.chain.format.text_key import key_of_text
from hotdelta.train.keys.user_words import as_keys

LENGTHS = [*range(260), 1000, 1024, 4097]


def test_a_text_of_any_length_has_the_key_that_training_gives_it() -> None:
    random = np.random.default_rng(3)
    texts = [random.bytes(length) for length in LENGTHS]
    assert [key_of_text(text) for text in texts] == as_keys(tf.constant(texts)).numpy().tolist()
