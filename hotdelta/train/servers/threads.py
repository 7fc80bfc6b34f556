"""Work on all parameter servers at once: a thread for each, so that the slowest alone decides how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hotdelta.tensorflow_internals import executor_apart

Result = TypeVar("Result")


def on_each_server(work: Mapping[str, Callable[[], Result]]) -> list[Result]:
    """What the work of each server (a device name) returns. Raises what one of it raised, when all have ended."""
    with ThreadPoolExecutor(max(1, len(work)), thread_name_prefix="hotdelta-servers") as pool:
        return [done.result() for done in [pool.submit(_apart, mine) for mine in work.values()]]


def _apart(work: Callable[[], Result]) -> Result:
    # Otherwise training would be told what fails here.
    with executor_apart():
        return work()
