"""Keeps Python's garbage collector from stopping the process: with TensorFlow imported a full collection walks some
274,000 objects for 100 ms. What is there after a model has warmed up stays, so it is taken out of its sight."""

from __future__ import annotations

import gc
import logging
import threading
import time

from hotdelta.logs import event

logger = logging.getLogger(__name__)

# Models that become ready together would else thaw what another one has just frozen.
_one_at_a_time = threading.Lock()


def freeze() -> None:
    """Collect once, the export that was replaced included, and never look at what is left again.

    By an updater thread: before its first model serves, and after another one has taken its place.
    """
    start = time.perf_counter()
    with _one_at_a_time:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
    event(
        logger,
        logging.DEBUG,
        "garbage frozen",
        objects=gc.get_freeze_count(),
        ms=(time.perf_counter() - start) * 1000,
    )
