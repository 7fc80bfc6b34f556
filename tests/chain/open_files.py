"""As few files as a process may open."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def files_that_may_be_opened(count: int) -> Iterator[None]:
    """So many more than are open now."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(file.name) for file in Path("/proc/self/fd").iterdir()}
    free = (number for number in itertools.count() if number not in taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, count, None)), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
