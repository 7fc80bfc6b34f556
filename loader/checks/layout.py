"""Compares what a bundle says of itself with the schema and the manifest, before anything is allocated for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from hotdelta.chain import BundleEntry, Kind, Manifest, Schema, VariableSpec, decode_identity
from hotdelta.chain.bundle.dtypes import tensor_bytes
from hotdelta.chain.format import names
from hotdelta.errors import DamagedError, HotdeltaError

_IDENTITY_SIZE = 8


class Bundle(Protocol):
    """An open bundle that can say what it holds."""

    @property
    def prefix(self) -> Path: ...

    @property
    def entries(self) -> Mapping[str, BundleEntry]: ...

    def shard_bytes(self, shard: int) -> int: ...

    def read(self, name: str) -> npt.NDArray[Any]: ...


def check_layout(bundle: Bundle, manifest: Manifest, schema: Schema) -> None:
    """Raises DamagedError: dtypes, shapes, numbers of rows and places of every tensor that serving reads."""
    layout = _Layout(bundle, manifest)
    layout.require(names.IDENTITY_TENSOR, "int64", (_IDENTITY_SIZE,))
    layout.require(names.STEP_TENSOR, "int64", ())
    _check_identity(layout, bundle)
    for spec in schema.variables:
        is_growing = spec.key in schema.growing
        if is_growing or (spec.is_table and manifest.kind is Kind.DELTA):
            _check_record(layout, spec, is_growing=is_growing)
        if manifest.kind is Kind.FULL:
            layout.require(spec.key, spec.dtype, manifest.shape_of(spec))
        elif spec.is_table:
            _check_table(layout, spec)
        else:
            _check_value(layout, spec)


def _check_identity(layout: _Layout, bundle: Bundle) -> None:
    """A manifest that gives a bundle another name would let its values be served under it."""
    manifest = layout.manifest
    try:
        node, parent = decode_identity([int(word) for word in bundle.read(names.IDENTITY_TENSOR)])
    except (HotdeltaError, ValueError) as error:
        raise layout.wrong(f"it does not say which state it is: {error}") from error
    if node != manifest.node:
        raise layout.wrong(f"its files say that they are {node} ({node.state_id})")
    if manifest.kind is Kind.DELTA and parent != manifest.parent:
        raise layout.wrong(f"its files say that they follow {parent}")
    step = int(bundle.read(names.STEP_TENSOR))
    if step != manifest.step:
        raise layout.wrong(f"its files say that they are of step {step}")


def _check_record(layout: _Layout, spec: VariableSpec, *, is_growing: bool) -> None:
    record = layout.manifest.tables.get(spec.key)
    if record is None or (record.shape, record.dtype) != (spec.shape, spec.dtype):
        raise layout.wrong(f"its manifest has {spec.key!r} as {record}, the model wants {_show(spec)}")
    if (record.rows_in_use is not None) != is_growing:
        grows = "grows" if is_growing else "does not grow"
        raise layout.wrong(
            f"its manifest has {record.rows_in_use} rows of {spec.key!r} in use, which {grows}"
        )


def _check_table(layout: _Layout, spec: VariableSpec) -> None:
    rows = layout.manifest.tables[spec.key].rows_changed
    layout.require(spec.key + names.IDS_SUFFIX, "int64", (rows,))
    layout.require(spec.key + names.ROWS_SUFFIX, spec.dtype, (rows, *spec.shape[1:]))


def _check_value(layout: _Layout, spec: VariableSpec) -> None:
    """A value that did not change has a leading axis of 0."""
    name = spec.key + names.VALUE_SUFFIX
    entry = layout.entry(name)
    is_changed = 1 if entry.shape[:1] == (1,) else 0
    layout.require(name, spec.dtype, (is_changed, *spec.shape))


class _Layout:
    """The declared tensors of one bundle."""

    def __init__(self, bundle: Bundle, manifest: Manifest) -> None:
        self.manifest = manifest
        self._bundle = bundle

    def require(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        entry = self.entry(name)
        if (entry.dtype, entry.shape) != (dtype, shape):
            raise self.wrong(f"{name!r} is {entry.dtype}{list(entry.shape)}, not {dtype}{list(shape)}")
        if entry.is_sliced or dtype == "string":
            return
        size = tensor_bytes(dtype, shape)
        if entry.size != size or (size and entry.offset + size > self._bundle.shard_bytes(entry.shard)):
            raise self.wrong(f"{name!r} is said to be {entry.size} bytes at {entry.offset}, which cannot be")

    def entry(self, name: str) -> BundleEntry:
        entry = self._bundle.entries.get(name)
        if entry is None:
            raise self.wrong(f"it has no {name!r}")
        return entry

    def wrong(self, reason: str) -> DamagedError:
        position = str(self.manifest.position)
        return DamagedError(
            f"the bundle of {position} does not fit the model: {reason}",
            path=self._bundle.prefix,
            position=position,
            hint="wait for the next full",
        )


def _show(spec: VariableSpec) -> str:
    return f"{spec.dtype}{list(spec.shape)}"
