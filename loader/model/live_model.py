"""One export in memory: its predictions, and its variables on their way from state to state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta import signatures as contract
from hotdelta.chain import Node, Position, SignatureSpec, decode_identity
from hotdelta.chain.format.position import STATE_ID_HEX_DIGITS
from hotdelta.errors import ApplyError, HotdeltaError, PredictionError, RequestError
from hotdelta.export_metadata import ExportMetadata, read_metadata, require_files
from hotdelta.signature_calls import CALLER_THREAD, PREDICT_POOL, Call, zeros_for
from hotdelta.tensorflow_internals import allow_reserving
from loader.files.fed_update import FedUpdate, empty_update
from loader.model.feeds import prepare_feeds
from loader.model.huge_pages import HugePages
from loader.model.refused_input import explain
from loader.model.session_graph import SessionGraph, first_line, translated
from loader.model.state_digest import StateDigest
from loader.model.warm_up import WarmedUp, warm_up

Array = npt.NDArray[Any]
# What the variables say of themselves while something is written over them piece by piece. No state has this id.
HALF_WRITTEN = Node(Position(1, 1), "0" * STATE_ID_HEX_DIGITS)
# For other runtimes: the loader reads deltas itself, and verifies what it read.
_NOT_CALLED = frozenset({contract.RESTORE_INCREMENTAL, contract.STAGE_INCREMENTAL})
_REQUEST_FAULTS = (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError)


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """Of a table with keys: the rows and buckets in use, and how many unknown keys were asked for."""

    rows: int
    buckets: int
    unknown: int


class LiveModel:
    """A model that answers and that can be updated in place.

    Any thread may predict. All else belongs to one thread; what changes live variables (`apply`, `restore_full`)
    must not run beside predictions, which is what the gate is for. Every change is all or nothing.

    `held` is what the variables say of themselves; `node` is the state that may be served or gone on from, if any.
    """

    def __init__(
        self, metadata: ExportMetadata, graph: SessionGraph, *, path: Path, predict_threads: int
    ) -> None:
        self.metadata = metadata
        self._path = path
        self._predict_threads = predict_threads
        self._graph: SessionGraph | None = graph
        self._updates: dict[str, Call] = {
            name: graph.callable(name, pool=CALLER_THREAD)
            for name in contract.RESERVED_SIGNATURES
            if name in graph.signatures and name not in _NOT_CALLED
        }
        predict_pool = PREDICT_POOL if predict_threads else CALLER_THREAD
        self._predictions: dict[str, tuple[SignatureSpec, Call]] = {
            name: (spec, graph.prediction(name, spec, pool=predict_pool))
            for name, spec in metadata.signatures.items()
            if name in graph.signatures and name not in contract.RESERVED_SIGNATURES
        }
        self.node: Node | None = None
        self.held: Node | None = None
        self.step = 0
        self.digest = StateDigest(metadata.schema)
        self._unknown_before: dict[str, int] = {}
        self._warm_rows = 1
        self._read_identity()

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        predict_threads: int = 0,
        move_to_huge_pages: Callable[[tf.compat.v1.Session], HugePages] = HugePages,
    ) -> LiveModel:
        """Raises ApplyError when `path` is no export, or one that cannot be loaded."""
        metadata = read_metadata(path)
        require_files(path, metadata)
        # Twice: what grows is moved into the room that is reserved for it.
        allow_reserving(2 * metadata.schema.reserved_bytes)
        graph = SessionGraph(path, predict_threads=predict_threads)
        needed = set(contract.FULL_SIGNATURES)
        if metadata.is_incremental:
            needed |= set(contract.INCREMENTAL_SIGNATURES)
        missing = sorted(needed - graph.signatures)
        try:
            if missing:
                raise ApplyError(f"{path} has no signature {missing[0]!r}", hint="export it again")
            if metadata.is_incremental:
                graph.use_huge_pages(move_to_huge_pages)
            return cls(metadata, graph, path=path, predict_threads=predict_threads)
        except BaseException:
            graph.close()
            raise

    def load_again(self) -> LiveModel:
        """A second one beside this one, as exported. Raises ApplyError, also when there is another export now."""
        again = type(self).load(self._path, predict_threads=self._predict_threads)
        if again.metadata != self.metadata:
            again.close()
            raise self._is_gone()
        again.warm_up_for(self._warm_rows)
        return again

    def require_export(self) -> None:
        """Raises ApplyError when there is nothing, or something else, to load a second one from."""
        if read_metadata(self._path) != self.metadata:
            raise self._is_gone()
        require_files(self._path, self.metadata)

    def _is_gone(self) -> ApplyError:
        return ApplyError(f"{self._path} is not the export that is served any more")

    @property
    def signatures(self) -> tuple[str, ...]:
        return tuple(self._predictions)

    def predict(self, signature: str, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Raises RequestError when the request is at fault, PredictionError when the model is."""
        try:
            spec, call = self._predictions[signature]
        except KeyError:
            raise RequestError(
                f"there is no signature {signature!r}", hint=f"signatures: {', '.join(self.signatures)}"
            ) from None
        prepared = prepare_feeds(spec, feeds)
        try:
            return call(prepared)
        except _REQUEST_FAULTS as error:
            raise explain(error, prepared, self.metadata) from error
        except (tf.errors.OpError, TypeError, ValueError, RuntimeError) as error:
            raise PredictionError(f"the prediction failed: {first_line(error)}") from error

    def stage_rows(self, update: FedUpdate) -> None:
        """Stage values from memory, which must not be written to afterwards. Raises ApplyError."""
        self.digest.staged(None)
        self._update(contract.STAGE_ROWS, update)
        self.digest.staged(update)

    def preimage(self) -> FedUpdate:
        """What the staged update will overwrite; staged after its apply, it undoes it."""
        found = self._update(contract.STAGED_PREIMAGE, {})
        self.digest.found(found)
        return found

    def apply(self) -> None:
        """Copy what is staged into the live variables. Memory only."""
        try:
            self._update(contract.APPLY_STAGED, {})
            self.digest.applied()
        except BaseException:
            self.digest.forget()
            raise
        finally:
            # Refused it is the state before, failed in the middle it is none.
            self._read_identity()

    def holds(self, node: Node) -> bool:
        """Whether the variables themselves say that this is their state."""
        try:
            self._read_identity()
        except ApplyError:
            return False
        return self.node == node

    def discard(self) -> None:
        self.digest.staged(None)
        self._update(contract.DISCARD_STAGED, {})

    def restore_full(self, prefix: Path) -> None:
        """Read a full checkpoint into every variable. For a model that serves nobody: it needs twice its memory.

        All that an export without the incremental subgraph has; TensorFlow opens the files.
        """
        self.digest.forget()
        try:
            self._update(contract.RESTORE_FULL, {contract.PREFIX_INPUT: _prefix(prefix)})
        finally:
            self._read_identity()

    def key_counts(self) -> dict[str, KeyCounts]:
        """By the key of the rows of each table with keys. Any thread may ask, as for a prediction."""
        if not self.metadata.schema.key_tables:
            return {}
        counts = {key: [int(count) for count in found] for key, found in self._count_keys().items()}
        return {
            key: KeyCounts(rows, buckets, unknown - self._unknown_before.get(key, 0))
            for key, (rows, buckets, unknown) in counts.items()
        }

    def _count_keys(self) -> dict[str, Array]:
        return self._update(contract.KEY_COUNTS, {})

    def settle(self) -> None:
        """Waits for what goes on in the background after loading, for whoever measures a model at rest."""
        if self._graph is not None:
            self._graph.settle()

    def warm_up(self) -> None:
        """Run every path once, so that no request and no update pays for a first time. Not while serving."""
        if self.metadata.is_incremental and self.node is not None:
            nothing = empty_update(self.metadata.schema, node=self.node, parent=self.node, step=self.step)
            self.stage_rows(nothing)
            self.preimage()
            self.apply()
            self.discard()
        for name, (spec, _) in self._predictions.items():
            # A model may refuse zeros; then its first request is its warm-up.
            with contextlib.suppress(HotdeltaError):
                self.predict(name, zeros_for(spec))
        self._unknown_before = {key: counts.unknown for key, counts in self.key_counts().items()}

    def warm_up_for(self, rows: int) -> WarmedUp:
        """Answer requests as they may come, of up to so many rows. Values do not matter, so before any are restored."""
        self._warm_rows = rows
        is_compiled = self._graph is not None and self._graph.is_compiled
        sizes = range(1, rows + 1) if is_compiled else sorted({1, rows})
        signatures = {name: spec for name, (spec, _) in self._predictions.items()}
        return warm_up(self.predict, self._path, signatures, sizes=sizes)

    def close(self) -> None:
        """Free the variables. No call may be running or follow."""
        self._updates.clear()
        self._predictions.clear()
        graph, self._graph = self._graph, None
        if graph is not None:
            graph.close()

    def _update(self, signature: str, feeds: Mapping[str, Array]) -> dict[str, Array]:
        with translated(signature):
            return self._updates[signature](feeds)

    def _read_identity(self) -> None:
        answer = self._update(contract.IDENTITY, {})
        identity = [int(value) for value in answer[contract.IDENTITY_VALUE]]
        self.held = decode_identity(identity)[0] if identity[0] else None
        self.node = None if self.held == HALF_WRITTEN else self.held
        self.step = int(answer[contract.STEP_VALUE])


def _prefix(prefix: Path) -> Array:
    return np.array([str(prefix).encode()], object)
