"""The classic walk-through, with flowers that are made up."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import hotdelta.compat.v1 as tf

COLUMNS = ["SepalLength", "SepalWidth", "PetalLength", "PetalWidth"]


def flowers(count: int = 120) -> tuple[dict[str, np.ndarray], np.ndarray]:
    random = np.random.default_rng(1)
    labels = random.integers(0, 3, count)
    features = {
        name: (labels * (1.0 + index) + random.normal(size=count)).astype("f4")
        for index, name in enumerate(COLUMNS)
    }
    return features, labels


def train_input() -> Any:
    return tf.data.Dataset.from_tensor_slices(flowers()).shuffle(1000, seed=3).repeat().batch(100)


def eval_input() -> Any:
    return tf.data.Dataset.from_tensor_slices(flowers()).batch(50)


def classifier(model_dir: str | None, hidden: int = 10) -> Any:
    return tf.estimator.DNNClassifier(
        feature_columns=[tf.feature_column.numeric_column(key=key) for key in COLUMNS],
        hidden_units=[hidden, hidden],
        n_classes=3,
        model_dir=model_dir,
        config=tf.estimator.RunConfig(
            save_checkpoints_secs=20 * 60, keep_checkpoint_max=10, tf_random_seed=1
        ),
    )


if __name__ == "__main__":
    estimator = classifier(sys.argv[1])
    estimator.train(train_input, steps=200)
    print(estimator.evaluate(eval_input))
