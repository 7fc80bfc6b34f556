"""Whether a model fits a saved state, and what its trainer left there. Nothing is changed, on disk or in the model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from hotdelta.chain.format import names
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.errors import DamagedError, ModelMismatchError
from hotdelta.train.model.id_rules import REMEDY, find_other_rules
from hotdelta.train.model.variables import ModelVariables, OtherVariable, RowVariable, Table
from hotdelta.train.resume.trainer_state import TrainerState
from hotdelta.train.tables.row_values import Array

SLICE_BYTES = 16 * 1024 * 1024


def check_fits(reader: StateReader, variables: ModelVariables) -> None:
    """Raises ModelMismatchError, which has a line for everything that does not fit."""
    other_rules = _find_other_rules(reader, variables)
    saved = reader.newest_keys()
    kept = {item.key for item in variables.everything()}
    # A trainer may go on without what the last one knew of rows and keys: it has no policy that asks.
    missing = sorted(
        key
        for key in saved - kept
        if key.removeprefix(names.USAGE_PREFIX) not in kept and not key.startswith(names.WAITING_PREFIX)
    )
    problems = [
        *find_misfits(reader, variables),
        *(f"{key}: the checkpoint has it, the model does not" for key in missing),
        *other_rules,
    ]
    if problems:
        raise ModelMismatchError(
            "the model does not fit the checkpoint: " + "; ".join(problems),
            problems=tuple(problems),
            hint=f"{REMEDY if other_rules else 'build the model and compile it as it was saved'}, or use another "
            "directory; nothing was changed",
        )


def begins_anew(reader: StateReader, variables: ModelVariables) -> list[RowVariable | OtherVariable]:
    """What this trainer wants to know of rows and keys, and the last one did not, or has more of than there is room."""
    saved = reader.newest_keys()
    usage = [
        item
        for item in variables.row_variables
        if item.key.startswith(names.USAGE_PREFIX) and item.key not in saved
    ]
    waiting = [item for item in variables.everything() if item.key.startswith(names.WAITING_PREFIX)]
    lost = {_waiting_of(item) for item in waiting if _problem(reader, item, saved, owner=item.key)}
    return [*usage, *(item for item in waiting if _waiting_of(item) in lost)]


def _waiting_of(item: RowVariable | OtherVariable) -> str:
    """Its counts are of no use without the table that they count, and the other way round."""
    return item.key.removesuffix(names.WAITING_COUNTS_SUFFIX)


def find_misfits(reader: StateReader, variables: ModelVariables) -> list[str]:
    """One line for each variable of the model that the checkpoint lacks, or has with another shape or dtype."""
    saved = reader.newest_keys()
    owners = {item.key: table.key for table in variables.tables for item in table.row_variables}
    begins = begins_anew(reader, variables)
    return [
        line
        for item in variables.everything()
        if item not in begins and (line := _problem(reader, item, saved, owner=owners.get(item.key, "")))
    ]


def read_trainer_state(reader: StateReader) -> TrainerState:
    """The trainer's progress. Raises DamagedError when the state has none."""
    tensor = reader.newest_tensor(names.TRAINER_STATE_TENSOR)
    if tensor is None:
        newest = reader.state.newest
        raise DamagedError(
            f"{newest.prefix} has no tensor {names.TRAINER_STATE_TENSOR!r}",
            path=reader.state.run_dir,
            position=str(newest.position),
        )
    return TrainerState.from_json(tensor.tobytes())


def read_value(reader: StateReader, item: RowVariable | OtherVariable, *, owner: str = "") -> Array:
    """The value of a variable, as TensorFlow's own numpy dtype. `owner`: the table that it is a slot of."""
    return reader.value(item.key, owner=owner, dtype=item.variable.dtype.as_numpy_dtype)


def read_slices(reader: StateReader, item: RowVariable, *, owner: str) -> Iterator[tuple[int, Array]]:
    """The same of a variable that grows, in pieces: (first row, rows)."""
    dtype = item.variable.dtype.as_numpy_dtype
    return reader.slices(item.key, SLICE_BYTES, owner=owner, dtype=dtype)


def read_table(reader: StateReader, table: Table) -> Iterator[tuple[RowVariable, Array]]:
    """Each row variable of the table with its value, one at a time (they are large)."""
    for item in table.row_variables:
        yield item, read_value(reader, item, owner=table.key)


def _problem(
    reader: StateReader, item: RowVariable | OtherVariable, saved: Collection[str], *, owner: str
) -> str | None:
    if item.key not in saved:
        return f"{item.key}: the model has it with shape {_show(item.shape)}, the checkpoint does not have it"
    found = reader.type_of(item.key, owner=owner)
    if found is None:
        return f"{item.key}: no link of the checkpoint has all of it"
    if isinstance(item, RowVariable) and item.growth is not None:
        if found.shape[0] > item.shape[0]:
            return (
                f"{item.key}: {found.shape[0]} rows in the checkpoint, room for {item.shape[0]} in the model"
            )
        if found.shape[1:] != item.shape[1:]:
            model, checkpoint = _show(item.shape[1:]), _show(found.shape[1:])
            return f"{item.key}: rows of {model} in the model, of {checkpoint} in the checkpoint"
    elif found.shape != item.shape:
        return f"{item.key}: shape {_show(item.shape)} in the model, {_show(found.shape)} in the checkpoint"
    if found.dtype != item.dtype:
        return f"{item.key}: dtype {item.dtype} in the model, {found.dtype} in the checkpoint"
    return None


def _find_other_rules(reader: StateReader, variables: ModelVariables) -> list[str]:
    if not variables.id_rules:
        return []
    return find_other_rules(variables.id_rules, read_trainer_state(reader).id_rules)


def _show(shape: Sequence[int]) -> str:
    return "x".join(str(size) for size in shape) or "scalar"
