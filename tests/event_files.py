"""What a process told TensorBoard."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf


def scalars_of(directory: Path) -> list[tuple[int, str, float]]:
    """As TensorBoard reads them."""
    (path,) = directory.glob("events.out.tfevents.*")
    events = list(tf.compat.v1.train.summary_iterator(str(path)))
    assert events[0].file_version == "brain.Event:2"
    return [(event.step, value.tag, value.simple_value) for event in events for value in event.summary.value]
