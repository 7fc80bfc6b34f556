"""Proves that an export works before anyone can see it, with one copy of its tables in memory at a time.

It is loaded in a Session, as the server loads it, and then eagerly. Each time all values are compared bit for bit with
those of the chain, taken away, restored through the signatures of the export from the full and up to
MAX_RESTORED_DELTAS deltas after it, and compared with what the chain holds there. In the Session every signature is
asked as the server will ask it: by what the written metadata says, and in the same way.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from exporter.fingerprint import (
    CHUNK_BYTES,
    Fingerprint,
    Fingerprinting,
    Fingerprints,
    slices_with,
    value_slices,
)
from exporter.loaded_graph import LoadedGraph
from exporter.signatures.variables import empty_variable
from exporter.value_files import fingerprint_values
from hotdelta import signatures as contract
from hotdelta.chain.bundle.dtypes import tensor_bytes
from hotdelta.chain.format.schema import Schema, VariableSpec
from hotdelta.chain.history.state import ChainState
from hotdelta.errors import ModelMismatchError
from hotdelta.export_metadata import ExportMetadata, read_metadata
from hotdelta.logs import ProgressLog, event
from hotdelta.signature_calls import zeros_for

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]

# How many deltas are restored through the signatures of the export, in each runtime: a call costs milliseconds however
# few rows it brings, and there may be thousands.
MAX_RESTORED_DELTAS = 32


@dataclass(frozen=True, slots=True)
class Expected:
    """What an export must hold as it is, and after its signatures restored a state of the chain (None: no chain).

    `restored` may read the chain once more: it is asked when an export is proved, and not before.
    """

    saved: Fingerprints
    state: ChainState | None = None
    restored: Callable[[], Fingerprints] = dict


def expect(
    schema: Schema, saved: Fingerprints, state: ChainState | None, *, is_incremental: bool
) -> Expected:
    """A full and the first deltas after it are restored; the full alone, where the export cannot take deltas."""
    if state is None:
        return Expected(saved)
    deltas = state.deltas[: MAX_RESTORED_DELTAS if is_incremental else 0]
    if deltas == state.deltas:
        return Expected(saved, state, lambda: saved)
    earlier = replace(state, deltas=deltas)
    return Expected(saved, earlier, cache(partial(fingerprint_values, schema, earlier)))


class _Runtime(Protocol):
    """One way to run the export."""

    how: str

    def read_whole(self, indices: Sequence[int]) -> list[Array]:
        """These variables of the schema, in one call."""

    def read_saved(self, index: int, spec: VariableSpec) -> Iterator[Array]:
        """The index-th variable of the schema in slices, not copied: before anything was restored."""

    def empty(self) -> None:
        """Take all values away: their memory is needed, and nobody may find them again and think they were restored."""

    def restore(self, signature: str, prefix: str) -> None: ...

    def read_restored(self, index: int, spec: VariableSpec) -> Iterator[Array]:
        """The same when rows were updated: a table is gathered, since reading it whole copies it then."""


def verify_export(directory: Path, schema: Schema, expected: Expected) -> None:
    """Raises ModelMismatchError that names the variable and the rows that differ."""
    event(logger, logging.INFO, "verifying", how=_SessionRuntime.how)
    with LoadedGraph(directory) as graph:
        _verify(_SessionRuntime(graph), schema, expected)
        _predict(graph, read_metadata(directory))
    del graph
    # A loaded SavedModel is full of reference cycles: without this its tables stay while the next one is loaded.
    gc.collect()
    event(logger, logging.INFO, "verifying", how=_EagerRuntime.how)
    _verify(_EagerRuntime(directory), schema, expected)
    gc.collect()


def _predict(graph: LoadedGraph, metadata: ExportMetadata) -> None:
    """Raises ApplyError or ModelMismatchError when a server could not call a signature."""
    for name, spec in metadata.signatures.items():
        call = graph.prediction(name, spec)
        try:
            call(zeros_for(spec))
        except tf.errors.OpError as error:
            # A model may refuse zeros, or an empty string.
            event(logger, logging.INFO, "a row of zeros is refused", signature=name, reason=error.message)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ModelMismatchError(
                f"signature {name!r} cannot be called: {error}",
                hint="nothing was published; give signatures with a tf.function of your own",
            ) from error


class _SessionRuntime:
    how = "in a Session"

    def __init__(self, graph: LoadedGraph) -> None:
        self._graph = graph
        self.read_whole = graph.read_whole
        self.empty = graph.empty_variables
        self.restore = graph.restore

    def read_saved(self, index: int, spec: VariableSpec) -> Iterator[Array]:
        return slices_with(spec, partial(self._graph.slice_rows, index), partial(self._read_one, index))

    def read_restored(self, index: int, spec: VariableSpec) -> Iterator[Array]:
        return slices_with(spec, partial(self._graph.gather_rows, index), partial(self._read_one, index))

    def _read_one(self, index: int) -> Array:
        return self.read_whole([index])[0]


class _EagerRuntime:
    how = "loaded eagerly"

    def __init__(self, directory: Path) -> None:
        self._loaded = tf.saved_model.load(str(directory))
        self._variables = self._loaded.hotdelta_variables

    def read_whole(self, indices: Sequence[int]) -> list[Array]:
        return [np.asarray(self._variables[index].read_value()) for index in indices]

    def read_saved(self, index: int, spec: VariableSpec) -> Iterator[Array]:
        return value_slices(self._variables[index], spec)

    def empty(self) -> None:
        for variable in self._variables:
            empty_variable(variable)

    def restore(self, signature: str, prefix: str) -> None:
        self._loaded.signatures[signature](**{contract.PREFIX_INPUT: tf.constant([prefix])})

    def read_restored(self, index: int, spec: VariableSpec) -> Iterator[Array]:
        variable = self._variables[index]

        def gather(start: int, stop: int) -> Array:
            return np.asarray(tf.gather(variable, tf.range(start, stop, dtype=tf.int64)))

        return slices_with(spec, gather, lambda: np.asarray(variable.read_value()))


def _verify(runtime: _Runtime, schema: Schema, expected: Expected) -> None:
    saved = _read(runtime, runtime.read_saved, schema, expected.saved)
    _compare(f"as saved, {runtime.how}", saved, expected.saved)
    if expected.state is None:
        return
    runtime.empty()
    _restore(runtime, expected.state)
    when = f"after restoring {expected.state.newest.position}, {runtime.how}"
    restored = expected.restored()
    try:
        found = _read(runtime, runtime.read_restored, schema, restored)
    except tf.errors.OpError as error:
        raise _mismatch(f"the export has no values {when}: {error.message}") from error
    _compare(when, found, restored)


def _specs(schema: Schema, expected: Fingerprints) -> list[VariableSpec]:
    """Of growing tables only the rows in use are compared: what else there is in memory means nothing."""
    return [
        replace(spec, shape=(expected[spec.key].rows, *spec.shape[1:]))
        if spec.key in schema.growing
        else spec
        for spec in schema.variables
    ]


def _read(
    runtime: _Runtime,
    read: Callable[[int, VariableSpec], Iterator[Array]],
    schema: Schema,
    expected: Fingerprints,
) -> dict[str, Fingerprint]:
    specs = _specs(schema, expected)
    found, done = {}, 0
    total = sum(tensor_bytes(spec.dtype, spec.shape) for spec in specs)
    progress = ProgressLog("comparing bytes of values", of=total, how=runtime.how)
    together = _read_together(schema)
    small = dict(zip(together, runtime.read_whole(together), strict=True))
    for index, spec in enumerate(specs):
        passing = Fingerprinting(spec)
        for values in _rows_in_use(small[index], spec) if index in small else read(index, spec):
            passing.add(values)
            progress.tell(done := done + values.nbytes)
        found[spec.key] = passing.result()
    return found


def _rows_in_use(whole: Array, spec: VariableSpec) -> Iterator[Array]:
    yield whole[: spec.shape[0]] if spec.is_table else whole


def _read_together(schema: Schema) -> list[int]:
    """As many variables as a chunk has room for, the smallest first: in a Session each first call costs the most."""
    sizes = [tensor_bytes(spec.dtype, spec.shape) for spec in schema.variables]
    smallest_first = sorted(range(len(sizes)), key=sizes.__getitem__)
    fit = np.cumsum([sizes[index] for index in smallest_first]) <= CHUNK_BYTES
    return sorted(index for index, fits in zip(smallest_first, fit, strict=True) if fits)


def _restore(runtime: _Runtime, state: ChainState) -> None:
    signatures = [contract.RESTORE_FULL, *[contract.RESTORE_INCREMENTAL] * len(state.deltas)]
    for signature, manifest in zip(signatures, state.manifests, strict=True):
        try:
            runtime.restore(signature, state.path(manifest))
        except tf.errors.OpError as error:
            raise ModelMismatchError(
                f"{signature} of {manifest.position} fails, {runtime.how}: {error.message}",
                hint="nothing was published; the checkpoint does not fit the serving graph beside it",
            ) from error


def _compare(when: str, found: Fingerprints, expected: Fingerprints) -> None:
    problems = tuple(
        f"{key}: {difference}"
        for key, fingerprint in expected.items()
        if (difference := fingerprint.difference(found[key])) is not None
    )
    if problems:
        raise _mismatch(f"the export differs from the checkpoint {when}: {'; '.join(problems)}", problems)


def _mismatch(message: str, problems: tuple[str, ...] = ()) -> ModelMismatchError:
    return ModelMismatchError(
        message,
        problems=problems,
        hint="nothing was published; export again, and report it if it happens again",
    )
