"""The state at one position of a chain: which full and deltas make it up, and the value of each served variable.

Only files that serving needs are read and verified; optimizer slots may be absent.
"""

from __future__ import annotations

import logging
import math
import mmap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hotdelta.chain import names
from hotdelta.chain.bundle import BundleReader
from hotdelta.chain.bundle_reader import numpy_dtype
from hotdelta.chain.manifest import Kind, Manifest
from hotdelta.chain.plan import ApplyDelta, RestoreFull, plan
from hotdelta.chain.position import Position
from hotdelta.chain.scan import Scanner
from hotdelta.chain.schema import VariableSpec
from hotdelta.chain.signing import trusted_listing
from hotdelta.chain.verification import directory_of, verify
from hotdelta.errors import ChainError, ConfigurationError, DamagedError, HoleError
from hotdelta.logs import event

logger = logging.getLogger(__name__)

SERVING_ROLES = (names.ROLE_INDEX, names.ROLE_SERVING)

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ChainState:
    """A full and the deltas after it, in order, all verified."""

    run_dir: Path
    full: Manifest
    deltas: tuple[Manifest, ...]

    @property
    def newest(self) -> Manifest:
        return self.deltas[-1] if self.deltas else self.full

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        return (self.full, *self.deltas)

    def path(self, manifest: Manifest) -> str:
        """The prefix that RestoreV2 takes."""
        return str(directory_of(self.run_dir, manifest.kind) / manifest.prefix)


def find_state(run_dir: Path, position: Position | None = None) -> ChainState:
    """The newest valid position, or the given one.

    Raises ConfigurationError when there is nothing to export, ChainError when what was asked for is damaged.
    """
    listing = trusted_listing(run_dir, Scanner(run_dir).scan())
    manifests = [m for m in listing.manifests if position is None or m.position <= position]
    if not manifests:
        raise _nothing_to_export(run_dir, position, bool(listing.refused))
    if position is not None and manifests[-1].position != position:
        raise ConfigurationError(
            f"{run_dir} holds no position {position}", hint="leave `position` out for the newest"
        )
    broken: set[tuple[Kind, str]] = set()
    while True:
        usable = [m for m in manifests if (m.kind, m.prefix) not in broken]
        state = _reach(run_dir, usable)
        damage = _first_damage(state)
        if damage is None and position in (None, state.newest.position):
            return state
        manifest, error = damage or (None, _hole(position))
        if position is not None or manifest is None:
            raise error
        event(logger, logging.WARNING, "stepping back before a damaged link", reason=error)
        broken.add((manifest.kind, manifest.prefix))


def _reach(run_dir: Path, manifests: Sequence[Manifest]) -> ChainState:
    schema = manifests[-1].schema if manifests else None
    found = plan(None, manifests, schema=schema)
    fulls = [step.manifest for step in found.steps if isinstance(step, RestoreFull)]
    if not fulls:
        raise found.problem or ChainError(
            f"{run_dir} holds no valid full checkpoint",
            hint="wait for the trainer to write one, or save one by hand",
        )
    deltas = tuple(step.manifest for step in found.steps if isinstance(step, ApplyDelta))
    return ChainState(run_dir, fulls[0], deltas)


def _first_damage(state: ChainState) -> tuple[Manifest, DamagedError] | None:
    for manifest in state.manifests:
        try:
            verify(state.run_dir, manifest, roles=SERVING_ROLES)
        except DamagedError as error:
            return manifest, error
    return None


def _hole(position: Position | None) -> HoleError:
    return HoleError(
        f"position {position} cannot be reached from any full",
        missing="a link before it",
        wanted_by=str(position),
        hint="choose another position, or leave `position` out for the newest",
    )


def _nothing_to_export(run_dir: Path, position: Position | None, has_refused: bool) -> ConfigurationError:
    if not run_dir.is_dir():
        return ConfigurationError(
            f"{run_dir} is no directory", hint="give the directory that the trainer writes to"
        )
    if position is not None:
        return ConfigurationError(f"{run_dir} holds nothing up to {position}", hint="leave `position` out")
    reason = "no checkpoint that this hotdelta can read" if has_refused else "no checkpoint yet"
    if not has_refused and any(run_dir.glob("*.index")):
        reason = "checkpoints, but none that a trainer with hotdelta has committed"
    return ConfigurationError(
        f"{run_dir} holds {reason}",
        hint="start the trainer with this checkpoint directory: it writes a full at its first step. The command "
        "exporter waits for it with --wait",
    )


class ChainReader:
    """Values of variables at a state of the chain. A context manager: it keeps the files open."""

    def __init__(self, state: ChainState) -> None:
        self._stack = ExitStack()
        self._readers = [
            self._stack.enter_context(BundleReader(directory_of(state.run_dir, m.kind), m.prefix))
            for m in state.manifests
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def slices(self, spec: VariableSpec, slice_bytes: int) -> Iterator[tuple[int, Array]]:
        """(first row, rows) of all of a table in order, so many bytes at a time; of other variables (0, the value).

        In memory of their own; bfloat16, which numpy lacks, comes as uint16.
        """
        dtype = numpy_dtype(spec.dtype)
        if not spec.is_table:
            yield 0, np.array(self._newest_bytes(spec)).view(dtype).reshape(spec.shape)
            return
        row_bytes = math.prod(spec.shape[1:]) * dtype.itemsize
        step = max(1, slice_bytes // max(1, row_bytes))
        full = self._readers[0].map_bytes(spec.key)
        for start in range(0, spec.shape[0], step):
            stop = min(start + step, spec.shape[0])
            rows = np.array(full[start * row_bytes : stop * row_bytes]).view(dtype)
            rows = rows.reshape(stop - start, *spec.shape[1:])
            for reader in self._readers[1:]:
                ids = reader.map(spec.key + names.IDS_SUFFIX)
                first, last = np.searchsorted(ids, [start, stop])
                rows[ids[first:last] - start] = reader.map(spec.key + names.ROWS_SUFFIX)[first:last]
                _drop_pages(ids)
            _drop_pages(full)
            yield start, rows

    def _newest_bytes(self, spec: VariableSpec) -> npt.NDArray[np.uint8]:
        name = spec.key + names.VALUE_SUFFIX
        for reader in reversed(self._readers[1:]):
            if reader.entries[name].shape[0]:
                return reader.map_bytes(name)
        return self._readers[0].map_bytes(spec.key)


def _drop_pages(mapped: Array) -> None:
    """Pages of a mapped file count as memory of this process as long as they are mapped in."""
    mapping = getattr(mapped, "_mmap", None)
    if mapping is not None:
        mapping.madvise(mmap.MADV_DONTNEED)
