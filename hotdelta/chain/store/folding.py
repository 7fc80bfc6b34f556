"""Several deltas in a row made into one, which leads from the parent of the first to the state of the last.

Of each row it has the newest value, and so of all else: what came and went between is in neither of its two states, and
so not in it. For a reader it is a delta like any. Never decides what is folded, and leaves the deltas as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hotdelta.chain.bundle.delta_tensors import (
    SHARD_ROLES,
    ids_tensor,
    possible_tables,
    shard_of,
    state_tensors,
)
from hotdelta.chain.bundle.dtypes import stored_dtype
from hotdelta.chain.bundle.writer import BundleWriter, PreparedBundle, TensorLayout
from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.key_index import BUCKET_COLUMNS, KeyChanges, changes
from hotdelta.chain.format.manifest import Kind, Manifest, TableRecord, Tracking
from hotdelta.chain.format.position import Node
from hotdelta.chain.format.schema import KeyTable
from hotdelta.chain.history.signing import KEY_FILE_VARIABLE, SigningKey
from hotdelta.chain.history.state import ChainState, find_state, read_schema
from hotdelta.chain.history.state_index import Place, StateIndex
from hotdelta.chain.history.state_pieces import Array, HeldRows, Ids, OpenFiles, put_together, read_rows
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.chain.history.verification import directory_of
from hotdelta.chain.store.commit import commit
from hotdelta.errors import ChainError

_SLICE_BYTES = 16 * 1024 * 1024
_OPEN_FILES = 64
_WRITTEN_ANEW = {names.IDENTITY_TENSOR, names.STEP_TENSOR}


def is_next(previous: Manifest, manifest: Manifest) -> bool:
    """Whether a delta goes on in the line of another one, of the same run, and has the same tables."""
    return (
        manifest.kind is Kind.DELTA
        and manifest.parent == previous.node
        and manifest.position.run == previous.position.run
        and manifest.schema == previous.schema
        and _made(manifest) == _made(previous)
    )


def fold(run_dir: Path, links: Sequence[Manifest], into: Path, *, disk: Disk) -> Manifest:
    """Commits one delta in place of `links`, in another directory; with that it is durable.

    Each of the links is the next one of that before it, and their files were verified. What it takes is about three
    times their bytes. Raises ChainError when they cannot be one (then nothing was committed), CommitError.
    """
    key = _require_key(links)
    folding = _Folding(run_dir, links)
    parent, newest = links[0].parent, links[-1]
    prefix = f"{newest.prefix}-after-{parent}"
    directory = directory_of(into, Kind.DELTA)
    disk.make_directory(directory)
    prepared = folding.write(directory, prefix, disk)
    watermarks = [link.watermark for link in links if link.watermark is not None]
    manifest = replace(
        newest,
        parent=parent,
        prefix=prefix,
        tables=folding.records(),
        files=prepared.files,
        watermark=max(watermarks, default=None),
        signature="",
    )
    commit(prepared, key.sign(manifest) if key is not None else manifest, disk=disk)
    return manifest if key is None else key.sign(manifest)


def _made(manifest: Manifest) -> Mapping[str, tuple[object, ...]]:
    return {
        key: (table.shape, table.dtype, table.part_rows, table.strategy, table.rows_in_use is None)
        for key, table in manifest.tables.items()
    }


def _require_key(links: Sequence[Manifest]) -> SigningKey | None:
    """What somebody else signed is not to be signed by us, and what is signed not to be left without."""
    key = SigningKey.from_environment()
    if key is None and any(link.signature for link in links):
        raise ChainError(
            "the deltas are signed, and no key is configured",
            hint=f"set {KEY_FILE_VARIABLE}, as their trainer had it",
        )
    for link in links if key is not None else ():
        if reason := key.distrust(link) if key is not None else "":
            raise ChainError(f"{link.position} cannot be folded: {reason}")
    return key


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor of the delta that is written: what it is, and how it is made when its turn comes."""

    layout: TensorLayout
    make: Callable[[], Array]


