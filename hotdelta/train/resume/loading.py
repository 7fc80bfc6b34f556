"""Loading a saved state into a model: everything is checked first, and then every variable is set to its value."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotdelta.chain.format.position import Position
from hotdelta.chain.history.state import ChainState
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.logs import event
from hotdelta.terminal import progress_bars
from hotdelta.train.model.variables import ModelVariables, Table
from hotdelta.train.resume.fitting import (
    begins_anew,
    check_fits,
    read_slices,
    read_trainer_state,
    read_value,
)
from hotdelta.train.resume.server_reading import ServerReading
from hotdelta.train.resume.trainer_state import TrainerState
from hotdelta.train.tables.growth import write_first_rows
from hotdelta.train.tables.row_values import write_whole

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where training goes on: the position that was loaded, the trainer's progress there, and what was damaged.

    `state`: what was registered; `bookmark`: where the reader goes on, None when no batch carried one.
    """

    position: Position
    step: int
    epoch: int
    step_in_epoch: int
    state: Mapping[str, Any]
    problems: tuple[str, ...] = ()
    bookmark: Any = None


def load_state(
    saved: ChainState, variables: ModelVariables, *, on_servers: frozenset[str] = frozenset()
) -> tuple[TrainerState, frozenset[str]]:
    """Returns the trainer's progress there, and the keys of what began anew, because nothing of it is there.

    Raises ModelMismatchError; then nothing was changed. `on_servers`: tables whose rows are read by the parameter
    servers that hold them.
    """
    with progress_bars():
        reader = StateReader(saved)
        check_fits(reader, variables)
        state = read_trainer_state(reader)
        begun = load_variables(reader, variables, on_servers=on_servers)
    for problem in saved.problems:
        event(logger, logging.ERROR, "resuming before a damaged link", reason=problem)
    event(
        logger,
        logging.INFO,
        "resumed",
        position=saved.node,
        step=saved.newest.step,
        deltas=len(saved.deltas),
    )
    return state, begun


def describe_resumed(saved: ChainState, state: TrainerState) -> Resumed:
    return Resumed(
        position=saved.node.position,
        step=saved.newest.step,
        epoch=state.epoch,
        step_in_epoch=state.step_in_epoch,
        state=state.registered,
        problems=tuple(str(problem) for problem in saved.problems),
        bookmark=state.bookmark,
    )


def load_variables(
    reader: StateReader, variables: ModelVariables, *, on_servers: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Set every variable to its saved value, bit for bit. Returns the keys of what has none."""
    read = _read_by_servers(reader, [table for table in variables.tables if table.key in on_servers])
    begun = begins_anew(reader, variables)
    unknown = frozenset(id(item.variable) for item in begun)
    for table in variables.tables:
        for item in table.row_variables:
            if id(item.variable) in unknown:
                continue
            if item.growth is not None:
                write_first_rows(item.variable, read_slices(reader, item, owner=table.key))
            elif item.key not in read:
                write_whole(item.variable, read_value(reader, item, owner=table.key))
    for other in variables.others:
        if id(other.variable) not in unknown:
            write_whole(other.variable, read_value(reader, other))
    for table in variables.tables:
        if table.values.growth is not None:
            table.values.growth.note_loaded(except_for=unknown)
    return frozenset(item.key for item in begun)


def _read_by_servers(reader: StateReader, tables: Sequence[Table]) -> set[str]:
    """The row variables that the servers have read; when a server cannot read one, the others are not tried."""
    read: set[str] = set()
    if not tables:
        return read
    reading = ServerReading()
    for owner, item in ((table.key, item) for table in tables for item in table.row_variables):
        reason = reading.load(item, list(reader.stored_rows(item.key, owner=owner)))
        if reason is not None:
            phrase = "a parameter server cannot read the checkpoint; rows are sent"
            event(logger, logging.WARNING, phrase, reason=reason)
            return read
        read.add(item.key)
    event(logger, logging.INFO, "parameter servers read their rows", variables=len(read))
    return read
