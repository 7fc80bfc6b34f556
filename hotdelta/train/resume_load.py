"""Loading a resume point into a model: everything is checked first, and then every variable is put to its value."""

from __future__ import annotations

import logging
from pathlib import Path

from hotdelta.logs import event
from hotdelta.train.resume import ResumePoint, ResumeReader, check_fits
from hotdelta.train.row_values import write_whole
from hotdelta.train.trainer_state import TrainerState
from hotdelta.train.variables import ModelVariables
from hotdelta.train.writer_options import Resumed

logger = logging.getLogger(__name__)


def load_point(run_dir: Path, point: ResumePoint, variables: ModelVariables) -> TrainerState:
    """Returns the trainer's progress there. Raises ModelMismatchError; then nothing was changed."""
    with ResumeReader(run_dir, point) as reader:
        check_fits(reader, variables)
        state = reader.trainer_state()
        load_variables(reader, variables)
    for problem in point.problems:
        event(logger, logging.ERROR, "resuming before a damaged link", reason=problem)
    event(
        logger,
        logging.INFO,
        "resumed",
        position=point.node,
        step=point.newest.step,
        deltas=len(point.deltas),
    )
    return state


def describe_resumed(point: ResumePoint, state: TrainerState) -> Resumed:
    return Resumed(
        position=point.node.position,
        step=point.newest.step,
        epoch=state.epoch,
        step_in_epoch=state.step_in_epoch,
        state=state.registered,
        problems=tuple(str(problem) for problem in point.problems),
    )


def load_variables(reader: ResumeReader, variables: ModelVariables) -> None:
    """Put every variable to its value at the resume point, bit for bit."""
    for table in variables.tables:
        for item, values in reader.table_values(table):
            write_whole(item.variable, values)
    for other in variables.others:
        write_whole(other.variable, reader.other_value(other))