class _Folding:
    """The tensors of the links, put together one after the other. One thread."""

    def __init__(self, run_dir: Path, links: Sequence[Manifest]) -> None:
        self._run_dir = run_dir
        self._links = links
        # The index counts links from its first manifest on, whatever kind that is.
        self._index = StateIndex(ChainState(run_dir, links[0], tuple(links[1:])))
        self._newest = self._index.num_links - 1
        self._names = self._require_one_make()
        self._counts = {
            name: len(np.unique(self._stacked(name)))
            for name in self._names
            if name.endswith(names.IDS_SUFFIX)
        }
        self._keys = {table.rows: self._find_key_changes(table) for table in self._key_tables()}
        for key, table in links[-1].tables.items():
            if table.keys_live is not None and key not in self._keys:
                raise self._cannot(f"nothing tells where the keys of {key!r} are")

    def records(self) -> dict[str, TableRecord]:
        """What the manifest says of the tables."""
        return {key: self._record(key, table) for key, table in self._links[-1].tables.items()}

    def _record(self, key: str, newest: TableRecord) -> TableRecord:
        is_compared = any(link.tables[key].tracking is Tracking.CHANGED for link in self._links)
        record = replace(
            newest,
            rows_changed=self._counts[key + names.IDS_SUFFIX],
            tracking=Tracking.CHANGED if is_compared else newest.tracking,
        )
        if key not in self._keys:
            return record
        moves = self._keys[key]
        return replace(record, rows_deleted=len(moves.gone), keys_new=len(moves.come))

    def write(self, directory: Path, prefix: str, disk: Disk) -> PreparedBundle:
        """Raises CommitError; then nothing is left behind."""
        tensors = [*self._own(), *(self._plan(name) for name in sorted(self._names))]
        layouts = [tensor.layout for tensor in tensors]
        writer = BundleWriter(directory, prefix, layouts, shard_roles=SHARD_ROLES, disk=disk)
        try:
            for tensor in tensors:
                writer.write(tensor.layout.name, tensor.make())
            return writer.finish()
        except BaseException:
            writer.abandon()
            raise

    def _require_one_make(self) -> frozenset[str]:
        """The names of the tensors, which are those of every link. Raises ChainError when they are not."""
        found = frozenset(self._index.names_in(self._newest))
        for link in range(self._newest):
            if frozenset(self._index.names_in(link)) != found:
                raise self._cannot(f"{self._links[link].position} has other tensors than the last of them")
        for name in found:
            if len({(place.type.dtype, place.type.shape[1:]) for place in self._index.places(name)}) != 1:
                raise self._cannot(f"{name!r} is not the same in all of them")
        return frozenset(found - _WRITTEN_ANEW)

    def _own(self) -> Iterator[_Tensor]:
        newest = self._links[-1]
        for name, value in state_tensors(newest.node, self._links[0].parent, newest.step).items():
            layout = TensorLayout(name, value.dtype.name, value.shape, shard_of(names.ROLE_SERVING))
            yield _Tensor(layout, lambda value=value: value)  # type: ignore[misc]

    def _plan(self, name: str) -> _Tensor:
        if name.endswith(names.IDS_SUFFIX):
            return self._planned(name, self._counts[name], lambda: np.unique(self._stacked(name)))
        if name.endswith(names.ROWS_SUFFIX):
            ids = self._ids_of(name)
            return self._planned(name, self._counts[ids], lambda: self._newest_rows(name, ids).rows)
        if name.endswith(names.DELETED_SUFFIX):
            gone = self._keys[name.removesuffix(names.DELETED_SUFFIX)].gone
            return self._planned(name, len(gone), lambda: gone)
        if name.endswith(names.VALUE_SUFFIX):
            place = self._last_value(name)
            return self._planned(name, place.type.shape[0], lambda: self._read(place))
        if name == names.TRAINER_STATE_TENSOR:
            place = self._place(name, self._newest)
            return self._planned(name, place.type.shape[0], lambda: self._read(place))
        raise self._cannot(f"nobody knows what {name!r} is")

    def _planned(self, name: str, count: int, make: Callable[[], Array]) -> _Tensor:
        """In a file of the role that the newest link has it in."""
        place = self._place(name, self._newest)
        roles = {self._index.file(place.link, extent.shard)[1].role for extent in place.extents}
        role = names.ROLE_SERVING if names.ROLE_SERVING in roles else names.ROLE_TRAINING
        found = place.type
        return _Tensor(TensorLayout(name, found.dtype, (count, *found.shape[1:]), shard_of(role)), make)

    def _newest_rows(self, name: str, ids_name: str) -> HeldRows:
        ids, rows = self._stacked(ids_name), self._stacked(name)
        if len(ids) != len(rows):
            raise self._cannot(f"{name!r} has {len(rows)} rows, and their ids are {len(ids)}")
        return put_together(ids, rows)

    def _ids_of(self, rows_name: str) -> str:
        """A slot may share the ids of its table, which its name tells, unless it could be that of two tables."""
        key = rows_name.removesuffix(names.ROWS_SUFFIX)
        found = ids_tensor(self._names, key)
        owners = {table for table in possible_tables(key) if table in self._links[-1].tables}
        if found not in self._names or (found != key + names.IDS_SUFFIX and len(owners) > 1):
            raise self._cannot(f"nothing tells which rows {rows_name!r} has")
        return found

    def _key_tables(self) -> tuple[KeyTable, ...]:
        """By the schema; of a model that is not served, which is in none, by the names of its variables."""
        schema = read_schema(self._run_dir, self._links[-1])
        served = {table.rows: table for table in schema.key_tables} if schema is not None else {}
        with_keys = (name for name in self._names if name.endswith(names.DELETED_SUFFIX))
        for key in (name.removesuffix(names.DELETED_SUFFIX) for name in with_keys):
            scope = key.rpartition("/")[0]
            served.setdefault(key, KeyTable(key, f"{scope}/index", f"{scope}/counts"))
        return tuple(served.values())

    def _find_key_changes(self, table: KeyTable) -> KeyChanges:
        """Which keys come and go from the parent of the first link to the state of the last.

        No link tells which keys its parent had, so the parent's buckets are looked at.
        """
        rows_name, ids_name = table.index + names.ROWS_SUFFIX, table.index + names.IDS_SUFFIX
        if not self._names.issuperset((rows_name, ids_name)):
            raise self._cannot(f"nothing tells which buckets the keys of {table.rows!r} lie in")
        held = self._newest_rows(rows_name, ids_name)
        if held.rows.dtype != np.int64 or held.rows.shape[1:] != (BUCKET_COLUMNS,):
            raise self._cannot(f"{table.index!r} holds no buckets")
        parent = self._links[0].parent
        before = _read_buckets(self._run_dir, parent, table.index, held.ids) if parent is not None else None
        if before is None:
            raise self._cannot(f"the state {parent} before them is not there")
        return changes(before, held.rows)

    def _last_value(self, name: str) -> Place:
        """One that did not change in any of them has a leading axis of 0."""
        places = self._index.places(name, newest_first=True)
        changed = (place for place in places if place.type.shape[:1] == (1,))
        return next(changed, self._place(name, self._newest))

    def _place(self, name: str, link: int) -> Place:
        place = self._index.place(name, link)
        if place is None:
            raise self._cannot(f"{self._links[link].position} has no {name!r}")
        return place

    def _read(self, place: Place) -> Array:
        return self._read_all([place])

    def _stacked(self, name: str) -> Array:
        """The rows of all links, one link after the other."""
        return self._read_all(list(self._index.places(name)))

    def _read_all(self, places: Sequence[Place]) -> Array:
        counts = [place.type.shape[0] for place in places]
        found = places[0].type
        memory = np.empty((sum(counts), *found.shape[1:]), stored_dtype(found.dtype))
        first = 0
        with OpenFiles(_OPEN_FILES) as files:
            for place, count in zip(places, counts, strict=True):
                read_rows(self._index, files, place, memory[first : first + count], 0)
                first += count
        return memory

    def _cannot(self, reason: str) -> ChainError:
        first, last = self._links[0].position, self._links[-1].position
        return ChainError(f"{first} to {last} cannot be one delta: {reason}")


def _read_buckets(run_dir: Path, node: Node, index_key: str, bucket_ids: Ids) -> Array | None:
    """These buckets of an index as they are at a state; those that come into use later are empty.

    None when that state is not in the directory.
    """
    state = find_state(run_dir, position=node.position, roles=names.SERVING_ROLES)
    if state is None or state.node != node:
        return None
    buckets = np.zeros((len(bucket_ids), BUCKET_COLUMNS), np.int64)
    for first, rows in StateReader(state).slices(index_key, _SLICE_BYTES):
        begin, end = np.searchsorted(bucket_ids, [first, first + len(rows)])
        buckets[begin:end] = rows[bucket_ids[begin:end] - first]
    return buckets
