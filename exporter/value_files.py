"""The values of an export, streamed from the chain into the variables that TensorFlow saved without values.

A variable that is as large as a machine's memory passes through in slices. What comes out is an ordinary tensor bundle:
TensorFlow's own data file with all else that it saves, one more with the values, and one index for both.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from exporter.fingerprint import Fingerprint, Fingerprinting, Fingerprints, fingerprint
from exporter.signatures.variables import checkpoint_key
from hotdelta.chain.bundle.index import BundleIndex, encode_index, read_index
from hotdelta.chain.bundle.writer import BundleWriter, PreparedBundle, TensorLayout
from hotdelta.chain.disk import Disk, write_durably
from hotdelta.chain.format import names
from hotdelta.chain.format.schema import Schema
from hotdelta.chain.history.state import ChainState
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.chain.write_failure import translated
from hotdelta.logs import ProgressLog

# How much of the chain is in memory at a time.
SLICE_BYTES = 16 * 1024 * 1024
_FOLDER, _PREFIX, _VALUES_PREFIX = "variables", "variables", "values"


def write_values(directory: Path, schema: Schema, state: ChainState) -> Fingerprints:
    """Put the values of all variables into a SavedModel whose variables were saved empty.

    Of a growing table those are the rows in use. Returns what was read, for comparing it with what can be loaded.
    Raises CommitError when the disk fails.
    """
    folder, disk, reader = directory / _FOLDER, Disk(), StateReader(state)
    layouts = [
        TensorLayout(checkpoint_key(index), spec.dtype, state.newest.shape_of(spec), shard=0)
        for index, spec in enumerate(schema.variables)
    ]
    writer = BundleWriter(folder, _VALUES_PREFIX, layouts, shard_roles=[names.ROLE_SERVING], disk=disk)
    try:
        found = _copy_values(schema, layouts, reader, writer)
        values = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    with translated("writing the values of the export", folder):
        _merge(folder, values, disk)
    return found


def fingerprint_values(schema: Schema, state: ChainState) -> Fingerprints:
    """What a state of the chain holds."""
    reader = StateReader(state)
    return {
        spec.key: fingerprint(spec, (values for _, values in reader.slices(spec.key, SLICE_BYTES)))
        for spec in schema.variables
    }


def _copy_values(
    schema: Schema, layouts: list[TensorLayout], reader: StateReader, writer: BundleWriter
) -> dict[str, Fingerprint]:
    found: dict[str, Fingerprint] = {}
    done, progress = 0, ProgressLog("writing bytes of values", of=sum(layout.size for layout in layouts))
    for spec, layout in zip(schema.variables, layouts, strict=True):
        passing = Fingerprinting(spec)
        for first_row, values in reader.slices(spec.key, SLICE_BYTES):
            passing.add(values)
            if values.shape == layout.shape:
                writer.write(layout.name, values)
            else:
                writer.write_rows(layout.name, first_row, values)
            progress.tell(done := done + values.nbytes)
        found[spec.key] = passing.result()
    return found


def _merge(folder: Path, values: PreparedBundle, disk: Disk) -> None:
    """One bundle of TensorFlow's data file and ours, which becomes its last."""
    index_path = folder / names.index_name(_PREFIX)
    old = read_index(index_path)
    num_shards = old.num_shards + 1
    for shard in range(old.num_shards):
        before, after = (names.data_name(_PREFIX, shard, count) for count in (old.num_shards, num_shards))
        disk.rename(folder / before, folder / after)
    for file in values.files:
        temporary = folder / values.temporary_names[file.name]
        if file.role != names.ROLE_INDEX:
            disk.rename(temporary, folder / names.data_name(_PREFIX, old.num_shards, num_shards))
            continue
        entries = {
            name: replace(entry, shard=old.num_shards)
            for name, entry in read_index(temporary).entries.items()
        }
        write_durably(disk, temporary, encode_index(BundleIndex(num_shards, {**old.entries, **entries})))
        disk.rename(temporary, index_path)
