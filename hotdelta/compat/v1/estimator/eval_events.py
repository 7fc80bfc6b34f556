"""What earlier evaluations said: read from the event files that they wrote for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

v1 = tf.compat.v1


def read_results(model_dir: Path, pattern: str) -> Iterator[tuple[int, dict[str, float]]]:
    """The global step and the metrics of each. A file that a killed process left is read as far as it goes."""
    for path in sorted(model_dir.glob(pattern)):
        try:
            for event in v1.train.summary_iterator(str(path)):
                metrics = {
                    value.tag: value.simple_value
                    for value in event.summary.value
                    if value.HasField("simple_value")
                }
                if metrics:
                    yield event.step, metrics
        except tf.errors.DataLossError:
            continue
