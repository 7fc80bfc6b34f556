"""`tf.train.Supervisor`: it writes no deltas, so it must not go on with a chain in silence."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.chain.save_schedule import refuse_chain
from hotdelta.compat.v1.sessions.saver import Saver
from hotdelta.tensorflow_internals import OpenSupervisor

v1 = tf.compat.v1


class Supervisor(OpenSupervisor):
    """tf.train.Supervisor. Its own Saver says which deltas it does not restore.

    Raises ConfigurationError when it would save into the directory of a chain.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.directory and self.saver is not None and self.save_model_secs:
            refuse_chain(self.directory)

    def before_saver(self, saver: Any) -> None:
        has_saver = bool(v1.get_collection(v1.GraphKeys.SAVERS))
        if saver is self.USE_DEFAULT and not has_saver and v1.global_variables():
            v1.add_to_collection(v1.GraphKeys.SAVERS, Saver())
