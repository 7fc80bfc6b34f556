"""A full checkpoint that was verified, read in slices into memory of our own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hotdelta.chain import Manifest, VariableSpec
from hotdelta.chain.bundle.dtypes import tensor_bytes
from hotdelta.chain.bundle.file_bytes import aligned
from hotdelta.chain.bundle.reader import BundleRows
from hotdelta.chain.bundle.row_memory import row_ranges, rows_within
from hotdelta.errors import DamagedError
from hotdelta.logs import ProgressLog
from hotdelta.signature_calls import array_dtype
from loader.files.commit_files import VerifiedFiles

Array = npt.NDArray[Any]


class FullReader:
    """An open full. Nothing of it is copied but slices. Everything raises DamagedError. One thread at a time."""

    def __init__(self, files: VerifiedFiles) -> None:
        self._files = files
        self._bundle = BundleRows(files.prefix, dtype_of=array_dtype)
        self._bytes_read = 0
        self._progress = ProgressLog(
            "reading bytes of a full", of=self._table_bytes(), position=files.manifest.position
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bundle.__exit__(*exception)

    @property
    def manifest(self) -> Manifest:
        return self._files.manifest

    def read(self, spec: VariableSpec) -> Array:
        self._require(spec)
        return self._bundle.read(spec.key)

    def read_slices(self, spec: VariableSpec, slice_bytes: int) -> Iterator[tuple[Array, Array]]:
        """All rows of a table with their ids, so many bytes at a time, in memory that TensorFlow takes as it is."""
        self._require(spec)
        row_bytes = tensor_bytes(spec.dtype, spec.shape[1:])
        for start, stop in row_ranges(self.manifest.shape_of(spec)[0], rows_within(slice_bytes, row_bytes)):
            memory = aligned((stop - start) * row_bytes)
            rows = self._bundle.read_rows(spec.key, start, stop, buffer=memory)
            self._bytes_read += rows.nbytes
            self._progress.tell(self._bytes_read)
            yield np.arange(start, stop), rows

    def require_unchanged(self) -> None:
        """Call after reading: what was read is what was verified."""
        self._files.require_unchanged()

    def _table_bytes(self) -> int:
        entries = (self._bundle.entries.get(key) for key in self.manifest.tables)
        return sum(tensor_bytes(entry.dtype, entry.shape) for entry in entries if entry is not None)

    def _require(self, spec: VariableSpec) -> None:
        entry, shape = self._bundle.entries.get(spec.key), self.manifest.shape_of(spec)
        if entry is None or (entry.dtype, entry.shape) != (spec.dtype, shape):
            raise DamagedError(
                f"{self.manifest.prefix} holds {spec.key!r} as {entry}, the model wants {spec.dtype}{shape}",
                path=self._files.prefix,
                position=str(self.manifest.position),
                hint="wait for the next full",
            )
