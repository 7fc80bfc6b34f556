"""A delta whose rows parameter servers write: their parts and the coordinator's become one bundle.

The rows of such a cut are on servers and then in files, never in the memory of the coordinator; a full in the making
gets them from the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import tensorflow as tf

from hotdelta.chain.bundle.parts import adopt_part, merge_parts
from hotdelta.chain.bundle.reader import BundleReader
from hotdelta.chain.bundle.slice_key import row_slices
from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.errors import CommitError, DamagedError
from hotdelta.train.rows.cut import Cut, RowBlock
from hotdelta.train.save.server_parts import RowsToWrite, ServerPart, joined_pieces, write_parts
from hotdelta.train.tables.server_rows import HeldRows, ServerRows


def rows_on_servers(blocks: Iterable[RowBlock]) -> list[RowsToWrite]:
    return [
        _rows_to_write(block, part)
        for block in blocks
        if isinstance(block.rows, ServerRows)
        for part in block.rows.parts
    ]


def merge_server_parts(
    own: PreparedBundle, prefix: str, parts: Sequence[ServerPart], *, disk: Disk
) -> PreparedBundle:
    """Have the servers write, and make one bundle of their parts and our own. Raises CommitError."""
    write_parts(parts)
    adopted = [adopt_part(own.directory, part.prefix, role=part.role, disk=disk) for part in parts]
    return merge_parts(prefix, [own, *adopted], joined_pieces(parts), disk=disk)


def with_rows_from_files(cut: Cut, directory: Path, prefix: str) -> Cut:
    """The cut with the rows that servers wrote mapped from its delta: they survive the deletion of the files.

    A block becomes one block for each file that has rows of it. Raises CommitError when the delta is gone already.
    """
    try:
        with BundleReader(directory, prefix) as reader:
            return replace(cut, blocks=tuple(_mapped(cut.blocks, reader)))
    except DamagedError as error:
        raise CommitError(f"a delta is not there any more: {error}", path=directory) from error


def _mapped(blocks: Iterable[RowBlock], reader: BundleReader) -> Iterator[RowBlock]:
    for block in blocks:
        if not isinstance(block.rows, ServerRows):
            yield block
            continue
        name = block.variable.key + names.ROWS_SUFFIX
        entry, first = reader.entries[name], 0
        for key in row_slices(name, entry) if entry.is_sliced else [name]:
            rows = reader.map(key)
            yield replace(block, ids=block.ids[first : first + len(rows)], rows=rows)
            first += len(rows)


def _rows_to_write(block: RowBlock, part: HeldRows) -> RowsToWrite:
    item = block.variable
    return RowsToWrite(
        server=part.server,
        role=item.role,
        name=item.key + names.ROWS_SUFFIX,
        first=part.first,
        count=part.count,
        nbytes=item.nbytes // max(1, item.rows) * part.count,
        read=_constantly(part.tensor),
    )


def _constantly(tensor: tf.Tensor) -> Callable[[], tf.Tensor]:
    return lambda: tensor
