"""A full into a model that serves nobody: read in slices of our own and written over all that the model holds.

TensorFlow's own restore opens files by name, which waits for a pipe, and holds a second copy of every table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hotdelta.chain.format import names
from loader.files.commit_files import VerifiedFiles
from loader.files.fed_update import empty_update
from loader.files.full_reader import FullReader
from loader.model.live_model import HALF_WRITTEN, LiveModel

Array = npt.NDArray[Any]


def fill_model(model: LiveModel, files: VerifiedFiles, *, slice_bytes: int) -> None:
    """For exports that take deltas. Raises ApplyError, DamagedError; then the model may hold no state any more."""
    manifest, schema = files.manifest, model.metadata.schema
    with FullReader(files) as full:
        for spec in schema.tables:
            for ids, rows in full.read_slices(spec, slice_bytes):
                update = empty_update(schema, node=HALF_WRITTEN, parent=model.held, step=0)
                update[spec.key + names.IDS_SUFFIX], update[spec.key + names.ROWS_SUFFIX] = ids, rows
                _write(model, update)
        values = {spec.key: full.read(spec)[np.newaxis] for spec in schema.others}
        full.require_unchanged()
    update = empty_update(schema, node=manifest.node, parent=model.held, step=manifest.step)
    update.update({key + names.VALUE_SUFFIX: value for key, value in values.items()})
    _write(model, update)


def _write(model: LiveModel, update: dict[str, Array]) -> None:
    model.stage_rows(update)
    model.apply()
