"""A full made of an earlier one and the deltas after it, as their trainer would have written it at that position.

Followers never need it, and newcomers read it in place of all that it is made of. Needs the trainer's lock, like every
commit: a trainer that runs makes fulls by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from hotdelta.chain.bundle.delta_tensors import SHARD_ROLES, possible_tables, shard_of, state_tensors
from hotdelta.chain.bundle.writer import BundleWriter, PreparedBundle, TensorLayout
from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import HighestStep, Kind, Manifest
from hotdelta.chain.history.scan import Listing
from hotdelta.chain.history.signing import KEY_FILE_VARIABLE, SigningKey
from hotdelta.chain.history.state import ChainState
from hotdelta.chain.history.state_index import StateIndex
from hotdelta.chain.history.state_pieces import Array
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.chain.history.verification import directory_of
from hotdelta.chain.store.commit import commit
from hotdelta.errors import ChainError

_SLICE_BYTES = 16 * 1024 * 1024

OnWrite = Callable[[int], None]


def compact(
    state: ChainState, listing: Listing, *, disk: Disk, on_write: OnWrite, mark: str = ""
) -> Manifest:
    """Commit a full of the newest node of a state, which ends with a delta and whose files were all verified.

    `listing`: of the directory, for the names that were ever used in it. `on_write` hears the bytes of each piece.
    `mark` is put behind the name, where a trainer may be about to give it.
    Raises CommitError, and ChainError when the deltas alone do not tell all; then nothing was committed.
    """
    newest, key = state.newest, SigningKey.from_environment()
    if key is None and newest.signature:
        raise ChainError(
            "the chain is signed, and no key is configured",
            hint=f"set {KEY_FILE_VARIABLE}, as its trainer has it",
        )
    highest = _highest_steps(listing)
    prefix = names.full_prefix(newest.step, newest.position, is_step_fresh=newest.step > highest.full) + mark
    highest = replace(highest, full=max(highest.full, newest.step))
    prepared = _write(state, prefix, disk, on_write)
    manifest = Manifest(
        kind=Kind.FULL,
        position=newest.position,
        state_id=newest.state_id,
        parent=newest.parent,
        base=newest.position,
        prefix=prefix,
        step=newest.step,
        created_at=newest.created_at,
        schema=newest.schema,
        tables=newest.tables,
        files=prepared.files,
        highest_step=highest,
        watermark=newest.watermark,
    )
    commit(prepared, key.sign(manifest) if key is not None else manifest, disk=disk)
    return manifest


def _highest_steps(listing: Listing) -> HighestStep:
    steps = [manifest.highest_step for manifest in listing.manifests]
    return HighestStep(max(step.full for step in steps), max(step.delta for step in steps))


def _write(state: ChainState, prefix: str, disk: Disk, on_write: OnWrite) -> PreparedBundle:
    reader, index = StateReader(state), StateIndex(state)
    roles = _roles(index)
    own = dict(_own_tensors(state, reader))
    layouts = [
        TensorLayout(name, value.dtype.name, value.shape, shard) for name, (shard, value) in own.items()
    ]
    for key in sorted(reader.newest_keys()):
        _require_owner(key, state, index)
        found = reader.type_of(key)
        if found is None:
            raise ChainError(f"no commit has all of {key!r}", hint="take a position that a full leads to")
        layouts.append(TensorLayout(key, found.dtype, found.shape, shard_of(roles[key])))
    directory = directory_of(state.run_dir, Kind.FULL)
    writer = BundleWriter(directory, prefix, layouts, shard_roles=SHARD_ROLES, disk=disk)
    try:
        for name, (_, value) in own.items():
            writer.write(name, value)
        for layout in layouts[len(own) :]:
            _copy(layout, reader, writer, on_write)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def _own_tensors(state: ChainState, reader: StateReader) -> Iterator[tuple[str, tuple[int, Array]]]:
    newest = state.newest
    for name, value in state_tensors(newest.node, newest.parent, newest.step).items():
        yield name, (shard_of(names.ROLE_SERVING), value)
    trainer_state = reader.newest_tensor(names.TRAINER_STATE_TENSOR)
    if trainer_state is not None:
        yield names.TRAINER_STATE_TENSOR, (shard_of(names.ROLE_TRAINING), trainer_state)


def _roles(index: StateIndex) -> Mapping[str, str]:
    """For each variable the role of the files that the newest delta has it in."""
    newest, found = index.num_links - 1, dict[str, str]()
    for name in index.names_in(newest):
        for suffix in (names.ROWS_SUFFIX, names.VALUE_SUFFIX):
            place = index.place(name, newest)
            if name.endswith(suffix) and place is not None:
                roles = {index.file(newest, extent.shard)[1].role for extent in place.extents}
                is_serving = names.ROLE_SERVING in roles
                found[name.removesuffix(suffix)] = names.ROLE_SERVING if is_serving else names.ROLE_TRAINING
    return found


def _require_owner(key: str, state: ChainState, index: StateIndex) -> None:
    """A slot may share the ids of its table, which its name tells, unless it could be that of two tables.

    Then only the model knows, and a full with the wrong rows would be worse than none. Raises ChainError.
    """
    owners = {table for table in possible_tables(key) if table in state.newest.tables}
    has_own = all(
        index.place(key + names.IDS_SUFFIX, rows.link) is not None
        for rows in index.places(key + names.ROWS_SUFFIX)
    )
    if not has_own and len(owners) > 1:
        raise ChainError(
            f"{key!r} may be a slot of any of {', '.join(sorted(owners))}: only its model tells which",
            hint="start its trainer, which makes a full by itself",
        )


def _copy(layout: TensorLayout, reader: StateReader, writer: BundleWriter, on_write: OnWrite) -> None:
    if not layout.shape or not layout.size:
        writer.write(layout.name, reader.value(layout.name))
        on_write(layout.size)
        return
    for first, rows in reader.slices(layout.name, _SLICE_BYTES):
        writer.write_rows(layout.name, first, rows)
        on_write(rows.nbytes)
