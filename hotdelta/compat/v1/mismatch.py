"""A model that does not fit a checkpoint, as scripts of TensorFlow 1 expect to hear of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from hotdelta.errors import ModelMismatchError


class _InvalidArgument(tf.errors.InvalidArgumentError):
    """Takes a message alone, as every other exception does. `message` is a property of tf.errors.OpError."""

    message = ""

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)


class GraphMismatchError(ModelMismatchError, _InvalidArgument):
    """A ModelMismatchError that is a tf.errors.InvalidArgumentError, too: that is what tf.train.Saver raises."""


@contextmanager
def as_invalid_argument() -> Iterator[None]:
    """Whatever does not fit is raised as GraphMismatchError."""
    try:
        yield
    except ModelMismatchError as error:
        raise GraphMismatchError(error.message, problems=error.problems, hint=error.hint) from error
