"""Puts the rows of a variable together from the links of a chain: read, not mapped, in chunks that stay in the cache.

Links are written over the ones before them chunk by chunk, so that the table passes through memory once for many links,
not once for each. How many is bounded: a chain may have more files than a process may open.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from hotdelta.chain.verification import open_plainly, unreadable
from hotdelta.errors import DamagedError
from hotdelta.train.row_values import Array
from hotdelta.train.stored_rows import RowLink, StoredRows

CHUNK_BYTES = 8 * 1024 * 1024
THREADS = min(4, os.cpu_count() or 1)
OPEN_FILES = 64


def read_rows(links: Sequence[RowLink], shape: tuple[int, ...], dtype: object) -> Array:
    """The rows after the last of the links, in memory of their own. Raises DamagedError when a file changed."""
    values: Array = np.empty(shape, dtype)  # type: ignore[call-overload]
    stored = [rows for link in links for rows in link.stored()]
    count = max(1, CHUNK_BYTES * len(values) // max(1, values.nbytes))
    with ThreadPoolExecutor(THREADS, "hotdelta-reading") as pool:
        for first in range(0, len(stored), OPEN_FILES):
            some = stored[first : first + OPEN_FILES]
            with _opened(some) as files:
                list(pool.map(partial(_fill, values, some, files, count), range(0, len(values), count)))
    return values


def read_bytes(rows: StoredRows) -> bytes:
    """What is stored of the rows. Raises DamagedError when the file changed."""
    read = np.empty(rows.size, np.uint8)
    with _opened([rows]) as files:
        _read(files[rows.path], rows, read)
    return read.tobytes()


def _fill(
    values: Array, stored: Sequence[StoredRows], files: Mapping[Path, int], count: int, first: int
) -> None:
    for rows in stored:
        mine = rows.between(first, first + count)
        if not len(mine.ids):
            continue
        begin, end = int(mine.ids[0]), int(mine.ids[-1]) + 1
        if end - begin == len(mine.ids):
            _read(files[mine.path], mine, values[begin:end])
        else:
            read = np.empty((len(mine.ids), *values.shape[1:]), values.dtype)
            _read(files[mine.path], mine, read)
            values[mine.ids] = read


def _read(file: int, rows: StoredRows, into: Array) -> None:
    buffer, offset = into.reshape(-1).view(np.uint8).data, rows.offset
    while buffer:
        try:
            count = os.preadv(file, [buffer], offset)
        except OSError as error:
            raise unreadable(rows.path, "", error) from error
        if not count:
            raise DamagedError(f"{rows.path} became shorter while it was read", path=rows.path, position="")
        buffer, offset = buffer[count:], offset + count


@contextmanager
def _opened(stored: Sequence[StoredRows]) -> Iterator[Mapping[Path, int]]:
    with ExitStack() as stack:
        files = {}
        for path in {rows.path for rows in stored}:
            try:
                files[path] = open_plainly(path)
            except OSError as error:
                raise unreadable(path, "", error) from error
            stack.callback(os.close, files[path])
        yield files
