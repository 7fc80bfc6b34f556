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
    """Collect once, models that were replaced or removed included, and never look at what is left again.

    Everybody waits for as long as the walk over all objects takes.
    """
    with _one_at_a_time:
        gc.unfreeze()
        _collect_and_freeze()


def freeze_new() -> None:
    """The same with what came since: when nothing of it is gone, most objects need not be walked over again."""
    with _one_at_a_time:
        _collect_and_freeze()


class AfterSwap:
    """What a loader calls when its first model is about to serve, and when another one has taken its place.

    Belongs to the updater thread of that loader.
    """

    def __init__(self) -> None:
        self._has_model = False

    def __call__(self) -> None:
        if self._has_model:
            freeze()
        else:
            self._has_model = True
            freeze_new()


def _collect_and_freeze() -> None:
    start = time.perf_counter()
    gc.collect()
    gc.freeze()
    event(
        logger,
        logging.DEBUG,
        "garbage frozen",
        objects=gc.get_freeze_count(),
        ms=(time.perf_counter() - start) * 1000,
    )
