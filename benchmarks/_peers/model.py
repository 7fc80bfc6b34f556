"""The model as a peer calls it: a SavedModel, loaded and called as everybody does."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# One thread for operations this small, as our server has it: with more of them every peer is slower.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

import numpy as np
import tensorflow as tf

MAX_BATCH_REQUESTS = 64
SHORTEST_WAIT_MS = 1


def load_model(export: str) -> Callable[[Any], Any]:
    """From rows of ids to an array of scores."""
    model = tf.saved_model.load(export)
    serve = model.signatures["serving_default"]

    def predict(ids: Any) -> Any:
        # The model is named beside its function: it must live as long.
        assert model is not None  # noqa: S101
        return serve(ids=tf.constant(np.asarray(ids), tf.int64))["score"].numpy()

    return predict
