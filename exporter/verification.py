"""Proves that an export works before anyone can see it.

It is loaded both ways, restored both ways and compared bit for bit, and each of its signatures is asked as the server
will ask it: by what the written metadata says, and in the same way.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tensorflow as tf

from exporter.fingerprint import Fingerprint, fingerprint_variable, fingerprint_with
from exporter.loaded_graph import LoadedGraph
from hotdelta import signatures as contract
from hotdelta.chain.schema import Schema
from hotdelta.chain.state import ChainState
from hotdelta.errors import ModelMismatchError
from hotdelta.export_metadata import ExportMetadata, read_metadata
from hotdelta.logs import event
from hotdelta.signature_calls import zeros_for

logger = logging.getLogger(__name__)

Fingerprints = Mapping[str, Fingerprint]


@dataclass(frozen=True, slots=True)
class Expected:
    """What an export must hold as it is, and after its own signatures restored a state of the chain (None: no chain).

    Without the incremental subgraph that state is a full alone.
    """

    saved: Fingerprints
    state: ChainState | None = None
    restored: Fingerprints | None = None


@dataclass(frozen=True, slots=True)
class _Runtime:
    """One way to run the export: how to read its variables and how to call a restore signature with a prefix."""

    how: str
    read: Callable[[], Fingerprints]
    restore: Callable[[str, str], object]


def verify_export(directory: Path, schema: Schema, expected: Expected) -> None:
    """Raises ModelMismatchError that names the variable and the rows that differ."""
    _verify(_eager_runtime(directory, schema), expected)
    # A loaded SavedModel is full of reference cycles: without this its tables stay while the next one is loaded.
    gc.collect()
    with LoadedGraph(directory) as graph:
        _verify(_session_runtime(graph, schema), expected)
        _predict(graph, read_metadata(directory))


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


def _eager_runtime(directory: Path, schema: Schema) -> _Runtime:
    loaded = tf.saved_model.load(str(directory))

    def read() -> Fingerprints:
        pairs = zip(schema.variables, loaded.hotdelta_variables, strict=True)
        return {spec.key: fingerprint_variable(variable, spec) for spec, variable in pairs}

    def restore(signature: str, prefix: str) -> None:
        loaded.signatures[signature](**{contract.PREFIX_INPUT: tf.constant([prefix])})

    return _Runtime("loaded eagerly", read, restore)


def _session_runtime(graph: LoadedGraph, schema: Schema) -> _Runtime:
    def read() -> Fingerprints:
        return {
            spec.key: fingerprint_with(spec, partial(graph.read_rows, index), partial(graph.read_all, index))
            for index, spec in enumerate(schema.variables)
        }

    return _Runtime("in a Session", read, graph.restore)


def _verify(runtime: _Runtime, expected: Expected) -> None:
    event(logger, logging.INFO, "verifying", how=runtime.how)
    _compare(f"as saved, {runtime.how}", runtime.read(), expected.saved)
    if expected.state is not None and expected.restored is not None:
        _restore(runtime, expected.state)
        when = f"after restoring {expected.state.newest.position}, {runtime.how}"
        _compare(when, runtime.read(), expected.restored)


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
        raise ModelMismatchError(
            f"the export differs from the checkpoint {when}: {'; '.join(problems)}",
            problems=problems,
            hint="nothing was published; export again, and report it if it happens again",
        )
